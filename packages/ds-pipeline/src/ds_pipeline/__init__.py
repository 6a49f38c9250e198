"""Pipeline parallelism: models in stages, schedules as data, an engine that runs them."""

from ds_pipeline.engine import PipelineEngine, PipelineSettings
from ds_pipeline.errors import PartitionError, PipelineError, ScheduleError
from ds_pipeline.grid import PipelineParallelGrid
from ds_pipeline.module import PipelineModule
from ds_pipeline.partition import balanced
from ds_pipeline.schedules import SCHEDULES, plan, plan_inference
from ds_pipeline.simulate import Costs, Span, Timeline, simulate
from ds_pipeline.specs import LayerSpec, TiedLayerSpec
from ds_pipeline.topology import (
    PipeDataParallelTopology,
    PipeModelDataParallelTopology,
    ProcessTopology,
)

__version__ = "0.1.0"

__all__ = [
    "SCHEDULES",
    "Costs",
    "LayerSpec",
    "PartitionError",
    "PipeDataParallelTopology",
    "PipeModelDataParallelTopology",
    "PipelineEngine",
    "PipelineError",
    "PipelineModule",
    "PipelineParallelGrid",
    "PipelineSettings",
    "ProcessTopology",
    "ScheduleError",
    "Span",
    "TiedLayerSpec",
    "Timeline",
    "balanced",
    "plan",
    "plan_inference",
    "simulate",
]
