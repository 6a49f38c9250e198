"""State dicts to and from safetensors files at the speed of the device."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ds_aio.aside import Aside
from ds_aio.engine import Engine, Options, require_name
from ds_aio.errors import AioError, transfer_error
from ds_aio.files import File
from ds_aio.safetensors_header import (
    LONGEST_HEADER,
    Entry,
    FormatError,
    Layout,
    parse_header,
    plan_layout,
)
from ds_aio.staging import StagedTransfer
from ds_aio.transfer import Transfer

# Tensors that must be copied before they can be written are copied in windows of this size, two of
# which may be in memory at once.
WINDOW_BYTES = 32 << 20


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    *,
    metadata: Mapping[str, str] | None = None,
    durable: bool = True,
    options: Options | None = None,
) -> None:
    """Writes `tensors` to `path` in safetensors format.

    The file appears under its name only when it is whole: a crash leaves what was there before,
    and what a killed process left beside it is removed by the next save to the same path.
    Any dtype of the format, device, stride and shape is fine; tensors that share memory are each
    written in full. Extra memory stays below 128 MiB whatever is saved.

    Args:
        durable: Return only after the device has everything.

    Raises:
        TransferError: With path, offset, wanted and done bytes. Nothing is left behind.
    """
    layout = plan_layout(tensors, metadata or {})
    target = _real_target(path)
    aside = Aside(target)
    try:
        with Engine(options) as engine, File(aside.path, "w", engine, owned=False) as file:
            _write(file, layout, tensors)
            if durable:
                file.sync()
        aside.take_name()
    except BaseException:
        aside.discard()
        raise
    if durable:
        _sync_folder(Path(target).parent)


def load(
    path: str | os.PathLike[str],
    *,
    names: Iterable[str] | None = None,
    device: torch.device | str = "cpu",
    options: Options | None = None,
) -> dict[str, Tensor]:
    """Reads a safetensors file, or the tensors called `names` in it, into new tensors.

    Each large tensor has memory of its own, so letting one go frees it.

    Raises:
        FormatError: The file is damaged, or of another format.
        KeyError: A name is not in the file.
    """
    with Engine(options) as engine, File(path, "r", engine, owned=False) as file:
        layout = _read_layout(file)
        wanted = _choose(layout.entries, names, file.path)
        # torch's memory, copied into: its small pages come sooner than huge ones nobody has held
        tensors = {e.name: torch.empty(e.shape, dtype=e.dtype, device=device) for e in wanted}
        if torch.device(device).type == "cpu":
            runs = _adjoining(wanted)
            file.read_into_many([([tensors[e.name] for e in run], run[0].start) for run in runs])
        else:
            for entry in wanted:
                file.read_into(tensors[entry.name].reshape(-1), entry.start)
        file.wait()
    return tensors


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The free-form text pairs stored with the tensors."""
    with Engine() as engine, File(path, "r", engine, owned=False) as file:
        return _read_layout(file).metadata


def _real_target(path: str | os.PathLike[str]) -> str:
    """The file to replace: where a link leads to, and no folder, pipe or device."""
    require_name(os.fsdecode(path))
    target = os.path.realpath(os.fsdecode(path))
    try:
        mode = os.stat(target).st_mode
    except OSError:
        return target  # missing, or making the file aside tells what is wrong
    if not stat.S_ISREG(mode):
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.ESPIPE
        raise transfer_error(number, "save", target)
    return target


def _write(file: File, layout: Layout, tensors: Mapping[str, Tensor]) -> None:
    flying: deque[Transfer | StagedTransfer] = deque()
    header = torch.frombuffer(bytearray(layout.header), dtype=torch.uint8)
    parts = (part for e in layout.entries for part in _parts(tensors[e.name].detach()))
    position = 0
    for window in _windows(itertools.chain([header], parts)):
        if len(flying) == 2:
            flying.popleft().wait()
        flying.append(file.write(window, position))
        position += sum(tensor.nbytes for tensor in window)
    while flying:
        flying.popleft().wait()


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor in row-major order, as it is or in slices small enough to be copied."""
    if _ready(tensor) or tensor.nbytes <= WINDOW_BYTES:
        yield tensor
        return
    step = WINDOW_BYTES // tensor[0].nbytes
    if step == 0:
        for row in tensor:
            yield from _parts(row)
        return
    for first in range(0, len(tensor), step):
        yield tensor[first : first + step]


def _ready(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not _lazy(tensor)


def _lazy(tensor: Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


def _windows(parts: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Lists of contiguous host tensors with a bounded amount of fresh copies in each."""
    window: list[Tensor] = []
    copied = 0
    for part in parts:
        if _ready(part):
            window.append(part)
            continue
        if copied and copied + part.nbytes > WINDOW_BYTES:
            yield window
            window, copied = [], 0
        host = part.cpu().resolve_conj().resolve_neg().contiguous()
        window.append(host)
        copied += host.nbytes
    if window:
        yield window


def _read_layout(file: File) -> Layout:
    size = file.size
    if size < 8:
        raise FormatError(f"{file.path!r} has {size} bytes: not a safetensors file")
    # One read takes the length and, nearly always, the header with it.
    first = bytearray(min(size, 64 << 10))
    file.read_into(first).wait()
    length = int.from_bytes(first[:8], "little")
    if length > min(LONGEST_HEADER, size - 8):
        raise FormatError(
            f"{file.path!r}: a header of {length} bytes cannot be: no safetensors file"
        )
    if 8 + length > len(first):
        first = bytearray(8 + length)
        file.read_into(first).wait()
    return parse_header(bytes(first[8 : 8 + length]), size)


def _choose(
    entries: tuple[Entry, ...], names: Iterable[str] | None, path: str
) -> tuple[Entry, ...]:
    if names is None:
        return entries
    if isinstance(names, str):
        raise AioError(f"names={names!r} is one text: give a list of names")
    chosen = set(names)
    missing = chosen - {entry.name for entry in entries}
    if missing:
        raise KeyError(f"{path!r} has no tensor called {', '.join(sorted(map(str, missing)))}")
    return tuple(entry for entry in entries if entry.name in chosen)


def _adjoining(entries: tuple[Entry, ...]) -> list[list[Entry]]:
    """Runs of entries without gaps between them."""
    runs: list[list[Entry]] = []
    for entry in entries:
        if runs and runs[-1][-1].start + runs[-1][-1].nbytes == entry.start:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return runs


def _sync_folder(folder: Path) -> None:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise transfer_error(error.errno or 0, "sync", str(folder)) from None
