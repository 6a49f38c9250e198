"""Every installed tensor store and the shipped fake keep the store contract of ds-core."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch

Make = Callable[[Path], Any]


def _installed() -> dict[str, Make]:
    found: dict[str, Make] = {
        point.name: lambda folder, point=point: point.load()(folder, {})
        for point in entry_points(group="deepspeed.tensor_stores")
    }
    if importlib.util.find_spec("ds_core.testing"):
        fake = getattr(importlib.import_module("ds_core.testing"), "MemoryTensorStore", None)
        if fake is not None:
            found["fake"] = lambda folder: fake()
    return found


STORES = _installed()


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    store = STORES[request.param](tmp_path)
    yield store
    store.close()


def numbers(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float64).remainder(251).to(dtype)


def test_there_is_a_store() -> None:
    assert STORES


@pytest.mark.parametrize("count", [0, 1, 127, 1024, 1025, 300_007])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_what_was_written_is_read(store: Any, count: int, dtype: torch.dtype) -> None:
    data = numbers(count, dtype)
    store.write("weight", data).wait()
    out = torch.zeros_like(data)
    store.read("weight", out).wait()
    assert torch.equal(out, data)


def test_keys_do_not_mix(store: Any) -> None:
    pending = [store.write(f"layer.{i}", torch.full((1000,), float(i))) for i in range(8)]
    for work in pending:
        work.wait()
    for i in range(8):
        out = torch.empty(1000)
        store.read(f"layer.{i}", out).wait()
        assert out.eq(i).all()


@pytest.mark.parametrize("offset", [0, 4, 4096, 4100, 399_996])
def test_a_range_is_replaced_and_its_neighbours_stay(store: Any, offset: int) -> None:
    data = numbers(100_001)
    store.write("k", data).wait()
    store.write("k", torch.full((1,), -1.0), offset).wait()
    expected = data.clone()
    expected[offset // 4] = -1.0
    out = torch.empty_like(data)
    store.read("k", out).wait()
    assert torch.equal(out, expected)
    part = torch.empty(1)
    store.read("k", part, offset).wait()
    assert part.item() == -1.0


def test_overlapping_work_is_done_in_the_order_asked_for(store: Any) -> None:
    first, second = numbers(500_000), -numbers(500_000)
    out = torch.empty(500_000)
    work = [store.write("k", first), store.write("k", second), store.read("k", out)]
    for pending in work:
        pending.wait()
    assert torch.equal(out, second)


def test_a_write_may_go_past_the_end(store: Any) -> None:
    store.write("k", numbers(10)).wait()
    store.write("k", numbers(10), 40).wait()
    out = torch.empty(20)
    store.read("k", out).wait()
    assert torch.equal(out, torch.cat([numbers(10), numbers(10)]))


@pytest.mark.parametrize("stored", [0, 9])
def test_wait_raises_when_too_little_is_stored(store: Any, stored: int) -> None:
    store.write("k", numbers(stored)).wait()
    pending = store.read("k", torch.empty(10))
    with pytest.raises(Exception, match="k"):
        pending.wait()


def test_wait_raises_for_an_unknown_key(store: Any) -> None:
    pending = store.read("unknown", torch.empty(10))
    with pytest.raises(Exception, match="unknown"):
        pending.wait()


def test_wait_and_done_may_be_called_again(store: Any) -> None:
    pending = store.write("k", numbers(10))
    pending.wait()
    pending.wait()
    assert pending.done()


def test_closing_deletes_and_may_be_repeated(store: Any, tmp_path: Path) -> None:
    store.write("k", numbers(100_000))
    store.close()
    store.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]


def test_two_stores_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    for make in STORES.values():
        one, two = make(tmp_path), make(tmp_path)
        one.write("k", numbers(10)).wait()
        two.write("k", -numbers(10)).wait()
        two.close()
        out = torch.empty(10)
        one.read("k", out).wait()
        one.close()
        assert torch.equal(out, numbers(10))
