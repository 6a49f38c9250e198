"""One file a layer: weights of a pipeline as other programs know them.

The names are those that converters of pipeline checkpoints look for. Runs of our own are saved and
resumed by `engine.save_checkpoint`, which also keeps the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from ds_core.errors import CheckpointError
from ds_pipeline.grid import PipelineParallelGrid


class FileEngine(Protocol):
    """What writes and reads a file, if not `torch.save` and `torch.load`."""

    def save(self, state_dict: dict[str, Any], path: str) -> Any: ...

    def load(self, path: str, map_location: Any = None) -> dict[str, Any]: ...


def path_of(folder: str | Path, layer: int, grid: PipelineParallelGrid, *, slices: str = "") -> str:
    """Where the weights of a layer are; `slices` replaces the part that names this rank's slice."""
    if not slices and grid.slice_parallel_size > 1:
        slices = f"-model_{grid.slice_id:02d}"
    return str(Path(folder) / f"layer_{layer:02d}{slices}-model_states.pt")


def paths_of(folder: str | Path, layer: int) -> list[str]:
    """The files that there are of a layer, one a slice, in order."""
    return sorted(str(path) for path in Path(folder).glob(f"layer_{layer:02d}*-model_states.pt"))


def save(
    layers: Sequence[Callable[..., Any]],
    paths: Sequence[str],
    engine: FileEngine | None,
    *,
    without_frozen: bool = False,
) -> None:
    """Write each layer that has a state."""
    for layer, path in zip(layers, paths, strict=True):
        if not isinstance(layer, nn.Module):
            continue
        frozen = {n for n, p in layer.named_parameters() if without_frozen and not p.requires_grad}
        state = {
            name: value.detach().clone()  # alone: a view would write all it is a view of
            for name, value in layer.state_dict().items()
            if name not in frozen
        }
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        if engine is None:
            torch.save(state, path)
        else:
            engine.save(state, path)


def load(
    layers: Sequence[Callable[..., Any]],
    paths: Sequence[str],
    engine: FileEngine | None,
    *,
    strict: bool = True,
) -> None:
    """Read each layer that has a state.

    Raises:
        CheckpointError: a file that is not there.
    """
    for layer, path in zip(layers, paths, strict=True):
        if not isinstance(layer, nn.Module):
            continue
        if not Path(path).is_file():
            raise CheckpointError(f"there is no {path}; save_state_dict() writes a file a layer")
        if engine is None:
            state = torch.load(path, map_location="cpu", weights_only=True)
        else:
            state = engine.load(path, map_location="cpu")
        layer.load_state_dict(state, strict=strict)
