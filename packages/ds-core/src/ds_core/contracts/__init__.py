"""The protocols through which packages meet; implementers need not import them."""

from ds_core.contracts.comm import CommEvent, CommObserver
from ds_core.contracts.hook import Hook, StepEvent
from ds_core.contracts.optimizer import FlatStep, OptimizerFactory
from ds_core.contracts.schedule import Schedule
from ds_core.contracts.shard import BUFFER, WEIGHT, ShardReader, TensorShard
from ds_core.contracts.store import Pending, TensorStore
from ds_core.contracts.strategy import Divisor, LoadWhat, StepReport, UpdateStrategy

__all__ = [
    "BUFFER",
    "WEIGHT",
    "CommEvent",
    "CommObserver",
    "Divisor",
    "FlatStep",
    "Hook",
    "LoadWhat",
    "OptimizerFactory",
    "Pending",
    "Schedule",
    "ShardReader",
    "StepEvent",
    "StepReport",
    "TensorShard",
    "TensorStore",
    "UpdateStrategy",
]
