"""The part of the JSON configuration that this package acts on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


def _setting(default: Any, doc: str, **rules: Any) -> Any:
    return field(default=default, metadata={"doc": doc, **rules})


@dataclass(frozen=True)
class PipelineSection:
    """How a `PipelineModule` is run; most of it is said where the module is made."""

    stages: int | None = _setting(
        None, "must equal the stages of the module; auto takes them", ge=1, auto=True
    )
    partition: str = _setting(
        "best", "must equal the module's partition_method; best takes it as it is"
    )
    seed_layers: bool = _setting(False, "must be set on the module too")
    activation_checkpoint_interval: int = _setting(
        0, "recompute activations by runs of so many layers; 0 leaves the module's setting", ge=0
    )
    pipe_partitioned: bool = _setting(
        True, "no effect on results: values pass between stages whole"
    )
    grad_partitioned: bool = _setting(
        True, "no effect on results: gradients pass between stages whole"
    )
    use_reentrant: bool = _setting(
        False, "recompute with reentrant autograd, which the schedule zb-h1 cannot split"
    )
    schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1"] | None = _setting(
        None, "order of the work; null: 1f1b, or interleaved for a module of several chunks"
    )
    record: bool = _setting(False, "note when each computation runs, for engine.recorded()")
