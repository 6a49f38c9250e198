"""Save a checkpoint: written aside by all ranks, named when it is complete."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ds_core import __version__
from ds_core.checkpoint.directory import SavingFolder, check_tag, write_durably
from ds_core.checkpoint.documents import Encoder
from ds_core.checkpoint.manifest import MANIFEST, Manifest, dump_manifest, merge_tensors
from ds_core.checkpoint.ranks import Ranks, SoloRank, together
from ds_core.checkpoint.write import (
    Progress,
    TensorWriter,
    index_path,
    read_index,
    write_document,
    write_index,
    write_pieces,
)
from ds_core.contracts.shard import TensorShard
from ds_core.errors import CheckpointError, ConfigError, RankMismatchError


def save(
    directory: str | os.PathLike[str],
    tag: str,
    *,
    shards: Iterable[TensorShard],
    state: Mapping[str, Any] | None = None,
    client_state: Mapping[str, Any] | None = None,
    rank_state: Mapping[str, Any] | None = None,
    comm: Ranks | None = None,
    save_latest: bool = True,
    tensor_writer: TensorWriter | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write checkpoint `directory/tag`; all ranks of `comm` call this, and all return or raise.

    A kill at any instant leaves the checkpoints that were there before loadable, also one of the
    same tag. Nothing is pickled; a value that JSON (with the additions of `documents`) does not
    hold is refused by its path before anything is written.

    Args:
        directory: on a file system that all ranks share; made if missing.
        shards: over all ranks, each element of each tensor exactly once. Read once, in order; one
            piece is held at a time. Give a list where the pieces are in memory anyway: it goes
            into one file a kind.
        state: the trainer's own state; that of rank 0 is stored.
        client_state: the user's; that of rank 0 is stored.
        rank_state: this rank's (random generators, sampler).
        comm: the ranks that save together; None for a program that runs alone.
        save_latest: name this checkpoint in `directory/latest`.
        tensor_writer: called as `tensor_writer(path, tensors)` to write a safetensors file to the
            disk, instead of the built-in writer; then `shards` must all be in memory at once.
        progress: called with the number of bytes just written, as `tqdm.update`.

    Returns:
        The folder of the checkpoint.

    Raises:
        ConfigError: a bad tag, or a value that cannot be stored.
        RankMismatchError: ranks that differ in tag, directory or the description of a tensor.
        CheckpointError: an element in no piece or in two; a rank that failed; a full disk.
    """
    ranks = comm or SoloRank()
    documents = Documents.of(state, client_state, rank_state)
    pending = prepare(directory, tag, documents, ranks=ranks, save_latest=save_latest)
    try:
        with together(ranks, f"writing checkpoint {pending.path}"):
            pending.write(shards, tensor_writer=tensor_writer, progress=progress)
        with together(ranks, f"publishing checkpoint {pending.path}"):
            pending.publish()
    except BaseException:
        pending.discard()
        raise
    return pending.path


@dataclass
class Documents:
    """The states of one rank, encoded; a value that cannot be stored is `fault`."""

    encoded: dict[str, tuple[Encoder, Any]] = field(default_factory=dict)
    fault: ConfigError | None = None

    @classmethod
    def of(
        cls,
        state: Mapping[str, Any] | None,
        client_state: Mapping[str, Any] | None,
        rank_state: Mapping[str, Any] | None,
        *,
        copy: bool = False,
    ) -> Documents:
        """`copy` detaches the tensors in them from the caller's."""
        made = cls()
        given = {"state": state, "client_state": client_state, "rank_state": rank_state}
        try:
            for stem, value in given.items():
                if value is not None and not isinstance(value, Mapping):
                    raise ConfigError(
                        f"{stem} is of type {type(value).__name__}; give a dict of the values"
                    )
                encoder = Encoder(copy=copy)
                content = encoder.encode(None if value is None else dict(value), stem)
                made.encoded[stem] = (encoder, content)
        except ConfigError as error:
            made.fault = error
        return made


@dataclass
class PendingSave:
    """A checkpoint on its way to the disk, as one rank sees it."""

    path: Path
    folder: Path
    saving: SavingFolder | None
    documents: Documents
    rank: int
    world_size: int
    save_latest: bool

    def write(
        self,
        shards: Iterable[TensorShard],
        *,
        tensor_writer: TensorWriter | None,
        progress: Progress | None,
    ) -> None:
        """Write all that this rank contributes, its index last."""
        files, tensors = write_pieces(
            self.folder, self.rank, shards, tensor_writer=tensor_writer, progress=progress
        )
        for stem, (encoder, content) in self.documents.encoded.items():
            if stem == "rank_state":
                stem = f"rank_state.rank{self.rank:05d}"
            elif self.rank != 0:
                continue
            files += write_document(self.folder, stem, encoder, content)
        write_index(self.folder, self.rank, files, tensors)

    def written_by(self, rank: int) -> bool:
        """True once that rank has written its part."""
        return index_path(self.folder, rank).exists()

    def written(self) -> bool:
        """True once all ranks have written their parts."""
        return all(self.written_by(rank) for rank in range(self.world_size))

    def publish(self) -> None:
        """On rank 0: merge the indices into the manifest and give the folder its name."""
        if self.saving is None:
            return
        indices = [read_index(self.folder, rank) for rank in range(self.world_size)]
        manifest = Manifest(
            tag=self.saving.tag,
            world_size=self.world_size,
            files=tuple(file for files, _ in indices for file in files),
            tensors=merge_tensors(tensors for _, tensors in indices),
            versions={
                "ds_core": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            created=time.time(),
        )
        write_durably(self.folder / MANIFEST, dump_manifest(manifest))
        for rank in range(self.world_size):
            index_path(self.folder, rank).unlink()
        self.saving.publish(save_latest=self.save_latest)

    def discard(self) -> None:
        """Remove what was not published; idempotent."""
        if self.saving is not None:
            self.saving.discard()


def prepare(
    directory: str | os.PathLike[str],
    tag: str,
    documents: Documents,
    *,
    ranks: Ranks,
    save_latest: bool,
) -> PendingSave:
    """Check that all ranks mean the same checkpoint, and make the folder it is written in."""
    doing = f"saving checkpoint {tag!r}"
    root = Path(directory)
    with together(ranks, doing):
        check_tag(tag)
        if documents.fault is not None:
            raise documents.fault
    _check_agreement(ranks, {"tag": tag, "directory": str(root), "save_latest": save_latest})
    saving = None
    with together(ranks, doing):
        if ranks.rank == 0:
            saving = SavingFolder(root, tag)
    place = str(saving.path) if saving else None
    folder = Path(ranks.broadcast_object(place, 0, label=doing))
    with together(ranks, doing):
        if not folder.is_dir():
            raise CheckpointError(
                f"rank {ranks.rank} does not see {folder}, made by rank 0: "
                "checkpoints go to a file system that all ranks share"
            )
    return PendingSave(
        root / tag, folder, saving, documents, ranks.rank, ranks.world_size, save_latest
    )


def _check_agreement(ranks: Ranks, facts: Mapping[str, Any]) -> None:
    everyone = ranks.all_gather_object(dict(facts), label="saving a checkpoint: every rank must")
    for what, mine in facts.items():
        values = [other[what] for other in everyone]
        if any(value != mine for value in values):
            held = ", ".join(f"rank {rank}: {value!r}" for rank, value in enumerate(values))
            raise RankMismatchError(f"ranks save with different {what} ({held})")
