"""Where scalars of a training run are written."""

from ds_profiler.monitors.comet import CometMonitor
from ds_profiler.monitors.csv import CsvMonitor
from ds_profiler.monitors.master import MonitorMaster
from ds_profiler.monitors.monitor import Event, Monitor
from ds_profiler.monitors.tensorboard import TensorBoardMonitor
from ds_profiler.monitors.wandb import WandbMonitor

__all__ = [
    "CometMonitor",
    "CsvMonitor",
    "Event",
    "Monitor",
    "MonitorMaster",
    "TensorBoardMonitor",
    "WandbMonitor",
]
