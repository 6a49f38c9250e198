"""Private directories that belong to live processes; those of dead ones are removed."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from ds_aio.errors import transfer_error

log = logging.getLogger(__name__)

_PREFIX = "ds_aio_store."
_LOCK = "lock"
_GATE = ".ds_aio_store.lock"


class Lease:
    """A fresh directory below `parent`, held by a file lock that the kernel drops with the process.

    Making a lease removes the directories whose process is gone, however it ended. Those of live
    processes, also on other hosts of a shared file system with locks, are never touched.
    """

    def __init__(self, parent: str | os.PathLike[str]) -> None:
        self._process = os.getpid()
        root = Path(parent).absolute()
        try:
            self._make(root)
        except OSError as error:
            raise transfer_error(error.errno or 0, "making a store", str(root)) from None

    def _make(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        with _gate(root):
            self.removed = _sweep(root)
            self.path = root / f"{_PREFIX}{self._process}.{secrets.token_hex(6)}"
            self.path.mkdir(mode=0o700)
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                log.warning("no file locks in %s (%s): leftovers will stay there", root, error)

    def release(self) -> None:
        """Deletes the directory. Does nothing in a forked child, or when called again."""
        if self._lock < 0 or os.getpid() != self._process:
            return
        lock, self._lock = self._lock, -1
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(lock)


@contextlib.contextmanager
def _gate(root: Path) -> Iterator[None]:
    """Keeps a sweep from meeting a directory that is made but not locked yet."""
    gate = os.open(root / _GATE, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(OSError):  # a file system without locks has no sweep either
            fcntl.flock(gate, fcntl.LOCK_EX)
        yield
    finally:
        os.close(gate)


def _sweep(root: Path) -> list[Path]:
    stale = [path for path in root.glob(f"{_PREFIX}*") if path.is_dir() and not _alive(path)]
    for path in stale:
        log.info("removing %s, whose process is gone", path)
        shutil.rmtree(path, ignore_errors=True)
    return stale


def _alive(path: Path) -> bool:
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # not ours to judge
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
