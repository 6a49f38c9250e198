"""Whole fp32 weights out of a checkpoint, ours or the reference's."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.checkpoint import open_checkpoint
from ds_core.contracts import BUFFER, WEIGHT, ShardReader
from ds_core.errors import CheckpointError
from ds_zero import recover
from ds_zero.legacy_checkpoints import is_legacy
from ds_zero.universal import open_foreign


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: str | Path,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> dict[str, Tensor]:
    """All parameters in fp32 and all buffers, under every name; tied ones share memory.

    Args:
        checkpoint_dir: the folder that was saved to.
        tag: which checkpoint; None for the latest.
        exclude_frozen_parameters: leave out what was not trained.
        lazy_mode: accepted; tensors are read one by one anyway.
    """
    folder = _folder(Path(checkpoint_dir), tag)
    if is_legacy(folder):
        reader: Any = open_foreign(folder).reader
        return _state_dict(reader, exclude_frozen_parameters)
    with open_checkpoint(folder.parent, folder.name) as checkpoint:
        return _state_dict(checkpoint.reader, exclude_frozen_parameters)


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str | Path,
    output_dir: str | Path,
    max_shard_size: str | int | None = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> list[Path]:
    """Write the weights as ordinary files of at most `max_shard_size` each; returns them.

    Memory holds a few megabytes for safetensors, one output file otherwise.
    """
    folder = _folder(Path(checkpoint_dir), tag)
    if is_legacy(folder):
        return _export_legacy(
            folder, Path(output_dir), max_shard_size, safe_serialization, exclude_frozen_parameters
        )
    return recover.export(
        folder,
        output_dir,
        max_shard_size=max_shard_size,
        safe_serialization=safe_serialization,
        exclude_frozen=exclude_frozen_parameters,
    )


def load_state_dict_from_zero_checkpoint(
    model: nn.Module, checkpoint_dir: str | Path, tag: str | None = None
) -> nn.Module:
    """Load the weights of a checkpoint into a whole model, strictly."""
    model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag))
    return model


def main(argv: Sequence[str] | None = None) -> int:
    """The command `zero_to_fp32`: like the script beside a checkpoint, and for old ones too."""
    options = recover.parse(argv)
    try:
        written = convert_zero_checkpoint_to_fp32_state_dict(
            options.checkpoint_dir,
            options.output_dir,
            max_shard_size=options.max_shard_size,
            safe_serialization=options.safe_serialization,
            tag=options.tag,
            exclude_frozen_parameters=options.exclude_frozen_parameters,
        )
    except (CheckpointError, recover.RecoveryError, OSError, ValueError) as error:
        if options.debug:
            raise
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0


def _folder(root: Path, tag: str | None) -> Path:
    if not root.is_dir():
        raise CheckpointError(f"{root} is no folder; give the one that was saved to")
    if tag is None and (is_legacy(root) or (root / "manifest.json").is_file()):
        return root
    if tag is None:
        try:
            tag = (root / "latest").read_text().strip()
        except FileNotFoundError:
            raise CheckpointError(f"{root / 'latest'} is missing: pass a tag") from None
    if not (root / tag).is_dir():
        raise CheckpointError(f"{root} holds no checkpoint {tag!r}")
    return root / tag


def _state_dict(reader: Any, exclude_frozen: bool) -> dict[str, Tensor]:
    """`reader` is a `ShardReader` that also knows aliases and frozen flags."""
    state: dict[str, Tensor] = {}
    for name in reader.names():
        slot = WEIGHT if WEIGHT in reader.slots(name) else BUFFER
        if slot not in reader.slots(name) or (exclude_frozen and reader.frozen(name)):
            continue
        state.update(dict.fromkeys(reader.aliases(name), _fp32(reader, name, slot)))
    return state


def _fp32(reader: ShardReader, name: str, slot: str) -> Tensor:
    shape, dtype = torch.Size(reader.shape(name, slot)), reader.dtype(name, slot)
    target = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    out = torch.empty(shape.numel(), dtype=target)
    reader.read(name, slot, 0, out)
    return out.view(shape)


def _export_legacy(
    folder: Path, output: Path, limit: str | int | None, safe: bool, exclude_frozen: bool
) -> list[Path]:
    reader = open_foreign(folder).reader
    state = _state_dict(reader, exclude_frozen)
    output.mkdir(parents=True, exist_ok=True)
    weights = [
        recover.Weight(
            name, tuple(t.shape), str(t.dtype).removeprefix("torch."), (("", 0, t.numel()),)
        )
        for name, t in state.items()
    ]
    files = recover.split(weights, recover.size_in_bytes(limit))
    return recover.write_files(
        files, output, safe, lambda members, path: _write(state, members, path, safe)
    )


def _write(
    state: Mapping[str, Tensor], members: Sequence[recover.Weight], path: Path, safe: bool
) -> None:
    chosen = {member.name: state[member.name] for member in members}
    if not safe:
        torch.save(chosen, path)
        return
    from safetensors.torch import save_file

    save_file({name: tensor.clone() for name, tensor in chosen.items()}, path)


if __name__ == "__main__":
    sys.exit(main())
