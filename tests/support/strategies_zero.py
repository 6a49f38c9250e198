"""Builders of the sharded strategies, for the tests that hold for every strategy."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.comm import DONE
from ds_core.groups import Groups
from ds_core.optimizers import parameter_groups
from ds_zero import factory
from ds_zero.sections import OffloadOptimizerSection, OffloadParamSection, ZeroSection
from ds_zero.strategy import Setup as ZeroSetup
from support.strategies import BUILDERS, Setup


class DictStore:
    """A `TensorStore` in memory; counts what it holds."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def write(self, key: str, tensor: Tensor, offset: int = 0) -> Any:
        if offset == 0 and tensor.nbytes >= self.nbytes(key):
            self.tensors[key] = tensor.clone()
        else:
            stored = self.tensors[key].view(torch.uint8)
            stored[offset : offset + tensor.nbytes].copy_(tensor.view(torch.uint8))
        return DONE

    def read(self, key: str, out: Tensor, offset: int = 0) -> Any:
        stored = self.tensors[key].view(torch.uint8)
        out.view(torch.uint8).copy_(stored[offset : offset + out.nbytes])
        return DONE

    def nbytes(self, key: str) -> int:
        return self.tensors[key].nbytes if key in self.tensors else 0

    def close(self) -> None:
        self.tensors.clear()


def build_zero(section: ZeroSection, module: nn.Module, setup: Setup, groups: Groups) -> Any:
    """The strategy of a section, with the buckets of `setup`."""
    import dataclasses

    section = dataclasses.replace(
        section, reduce_bucket_size=setup.bucket_elements, overlap_comm=setup.overlap
    )
    return factory.make(
        section,
        ZeroSetup(
            module,
            parameter_groups(module.parameters()),
            setup.optimizer,
            groups,
            setup.precision(),
            max_norm=setup.max_norm,
        ),
        device=torch.device("cpu"),
        make_store=lambda path: DictStore(),
    )


_FOLDER = Path(tempfile.gettempdir())
_CPU = OffloadOptimizerSection(device="cpu")
_NVME = OffloadOptimizerSection(device="nvme", nvme_path=_FOLDER)
_FRUGAL: dict[str, Any] = {
    "stage": 3,
    "stage3_param_persistence_threshold": 0,
    "stage3_max_reuse_distance": 0,
}
SECTIONS: dict[str, ZeroSection] = {
    "stage1": ZeroSection(stage=1),
    "stage2": ZeroSection(stage=2),
    "stage3": ZeroSection(stage=3, stage3_param_persistence_threshold=0),
    "stage3-frugal": ZeroSection(**_FRUGAL, stage3_prefetch_bucket_size=100),
    "stage1-cpu": ZeroSection(stage=1, offload_optimizer=_CPU),
    "stage2-nvme": ZeroSection(stage=2, offload_optimizer=_NVME, sub_group_size=100),
    "stage3-nvme": ZeroSection(
        **_FRUGAL,
        offload_optimizer=_NVME,
        offload_param=OffloadParamSection(device="nvme", nvme_path=_FOLDER, max_in_cpu=0),
    ),
    "stage3-half-nvme": ZeroSection(
        stage=3,
        offload_optimizer=OffloadOptimizerSection(device="nvme", nvme_path=_FOLDER, ratio=0.5),
        offload_param=OffloadParamSection(device="nvme", nvme_path=_FOLDER, max_in_cpu=200),
    ),
}
BUILDERS.update({name: partial(build_zero, section) for name, section in SECTIONS.items()})

Builder = Callable[[nn.Module, Setup, Groups], Any]
