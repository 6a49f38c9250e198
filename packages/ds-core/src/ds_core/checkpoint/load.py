"""Open a checkpoint: verified before anything in it is used."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ds_core.checkpoint.directory import find, read_latest
from ds_core.checkpoint.documents import decode
from ds_core.checkpoint.manifest import Manifest, check_manifest, read_manifest
from ds_core.checkpoint.ranks import Ranks, SoloRank, together
from ds_core.checkpoint.reader import CheckpointReader, OpenFiles
from ds_core.checkpoint.tensor_file import bytes_of, read_header
from ds_core.checkpoint.verify import verify_content, verify_sizes
from ds_core.errors import CheckpointError, RankMismatchError


class Checkpoint:
    """An open checkpoint. Close it, or use it as a context manager.

    Attributes:
        path: its folder.
        tag: its name.
        manifest: what it holds.
        reader: its tensors, by name and range.
        state: the trainer's state.
    """

    def __init__(self, path: Path, manifest: Manifest, *, world_size: int) -> None:
        self.path = path
        self.tag = manifest.tag
        self.manifest = manifest
        self._world_size = world_size
        self._files = OpenFiles(path)
        self.reader = CheckpointReader(self._files, manifest.tensors)
        self.state: dict[str, Any] = self._document("state") or {}

    def client_state(self) -> dict[str, Any]:
        """The user's state. Nothing in it was ever pickled; tensors lie in host memory."""
        return self._document("client_state") or {}

    def rank_state(self, rank: int, *, world_size: int | None = None) -> dict[str, Any] | None:
        """What that rank saved, or None if it saved nothing or the number of ranks differs.

        `world_size` is that of the ranks that opened the checkpoint unless it is given.
        """
        if self.manifest.world_size != (world_size or self._world_size):
            return None
        found: dict[str, Any] | None = self._document(f"rank_state.rank{rank:05d}")
        return found

    def close(self) -> None:
        """Close the files; idempotent."""
        self._files.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _document(self, stem: str) -> Any:
        path = self.path / f"{stem}.json"
        names = {file.name for file in self.manifest.files}
        if path.name not in names:
            return None
        try:
            content = json.loads(path.read_bytes())
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
        beside = path.with_suffix(".safetensors")
        header, entries = read_header(beside) if beside.name in names else (0, {})

        def tensor(key: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
            out = torch.empty(shape, dtype=dtype)
            start, stop = entries[key]["data_offsets"]
            if stop > start:
                self._files.read(beside.name, header + start, bytes_of(out).numpy().data)
            return out

        return decode(content, tensor)


def open_checkpoint(
    directory: str | os.PathLike[str],
    tag: str | None = None,
    *,
    verify: bool = True,
    comm: Ranks | None = None,
) -> Checkpoint:
    """Open `directory/tag`; all ranks of `comm` call this, and all return or raise.

    Args:
        directory: the folder that was saved to.
        tag: which checkpoint; None for the one named in `latest`.
        verify: read everything once and compare checksums (the ranks share the work). Presence
            and sizes of the files, and that each element is stored once, are always checked.
        comm: the ranks that load together; None for a program that runs alone.

    Raises:
        CheckpointError: there is none, or it is damaged; the message names what and where.
        RankMismatchError: ranks that ask for different tags.
    """
    ranks = comm or SoloRank()
    root = Path(directory)
    asked = ranks.all_gather_object(tag, label="loading a checkpoint: every rank must")
    if any(other != tag for other in asked):
        held = ", ".join(f"rank {rank}: {other!r}" for rank, other in enumerate(asked))
        raise RankMismatchError(f"ranks load different tags ({held})")
    folder: Path | None = None
    with together(ranks, f"finding a checkpoint in {root}"):
        if ranks.rank == 0:
            folder = find(root, read_latest(root) if tag is None else tag)
    folder = Path(ranks.broadcast_object(str(folder), 0, label="loading a checkpoint"))
    with together(ranks, f"opening checkpoint {folder}"):
        manifest = read_manifest(folder)
        verify_sizes(folder, manifest)
        check_manifest(manifest)
        if verify:
            verify_content(folder, manifest, part=ranks.rank, parts=ranks.world_size)
        opened = Checkpoint(folder, manifest, world_size=ranks.world_size)
    return opened
