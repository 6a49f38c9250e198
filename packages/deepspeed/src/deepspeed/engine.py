"""The engine under the method names that programs know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from deepspeed.adapters.data_engine import DataAnswers
from deepspeed.compiled import say_it_stays_eager
from deepspeed.config import BatchSizes, Config
from deepspeed.config_answers import ConfigAnswers
from deepspeed.dataloader import DeepSpeedDataLoader
from deepspeed.distributed import local_rank
from deepspeed.engine_checkpoint import EngineCheckpoint
from deepspeed.optimizer_face import DeepSpeedOptimizer
from deepspeed.parameter_offload import (
    ParameterOffload,
    call_plain_tensors_whole,
    forget_edits,
    gathers_parameters,
    hide_external_parameters,
    let_edits_reach_all,
    show_external_parameters,
)
from ds_core.contracts import StepReport
from ds_core.engine import Engine
from ds_core.errors import ConfigError, StateError


class DeepSpeedEngine(EngineCheckpoint, ConfigAnswers, DataAnswers, Engine):
    """An `Engine` with the questions, counters and files of the `deepspeed` interface.

    Made by `deepspeed.initialize`. `config` is the raw dictionary; `optimizer`, `lr_scheduler`,
    `module`, `device` and the counters are attributes.
    """

    def __init__(
        self,
        module: nn.Module,
        strategy: Any,
        *,
        configuration: Config,
        device: torch.device,
        has_optimizer: bool = True,
        mpu: Any = None,
        collate_fn: Any = None,
        **engine_arguments: Any,
    ) -> None:
        super().__init__(
            module,
            strategy,
            micro_batch_size=configuration.batch.micro,
            accumulation_steps=configuration.batch.accumulation,
            **engine_arguments,
        )
        self.configuration = configuration
        self.config = configuration.raw
        self.device = device
        self.mpu = mpu
        self.collate_fn = collate_fn
        self.training_dataloader: Any = None
        self.optimizer: Any = DeepSpeedOptimizer(self) if has_optimizer else None
        if gathers_parameters(strategy):
            show_external_parameters(module)
            call_plain_tensors_whole()
            self.optimizer = self.optimizer or ParameterOffload(self)  # has the hooks, at least
        else:
            let_edits_reach_all(module, strategy)
        self.basic_optimizer = strategy.optimizer if has_optimizer else None
        self._stepped = False
        self._compiled = False
        self._schedule_arguments: dict[str, Any] = {}

    @property
    def lr_scheduler(self) -> Any:
        """The schedule; programs may set it, also to None to move it themselves."""
        return self.schedule

    @lr_scheduler.setter
    def lr_scheduler(self, schedule: Any) -> None:
        self.schedule = schedule

    def backward(
        self,
        loss: Tensor,
        retain_graph: bool = False,
        scale_wrt_gas: bool = True,
        *,
        weight: float | None = None,
    ) -> Tensor:
        """`Engine.backward`; returns the loss divided by the accumulation steps."""
        super().backward(loss, retain_graph, scale_wrt_gas, weight=weight)
        steps = self.configuration.batch.accumulation
        return loss / steps if scale_wrt_gas and steps > 1 else loss

    def step(self, lr_kwargs: Mapping[str, Any] | None = None, **ignored: Any) -> StepReport | None:
        """`Engine.step`; `lr_kwargs` go to the schedule's `step`.

        Other keyword arguments, which some trainers pass on to every optimizer, are ignored.
        """
        self._schedule_arguments = dict(lr_kwargs or {})
        if isinstance(self.schedule, ReduceLROnPlateau) and not self._schedule_arguments:
            self._require_metric()
        report = super().step()
        self._stepped = report is not None
        return report

    def _require_metric(self) -> None:
        """Refuse a step that would update the weights and then fail to move the schedule."""
        counted = self._backward_since_step
        if self.window.is_boundary() if counted else self.window.will_close():
            raise StateError(
                "ReduceLROnPlateau moves by a metric: call engine.step(lr_kwargs={'metrics': "
                "value}), or set engine.lr_scheduler = None and call its step(value) yourself"
            )

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise StateError(
            "an engine is neither copied nor pickled, it holds process groups and hooks; keep its "
            "state with save_checkpoint(), copy engine.module inside zero.GatheredParameters"
        )

    def _move_schedule(self, schedule: Any) -> None:
        if isinstance(schedule, LRScheduler):
            # torch warns of schedules that move first; a sharded step does not pass its `step`
            schedule.optimizer._opt_called = True  # type: ignore[attr-defined]
        schedule.step(**self._schedule_arguments)

    def get_lr(self) -> list[float]:
        """The learning rate of each parameter group."""
        return [float(group["lr"]) for group in self.strategy.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        """Momentum or betas of each parameter group."""
        groups = self.strategy.optimizer.param_groups
        return [group.get("momentum", group.get("betas")) for group in groups]

    def get_global_grad_norm(self) -> float | None:
        """The gradient norm of the last step before clipping, or None before the first."""
        return None if self.last_report is None else self.last_report.grad_norm

    def was_step_applied(self) -> bool:
        """True if the last call of `step` updated the weights."""
        return bool(self._stepped and self.last_report and not self.last_report.skipped)

    def loss_scale(self) -> float:
        """The scale of the next backward pass."""
        return float(getattr(self.strategy, "scaler_scale", 1.0))

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the loss scale, for a plain `backward()` of the caller's."""
        return loss * self.loss_scale()

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Change the accumulation steps so that a step takes this many samples.

        Raises:
            ConfigError: if it is not a multiple of micro-batch size times ranks.
        """
        batch = self.configuration.batch
        per_micro_batch = batch.micro * batch.world_size
        if train_batch_size < per_micro_batch or train_batch_size % per_micro_batch:
            raise ConfigError(
                f"train_batch_size {train_batch_size} is not a multiple of {per_micro_batch} "
                f"(micro-batch {batch.micro} x {batch.world_size} ranks)"
            )
        steps = train_batch_size // per_micro_batch
        self._set_batch(replace(batch, train=train_batch_size, accumulation=steps))

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """Change the micro-batch size, keeping the accumulation steps."""
        if micro_batch_size < 1:
            raise ConfigError(f"micro-batch size {micro_batch_size} must be at least 1")
        batch = self.configuration.batch
        train = micro_batch_size * batch.accumulation * batch.world_size
        self._set_batch(replace(batch, micro=micro_batch_size, train=train))

    def _set_batch(self, batch: BatchSizes) -> None:
        self.configuration = replace(self.configuration, batch=batch)
        self.window.accumulation_steps = batch.accumulation
        self.micro_batch_size = batch.micro

    def deepspeed_io(
        self,
        dataset: Any,
        batch_size: int | None = None,
        route: str = "train",
        pin_memory: bool = True,
        data_sampler: Any = None,
        collate_fn: Any = None,
        num_local_io_workers: int | None = None,
    ) -> Any:
        """A loader of this rank's micro-batches of `dataset`; of a curriculum if there is one."""
        data = self.groups.data
        if route == "train" and data_sampler is None and self.curriculum_learning_enabled():
            return self.curriculum_io(
                dataset,
                collate_fn or self.collate_fn,
                drop_last=self.configuration.general.dataloader_drop_last,
            )
        return DeepSpeedDataLoader(
            dataset,
            batch_size or self.configuration.batch.micro,
            pin_memory=pin_memory,
            collate_fn=collate_fn or self.collate_fn,
            num_local_io_workers=num_local_io_workers,
            data_sampler=data_sampler,
            data_parallel_world_size=data.world_size,
            data_parallel_rank=data.rank,
            dataloader_drop_last=self.configuration.general.dataloader_drop_last,
        )

    def compile(
        self, backend: str = "inductor", compile_kwargs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """Compile the module in place (`torch.nn.Module.compile`); names do not change.

        At ZeRO stage 3 the module goes on eagerly, which is logged.
        """
        if gathers_parameters(self.strategy):
            say_it_stays_eager(["the model"])
            return
        self.module.compile(backend=backend, **(compile_kwargs or {}))
        self._compiled = True

    @property
    def is_compiled(self) -> bool:
        return self._compiled

    def allreduce_gradients(self, bucket_size: int = 0) -> None:
        """Nothing to do: the last backward of a window has reduced already."""

    def get_data_parallel_rank(self) -> int:
        return self.groups.data.rank

    def get_model_parallel_rank(self) -> int:
        return self.groups.model.rank

    get_tensor_parallel_rank = get_model_parallel_rank

    def get_sequence_parallel_group(self) -> None:
        return None

    def empty_partition_cache(self) -> None:
        """Give back whole copies of partitioned weights that are kept for reuse."""
        empty = getattr(self.strategy, "empty_partition_cache", None)
        if empty is not None:
            empty()

    def destroy(self) -> None:
        """Give the module back as it was; the engine is of no use after."""
        super().destroy()
        hide_external_parameters(self.module)
        forget_edits(self.module)

    def offload_states(
        self, include: Any = None, device: Any = "cpu", pin_memory: bool = True, **options: Any
    ) -> None:
        """Move the states of ZeRO to another device until `reload_states`."""
        self._mover("offload_states")(
            include=include, device=device, pin_memory=pin_memory, **options
        )

    def reload_states(self, non_blocking: bool = False) -> None:
        """Bring back what `offload_states` moved."""
        self._mover("reload_states")(non_blocking=non_blocking)

    def _mover(self, name: str) -> Any:
        move = getattr(self.strategy, name, None)
        if move is None:
            raise ConfigError(f"{name}() needs ZeRO stage 1, 2 or 3")
        return move

    @property
    def data_parallel_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold the same weights; None is the world."""
        return self.groups.data.group or dist.group.WORLD

    @property
    def global_rank(self) -> int:
        return self.groups.world.rank

    @property
    def world_size(self) -> int:
        return self.groups.world.world_size

    @property
    def dp_world_size(self) -> int:
        return self.groups.data.world_size

    @property
    def mp_world_size(self) -> int:
        return self.groups.model.world_size

    @property
    def local_rank(self) -> int:
        return local_rank()

    @property
    def global_steps(self) -> int:
        return self.counters.steps

    @global_steps.setter
    def global_steps(self, steps: int) -> None:
        self.counters.steps = steps

    @property
    def global_samples(self) -> int:
        return self.counters.samples

    @global_samples.setter
    def global_samples(self, samples: int) -> None:
        self.counters.samples = samples

    @property
    def micro_steps(self) -> int:
        return self.counters.micro_batches

    @micro_steps.setter
    def micro_steps(self, count: int) -> None:
        self.counters.micro_batches = count

    @property
    def skipped_steps(self) -> int:
        return self.counters.skipped

    @skipped_steps.setter
    def skipped_steps(self, count: int) -> None:
        self.counters.skipped = count
