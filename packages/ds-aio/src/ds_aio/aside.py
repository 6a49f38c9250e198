"""New files that take their name when they are whole."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import stat
import threading

from ds_aio.errors import transfer_error

log = logging.getLogger(__name__)

# Longer names are cut, so that the ending still fits.
_LONGEST_STEM = 200
# To give back the blocks of a file of this size takes long enough to be left to a thread.
LARGE = 256 << 20
_ENDING = rb"\.\d+\.[0-9a-f]{8}\.part"


class Aside:
    """An empty file beside `target` that will replace it, with the permissions of the old one.

    It is locked as long as its process lives. Making one removes what killed processes left beside
    the same target; files of live ones, also on other hosts of a shared file system with locks,
    are never touched.

    Attributes:
        path: Where the file is until `take_name`.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        folder, name = os.path.split(os.fsencode(target))
        stem = name[:_LONGEST_STEM]
        _sweep(folder, stem)
        self._stem = os.fsdecode(os.path.join(folder, stem))
        self.path, self._lock = _claim(self._stem)
        self._mode: int | None = None
        with contextlib.suppress(OSError):  # nothing there, or no permissions here
            self._mode = stat.S_IMODE(os.stat(target).st_mode)
            os.fchmod(self._lock, self._mode | stat.S_IRUSR | stat.S_IWUSR)

    def take_name(self) -> None:
        """Puts the file in the place of the target, in one step.

        A large file that was there has another name until a thread has removed it, soon after the
        return; should the process be killed before, the next `Aside` of the target does.
        """
        old = self._other_name()
        try:
            if self._mode is not None:
                with contextlib.suppress(OSError):
                    os.fchmod(self._lock, self._mode)
            os.replace(self.path, self._target)
        except BaseException:
            _remove(old)
            raise
        self._unlock()
        if old:
            try:
                threading.Thread(target=_remove, args=(old,), name="ds_aio remove").start()
            except RuntimeError:  # no more threads, or the interpreter ends
                _remove(old)

    def discard(self) -> None:
        """Removes the file."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self._unlock()

    def _unlock(self) -> None:
        # Taken before it is closed: an interrupt may come between, and its number go to others.
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _other_name(self) -> str:
        """A second name for a large target, so that replacing it does not remove it yet."""
        try:
            there = os.stat(self._target)
            if there.st_size < LARGE or there.st_nlink > 1:
                return ""
            other = _new_name(self._stem)
            os.link(self._target, other)
        except OSError:  # nothing there, or such links are not to be had
            return ""
        return other


def _new_name(stem: str) -> str:
    return f"{stem}.{os.getpid()}.{secrets.token_hex(4)}.part"


def _remove(path: str) -> None:
    try:
        if path:
            os.unlink(path)
    except FileNotFoundError:
        pass  # another save has swept it
    except OSError as error:
        log.warning("a replaced file stays as %r: %s", path, error.strerror)


def _claim(stem: str) -> tuple[str, int]:
    while True:
        path = _new_name(stem)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise transfer_error(error.errno or 0, "opening", path) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # a sweep took it for a leftover and is about to remove it
        except OSError:
            return path, lock  # no locks here, so that nobody sweeps either
        else:
            if os.fstat(lock).st_nlink:
                return path, lock
        os.close(lock)


def _sweep(folder: bytes, stem: bytes) -> None:
    leftover = re.compile(re.escape(stem) + _ENDING)
    try:
        names = os.listdir(folder or b".")
    except OSError:
        return  # making the new file tells what is wrong
    for name in names:
        if leftover.fullmatch(name):
            _remove_if_dead(os.path.join(folder, name))


def _remove_if_dead(path: bytes) -> None:
    # Gone already, held by a live process, not ours to open, or no locks here: it stays.
    with contextlib.suppress(OSError):
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
            log.info("removed %r, which a killed save left", os.fsdecode(path))
        finally:
            os.close(lock)
