"""Numeric formats of training: loss scaling, fp32 masters, casting, autocast."""

from ds_core.precision.master import MasterWeights
from ds_core.precision.scaler import DynamicLossScaler, LossScaler, StaticLossScaler
from ds_core.precision.settings import PrecisionSettings

__all__ = [
    "DynamicLossScaler",
    "LossScaler",
    "MasterWeights",
    "PrecisionSettings",
    "StaticLossScaler",
]
