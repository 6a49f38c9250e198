"""Errors of ds_aio."""

from __future__ import annotations

import errno
import os


class AioError(Exception):
    """Root of every error this package raises on purpose."""


class UnfitBuffer(AioError, ValueError):
    """A buffer cannot take part in a transfer: wrong layout, read-only, too small, freed."""


class BackendUnavailable(AioError, RuntimeError):
    """A backend was demanded that this host does not offer."""


class StoreError(AioError, RuntimeError):
    """A tensor store cannot serve the request."""


class TransferError(AioError, OSError):
    """A file operation failed.

    Attributes:
        errno, strerror, filename: As in `OSError`; errno 0 means that the file was too short.
        offset: File offset at which the fault showed.
        wanted: Bytes the request asked for.
        done: Bytes that were moved all the same; which ones is not defined.
    """

    def __init__(
        self,
        number: int,
        action: str,
        path: str,
        *,
        offset: int = 0,
        wanted: int = 0,
        done: int = 0,
    ) -> None:
        text = os.strerror(number) if number else "file ends too early"
        super().__init__(number, text, path)
        self.action = action
        self.offset = offset
        self.wanted = wanted
        self.done = done

    def __str__(self) -> str:
        hint = _HINTS.get(self.errno or 0, "")
        return (
            f"{self.action} of {self.wanted} bytes, {self.filename!r}: {self.strerror} at offset "
            f"{self.offset} ({self.done} of {self.wanted} bytes done){hint}"
        )


class MissingFile(TransferError, FileNotFoundError):
    """The file to read does not exist, or the folder to write into."""


class AccessDenied(TransferError, PermissionError):
    """The permissions of the file or folder forbid the operation."""


class IsFolder(TransferError, IsADirectoryError):
    """A folder where a file is needed."""


class ShortFile(TransferError, EOFError):
    """The file has fewer bytes than were to be read."""


_HINTS = {
    errno.ENOSPC: "; free some space or write elsewhere",
    errno.EDQUOT: "; the disk quota is used up",
    errno.EFBIG: "; RLIMIT_FSIZE (ulimit -f) or the file system limits the size of a file",
    errno.EMFILE: "; RLIMIT_NOFILE (ulimit -n) limits the number of open files",
    errno.ESPIPE: "; only regular files and block devices can be used",
    errno.EACCES: "; check the permissions of the file and of its folder",
    errno.EROFS: "; the file system is mounted read-only",
    errno.EIO: "; the device reports an error, see the kernel log",
}

_CLASSES: dict[int, type[TransferError]] = {
    0: ShortFile,
    errno.ENOENT: MissingFile,
    errno.EACCES: AccessDenied,
    errno.EPERM: AccessDenied,
    errno.EISDIR: IsFolder,
}


def transfer_error(
    number: int, action: str, path: str, *, offset: int = 0, wanted: int = 0, done: int = 0
) -> TransferError:
    """The error that says best what `number` (an errno; 0: file too short) means."""
    kind = _CLASSES.get(number, TransferError)
    return kind(number, action, path, offset=offset, wanted=wanted, done=done)
