"""The engine of a pipeline, made from JSON and asked under the names that programs know."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.data import Dataset, DistributedSampler, IterableDataset

import ds_pipeline
from deepspeed import wiring
from deepspeed.adapters import activation_checkpointing
from deepspeed.adapters.pipeline_schedules import InferenceSchedule, PipeSchedule
from deepspeed.config import Config, load_config
from deepspeed.config.batch import WorldSize
from deepspeed.config.load import brought
from deepspeed.dataloader import DeepSpeedDataLoader
from deepspeed.distributed import device_type, local_rank
from deepspeed.engine import DeepSpeedEngine
from deepspeed.optimizers import make_optimizer_factory
from deepspeed.precision import autocast_context, precision_settings
from deepspeed.strategies import Parts, make_strategy
from ds_core import device as devices
from ds_core.agreement import model_facts, require_agreement
from ds_core.errors import ConfigError
from ds_core.groups import make_groups
from ds_core.naming import ParameterNames, named_buffers
from ds_pipeline import PipelineModule, PipelineSettings
from ds_pipeline.instructions import PipeInstruction
from ds_pipeline.module import keep_no_activations

logger = logging.getLogger(__name__)


class PipelineEngine(ds_pipeline.PipelineEngine, DeepSpeedEngine):
    """A `ds_pipeline.PipelineEngine` that answers what a `DeepSpeedEngine` answers.

    `_INSTRUCTION_MAP` says which method carries out which class of instruction; programs may add
    classes of their own, and run schedules of their own with `_exec_schedule`.
    """

    _INSTRUCTION_MAP: ClassVar[dict[type[PipeInstruction], Callable[..., None]]] = dict(
        ds_pipeline.PipelineEngine._INSTRUCTION_MAP
    )
    has_attention_mask = False
    module: PipelineModule

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one training batch."""
        return self.window.accumulation_steps

    def set_has_attention_mask(self, value: bool) -> None:
        """Kept in `has_attention_mask`; masks pass between stages without being announced."""
        self.has_attention_mask = value

    def get_pipeline_parallel_rank(self) -> int:
        return self.stage_id

    def get_additional_losses(self) -> None:
        """None: what the loss consists of is the business of the module's `loss_fn`."""
        return None

    def log_for_device(self, *msg: Any) -> None:
        """Log a message of this stage at level info."""
        logger.info("stage %d: %s", self.stage_id, " ".join(map(str, msg)))

    tput_log = log_for_device

    def _exec_schedule(self, pipe_schedule: PipeSchedule) -> None:
        """Carry out a schedule; the other stages run the same class of it."""

        def plans(stage: int) -> Sequence[PipeInstruction]:
            same = type(pipe_schedule)(pipe_schedule.micro_batches, self.num_stages, stage)
            chosen = pipe_schedule if stage == self.stage_id else same
            return [step for steps in chosen for step in steps]

        training = not isinstance(pipe_schedule, InferenceSchedule)
        self.run_plans(plans, micro_batches=pipe_schedule.micro_batches, training=training)

    def _consolidated_16bit_state_dict(
        self, exclude_frozen_parameters: bool = False
    ) -> dict[str, Tensor] | None:
        """All stages' weights and buffers, on the CPU of rank 0; None elsewhere."""
        names = ParameterNames(self.module)
        state: dict[str, Tensor] = {}
        for param, name in names.names.items():
            if exclude_frozen_parameters and not param.requires_grad:
                continue
            whole = param.detach().to("cpu", copy=True)
            state.update(dict.fromkeys((name, *names.aliases[param]), whole))
        buffers = named_buffers(self.module)
        state.update({name: buffer.detach().cpu().clone() for name, buffer in buffers.items()})
        replica = self.groups.model
        if replica.world_size == 1:
            return state if self.groups.world.rank == 0 else None
        if self.groups.data.rank != 0:
            return None
        everyone: list[Any] | None = [None] * replica.world_size if replica.rank == 0 else None
        dist.gather_object(state, everyone, dst=replica.global_rank(0), group=replica.group)
        if everyone is None:
            return None
        merged: dict[str, Tensor] = {}
        for part in everyone:
            merged.update({name: value for name, value in part.items() if name not in merged})
        return merged


