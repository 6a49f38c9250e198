"""The DeepNVMe chapter as its readers type it, and the names that programs import."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from deepspeed.adapters.file_writers import WriterError

SIZE = 3 * 1024**2 + 5


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "test.pt")


def test_a_blocking_write(path: str) -> None:
    from deepspeed.ops.op_builder import AsyncIOBuilder

    t = torch.empty(SIZE, dtype=torch.uint8)
    h = AsyncIOBuilder().load().aio_handle()
    h.sync_pwrite(t, path)
    assert os.path.isfile(path)
    assert os.path.getsize(path) == SIZE


@pytest.mark.parametrize("parallel", [1, 4])
def test_a_write_that_does_not_block(path: str, parallel: int) -> None:
    from deepspeed.ops.op_builder import AsyncIOBuilder

    t = torch.randint(0, 256, (SIZE,), dtype=torch.uint8)
    h = AsyncIOBuilder().load().aio_handle(intra_op_parallelism=parallel)
    h.async_pwrite(t, path)
    assert h.wait() == 1
    assert os.path.getsize(path) == SIZE
    t += 1
    h.async_pread(t, path)
    assert h.wait() == 1
    assert t.numpy().tobytes() == Path(path).read_bytes()


def test_a_pinned_device_tensor(path: str) -> None:
    from deepspeed.ops.op_builder import GDSBuilder

    t = torch.empty(SIZE, dtype=torch.uint8)
    h = GDSBuilder().load().gds_handle()
    h.pin_device_tensor(t)
    h.async_pwrite(t, path)
    assert h.wait() == 1
    assert os.path.getsize(path) == SIZE
    h.unpin_device_tensor(t)


def test_the_tuned_constructor_and_the_listed_methods() -> None:
    from deepspeed.ops.op_builder import AsyncIOBuilder

    h = (
        AsyncIOBuilder()
        .load()
        .aio_handle(
            block_size=1048576,
            queue_depth=32,
            single_submit=False,
            overlap_events=True,
            intra_op_parallelism=8,
        )
    )
    listed = (
        "async_pread async_pwrite free_cpu_locked_tensor get_block_size get_intra_op_parallelism "
        "get_overlap_events get_queue_depth get_single_submit new_cpu_locked_tensor pread pwrite "
        "read sync_pread sync_pwrite wait write"
    )
    assert set(listed.split()) <= set(dir(h))
    assert h.get_intra_op_parallelism() == 8


def test_builders_answer_at_once() -> None:
    from deepspeed.ops.aio import AsyncIOBuilder as Same
    from deepspeed.ops.op_builder import AsyncIOBuilder, GDSBuilder

    assert Same is AsyncIOBuilder
    assert AsyncIOBuilder().is_compatible() is True
    assert GDSBuilder().is_compatible() is False
    assert "host memory" in GDSBuilder().report()
    assert AsyncIOBuilder().report()


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("buffer_bytes", [1, 4096, 100_000])
def test_the_fast_writer_takes_what_torch_saves(path: str, double: bool, buffer_bytes: int) -> None:
    from deepspeed.io import FastFileWriter, FastFileWriterConfig
    from deepspeed.ops.op_builder import AsyncIOBuilder

    Path(path).write_bytes(bytes(300_000))
    handle = AsyncIOBuilder().load().aio_handle()
    pinned = torch.empty(buffer_bytes, dtype=torch.uint8)
    state = {"w": torch.arange(100 if buffer_bytes == 1 else 30_000)}
    with FastFileWriter(path, FastFileWriterConfig(handle, pinned, double)) as writer:
        torch.save(state, writer)
    assert torch.equal(torch.load(path)["w"], state["w"])
    assert os.path.getsize(path) == writer.tell()


def test_plain_and_mock_writers(path: str) -> None:
    from deepspeed.io import MockFileWriter, PyFileWriter

    with PyFileWriter(path) as writer:
        torch.save({"a": 1}, writer)
    assert torch.load(path) == {"a": 1}
    with MockFileWriter(path + ".none") as mock:
        torch.save({"a": 1}, mock)
    assert mock.tell() > 0
    assert not os.path.exists(path + ".none")


def test_several_writers_for_one_file_are_refused(path: str) -> None:
    from deepspeed.io import FastFileWriter, FastFileWriterConfig

    config = FastFileWriterConfig(None, torch.empty(8), num_parallel_writers=2)
    with pytest.raises(WriterError, match="num_parallel_writers=2"):
        FastFileWriter(path, config)
