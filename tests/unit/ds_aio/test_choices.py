"""Backends, extras and settings: what is missing is replaced and reported, or refused by name."""

from __future__ import annotations

import asyncio
import sys
import types
from pathlib import Path

import pytest
import torch

import ds_aio
from ds_aio import Engine, File, Options, gds
from ds_aio.memory import StagingPool
from ds_aio.report import rows
from ds_aio.sections import AioSection
from ds_aio.staging import StagedTransfer

from .conftest import random_bytes


@pytest.fixture
def no_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled module cannot be imported."""
    monkeypatch.setitem(sys.modules, "ds_aio._native", None)
    monkeypatch.delattr(ds_aio, "_native", raising=False)


@pytest.mark.usefixtures("no_native")
def test_without_the_compiled_module_everything_works_and_says_so(tmp_path: Path) -> None:
    handle = ds_aio.aio_handle()
    data = random_bytes(100_001)
    out = torch.zeros_like(data)
    handle.sync_pwrite(data, str(tmp_path / "f"), 3)
    handle.async_pread(out, str(tmp_path / "f"), 3)
    assert handle.wait() == 1
    assert torch.equal(out, data)
    assert handle.report().backend == "python"
    assert any("_native" in note and "reinstall" in note for note in handle.report().notes)
    assert handle.new_cpu_locked_tensor(5, torch.empty(0)).numel() == 5
    assert rows()[0][1] == "python"


@pytest.mark.usefixtures("no_native")
def test_a_demanded_native_backend_names_module_and_remedy() -> None:
    with pytest.raises(ds_aio.BackendUnavailable, match=r"_native.*reinstall"):
        ds_aio.aio_handle(backend="io_uring")


def test_a_kernel_without_io_uring_gets_the_next_best(monkeypatch: pytest.MonkeyPatch) -> None:
    native, _ = ds_aio.engine.load_native()
    real = native.Engine

    def forbidding(backend: str, **settings: object) -> object:
        if backend == "io_uring":
            raise PermissionError(1, "Operation not permitted")
        return real(backend, **settings)

    monkeypatch.setattr(native, "Engine", forbidding)
    with Engine() as engine:
        assert engine.backend == "linux_aio"
        assert "Operation not permitted" in str(engine.report())
    with pytest.raises(ds_aio.BackendUnavailable, match="not permitted"):
        Engine(Options(backend="io_uring"))


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 0},
        {"block_size": 2 << 30},
        {"queue_depth": 0},
        {"queue_depth": True},
        {"intra_op_parallelism": 0},
        {"backend": "magic"},
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings: dict[str, object]) -> None:
    with pytest.raises(ds_aio.AioError, match=next(iter(settings))):
        Options(**settings)


def test_a_handle_tells_its_settings() -> None:
    handle = ds_aio.aio_handle(65536, 7, True, True, 3)
    assert handle.get_block_size() == 65536
    assert handle.get_queue_depth() == 7
    assert handle.get_single_submit() is True
    assert handle.get_overlap_events() is True
    assert handle.get_intra_op_parallelism() == 3
    assert ds_aio.aio_handle().get_queue_depth() == 128


@pytest.mark.parametrize("gives", ["positions", "names"])
def test_pread_and_pwrite_take_async_by_position_and_name(tmp_path: Path, gives: str) -> None:
    handle, path = ds_aio.aio_handle(), str(tmp_path / "f")
    data, out = random_bytes(5000), torch.zeros(5000, dtype=torch.uint8)
    extra = (True, 10) if gives == "positions" else ()
    named = {} if gives == "positions" else {"async": True, "file_offset": 10}
    assert handle.pwrite(data, path, False, *extra, **named) == 0
    assert handle.wait() == 1
    assert handle.pread(out, path, True, False, 10) == 1
    assert torch.equal(out, data)
    with pytest.raises(TypeError, match="async"):
        handle.pread(out, path, True)


def test_validation_finds_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle, path = ds_aio.aio_handle(), tmp_path / "f"
    assert handle.write(random_bytes(3000), str(path), True) == 1
    path.write_bytes(bytes(3000))
    monkeypatch.setattr(handle, "sync_pread", lambda *_: 1)
    with pytest.raises(ds_aio.AioError, match="first difference at offset 0"):
        handle.read(torch.ones(3000, dtype=torch.uint8), str(path), True)


def test_a_handle_takes_an_open_descriptor(tmp_path: Path) -> None:
    data = random_bytes(9000)
    with open(tmp_path / "f", "wb+") as file:
        ds_aio.aio_handle().sync_pwrite(data, file.fileno(), 5)
    assert (tmp_path / "f").read_bytes()[5:] == data.numpy().tobytes()


def test_transfers_can_be_awaited(tmp_path: Path) -> None:
    async def both() -> tuple[int, int]:
        with ds_aio.open(tmp_path / "f", "w") as file:
            data, out = random_bytes(3_000_000), torch.zeros(3_000_000, dtype=torch.uint8)
            written = await file.write(data)
            read = await file.read_into(out)
            assert torch.equal(out, data)
            return written, read

    assert asyncio.run(both()) == (3_000_000, 3_000_000)


def test_files_keep_to_their_mode(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    with ds_aio.open(tmp_path / "f") as file:
        assert file.size == 3
        with pytest.raises(ds_aio.AioError, match="reading"):
            file.write(b"x")
    with pytest.raises(ds_aio.AioError, match="closed"):
        file.read_into(bytearray(1))
    with pytest.raises(ds_aio.AioError, match="mode"):
        ds_aio.open(tmp_path / "f", "rw")  # type: ignore[arg-type]
    with ds_aio.open(tmp_path / "f", "r+") as file:
        file.truncate(10)
        file.sync()
        assert file.size == 10


@pytest.mark.parametrize("size", [0, 1, 4096, 100_001])
@pytest.mark.parametrize("buffers", [1, 3])
def test_staged_tensors_pass_through_few_buffers(tmp_path: Path, size: int, buffers: int) -> None:
    data, out = random_bytes(size), torch.zeros(size, dtype=torch.uint8)
    pool = StagingPool(4096, buffers)
    with Engine() as engine, File(tmp_path / "f", "w", engine, owned=False) as file:
        StagedTransfer(data, pool, file.write, 7, write=True).wait()
        StagedTransfer(out, pool, file.read_into, 7 if size else 0, write=False).wait()
        assert torch.equal(out, data)
        failing = StagedTransfer(torch.zeros(50_000), pool, file.read_into, 10**9, write=False)
        with pytest.raises(ds_aio.ShortFile):
            failing.wait()
        assert not failing.succeeded()
    assert len(pool._free) <= buffers


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_without_gpudirect_tensors_are_staged_and_the_report_says_why(
    tmp_path: Path, mode: str
) -> None:
    handle = ds_aio.gds_handle(gds=mode)
    tensor = handle.new_pinned_device_tensor(100, torch.empty(0)).fill_(4)
    handle.pin_device_tensor(tensor)
    handle.sync_pwrite(tensor, str(tmp_path / "f"))
    handle.unpin_device_tensor(tensor)
    assert handle.free_pinned_device_tensor(tensor)
    assert (tmp_path / "f").stat().st_size == 400
    assert any("GPUDirect" in note for note in handle.report().notes)


def test_gpudirect_on_demand_fails_with_the_reason() -> None:
    with pytest.raises(ds_aio.BackendUnavailable, match="CUDA"):
        ds_aio.gds_handle(gds="on")


@pytest.mark.parametrize("answer", [False, RuntimeError("libcufile refuses")])
def test_a_gpudirect_library_that_does_not_work_is_reported(
    monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    def get(_: str) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    driver = types.ModuleType("kvikio.cufile_driver")
    driver.get = get  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "kvikio", types.ModuleType("kvikio"))
    monkeypatch.setitem(sys.modules, "kvikio.cufile_driver", driver)
    assert "cuFile" in gds.gds_unavailable()


def test_a_file_that_gpudirect_refuses_is_staged_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CuFile:
        def __init__(self, path: str, flags: str) -> None:
            raise RuntimeError("unsupported file system")

    kvikio = types.SimpleNamespace(CuFile=CuFile)
    monkeypatch.setattr(gds, "is_on_device", lambda _: True)
    stream = types.SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda *_: stream)
    for demanded in (False, True):
        handle = ds_aio.gds_handle()
        handle._kvikio, handle._demanded = kvikio, demanded
        if demanded:
            with pytest.raises(ds_aio.BackendUnavailable, match="unsupported file system"):
                handle.sync_pwrite(torch.ones(10), str(tmp_path / "f"))
        else:
            handle.sync_pwrite(torch.ones(10), str(tmp_path / "f"))
            assert "unsupported file system" in str(handle.report())


def test_the_report_has_rows_for_every_backend() -> None:
    found = rows()
    labels = [label for label, _, _ in found]
    assert labels[0] == "file engine"
    assert {"backend io_uring", "backend threads", "GPUDirect Storage"} <= set(labels)
    assert all(isinstance(cell, str) for row in found for cell in row)


def test_the_section_has_the_documented_defaults() -> None:
    section = AioSection()
    assert (section.block_size, section.queue_depth, section.intra_op_parallelism) == (
        1 << 20,
        8,
        1,
    )
    assert (section.single_submit, section.overlap_events, section.use_gds) == (False, True, False)
