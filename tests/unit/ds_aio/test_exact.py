"""Every byte lands where it belongs, whatever the sizes, addresses, backends and file systems."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ds_aio
from ds_aio import Engine, Faults, File, Options

from .conftest import BACKENDS, mounted, random_bytes

SIZES = [0, 1, 511, 512, 513, 4095, 4096, 4097, (1 << 20) + 7]
WAYS = {
    "plain": Faults(),
    "512": Faults(report_alignment=512, enforce_alignment=512),
    "4096": Faults(report_alignment=4096, enforce_alignment=4096),
    "65536": Faults(report_alignment=65536, enforce_alignment=65536),
    "wrongly reported": Faults(report_alignment=512, enforce_alignment=65536),
    "refused by open": Faults(refuse_open=True),
    "refused by transfers": Faults(refuse_transfer=True),
    "short": Faults(short_limit=3000),
    "interrupted": Faults(fail_errno=4, fail_times=2),
    "cancelled": Faults(fail_errno=125, fail_times=1),
}
small = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check_round_trip(engine: Engine, path: Path, *, size: int, offset: int, shift: int) -> None:
    """Writes into the middle of a known file and reads back, guarding all neighbours."""
    before = random_bytes(offset + size + 5000, seed=1)
    path.write_bytes(before.numpy().tobytes())
    memory = random_bytes(size + shift + 64, seed=2)
    with File(path, "r+", engine, owned=False) as file:
        file.write(memory[shift : shift + size], offset).wait()
        expected = before.clone()
        expected[offset : offset + size] = memory[shift : shift + size]
        assert path.read_bytes() == expected.numpy().tobytes()
        out = torch.full((size + shift + 64,), 7, dtype=torch.uint8)
        file.read_into(out[shift : shift + size], offset).wait()
    assert torch.equal(out[shift : shift + size], memory[shift : shift + size])
    assert (out[:shift] == 7).all()
    assert (out[shift + size :] == 7).all()


@pytest.mark.parametrize("block_size", [4096, 1 << 20])
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("single", [False, True])
def test_any_size_is_whole(
    backend: str, folder: Path, block_size: int, threads: int, single: bool
) -> None:
    handle = ds_aio.aio_handle(block_size, 16, single, not single, threads, backend=backend)
    for size in SIZES:
        path = folder / f"{size}"
        data = random_bytes(size)
        handle.sync_pwrite(data, str(path))
        assert path.read_bytes() == data.numpy().tobytes()
        out = torch.zeros_like(data)
        handle.async_pread(out, str(path))
        assert handle.wait() == 1
        assert torch.equal(out, data)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_parameter_of_37_megabytes_is_whole(backend: str, tmp_path: Path, threads: int) -> None:
    handle = ds_aio.aio_handle(intra_op_parallelism=threads, backend=backend)
    data = random_bytes(37_400_000)
    handle.async_pwrite(data, str(tmp_path / "p"))
    assert handle.wait() == 1
    out = torch.zeros_like(data)
    handle.sync_pread(out, str(tmp_path / "p"))
    assert torch.equal(out, data)
    assert (tmp_path / "p").stat().st_size == 37_400_000


@pytest.mark.parametrize("way", WAYS)
def test_neighbours_are_untouched_in_every_way(backend: str, folder: Path, way: str) -> None:
    with Engine(Options(backend=backend, block_size=65536, faults=WAYS[way])) as engine:
        for size in (1, 513, 4096, 70_001):
            for offset in (0, 1, 4095, 65536):
                for shift in (0, 3):
                    check_round_trip(engine, folder / "f", size=size, offset=offset, shift=shift)


@pytest.mark.parametrize(("offset", "shift"), [(0, 0), (0, 64), (4096, 1), (1, 3), (513, 4095)])
def test_large_requests_at_odd_places_are_exact(
    backend: str, folder: Path, offset: int, shift: int
) -> None:
    with Engine(Options(backend=backend)) as engine:
        check_round_trip(engine, folder / "f", size=9_000_011, offset=offset, shift=shift)


def test_memory_nobody_has_touched_is_filled(backend: str, tmp_path: Path) -> None:
    data = random_bytes(40_000_003)
    (tmp_path / "f").write_bytes(data.numpy().tobytes())
    out = [torch.empty(30_000_000, dtype=torch.uint8), ds_aio.aligned_tensor((10_000_003,))]
    with ds_aio.open(tmp_path / "f", options=Options(backend=backend)) as file:
        file.read_into(out).wait()
    assert torch.equal(torch.cat(out), data)


def test_an_overlay_is_exact(backend: str, tmp_path: Path) -> None:
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    (tmp_path / "lower" / "f").write_bytes(b"below")
    layers = ",".join(f"{name}dir={tmp_path / name}" for name in ("lower", "upper", "work"))
    with (
        mounted("overlay", layers, "overlay", tmp_path / "merged"),
        Engine(Options(backend=backend)) as engine,
    ):
        for size in SIZES:
            check_round_trip(engine, tmp_path / "merged" / "f", size=size, offset=7, shift=1)
    assert (tmp_path / "lower" / "f").read_bytes() == b"below"


@small
@given(
    backend=st.sampled_from(BACKENDS),
    way=st.sampled_from(list(WAYS)),
    size=st.integers(0, 300_000),
    offset=st.integers(0, 200_000),
    shift=st.integers(0, 5000),
    block=st.sampled_from([1, 512, 4096, 10_000, 65536, 1 << 20]),
    depth=st.sampled_from([1, 2, 32]),
    threads=st.sampled_from([1, 3]),
)
def test_random_requests_are_exact(
    tmp_path: Path,
    backend: str,
    way: str,
    size: int,
    offset: int,
    shift: int,
    block: int,
    depth: int,
    threads: int,
) -> None:
    options = Options(
        backend=backend,
        block_size=block if size < 20_000 else max(block, 4096),
        queue_depth=depth,
        intra_op_parallelism=threads,
        faults=WAYS[way],
    )
    with Engine(options) as engine:
        check_round_trip(engine, tmp_path / "f", size=size, offset=offset, shift=shift)


@small
@given(
    backend=st.sampled_from(BACKENDS),
    sizes=st.lists(st.integers(0, 150_000), max_size=12),
    offset=st.integers(0, 10_000),
    aligned=st.booleans(),
)
def test_lists_of_buffers_are_consecutive_bytes(
    tmp_path: Path, backend: str, sizes: list[int], offset: int, aligned: bool
) -> None:
    data = [random_bytes(size, seed=size) for size in sizes]
    if aligned:
        data = [ds_aio.aligned_tensor((len(t),)).copy_(t) for t in data]
    out = [torch.zeros_like(t) for t in data]
    with ds_aio.open(tmp_path / "f", "w", options=Options(backend=backend)) as file:
        file.write(data, offset).wait()
        file.read_into(out, offset if any(sizes) else 0).wait()
    joined = b"".join(t.numpy().tobytes() for t in data)
    assert (tmp_path / "f").read_bytes()[offset:] == joined
    assert all(torch.equal(a, b) for a, b in zip(out, data, strict=True))


def test_many_small_pieces_are_one_transfer(backend: str, folder: Path) -> None:
    table = random_bytes(1 << 20).view(-1, 1024)
    order = torch.randperm(1024, generator=torch.Generator().manual_seed(3))
    with ds_aio.open(folder / "f", "w", options=Options(backend=backend)) as file:
        file.write_many([(table[i], 1024 * int(i)) for i in order]).wait()
        out = torch.zeros_like(table)
        file.read_into_many([(out[i], 1024 * int(i)) for i in order.flip(0)]).wait()
    assert torch.equal(out, table)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_dtypes_keep_their_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    data = random_bytes(8 * 999).view(dtype).view(-1, 3)
    out = torch.empty_like(data)
    with ds_aio.open(tmp_path / "f", "w") as file:
        file.write(data, 3).wait()
        file.read_into(out, 3).wait()
    assert torch.equal(out.view(torch.uint8), data.view(torch.uint8))


@pytest.mark.parametrize("make", [bytearray, lambda b: memoryview(bytearray(b)), np.zeros])
def test_any_buffer_takes_part(tmp_path: Path, make: object) -> None:
    out = make(100)  # type: ignore[operator]
    count = memoryview(out).nbytes
    with ds_aio.open(tmp_path / "f", "w") as file:
        file.write(bytes(range(200)) * 4).wait()
        file.read_into(out).wait()
    assert memoryview(out).cast("B").tobytes() == (bytes(range(200)) * 4)[:count]


def test_overwriting_a_longer_file_keeps_its_length(backend: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 10_000)
    ds_aio.aio_handle(backend=backend).sync_pwrite(
        torch.zeros(4096, dtype=torch.uint8), str(tmp_path / "f")
    )
    assert (tmp_path / "f").read_bytes() == bytes(4096) + b"x" * 5904


def test_adjoining_unaligned_writes_do_not_disturb_each_other(backend: str, folder: Path) -> None:
    data = random_bytes(1_000_000)
    cuts = [0, 1, 70_001, 70_002, 500_003, 1_000_000]
    with ds_aio.open(folder / "f", "w", options=Options(backend=backend)) as file:
        for first, last in reversed(list(itertools.pairwise(cuts))):
            file.write(data[first:last], first)
    assert (folder / "f").read_bytes() == data.numpy().tobytes()
