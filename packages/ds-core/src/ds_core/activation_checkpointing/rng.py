"""Random generator states kept under names, as tensor-parallel dropout needs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ds_core.errors import ConfigError, StateError

MODEL_PARALLEL = "model-parallel-rng"
"""The state that differs between the ranks that share a model."""

_OFFSET = 2718


class RNGTracker:
    """Named states of one device's generator, each going on where it was left.

    The generator itself is that of the device's default stream of random numbers; between `fork`s
    it is untouched.
    """

    def __init__(self, device: torch.device | str | None = None) -> None:
        """`device`: None for the current accelerator, or the CPU where there is none."""
        self._device = None if device is None else torch.device(device)
        self._states: dict[str, Tensor] = {}
        self._seeds: set[int] = set()

    def reset(self) -> None:
        """Forget all states."""
        self._states.clear()
        self._seeds.clear()

    def get_states(self) -> dict[str, Tensor]:
        """All states by name."""
        return dict(self._states)

    def set_states(self, states: Mapping[str, Tensor]) -> None:
        """Go back to `states`, as `get_states` gave them."""
        self._states = dict(states)

    def add(self, name: str, seed: int) -> None:
        """Begin a state called `name` at `seed`."""
        if seed in self._seeds:
            raise ConfigError(f"seed {seed} is in use already: two states would be the same")
        if name in self._states:
            raise ConfigError(f"there is a random state {name!r} already; call reset() first")
        with self._kept():
            self._module().manual_seed(seed)
            self._states[name] = self._module().get_rng_state()
        self._seeds.add(seed)

    @contextmanager
    def fork(self, name: str = MODEL_PARALLEL) -> Iterator[None]:
        """Inside, random numbers come from the state `name`."""
        if name not in self._states:
            known = ", ".join(sorted(self._states)) or "none"
            raise StateError(f"there is no random state {name!r} (there are: {known}); add it")
        with self._kept():
            self._module().set_rng_state(self._states[name])
            try:
                yield
            finally:
                self._states[name] = self._module().get_rng_state()

    @contextmanager
    def replaying(self, states: Mapping[str, Tensor]) -> Iterator[None]:
        """Inside, the states begin at `states`; afterwards they are as before."""
        current = self.get_states()
        self.set_states(states)
        try:
            yield
        finally:
            self.set_states(current)

    def seed_model_parallel(self, seed: int, rank: int) -> None:
        """Seed the generator alike on all ranks, and a state that differs by model-parallel rank.

        Use `fork()` around what should differ (dropout on a part of a layer) and nothing around
        what should not.
        """
        self.reset()
        self._module().manual_seed(seed)
        self.add(MODEL_PARALLEL, seed + _OFFSET + rank)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        before = self._module().get_rng_state()
        try:
            yield
        finally:
            self._module().set_rng_state(before)

    def _module(self) -> Any:
        """`torch.cuda`, ... or `torch` for the CPU: what has the functions of the generator."""
        device = self._device
        if device is None:
            device = torch.accelerator.current_accelerator(check_available=True)
        if device is None or device.type == "cpu":
            return torch.random
        return torch.get_device_module(device)
