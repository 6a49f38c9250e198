"""Universal checkpoints: a folder a parameter, a file a slot."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from ds_core.checkpoint import open_checkpoint
from ds_core.contracts import BUFFER, WEIGHT, ShardReader
from ds_core.errors import DSError
from ds_zero.legacy_checkpoints import (
    LegacyCheckpoint,
    PieceReader,
    is_legacy,
    open_legacy,
    tag_folder,
)
from ds_zero.restricted import read_pt

_FP32 = "fp32"
_STATE = "universal_state.pt"


class NamedReader(ShardReader, Protocol):
    """A reader that knows ties and what was frozen."""

    def aliases(self, name: str) -> tuple[str, ...]: ...

    def frozen(self, name: str) -> bool: ...


def write_universal(
    reader: NamedReader,
    output: Path,
    *,
    facts: dict[str, Any] | None = None,
    counters: dict[str, int] | None = None,
) -> None:
    """Write every tensor of `reader` below `output`, one in memory at a time."""
    ties: dict[str, str] = {}
    buffers: dict[str, torch.Tensor] = {}
    for name in reader.names():
        slots = reader.slots(name)
        ties.update(dict.fromkeys(reader.aliases(name)[1:], name))
        if BUFFER in slots:
            buffers[name] = _whole(reader, name, BUFFER)
            continue
        folder = output / "zero" / name
        folder.mkdir(parents=True, exist_ok=True)
        for slot in slots:
            value = _whole(reader, name, slot)
            path = folder / f"{_FP32 if slot == WEIGHT else slot}.pt"
            if value.dim() == 0 and slot != WEIGHT:
                torch.save(value, path)
            else:
                torch.save({"param": value}, path)
    frozen = [name for name in reader.names() if reader.frozen(name)]
    state = {
        "buffers": buffers,
        "shared_params": ties,
        "frozen": frozen,
        "facts": facts or {},
        "counters": counters or {},
    }
    torch.save(state, output / _STATE)


def open_universal(
    folder: Path, *, group_names: Sequence[Sequence[str]] = (), unsafe: bool = False
) -> LegacyCheckpoint:
    """Open a universal checkpoint, ours or the reference's; files are mapped, not loaded."""
    reader = PieceReader(str(folder))
    found = LegacyCheckpoint(folder, reader)
    for path in sorted((folder / "zero").rglob(f"{_FP32}.pt")):
        name = str(path.parent.relative_to(folder / "zero"))
        for entry in path.parent.glob("*.pt"):
            value = read_pt(entry, unsafe=unsafe)
            value = value["param"] if isinstance(value, dict) else value
            slot = WEIGHT if entry.stem == _FP32 else entry.stem
            if torch.is_tensor(value):
                reader.put(name, slot, value.shape, [value.reshape(-1)])
            elif isinstance(value, (int, float)):
                reader.put(name, slot, (), [torch.tensor([float(value)])])
    if (folder / _STATE).is_file():
        state = read_pt(folder / _STATE, unsafe=unsafe)
        for name, buffer in state["buffers"].items():
            reader.put(name, BUFFER, buffer.shape, [buffer.reshape(-1)])
        for other, name in state["shared_params"].items():
            reader.alias(other, name)
        for name in state["frozen"]:
            reader.freeze(name)
        found.facts, found.counters = state["facts"], state["counters"]
    elif group_names:
        found.facts = {
            "param_groups": [{"params": list(names)} for names in group_names],
            "numbers": {},
        }
    return found


def open_foreign(
    directory: str | Path,
    tag: str | None = None,
    *,
    group_names: Sequence[Sequence[str]] = (),
    unsafe: bool = False,
) -> LegacyCheckpoint:
    """Open a checkpoint that the reference wrote, or a universal one; see `open_legacy`."""
    folder = tag_folder(Path(directory), tag)
    if (folder / "zero").is_dir():
        return open_universal(folder, group_names=group_names, unsafe=unsafe)
    return open_legacy(folder, group_names=group_names, unsafe=unsafe)


def convert(input_folder: str | Path, output_folder: str | Path, *, unsafe: bool = False) -> Path:
    """Turn a checkpoint (ours or the reference's) into a universal one; returns its folder."""
    source, output = Path(input_folder), Path(output_folder)
    output.mkdir(parents=True, exist_ok=True)
    if is_legacy(source):
        found = open_foreign(source, unsafe=unsafe)
        write_universal(found.reader, output, facts=found.facts, counters=found.counters)
    else:
        tag = source.name if (source / "manifest.json").is_file() else None
        with open_checkpoint(source.parent if tag else source, tag) as checkpoint:
            facts = checkpoint.state.get("strategy", {})
            write_universal(checkpoint.reader, output, facts=facts)
    (output.parent / "latest_universal").write_text(output.name)
    return output


def main(argv: Sequence[str] | None = None) -> int:
    """The command `ds_to_universal`."""
    parser = argparse.ArgumentParser(description="Make a universal checkpoint.")
    parser.add_argument("--input_folder", required=True, help="the folder of one checkpoint")
    parser.add_argument("--output_folder", required=True, help="where the universal one goes")
    parser.add_argument("--unsafe", action="store_true", help="unpickle with full power")
    ignored = ("--num_extract_workers", "--num_merge_workers")
    for option in ignored:
        parser.add_argument(option, type=int, default=1, help="no effect: tensors are streamed")
    parser.add_argument("--keep_temp_folder", action="store_true", help="no effect: there is none")
    parser.add_argument("--no_strict", dest="strict", action="store_false", help="no effect")
    parser.add_argument("--inject_missing_state", action="store_true", help="no effect")
    options = parser.parse_args(argv)
    try:
        convert(options.input_folder, options.output_folder, unsafe=options.unsafe)
    except (DSError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _whole(reader: ShardReader, name: str, slot: str) -> torch.Tensor:
    shape = torch.Size(reader.shape(name, slot))
    out = torch.empty(shape.numel(), dtype=reader.dtype(name, slot))
    reader.read(name, slot, 0, out)
    return out.view(shape)


if __name__ == "__main__":
    sys.exit(main())