def make(
    *,
    model: PipelineModule,
    source: Any,
    optimizer: Any,
    model_parameters: Iterable[Any] | None,
    training_data: Any,
    lr_scheduler: Any,
    mpu: Any,
    collate_fn: Callable[[list[Any]], Any] | None,
) -> tuple[PipelineEngine, Any, DeepSpeedDataLoader | None, Any]:
    """What `initialize` returns for a `PipelineModule`; its groups come from the module.

    Raises:
        ConfigError: also for a setting that a pipeline cannot serve.
    """
    if mpu is not None and mpu is not model.mpu():
        raise ConfigError("a PipelineModule brings its own groups: give it a topology, no mpu")
    groups = make_groups(model.mpu())
    world = WorldSize(groups.data.world_size, "the replicas of the PipelineModule")
    replaced = brought(optimizer, lr_scheduler)
    config = load_config(source, world_size=world, replaced=replaced)
    section = config.section("pipeline")
    _apply(section, model)
    _check(config)
    if "activation_checkpointing" in config.sections:
        _recompute_as_configured(config, model)
    require_agreement(groups.data, "the model", model_facts(model))
    device = devices.local_device(local_rank()) if device_type() != "cpu" else torch.device("cpu")
    devices.set_device(device)
    trained, chosen = choose_optimizer(model, config, optimizer, model_parameters)
    parts = Parts(model, trained, chosen, groups, precision_settings(config), config, device)
    strategy = make_strategy(parts)
    schedule = wiring.make_schedule(config, strategy.optimizer, lr_scheduler, chosen is not None)
    engine = PipelineEngine(
        model,
        strategy,
        pipeline=PipelineSettings(section.schedule, section.record, device),
        configuration=config,
        device=device,
        has_optimizer=chosen is not None,
        mpu=model.mpu(),
        collate_fn=collate_fn,
        groups=groups,
        schedule=schedule,
        hooks=wiring.make_hooks(model, config, groups, strategy.optimizer),
        autocast=autocast_context(config, device.type),
    )
    if training_data is not None:
        engine.training_dataloader = _loader(engine, training_data)
        engine.set_dataloader(engine.training_dataloader)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _apply(section: Any, model: PipelineModule) -> None:
    """Hold the section against the module, and set what can be set afterwards."""
    told = {
        "stages": (section.stages, model.num_stages),
        "partition": (None if section.partition == "best" else section.partition, model.method),
        "seed_layers": (section.seed_layers or None, model.seed_layers),
    }
    for key, (wanted, have) in told.items():
        if wanted is not None and wanted != have:
            raise ConfigError(
                f"pipeline.{key} is {wanted!r}, the PipelineModule was made with {have!r}; give "
                "it to the module, which is built before the configuration is read"
            )
    if section.activation_checkpoint_interval:
        model.set_checkpoint_interval(section.activation_checkpoint_interval)
    if section.use_reentrant:
        model.activation_checkpoint_func = partial(torch_checkpoint, use_reentrant=True)


def _recompute_as_configured(config: Config, model: PipelineModule) -> None:
    """Let the `activation_checkpointing` section rule over the module's own default."""
    wiring.configure_checkpointing(config, model.mpu())
    if model.activation_checkpoint_func is keep_no_activations:
        model.activation_checkpoint_func = activation_checkpointing.checkpoint


def _check(config: Config) -> None:
    if "zero_optimization" in config.sections and config.section("zero_optimization").stage > 1:
        raise ConfigError(
            "zero_optimization.stage: a pipeline takes 0 or 1 (higher stages would reduce the "
            "gradients of every micro-batch)"
        )


def choose_optimizer(
    model: PipelineModule, config: Config, given: Any, params: Iterable[Any] | None
) -> Any:
    """As for any model, but a stage may have nothing to train."""
    if any(param.requires_grad for param in model.parameters()):
        return wiring.choose_optimizer(model, config, given, params)
    section: Any = config.sections.get("optimizer")
    empty: list[dict[str, Any]] = [{"params": []}]
    if given is not None or section is None:
        return empty, lambda groups: torch.optim.SGD(groups, lr=0.0)
    return empty, make_optimizer_factory(section.type, section.params)


def _loader(engine: PipelineEngine, data: Dataset[Any]) -> DeepSpeedDataLoader:
    """A loader whose order is the same on all stages of a replica."""
    sampler: DistributedSampler[Any] | None = None
    if not isinstance(data, IterableDataset):
        replicas = engine.groups.data
        sampler = DistributedSampler(data, num_replicas=replicas.world_size, rank=replicas.rank)
    loader: DeepSpeedDataLoader = engine.deepspeed_io(data, data_sampler=sampler)
    return loader


__all__ = ["PipelineEngine", "make"]
