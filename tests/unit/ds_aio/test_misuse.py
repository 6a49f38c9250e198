"""What callers get wrong is refused by name; what they let go of early is kept."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import ds_aio
from ds_aio import AioError, FileStore, TransferError, UnfitBuffer, aio_handle


class Elsewhere(Tensor):
    """A tensor without memory of its own, as a DTensor or FakeTensor is."""

    @staticmethod
    def __new__(cls, size: int) -> Elsewhere:
        return Tensor._make_wrapper_subclass(cls, (size,), dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        raise NotImplementedError


def shrunk() -> Tensor:
    view = torch.ones(1000)[900:]
    view.untyped_storage().resize_(3700)
    return view


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: np.array([object()]), "holds Python objects"),
        (lambda: np.array([(1, None)], dtype=[("a", "i4"), ("b", "O")]), "holds Python objects"),
        (lambda: Elsewhere(3), "the elements of a Elsewhere lie elsewhere"),
        (shrunk, "freed or shrunk"),
    ],
)
def test_buffers_without_bytes_of_their_own_are_refused(
    tmp_path: Path, make: Callable[[], object], message: str
) -> None:
    with pytest.raises(UnfitBuffer, match=message):
        aio_handle().sync_pwrite(make(), tmp_path / "file")


@pytest.mark.parametrize("let_go", ["data", "set", "free"])
def test_a_tensor_may_be_given_other_memory_while_a_write_is_under_way(
    tmp_path: Path, backend: str, let_go: str
) -> None:
    handle = aio_handle(block_size=1 << 16, queue_depth=1, backend=backend)
    tensor = handle.new_cpu_locked_tensor(4_000_000, torch.empty(0)).fill_(7)
    handle.async_pwrite(tensor, tmp_path / "file")
    if let_go == "data":
        tensor.data = torch.empty(0)
    elif let_go == "set":
        tensor.set_()
    else:
        assert handle.free_cpu_locked_tensor(tensor)
    handle.wait()
    assert (np.fromfile(tmp_path / "file", dtype=np.float32) == 7).all()


def test_a_null_character_does_not_cut_a_name_short(tmp_path: Path) -> None:
    with pytest.raises(AioError, match="null character"):
        aio_handle().sync_pwrite(torch.ones(1), f"{tmp_path}/name\0more")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [b"caf\xe9", "é".encode(), b"x" * 255])
@pytest.mark.parametrize("kind", [os.fsdecode, os.fsencode])
def test_any_name_the_system_allows_will_do(
    tmp_path: Path, name: bytes, kind: Callable[[bytes], str]
) -> None:
    path = kind(os.path.join(os.fsencode(tmp_path), name))
    ds_aio.save(path, {"a": torch.ones(3)})
    aio_handle().sync_pwrite(torch.ones(1), path, 1 << 20)
    assert os.listdir(os.fsencode(tmp_path)) == [name]


def test_save_writes_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    ds_aio.save(tmp_path / "link", {"a": torch.ones(3)})
    assert (tmp_path / "link").is_symlink()
    assert ds_aio.load(tmp_path / "file")["a"].sum() == 3


def test_save_replaces_no_pipe_and_no_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(TransferError, match=f"save of .*{name}"):
            ds_aio.save(tmp_path / name, {"a": torch.ones(3)})
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_store_stays_where_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with FileStore("store") as store:
        monkeypatch.chdir("/")
        store.write("a", torch.ones(3)).wait()
        assert store.path.parent == tmp_path / "store"
    assert not store.path.exists()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parents_transfers(
    tmp_path: Path, backend: str
) -> None:
    handle = aio_handle(block_size=4096, queue_depth=1, backend=backend)
    handle.async_pwrite(torch.ones(3_000_000), tmp_path / "file")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            handle.wait()  # only if it was done before the fork
        except RuntimeError:
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert handle.wait() == 1
    assert code == 0
