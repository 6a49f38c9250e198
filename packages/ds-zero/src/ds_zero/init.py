"""Building a model whose parameters are sharded from the start."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ds_core.comm import Communicator
from ds_core.device import local_device
from ds_core.errors import ConfigError
from ds_zero.exchange import Exchange
from ds_zero.gathered import gathered
from ds_zero.memory import give_back
from ds_zero.params import Shard, shard_of

Constructor = Callable[..., Tensor]
Wrapper = Callable[[Constructor, torch.dtype, torch.device], Constructor]

CONSTRUCTORS = ("tensor", "empty", "zeros", "ones", "full", "arange", "eye", "rand", "randn")
"""Functions of `torch` that make tensors on the target device inside `Init`."""


def wrap_constructor(
    fn: Constructor, target_fp_dtype: torch.dtype, target_device: torch.device
) -> Constructor:
    """`fn`, making its tensors on `target_device` and floating-point ones in `target_fp_dtype`."""

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Tensor:
        if kwargs.get("device") is None:
            kwargs["device"] = target_device
        made = fn(*args, **kwargs)
        return made.to(target_fp_dtype) if made.is_floating_point() else made

    return wrapped


class Init:
    """Inside, each module's parameters are cut into shares as soon as its `__init__` is done.

    A rank never holds more of the model than its shares and one layer. The layer's values are
    those of rank 0. May be nested; the outermost decides.

    Args:
        module: an existing module to shard at once; nothing happens inside the block then.
        data_parallel_group: ranks to shard over; default: all, or those of `mpu`.
        mem_efficient_linear: accepted; weights stay out of the autograd graph at stage 3 anyway.
        remote_device: `cpu` or `nvme` keep shares in host memory.
        pin_memory: page-lock them.
        config_dict_or_path: chooses the format (`bf16.enabled`, `fp16.enabled`) and, at
            `zero_optimization.offload_param.device`, where shares lie.
        config: old name of `config_dict_or_path`.
        enabled: False makes this do nothing.
        dtype: format of the parameters; before that of the configuration.
        mpu: knows the data-parallel group.
        wrapper: wraps tensor constructors; see `wrap_constructor`.
        override_module_apply: let `Module.apply` see whole parameters, rank 0's edits counting.
    """

    def __init__(
        self,
        module: nn.Module | None = None,
        data_parallel_group: dist.ProcessGroup | None = None,
        mem_efficient_linear: bool = True,
        remote_device: str | None = None,
        pin_memory: bool = False,
        config_dict_or_path: Mapping[str, Any] | str | Path | None = None,
        config: Mapping[str, Any] | str | Path | None = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        mpu: Any = None,
        *,
        device: torch.device | None = None,
        wrapper: Callable[[], Wrapper] | None = None,
        override_module_apply: bool = True,
    ) -> None:
        self._enabled = enabled
        if not enabled:
            return
        settings = _read(config_dict_or_path if config_dict_or_path is not None else config)
        if mpu is not None and data_parallel_group is None:
            data_parallel_group = mpu.get_data_parallel_group()
        self.dtype = dtype or _dtype_of(settings) or torch.get_default_dtype()
        self.device = device or local_device(dist.get_rank() if dist.is_initialized() else 0)
        if device is None and self.device.type != "cpu":
            self.device = torch.device(self.device.type, torch.accelerator.current_device_index())
        remote = remote_device or _offload_device(settings)
        if remote not in (None, "none", "cpu", "nvme"):
            raise ConfigError(f"remote_device {remote!r}: expected none, cpu or nvme")
        self._host = torch.device("cpu") if remote in ("cpu", "nvme") else None
        self._exchange = Exchange(Communicator(data_parallel_group, name="data"))
        self._wrapper = wrapper or (lambda: wrap_constructor)
        zero = settings.get("zero_optimization") or {}
        self._override_apply = override_module_apply and zero.get("override_module_apply", True)
        self._patches: list[tuple[Any, str, Any, bool]] = []
        self._building: list[nn.Module] = []
        self._outer: Init | None = None
        if module is not None:
            for child in module.modules():
                self._shard(child)

    def __enter__(self) -> Init:
        if self._enabled and not _is_patched():
            self._patch()
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._enabled:
            self._unpatch()

    @property
    def num_partitions(self) -> int:
        """Ranks that hold a share."""
        return self._exchange.world_size

    def get_dp_process_group(self) -> dist.ProcessGroup | None:
        """The group of these ranks; None is the world."""
        return self._exchange.comm.group

    def get_partition_rank(self) -> int:
        """This rank's place in the group."""
        return self._exchange.rank

    def _patch(self) -> None:
        for cls in {nn.Module, *_subclasses(nn.Module)}:
            if "__init__" in cls.__dict__:
                self._replace(cls, "__init__", self._watched(cls.__dict__["__init__"]))
        self._replace(
            nn.Module, "__init_subclass__", classmethod(functools.partial(_late_class, self))
        )
        if self._override_apply:
            self._replace(nn.Module, "apply", _apply_whole)
        wrapper = self._wrapper()
        for name in CONSTRUCTORS:
            original = getattr(torch, name)
            wrapped = wrapper(original, target_fp_dtype=self.dtype, target_device=self.device)  # type: ignore[call-arg]
            self._replace(torch, name, wrapped)

    def _unpatch(self) -> None:
        while self._patches:
            owner, name, old, had = self._patches.pop()
            if had:
                setattr(owner, name, old)
            else:
                delattr(owner, name)

    def _replace(self, owner: Any, name: str, new: Any) -> None:
        had = name in vars(owner)
        self._patches.append((owner, name, vars(owner).get(name), had))
        setattr(owner, name, new)

    def watch_class(self, cls: type[nn.Module]) -> None:
        """Also shard modules of a class that was defined inside the block."""
        if "__init__" in cls.__dict__ and not hasattr(cls.__dict__["__init__"], _MARK):
            self._replace(cls, "__init__", self._watched(cls.__dict__["__init__"]))

    def _watched(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def watched(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            if any(module is other for other in self._building):
                original(module, *args, **kwargs)  # a base class's part of the same object
                return
            self._building.append(module)
            try:
                original(module, *args, **kwargs)
            finally:
                self._building.pop()
            if "_parameters" in module.__dict__:
                self._shard(module)

        setattr(watched, _MARK, True)
        return watched

    def _shard(self, module: nn.Module) -> None:
        for name, param in module._parameters.items():
            if param is None or shard_of(param) is not None:
                continue
            with torch.no_grad():
                dtype = self.dtype if param.is_floating_point() else param.dtype
                if not param.is_meta:
                    param.data = param.data.to(self.device, dtype)
            self.shard_parameter(param, name=f"{type(module).__name__}.{name}")
        if self.device.type == "cpu":
            give_back()
        for key, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta:
                dtype = self.dtype if buffer.is_floating_point() else buffer.dtype
                module._buffers[key] = buffer.to(self.device, dtype)

    def shard_parameter(self, param: nn.Parameter, *, name: str = "") -> Shard:
        """Cut one whole parameter into shares of rank 0's values."""
        shard = Shard(param, self._exchange, name=name)
        if param.is_meta:
            shard.device = self.device
            shard.bind(torch.zeros(shard.width, dtype=self.dtype, device=self._host or self.device))
        else:
            shard.scatter_from(0)
            if self._host is not None and self._host != self.device:
                shard.bind(shard.local.to(self._host))
        shard.release()
        return shard


_MARK = "_ds_zero_init"


def _is_patched() -> bool:
    return hasattr(nn.Linear.__init__, _MARK)


def _late_class(init: Init, cls: type[nn.Module], **_: Any) -> None:
    init.watch_class(cls)


def _subclasses(cls: type[nn.Module]) -> Iterator[type[nn.Module]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


def _apply_whole(module: nn.Module, fn: Callable[[nn.Module], Any]) -> nn.Module:
    """`Module.apply` in which `fn` sees whole parameters of each module; rank 0's edits count."""
    for child in module.children():
        child.apply(fn)
    params = module.parameters(recurse=False)
    shards = [shard for param in params if (shard := shard_of(param)) is not None]
    with gathered(list(dict.fromkeys(shards)), modifier_rank=0):
        fn(module)
    return module


def _read(config: Mapping[str, Any] | str | Path | None) -> Mapping[str, Any]:
    if config is None or isinstance(config, Mapping):
        return config or {}
    found: Mapping[str, Any] = json.loads(Path(config).read_text())
    return found


def _dtype_of(settings: Mapping[str, Any]) -> torch.dtype | None:
    if not settings:
        return None
    for names, dtype in ((("bf16", "bfloat16"), torch.bfloat16), (("fp16",), torch.float16)):
        if any(settings.get(name, {}).get("enabled") is True for name in names):
            return dtype
    return torch.float32


def _offload_device(settings: Mapping[str, Any]) -> str | None:
    zero = settings.get("zero_optimization") or {}
    found = (zero.get("offload_param") or {}).get("device") if isinstance(zero, Mapping) else None
    return None if found is None else str(found)
