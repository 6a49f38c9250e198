"""Where pipelines are found under their old import paths."""

from __future__ import annotations

_MODULE = {name: f"ds_pipeline:{name}" for name in ("PipelineModule", "LayerSpec", "TiedLayerSpec")}

_TOPOLOGY = (
    "PipeDataParallelTopology",
    "PipeModelDataParallelTopology",
    "PipelineParallelGrid",
    "ProcessTopology",
)

_INSTRUCTIONS = (
    "BackwardPass",
    "BufferOpInstruction",
    "ForwardPass",
    "LoadMicroBatch",
    "OptimizerStep",
    "PipeInstruction",
    "RecvActivation",
    "RecvGrad",
    "ReduceGrads",
    "ReduceTiedGrads",
    "SendActivation",
    "SendGrad",
)

_SCHEDULES = ("DataParallelSchedule", "InferenceSchedule", "PipeSchedule", "TrainSchedule")

_ADAPTED = "deepspeed.adapters.pipeline"

NAMES: dict[str, dict[str, str]] = {
    "deepspeed": {
        "PipelineModule": "ds_pipeline:PipelineModule",
        "PipelineEngine": f"{_ADAPTED}:PipelineEngine",
    },
    "deepspeed.pipe": _MODULE,
    "deepspeed.runtime.pipe": {**_MODULE, "ProcessTopology": "ds_pipeline:ProcessTopology"},
    "deepspeed.runtime.pipe.module": {
        **_MODULE,
        "PipelineError": "ds_pipeline:PipelineError",
    },
    "deepspeed.runtime.pipe.topology": {name: f"ds_pipeline:{name}" for name in _TOPOLOGY},
    "deepspeed.runtime.pipe.schedule": {
        **{name: f"ds_pipeline.instructions:{name}" for name in _INSTRUCTIONS},
        **{name: f"deepspeed.adapters.pipeline_schedules:{name}" for name in _SCHEDULES},
    },
    "deepspeed.runtime.pipe.engine": {
        "PipelineEngine": f"{_ADAPTED}:PipelineEngine",
        "is_even": "deepspeed.adapters.pipeline_schedules:is_even",
    },
    "deepspeed.runtime.pipe.p2p": {
        "send": "!values pass between stages inside of PipelineEngine; use torch.distributed.isend",
        "recv": "!values pass between stages inside of PipelineEngine; use torch.distributed.irecv",
    },
    "deepspeed.runtime.utils": {
        "partition_balanced": "ds_pipeline.partition:balanced",
        "partition_uniform": "ds_pipeline.partition:uniform",
    },
}
