"""ZeRO for PyTorch: optimizer state, gradients and parameters sharded over ranks."""

from ds_zero.factory import make
from ds_zero.fully_sharded import FullySettings, FullySharded
from ds_zero.gathered import (
    GatheredParameters,
    register_external_parameter,
    unregister_external_parameter,
)
from ds_zero.init import Init
from ds_zero.leaves import set_z3_leaf_modules
from ds_zero.params import ZeroParamStatus
from ds_zero.sections import ZeroSection
from ds_zero.sharded import Sharded, ShardedSettings
from ds_zero.strategy import Offload, Setup
from ds_zero.tiling import TiledLinear

__version__ = "0.1.0"
__all__ = [
    "FullySettings",
    "FullySharded",
    "GatheredParameters",
    "Init",
    "Offload",
    "Setup",
    "Sharded",
    "ShardedSettings",
    "TiledLinear",
    "ZeroParamStatus",
    "ZeroSection",
    "make",
    "register_external_parameter",
    "set_z3_leaf_modules",
    "unregister_external_parameter",
]
