"""Saves while training goes on: a copy in host memory, written by a thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ds_core.checkpoint.directory import write_durably
from ds_core.checkpoint.ranks import Ranks, SoloRank, raise_together
from ds_core.checkpoint.store import Documents, PendingSave, prepare
from ds_core.checkpoint.write import Progress, TensorWriter
from ds_core.contracts.shard import TensorShard
from ds_core.errors import CheckpointError, StateError

_POLL = 0.02


class AsyncSaver:
    """Saves in the background, at most one checkpoint at a time.

    `save` returns once the state is copied to host memory (the copies are used again by the next
    save). A thread writes it: Python's lock is free while bytes go to the disk or into a
    checksum. The thread makes no collective calls, so training may: the ranks meet through the
    files they write. An error of the background is raised by the next `save`, `wait` or `close`,
    on all ranks; all ranks make these calls alike.
    """

    def __init__(self, *, comm: Ranks | None = None, timeout: float = 3600.0) -> None:
        """`timeout`: seconds that rank 0 waits for the files of the others."""
        self._ranks: Ranks = comm or SoloRank()
        self._timeout = timeout
        self._copies: dict[tuple[str, str, int], Tensor] = {}
        self._pending: PendingSave | None = None
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._closed = False

    def save(
        self,
        directory: str | os.PathLike[str],
        tag: str,
        *,
        shards: Iterable[TensorShard],
        state: Mapping[str, Any] | None = None,
        client_state: Mapping[str, Any] | None = None,
        rank_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        tensor_writer: TensorWriter | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Start writing `directory/tag`, after an earlier save has finished.

        Arguments and errors as in `ds_core.checkpoint.save`; `progress` is called from the
        thread. The returned folder exists once `wait` has returned.
        """
        if self._closed:
            raise StateError("this AsyncSaver has been closed")
        self.wait()
        documents = Documents.of(state, client_state, rank_state, copy=True)
        pending = prepare(directory, tag, documents, ranks=self._ranks, save_latest=save_latest)
        self._pending, self._failure = pending, None
        try:
            copied = self._snapshot(shards)
        except Exception as error:  # raised by `wait`, when the other ranks are there to hear it
            self._failure = error
            _report_failure(pending, error)
            return pending.path
        self._thread = threading.Thread(
            target=self._run, args=(pending, copied, tensor_writer, progress), name="checkpoint"
        )
        self._thread.start()
        return pending.path

    def done(self) -> bool:
        """True if `wait` would not have to wait for this rank's own part."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> Path | None:
        """Block until the save in flight is complete on all ranks; its folder, or None."""
        pending = self._pending
        if pending is None:
            return None
        if self._thread is not None:
            self._thread.join()
        self._pending, self._thread = None, None
        try:
            raise_together(self._ranks, f"saving {pending.path}", self._failure)
        finally:
            pending.discard()
        return pending.path

    def close(self) -> None:
        """Finish the save in flight and let go of the copies; idempotent."""
        self._closed = True
        try:
            self.wait()
        finally:
            self._copies.clear()

    def __enter__(self) -> AsyncSaver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _snapshot(self, shards: Iterable[TensorShard]) -> list[TensorShard]:
        copied, kept, pinned = [], {}, False
        for shard in shards:
            key, piece = (shard.name, shard.slot, shard.start), shard.piece.detach()
            copy = self._copies.get(key)
            pin = piece.device.type == "cuda"
            pinned = pinned or pin
            if copy is None or copy.dtype != piece.dtype or copy.shape != piece.shape:
                copy = torch.empty(piece.shape, dtype=piece.dtype, pin_memory=pin)
            kept[key] = copy
            copy.copy_(piece, non_blocking=True)
            copied.append(replace(shard, piece=copy))
        if pinned:
            torch.accelerator.synchronize()
        self._copies = kept
        return copied

    def _run(
        self,
        pending: PendingSave,
        shards: list[TensorShard],
        tensor_writer: TensorWriter | None,
        progress: Progress | None,
    ) -> None:
        try:
            pending.write(shards, tensor_writer=tensor_writer, progress=progress)
            if pending.rank == 0:
                self._await_others(pending)
                pending.publish()
        except Exception as error:  # raised by `wait`
            self._failure = error
            _report_failure(pending, error)

    def _await_others(self, pending: PendingSave) -> None:
        deadline = time.monotonic() + self._timeout
        while not pending.written():
            for note in pending.folder.glob("failed.rank*"):
                raise CheckpointError(
                    f"another rank failed to write its part of {pending.path}: {note.read_text()}"
                )
            if time.monotonic() > deadline:
                missing = [r for r in range(pending.world_size) if not pending.written_by(r)]
                raise CheckpointError(
                    f"ranks {missing} have not written their part of {pending.path} "
                    f"after {self._timeout:g} s"
                )
            time.sleep(_POLL)


def _report_failure(pending: PendingSave, error: Exception) -> None:
    """Leave a note for rank 0, which waits; on a full disk there must be made room for it."""
    if pending.rank == 0 or not pending.folder.is_dir():
        return
    for part in pending.folder.glob(f"*.rank{pending.rank:05d}.*"):
        part.unlink()
    text = f"rank {pending.rank}: {type(error).__name__}: {error}"
    with suppress(OSError):  # an empty note says enough, and `wait` raises this rank's error
        write_durably(pending.folder / f"failed.rank{pending.rank:05d}", text.encode())
