"""The folder of checkpoints: tags, folders being written, the switch to a new one."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from ds_core.checkpoint.manifest import MANIFEST, read_manifest
from ds_core.errors import CheckpointError, ConfigError

LATEST = "latest"
_SAVING = ".saving."
_REPLACED = ".replaced."

logger = logging.getLogger(__name__)


def check_tag(tag: str) -> str:
    """`tag`, if it can be the name of one folder; else `ConfigError`."""
    rule = None
    if not isinstance(tag, str):
        rule = f"is of type {type(tag).__name__}: tags are text"
    elif not tag or tag.startswith("."):
        rule = "is empty or begins with a dot"
    elif "/" in tag or "\\" in tag or not tag.isprintable():
        rule = "contains a slash, a backslash or an unprintable character"
    elif tag == LATEST:
        rule = f"is the name of the file {LATEST!r}"
    elif len(tag.encode()) > 128:
        rule = "is longer than 128 bytes"
    if rule is not None:
        raise ConfigError(f"checkpoint tag {tag!r} {rule}; choose another, such as 'step100'")
    return tag


def fsync_folder(folder: Path) -> None:
    """Force the names in `folder` to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file and force its content (not yet its name) to the disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


class SavingFolder:
    """A hidden folder in which one checkpoint is written before it gets its name.

    The lock on it lives as long as the process, so that a later save can tell the leftovers of
    a killed one from a save that is still going on in another process.
    """

    def __init__(self, root: Path, tag: str) -> None:
        self.root, self.tag = root, tag
        root.mkdir(parents=True, exist_ok=True)
        remove_leftovers(root)
        self.path = root / f"{_SAVING}{tag}.{secrets.token_hex(6)}"
        self.path.mkdir()
        self._handle: int | None = os.open(self.path, os.O_RDONLY)
        _lock(self._handle)

    def publish(self, *, save_latest: bool) -> Path:
        """Give the folder its name, then name it in `latest`; an earlier one of the name goes.

        Between the two renames no folder has the name: `find` then falls back to the earlier
        one, which is still whole.
        """
        target = self.root / self.tag
        fsync_folder(self.path)
        if target.exists():
            os.rename(target, self.root / f"{_REPLACED}{self.tag}.{secrets.token_hex(6)}")
        os.rename(self.path, target)
        fsync_folder(self.root)
        if save_latest:
            write_latest(self.root, self.tag)
        for old in _replaced(self.root, self.tag):
            _keep_foreign_files(old, target)
            shutil.rmtree(old)
        self.close()
        return target

    def discard(self) -> None:
        """Remove what was written so far; idempotent."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Give up the lock; idempotent."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _lock(handle: int) -> None:
    """Mark what is open as in use for as long as the process lives."""
    with suppress(OSError):  # file systems without locks: leftovers stay, nothing breaks
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_latest(root: Path, tag: str) -> None:
    """Replace `latest` in one step."""
    aside = root / f"{_SAVING}{LATEST}.{secrets.token_hex(6)}"
    with open(aside, "wb") as file:
        _lock(file.fileno())
        file.write(tag.encode())
        file.flush()
        os.fsync(file.fileno())
        os.replace(aside, root / LATEST)
    fsync_folder(root)


def read_latest(root: Path) -> str:
    """The tag named in `latest`."""
    path = root / LATEST
    try:
        return check_tag(path.read_text().strip())
    except FileNotFoundError:
        fault = "is missing"
    except (OSError, UnicodeDecodeError) as error:
        fault = f"cannot be read ({error})"
    except ConfigError as error:
        fault = f"is damaged ({error})"
    found = ", ".join(tags(root)) or "none"
    raise CheckpointError(f"{path} {fault}: pass a tag (checkpoints there: {found})")


def tags(root: str | os.PathLike[str]) -> list[str]:
    """Tags of the complete checkpoints in `root`, oldest first."""
    if not Path(root).is_dir():
        return []
    found = {entry.name for entry in Path(root).iterdir() if (entry / MANIFEST).is_file()}
    names = {_tag_of(name) if name.startswith(_REPLACED) else name for name in found}
    visible = [name for name in names if not name.startswith(".")]
    return sorted(visible, key=lambda tag: (_age(find(Path(root), tag)), tag))


def _age(folder: Path) -> float:
    return (folder / MANIFEST).stat().st_mtime


def find(root: Path, tag: str) -> Path:
    """The folder of checkpoint `tag`, even if a kill came while it was being replaced."""
    check_tag(tag)
    target = root / tag
    if (target / MANIFEST).is_file():
        return target
    for old in _replaced(root, tag):
        if (old / MANIFEST).is_file():
            logger.warning("%s: a save was cut short, using the earlier %s", target, old.name)
            return old
    if target.is_dir():
        raise CheckpointError(f"{target / MANIFEST} is missing: {target} is no complete checkpoint")
    found = ", ".join(tags(root)) or "none"
    raise CheckpointError(f"there is no checkpoint {tag!r} in {root} (checkpoints there: {found})")


def remove_leftovers(root: Path) -> None:
    """Remove what killed processes were writing."""
    for entry in root.glob(f"{_SAVING}*"):
        handle = None
        with suppress(OSError):  # locked: alive; gone: somebody else removed it
            handle = os.open(entry, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()
        if handle is not None:
            os.close(handle)


def _replaced(root: Path, tag: str) -> list[Path]:
    if not root.is_dir():
        return []
    entries = (entry for entry in root.iterdir() if entry.name.startswith(_REPLACED))
    found = [entry for entry in entries if _tag_of(entry.name) == tag]
    return sorted(found, key=lambda entry: entry.stat().st_mtime, reverse=True)


def _tag_of(name: str) -> str:
    return name.removeprefix(_REPLACED).rpartition(".")[0]


def _keep_foreign_files(old: Path, new: Path) -> None:
    """Move to `new` what users put beside the files of the checkpoint in `old`."""
    ours = {MANIFEST}
    if (old / MANIFEST).is_file():
        try:
            ours |= {file.name for file in read_manifest(old).files}
        except CheckpointError as error:
            logger.warning("%s: removed whole, foreign files included: %s", old, error)
            return
    for entry in list(old.iterdir()):
        if entry.name not in ours and not (new / entry.name).exists():
            os.rename(entry, new / entry.name)
