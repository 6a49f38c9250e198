"""A model as a list of layers, of which each rank builds its stage."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from ds_core.errors import ConfigError
from ds_pipeline import layer_files, partition
from ds_pipeline.errors import PartitionError
from ds_pipeline.grid import PipelineParallelGrid
from ds_pipeline.specs import LayerSpec, TiedLayerSpec
from ds_pipeline.ties import TiedWeights
from ds_pipeline.topology import PipeDataParallelTopology, ProcessTopology
from ds_pipeline.weigh import class_names, measured_times, parameter_counts

Layer = LayerSpec | nn.Module | Callable[[Any], Any]

keep_no_activations = partial(torch_checkpoint, use_reentrant=False)
"""Runs a function and forgets its activations; backward computes them again."""


class PipelineModule(nn.Module):
    """Layers in sequence, divided into stages; this rank holds one stage.

    Each layer takes the output of the one before (one value; a tuple if that returned one).
    Parameters are named by the number of their layer in the whole list (`3.weight`), or by their
    tie (`tied_modules.embed.weight`), so that names do not depend on the number of stages.

    Args:
        layers: specs, modules or functions. Modules given ready-made are held by every rank until
            it has picked its own: use specs for large models.
        num_stages: stages; the other ranks are replicas. Or give `topology`.
        topology: a grid with an axis `pipe`.
        loss_fn: `loss_fn(outputs, labels)` on the last stage; without one the last layer's output
            is the loss.
        seed_layers: seed before each layer is built, and before each is run in training, so that
            weights and dropout do not depend on the division.
        seed_fn: called with the seed instead of `torch.manual_seed`.
        base_seed: the seed of layer `i` is `base_seed + i`.
        partition_method: `parameters`, `uniform`, `type:REGEX` (of class names), `profile` (by
            measured time; needs `example_input`), or the bounds of the stages.
        activation_checkpoint_interval: recompute activations by runs of this many layers; 0 keeps
            them all.
        activation_checkpoint_func: called as `func(run, *inputs)`.
        checkpointable_layers: class names of which alone activations are recomputed; None: of
            every run that has parameters.
        dynamic_shape: accepted; shapes may always change.
        chunks: pieces of the model a stage, for the schedule `interleaved`.
        example_input: one input of the model, for `profile`.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        num_stages: int | None = None,
        topology: ProcessTopology | None = None,
        loss_fn: Callable[..., Any] | None = None,
        seed_layers: bool = False,
        seed_fn: Callable[[int], Any] | None = None,
        base_seed: int = 1234,
        partition_method: str | Sequence[int] = "parameters",
        activation_checkpoint_interval: int = 0,
        activation_checkpoint_func: Callable[..., Any] = keep_no_activations,
        checkpointable_layers: Sequence[str] | None = None,
        dynamic_shape: bool = False,
        *,
        chunks: int = 1,
        example_input: Any = None,
    ) -> None:
        super().__init__()
        self.grid = PipelineParallelGrid(topology or _stages_and_replicas(num_stages))
        self.num_stages, self.stage_id = self.grid.pipe_parallel_size, self.grid.stage_id
        if num_stages is not None and num_stages != self.num_stages:
            raise ConfigError(f"num_stages is {num_stages}, the topology has {self.num_stages}")
        if chunks < 1 or (chunks > 1 and self.num_stages == 1):
            raise ConfigError(f"chunks={chunks} needs at least 2 stages, not {self.num_stages}")
        self.loss_fn, self.chunks, self.dynamic_shape = loss_fn, chunks, dynamic_shape
        self.seed_layers, self.base_seed = seed_layers, base_seed
        self.seed_fn = seed_fn or torch.manual_seed
        self.activation_checkpoint_interval = activation_checkpoint_interval
        self.activation_checkpoint_func = activation_checkpoint_func
        self.checkpointable_layers = checkpointable_layers
        self.micro_offset = 0
        self.method = partition_method
        self._specs = list(layers)
        self.parts = self._divide(partition_method, example_input)
        self.tied_modules = nn.ModuleDict()
        self.forward_funcs: list[Callable[..., Any]] = []
        self._chunk_starts: list[int] = []
        self._numbers: list[int] = []
        self._build()
        self.ties = TiedWeights(self._specs, self.tied_modules, self.stages_of_key, self.grid)

    def forward(self, forward_input: Any, **keywords: Any) -> Any:
        """What this rank's layers make of an input, all chunks in sequence."""
        for chunk in range(self.chunks):
            forward_input = self.run(forward_input, chunk=chunk, **keywords)
        return forward_input

    def run(
        self,
        value: Any,
        *,
        chunk: int = 0,
        inside: AbstractContextManager[Any] | None = None,
        **keywords: Any,
    ) -> Any:
        """What one chunk of this stage makes of `value`.

        Args:
            inside: entered around each layer, also when activations are computed again; but not
                around compiled ones, which are as they were when they were compiled.
            keywords: reach each layer whose `forward` takes them by name.
        """
        first = self._chunk_starts[chunk]
        last = [*self._chunk_starts, len(self.forward_funcs)][chunk + 1]
        interval = self.activation_checkpoint_interval
        if not interval or not torch.is_grad_enabled():
            return self._runner(first, last, keywords, inside)(value)
        for start in range(first, last, interval):
            stop = min(start + interval, last)
            packed = isinstance(value, tuple)
            part = self._runner(start, stop, keywords, inside, packed=packed)
            inputs = value if packed else (value,)
            layers = self.forward_funcs[start:stop]
            if self._checkpointable(layers):
                value = self._recomputed(part, inputs, layers)
            else:
                value = part(*inputs)
        return value

    def loss(self, outputs: Any, labels: Any, **keywords: Any) -> Any:
        """The loss of the last stage's outputs."""
        if self.loss_fn is None:
            return outputs
        accepted = _accepted(self.loss_fn, keywords)
        return self.loss_fn(outputs, labels, **accepted)

    def partitions(self) -> list[int]:
        """The first layer of each part, and the number of layers; chunk by chunk."""
        return self.parts

    def stage_owner(self, layer_idx: int) -> int:
        """The stage that has a layer."""
        if not 0 <= layer_idx < len(self._specs):
            raise ConfigError(f"layer {layer_idx} is not one of {len(self._specs)}")
        part = next(p for p in range(len(self.parts) - 1) if layer_idx < self.parts[p + 1])
        return part % self.num_stages

    def stages_of_key(self, key: str) -> list[int]:
        """The stages that hold layers tied as `key`, in order."""
        found = {
            self.stage_owner(index)
            for index, spec in enumerate(self._specs)
            if isinstance(spec, TiedLayerSpec) and spec.key == key
        }
        return sorted(found)

    def topology(self) -> ProcessTopology:
        return self.grid.topology()

    def mpu(self) -> PipelineParallelGrid:
        """The groups, as a Megatron-style object."""
        return self.grid

    def num_pipeline_stages(self) -> int:
        return self.num_stages

    def set_checkpoint_interval(self, interval: int) -> None:
        """Recompute activations by runs of this many layers from now on."""
        self.activation_checkpoint_interval = interval

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile each layer by itself; arguments are those of `torch.compile`."""
        for layer in self.forward_funcs:
            if isinstance(layer, nn.Module):
                layer.compile(*args, **kwargs)

    def get_tied_weights_and_groups(self) -> list[tuple[nn.Parameter, Any]]:
        """Parameters that other stages hold copies of, each with the group of these stages."""
        return [(p, tie.comm.group) for tie in self.ties.ties for p in tie.params.values()]

    def allreduce_tied_weight_gradients(self) -> None:
        """Sum gradients of tied parameters over stages now; a step does it if nobody has."""
        self.ties.reduce()

    def ckpt_prefix(self, checkpoints_path: str, tag: str) -> str:
        """The beginning of the path of what is saved under a tag."""
        return os.path.join(checkpoints_path, str(tag))

    def ckpt_layer_path(self, ckpt_dir: str, local_layer_idx: int) -> str:
        """The file of a layer of this stage."""
        return layer_files.path_of(ckpt_dir, self._numbers[local_layer_idx], self.grid)

    def ckpt_layer_path_list(self, ckpt_dir: str, local_layer_idx: int) -> list[str]:
        """The files that there are of a layer of this stage, one a slice."""
        return layer_files.paths_of(ckpt_dir, self._numbers[local_layer_idx])

    def save_state_dict(
        self,
        save_dir: str,
        checkpoint_engine: layer_files.FileEngine | None = None,
        exclude_frozen_params: bool = False,
    ) -> None:
        """Write a file for each layer that has weights or buffers; one replica does it."""
        if self.grid.data_parallel_id == 0:
            layer_files.save(
                self.forward_funcs,
                self._layer_paths(save_dir),
                checkpoint_engine,
                without_frozen=exclude_frozen_params,
            )

    def load_state_dir(
        self,
        load_dir: str,
        checkpoint_engine: layer_files.FileEngine | None = None,
        strict: bool = True,
    ) -> None:
        """Read this stage's layers from such files, which any number of stages wrote."""
        paths = self._layer_paths(load_dir)
        layer_files.load(self.forward_funcs, paths, checkpoint_engine, strict=strict)

    def _layer_paths(self, folder: str) -> list[str]:
        return [self.ckpt_layer_path(folder, index) for index in range(len(self._numbers))]

    def get_additional_losses(self) -> None:
        """None: what the loss consists of is the business of `loss_fn`. For subclasses."""
        return None

    def _divide(self, method: str | Sequence[int], example_input: Any) -> list[int]:
        count, parts = len(self._specs), self.num_stages * self.chunks
        if not isinstance(method, str):
            return partition.explicit(method, count, parts)
        name = method.lower()
        if name == "uniform":
            return partition.uniform(count, parts)
        if name in ("parameters", "best"):
            return partition.balanced(parameter_counts(self._specs), parts)
        if name.startswith("type:"):
            found = partition.matches(class_names(self._specs), method.partition(":")[2])
            return partition.balanced(found, parts)
        if name == "profile":
            times = measured_times(self._specs, example_input, first=self.grid.global_rank == 0)
            if self.grid.world_size > 1:
                dist.broadcast_object_list(times, src=0)
            return partition.balanced(times, parts)
        raise PartitionError(
            f"unknown partition_method {method!r}; known: parameters, uniform, type:REGEX, "
            "profile, or a list of bounds"
        )

    def _build(self) -> None:
        for chunk in range(self.chunks):
            part = chunk * self.num_stages + self.stage_id
            self._chunk_starts.append(len(self.forward_funcs))
            for index in range(self.parts[part], self.parts[part + 1]):
                self.forward_funcs.append(self._make(index, self._specs[index]))
                self._numbers.append(index)

    def _make(self, index: int, spec: Layer) -> Callable[..., Any]:
        if self.seed_layers:
            self.seed_fn(self.base_seed + index)
        if isinstance(spec, TiedLayerSpec):
            if spec.key not in self.tied_modules:
                self.tied_modules[spec.key] = spec.build()
            module = self.tied_modules[spec.key]
            return module if spec.forward_fn is None else partial(spec.forward_fn, module)
        if isinstance(spec, LayerSpec):
            spec = spec.build()
        if isinstance(spec, nn.Module):
            self.add_module(str(index), spec)
        elif not callable(spec):
            raise ConfigError(
                f"layer {index} is {spec!r}; a layer is a LayerSpec, a module or a function"
            )
        return spec

    def _runner(
        self,
        start: int,
        stop: int,
        keywords: dict[str, Any],
        inside: AbstractContextManager[Any] | None,
        *,
        packed: bool = False,
    ) -> Callable[..., Any]:
        """Runs layers on its one argument, or on all of them as a tuple if they come `packed`."""

        def run(*inputs: Any) -> Any:
            value = inputs if packed else inputs[0]
            return self._run_range(start, stop, keywords, value, inside or nullcontext())

        return run

    def _run_range(
        self,
        start: int,
        stop: int,
        keywords: dict[str, Any],
        value: Any,
        inside: AbstractContextManager[Any],
    ) -> Any:
        for position in range(start, stop):
            if self.seed_layers and self.training:
                offset = self.base_seed * self.micro_offset
                self.seed_fn(offset + self.base_seed + self._numbers[position])
            layer = self.forward_funcs[position]
            with nullcontext() if _is_compiled(layer) else inside:
                value = layer(value, **_accepted(layer, keywords)) if keywords else layer(value)
        return value

    def _recomputed(
        self, part: Callable[..., Any], inputs: Sequence[Any], layers: Sequence[Any]
    ) -> Any:
        """Reentrant autograd trains weights only if an argument needs a gradient, so one does."""
        function = self.activation_checkpoint_func
        trained = any(p.requires_grad for layer in layers for p in _parameters(layer))
        needing = any(torch.is_tensor(value) and value.requires_grad for value in inputs)
        if function is keep_no_activations or needing or not trained:
            return function(part, *inputs)
        marked = [_asking(value) for value in inputs]
        if any(new is not old for new, old in zip(marked, inputs, strict=True)):
            return function(part, *marked)
        key = torch.zeros((), requires_grad=True)
        return function(lambda *given: part(*given[:-1]), *inputs, key)

    def _checkpointable(self, layers: Sequence[Any]) -> bool:
        if self.checkpointable_layers is not None:
            return all(type(layer).__name__ in self.checkpointable_layers for layer in layers)
        return any(True for layer in layers for _ in _parameters(layer))


def _stages_and_replicas(num_stages: int | None) -> ProcessTopology:
    if num_stages is None:
        raise ConfigError("PipelineModule needs num_stages or a topology")
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if num_stages < 1 or world % num_stages:
        raise ConfigError(f"{world} ranks cannot be divided into {num_stages} stages")
    return PipeDataParallelTopology(num_stages, world // num_stages)


def _asking(value: Any) -> Any:
    """A tensor that can have a gradient as one that needs it."""
    if torch.is_tensor(value) and (value.is_floating_point() or value.is_complex()):
        return value.detach().requires_grad_()
    return value


def _parameters(layer: Any) -> Iterable[nn.Parameter]:
    return layer.parameters() if isinstance(layer, nn.Module) else ()


def _is_compiled(layer: Any) -> bool:
    return isinstance(layer, nn.Module) and (
        layer._compiled_call_impl is not None or "_orig_mod" in layer._modules
    )


def _accepted(function: Any, keywords: dict[str, Any]) -> dict[str, Any]:
    """Those of `keywords` that `function` takes by name."""
    if not keywords:
        return {}
    target = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # built-in functions have no signature
        return {}
    return {key: value for key, value in keywords.items() if key in parameters}
