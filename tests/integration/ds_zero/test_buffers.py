"""The settings of buffers for NVMe bound what is in memory, and change no bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ds_core.engine import Engine
from ds_core.groups import make_groups
from ds_core.precision import PrecisionSettings
from ds_zero.factory import make
from ds_zero.sections import OffloadOptimizerSection, OffloadParamSection, ZeroSection
from ds_zero.strategy import Setup
from support.strategies_zero import DictStore
from support.zero_models import Reference, engine_of, train, two_groups

FOLDER = Path("unused")


class SlowStore(DictStore):
    """Ends a write when somebody waits for it; counts what is in memory until then."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: dict[str, int] = {}
        self.writing: set[Any] = set()
        self.most_inside = self.most_writing = self.largest = 0

    def read(self, key: str, out: Tensor, offset: int = 0) -> Any:
        if not key.startswith("weights"):
            self.inside[key.split(".")[0]] = out.numel()
            self.most_inside = max(self.most_inside, len(self.inside))
        return super().read(key, out, offset)

    def write(self, key: str, tensor: Tensor, offset: int = 0) -> Any:
        super().write(key, tensor, offset)
        self.writing.add((key, offset))
        self.most_writing = max(self.most_writing, len(self.writing))
        self.largest = tensor.numel()
        return Later(self, key, offset)


class Later:
    """A write that takes until it is waited for."""

    def __init__(self, store: SlowStore, key: str, offset: int) -> None:
        self.store, self.key, self.offset = store, key, offset

    def done(self) -> bool:
        return (self.key, self.offset) not in self.store.writing

    def wait(self) -> None:
        self.store.writing.discard((self.key, self.offset))
        self.store.inside.pop(self.key.split(".")[0], None)


def engine_with(store: SlowStore, section: ZeroSection) -> Engine:
    torch.manual_seed(0)
    model, ranks = Reference(), make_groups()
    adamw = lambda params: torch.optim.AdamW(params, lr=0.01)  # noqa: E731
    setup = Setup(model, two_groups(model), adamw, ranks, PrecisionSettings(), max_norm=1.0)
    strategy = make(section, setup, device=torch.device("cpu"), make_store=lambda _: store)
    return Engine(model, strategy, groups=ranks)


@pytest.fixture(scope="module")
def plain() -> list[float]:
    torch.manual_seed(0)
    return train(engine_of(ZeroSection(stage=1), Reference()), range(3))


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_buffer_count_bounds_the_sub_groups_in_memory(count, plain):
    store = SlowStore()
    offload = OffloadOptimizerSection(device="nvme", nvme_path=FOLDER, buffer_count=count)
    engine = engine_with(store, ZeroSection(stage=1, offload_optimizer=offload, sub_group_size=40))
    assert train(engine, range(3)) == plain
    assert store.most_inside == max(count, 1)


@pytest.mark.parametrize(("fast", "side_by_side"), [(False, 1), (True, 4)])
def test_fast_init_writes_masters_side_by_side(fast, side_by_side):
    store = SlowStore()
    offload = OffloadOptimizerSection(device="nvme", nvme_path=FOLDER, fast_init=fast)
    engine_with(store, ZeroSection(stage=1, offload_optimizer=offload, sub_group_size=40))
    assert store.most_writing == side_by_side
    assert not store.writing


@pytest.mark.parametrize("size", [1, 7, 50])
@pytest.mark.parametrize("count", [1, 3])
def test_a_parameter_larger_than_a_buffer_is_written_in_pieces(size, count, plain):
    store = SlowStore()
    offload = OffloadParamSection(
        device="nvme", nvme_path=FOLDER, buffer_size=size, buffer_count=count, max_in_cpu=0
    )
    engine = engine_with(store, ZeroSection(stage=3, offload_param=offload))
    store.most_writing = 0
    assert train(engine, range(3)) == plain
    assert store.most_writing == count
    assert store.largest <= size
