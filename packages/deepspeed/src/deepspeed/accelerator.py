"""The machine's device behind the method names that programs ask `get_accelerator()` for."""

from __future__ import annotations

import functools
import importlib
import os
import resource
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch

from deepspeed import distributed
from deepspeed.legacy import fallback
from ds_core import device as devices


class DeepSpeedAccelerator:
    """One kind of device: `torch.<kind>` with the same questions answered for the CPU.

    What `torch.cuda` and its siblings share is passed on to them; on the CPU, questions about
    device memory answer for this process, streams and events do nothing.
    """

    def __init__(self, kind: str) -> None:
        self._name = kind
        self._communication_backend_name = devices.default_backend(kind)
        self._compile_backend = "inductor"

    @property
    def _module(self) -> Any:
        return torch.get_device_module(self._name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(self._module, name)
        except AttributeError:
            raise AttributeError(f"the {self._name} accelerator has no {name!r}") from None

    def is_available(self) -> bool:
        return self._name == "cpu" or devices.is_available()

    def is_synchronized_device(self) -> bool:
        return self._name == "cpu"

    use_host_timers = resolves_data_dependency = handles_memory_backpressure = (
        is_synchronized_device
    )

    def device_name(self, device_index: int | None = None) -> str:
        """`cuda`, or `cuda:1` for an index; `cpu` has no numbers."""
        numbered = device_index is not None and self._name != "cpu"
        return f"{self._name}:{device_index}" if numbered else self._name

    def device(self, device_index: int | None = None) -> AbstractContextManager[Any]:
        """A context in which that device is the current one."""
        return nullcontext() if self._name == "cpu" else self._module.device(device_index)

    def device_count(self) -> int:
        if self._name == "cpu":
            return 1
        return int(self._module.device_count())

    def current_device(self) -> Any:
        return "cpu" if self._name == "cpu" else self._module.current_device()

    def current_device_name(self) -> str:
        if self._name == "cpu":
            return "cpu"
        return self.device_name(int(self._module.current_device()))

    def set_device(self, device_index: int) -> None:
        if self._name != "cpu":
            self._module.set_device(device_index)

    def synchronize(self, device_index: int | None = None) -> None:
        if self._name != "cpu":
            self._module.synchronize(device_index)

    def communication_backend_name(self) -> str:
        return self._communication_backend_name

    def is_bf16_supported(self) -> bool:
        return self._name == "cpu" or bool(self._module.is_bf16_supported())

    def is_fp16_supported(self) -> bool:
        return True

    is_fp64_supported = is_fp16_supported

    def is_triton_supported(self) -> bool:
        return self._name in ("cuda", "xpu")

    def supported_dtypes(self) -> list[torch.dtype]:
        half = [torch.half, torch.bfloat16] if self.is_bf16_supported() else [torch.half]
        return [torch.float, *half]

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._name

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
        """A page-locked copy for faster transfers; `tensor` itself where there is no device."""
        return tensor if self._name == "cpu" else tensor.pin_memory()

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return self._name == "cpu" or tensor.is_pinned()

    def empty_cache(self) -> None:
        if self._name != "cpu":
            self._module.empty_cache()

    def memory_allocated(self, device_index: int | None = None) -> int:
        """Bytes in use: on the device, or of this process for the CPU."""
        if self._name == "cpu":
            return _resident_bytes()
        return int(self._module.memory_allocated(device_index))

    memory_reserved = memory_cached = memory_allocated

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """The most bytes that were in use at once."""
        if self._name == "cpu":
            return _peak_resident_bytes()
        return int(self._module.max_memory_allocated(device_index))

    max_memory_reserved = max_memory_cached = max_memory_allocated

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        if self._name != "cpu":
            self._module.reset_peak_memory_stats(device_index)

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def memory_stats(self, device_index: int | None = None) -> dict[str, Any]:
        return {} if self._name == "cpu" else dict(self._module.memory_stats(device_index))

    def total_memory(self, device_index: int | None = None) -> int:
        if self._name == "cpu":
            return _machine_bytes("SC_PHYS_PAGES")
        return int(self._module.get_device_properties(device_index).total_memory)

    def available_memory(self, device_index: int | None = None) -> int:
        if self._name == "cpu":
            return _machine_bytes("SC_AVPHYS_PAGES")
        return self.total_memory(device_index) - self.memory_allocated(device_index)

    def random(self) -> ModuleType:
        return torch.random

    def manual_seed(self, seed: int) -> Any:
        return torch.manual_seed(seed) if self._name == "cpu" else self._module.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> Any:
        if self._name == "cpu":
            return torch.manual_seed(seed)
        return self._module.manual_seed_all(seed)

    def initial_seed(self) -> int:
        return torch.initial_seed() if self._name == "cpu" else int(self._module.initial_seed())

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        if self._name == "cpu":
            return torch.get_rng_state()
        state: torch.Tensor = (
            self._module.get_rng_state()
            if device_index is None
            else self._module.get_rng_state(device_index)
        )
        return state

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        if self._name == "cpu":
            torch.set_rng_state(new_state)
        elif device_index is None:
            self._module.set_rng_state(new_state)
        else:
            self._module.set_rng_state(new_state, device_index)

    def default_generator(self, device_index: int = 0) -> torch.Generator:
        if self._name == "cpu":
            return torch.default_generator
        generator: torch.Generator = self._module.default_generators[device_index]
        return generator

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext() if self._name == "cpu" else self._module.stream(stream)

    def current_stream(self, device_index: int | None = None) -> Any:
        return None if self._name == "cpu" else self._module.current_stream(device_index)

    def default_stream(self, device_index: int | None = None) -> Any:
        return None if self._name == "cpu" else self._module.default_stream(device_index)

    @property
    def Stream(self) -> Any:
        return _nothing if self._name == "cpu" else self._module.Stream

    @property
    def Event(self) -> Any:
        return None if self._name == "cpu" else self._module.Event

    def range_push(self, msg: str, domain: Any = None, category: Any = None) -> None:
        if self._name == "cuda":
            torch.cuda.nvtx.range_push(msg)  # type: ignore[no-untyped-call]

    def range_pop(self, domain: Any = None) -> None:
        if self._name == "cuda":
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]

    def lazy_call(self, callback: Callable[[], Any]) -> None:
        callback()

    def get_compile_backend(self) -> str:
        return self._compile_backend

    def set_compile_backend(self, backend: str) -> None:
        self._compile_backend = backend

    def visible_devices_envs(self) -> list[str]:
        return {"cuda": ["CUDA_VISIBLE_DEVICES"], "xpu": ["ZE_AFFINITY_MASK"]}.get(self._name, [])

    def op_builder_dir(self) -> str:
        return "deepspeed.ops.op_builder"

    def create_op_builder(self, class_name: str) -> Any:
        """An instance of that op builder; everything is built already."""
        return self.get_op_builder(class_name)()

    def get_op_builder(self, class_name: str) -> Any:
        return getattr(importlib.import_module(self.op_builder_dir()), class_name)

    def _tensor_type(self, dtype: torch.dtype) -> Any:
        return functools.partial(torch.tensor, dtype=dtype, device=self._name)

    BFloat16Tensor = property(lambda self: self._tensor_type(torch.bfloat16))
    ByteTensor = property(lambda self: self._tensor_type(torch.uint8))
    DoubleTensor = property(lambda self: self._tensor_type(torch.float64))
    FloatTensor = property(lambda self: self._tensor_type(torch.float32))
    HalfTensor = property(lambda self: self._tensor_type(torch.float16))
    IntTensor = property(lambda self: self._tensor_type(torch.int32))
    LongTensor = property(lambda self: self._tensor_type(torch.int64))


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _machine_bytes(pages: str) -> int:
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


@functools.cache
def get_accelerator() -> DeepSpeedAccelerator:
    """The accelerator of this process: DS_ACCELERATOR if set, else what the machine has."""
    return DeepSpeedAccelerator(distributed.device_type())


__getattr__ = fallback(__name__)
