"""What callers get wrong is refused by name; what they let go of early is kept."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import ds_aio
from ds_aio import AioError, FileStore, TransferError, UnfitBuffer, aio_handle, aside


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
        ds_aio.save(f"{tmp_path}/name\0more", {"a": torch.ones(1)})
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


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (1, "tensor 'a' is a int: only tensors are stored"),
        ({"b": torch.ones(1)}, "tensor 'a' is a dict: only tensors are stored"),
        (torch.ones(3).to_sparse(), "tensor 'a' is of layout torch.sparse_coo"),
        (torch.ones(3, device="meta"), "tensor 'a' is on the meta device"),
    ],
)
def test_save_names_what_it_cannot_store(tmp_path: Path, tensor: object, message: str) -> None:
    with pytest.raises(AioError, match=message):
        ds_aio.save(tmp_path / "file", {"a": tensor})  # type: ignore[dict-item]
    assert not list(tmp_path.iterdir())


def test_one_text_is_no_list_of_names(tmp_path: Path) -> None:
    ds_aio.save(tmp_path / "file", {"a": torch.ones(3), "b": torch.ones(3)})
    with pytest.raises(AioError, match="names='ab' is one text: give a list of names"):
        ds_aio.load(tmp_path / "file", names="ab")


@pytest.mark.parametrize("offset", [1.5, "1", 1 << 63, 1 << 70])
def test_an_offset_that_no_file_has_is_refused(
    tmp_path: Path, backend: str, offset: object
) -> None:
    with pytest.raises(UnfitBuffer, match=r"whole numbers|no file has a byte"):
        aio_handle(backend=backend).sync_pwrite(torch.ones(1), tmp_path / "file", offset)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_saved_file_keeps_the_permissions_of_the_one_it_replaces(
    tmp_path: Path, mode: int
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(mode)
    ds_aio.save(tmp_path / "file", {"a": torch.ones(3)})
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
    assert ds_aio.load(tmp_path / "file")["a"].sum() == 3


def test_an_interrupted_end_of_a_save_closes_no_file_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(aside, "LARGE", 0)
    new = aside.Aside(str(tmp_path / "file"))
    others: list[int] = []

    def interrupt(_: object) -> None:
        others.append(os.open(tmp_path, os.O_RDONLY))
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        new.take_name()
    new.discard()
    os.close(others[0])  # still open
    assert (tmp_path / "file").read_bytes() == b""


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
