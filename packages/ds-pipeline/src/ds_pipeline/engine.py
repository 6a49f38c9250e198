"""The engine of a pipeline: one call trains a batch over all stages."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from secrets import token_hex
from typing import Any

import torch
from torch import Tensor

from ds_core.agreement import require_agreement
from ds_core.comm import Communicator
from ds_core.contracts import UpdateStrategy
from ds_core.errors import CollectiveTimeout
from ds_core.groups import Groups
from ds_pipeline.batches import BatchSource, concatenated, mean_of
from ds_pipeline.errors import PipelineError
from ds_pipeline.execution import Pass, StageEngine
from ds_pipeline.faults import FaultBoard
from ds_pipeline.grid import is_gloo, release
from ds_pipeline.heap import keep_freed_memory
from ds_pipeline.instructions import BackwardWeight, PipeInstruction
from ds_pipeline.links import Links
from ds_pipeline.module import PipelineModule
from ds_pipeline.recording import Recorder
from ds_pipeline.schedules import plan, plan_inference
from ds_pipeline.simulate import Timeline
from ds_pipeline.stage_strategy import StageStrategy

Plans = Callable[[int], Sequence[PipeInstruction]]
"""What each stage does in a pass."""


@dataclass(frozen=True)
class PipelineSettings:
    """How a pipeline runs.

    Attributes:
        schedule: `gpipe`, `1f1b`, `interleaved` or `zb-h1`; None picks 1f1b, or interleaved for
            a module of several chunks.
        record: note when each computation runs, see `PipelineEngine.recorded`.
        device: where batches go; None is that of the module's parameters.
        keep_memory: on the CPU, let the allocator keep some of what a micro-batch frees for the
            next one, see `ds_pipeline.heap`.
    """

    schedule: str | None = None
    record: bool = False
    device: torch.device | None = None
    keep_memory: bool = True


class PipelineEngine(StageEngine):
    """Trains a `PipelineModule`, one whole batch a call.

        loss = engine.train_batch(data_iter)

    An iterator yields micro-batches `(inputs, labels)`; the first stage takes inputs, the last
    labels, so only these need one. Hooks apply: `before_forward` sees the inputs on the first
    stage and nothing elsewhere, and keywords that it adds reach every layer (and the loss) that
    takes them by name; the backward hooks run on the last stage.

    Args:
        module: this rank's stage.
        strategy: updates the stage over its data-parallel ranks; gradients must stay whole
            until the step (replicas, or ZeRO-1).
        pipeline: how to run.
        engine_arguments: as for `Engine`; `accumulation_steps` is the number of micro-batches.
    """

    def __init__(
        self,
        module: PipelineModule,
        strategy: UpdateStrategy,
        *,
        groups: Groups,
        pipeline: PipelineSettings | None = None,
        **engine_arguments: Any,
    ) -> None:
        settings = pipeline or PipelineSettings()
        staged = StageStrategy(strategy, module, groups.model)
        if module.grid.slice_parallel_size > 1:  # slices hold different pieces of one name
            engine_arguments.setdefault("state_scope", f"model_{module.grid.slice_id:02d}.")
        super().__init__(module, staged, groups=groups, **engine_arguments)
        grid = module.grid
        self.grid, self.num_stages, self.stage_id = grid, module.num_stages, module.stage_id
        self.pipeline_schedule = settings.schedule or (
            "interleaved" if module.chunks > 1 else "1f1b"
        )
        me = f"stage {self.stage_id} (rank {grid.global_rank})"
        self._pipe_device = settings.device or _device_of(module)
        if settings.keep_memory and self._pipe_device.type == "cpu":
            keep_freed_memory()
        self._agree()
        self._faults = FaultBoard(me, groups.world.broadcast_object(token_hex(8), 0))
        self._pipe = self.grid.new_pipe_group() if self.num_stages > 1 else None
        self._links = Links(module, self._pipe_comm(), self._faults, self._pipe_device)
        mine = self._pipe if is_gloo(self._pipe) else None
        self._let_go = weakref.finalize(self, _let_go, self._links, mine, os.getpid())
        self._let_go.atexit = False
        self._source = BatchSource(me)
        self._recorder = Recorder(self.stage_id) if settings.record else None
        self._pass = Pass(training=False)
        _mark_counted(module)
        module.ties.watch()
        self.agg_train_loss: Tensor | None = None

    def train_batch(self, data_iter: Iterator[Any] | None = None) -> Tensor:
        """Train on one batch of `accumulation_steps` micro-batches a replica.

        Args:
            data_iter: micro-batches, for the first and the last stage; None takes those of
                `set_dataiterator` or `set_dataloader`.

        Returns:
            The mean loss over micro-batches and replicas, on every stage.
        """
        self.require_open()
        if not torch.is_grad_enabled():
            raise PipelineError("train_batch() needs gradients; use eval_batch() under no_grad()")
        self.train()
        micro_batches = self.window.accumulation_steps
        plans = _plans(self.pipeline_schedule, self.num_stages, micro_batches, self.module.chunks)
        self.run_plans(plans, micro_batches=micro_batches, training=True, data_iter=data_iter)
        assert self.agg_train_loss is not None
        return self.agg_train_loss

    def run_plans(
        self,
        plans: Plans,
        *,
        micro_batches: int,
        training: bool,
        data_iter: Iterator[Any] | None = None,
    ) -> None:
        """Do this stage's part of any schedule; `plans(stage)` says what each stage does."""
        self.strategy.root = self.strategy.loss_scale / micro_batches
        self._pass = Pass(training=training, micro_batches=micro_batches)
        self._run_pass(plans, data_iter)

    def eval_batch(
        self,
        data_iter: Iterator[Any] | None = None,
        return_logits: bool = False,
        compute_loss: bool = True,
        reduce_output: str | None = "avg",
        bcast_loss: bool = True,
        num_micro_batches: int | None = None,
    ) -> Any:
        """Evaluate micro-batches of any size and number; no gradient state is touched.

        Args:
            return_logits: return `(result, outputs)`; outputs are those of the last layer on the
                last stage, micro-batches laid behind each other, and None on the other stages.
            compute_loss: the result is the loss; else the outputs, on the last stage only.
            reduce_output: `avg` over micro-batches (and replicas, for the loss), or None for a
                list by micro-batch, on the last stage only.
            bcast_loss: give the mean loss to all stages.
            num_micro_batches: default: as many as in training.
        """
        self.require_open()
        micro_batches = num_micro_batches
        if micro_batches is None:
            micro_batches = self.window.accumulation_steps
        self._pass = Pass(False, compute_loss, micro_batches)
        plans = _plans("inference", self.num_stages, micro_batches, self.module.chunks)
        was_training = self.training
        self.eval()
        try:
            with torch.no_grad():
                done = self._run_pass(plans, data_iter)
                result = self._evaluated(done, reduce_output, bcast_loss)
        finally:
            self.train(was_training)
        if not return_logits:
            return result
        return result, concatenated(done.results) if self.is_last_stage() else None

    def set_dataiterator(self, iterator: Iterator[Any]) -> None:
        """Where `train_batch` and `eval_batch` without an iterator take micro-batches from."""
        self._source.iterator = iterator

    def set_dataloader(self, loader: Iterable[Any]) -> None:
        """The same from a loader, which begins again when it ends."""
        self._source.set_loader(loader)

    def set_batch_fn(self, fn: Callable[[Any], Any]) -> None:
        """Called with each micro-batch; returns `(inputs, labels)`."""
        self._source.batch_fn = fn

    def is_first_stage(self) -> bool:
        return self.stage_id == 0

    def reset_activation_shape(self) -> None:
        """Nothing to do: a stage describes a value whenever its shape changes."""

    def recorded(self) -> Timeline:
        """When each computation since the last call ran, on all stages; all ranks call this."""
        if self._recorder is None:
            raise PipelineError(
                "nothing was recorded: PipelineSettings(record=True) switches it on"
            )
        return self._recorder.collect(self.groups.model, self.num_stages)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise PipelineError("a pipeline has no forward() of its own; call train_batch, eval_batch")

    def backward(self, *args: Any, **kwargs: Any) -> Any:
        raise PipelineError("a pipeline has no backward() of its own; call train_batch()")

    def step(self, *args: Any, **kwargs: Any) -> Any:
        raise PipelineError("a pipeline has no step() of its own; call train_batch()")

    def destroy(self) -> None:
        if self._links.failure is None or is_gloo(self._pipe):  # others would wait for its end
            self._hang_up()
        super().destroy()

    def _hang_up(self) -> None:
        """Close the lines to the other stages; those that wait for this one are told at once."""
        self._links.close()
        self._let_go.detach()
        group, self._pipe = self._pipe, None
        release(group)

    def _run_pass(self, plans: Plans, data_iter: Iterator[Any] | None) -> Pass:
        """Do this stage's part; whoever fails leaves its name for the others."""
        self._source.begin(data_iter)
        try:
            self._links.begin(plans, self._pass.training)
            self._faults.begin()
            steps = plans(self.stage_id)
            self._pass.split = frozenset(
                (step.buffer_id, step.chunk) for step in steps if isinstance(step, BackwardWeight)
            )
            with torch.set_grad_enabled(self._pass.training):
                for step in steps:
                    self._execute(step)
            self._links.drain()
        except BaseException as error:
            first = self._faults.report(error) if self._links.under_way else None
            self._links.fail(error)
            if self._links.failure is not None and is_gloo(self._pipe):
                self._hang_up()
            if self._pass.training:
                self.strategy.zero_grad()
                self.window.close()
            if first is not None and isinstance(error, CollectiveTimeout):  # of another replica
                raise CollectiveTimeout(f"The first to fail was {first}. {error}") from error
            raise
        finally:
            done, self._pass = self._pass, Pass(training=False)
        return done

    def _evaluated(self, done: Pass, reduce: str | None, everywhere: bool) -> Any:
        if not done.compute_loss:
            if not self.is_last_stage():
                return None
            return done.results if reduce is None else mean_of(done.results)
        if reduce is None:
            return done.losses if self.is_last_stage() else None
        if reduce != "avg":
            raise PipelineError(f"reduce_output={reduce!r}: known are 'avg' and None")
        if everywhere or self.is_last_stage():
            return self._mean_loss(done, everywhere=everywhere)()
        return None

    def _pipe_comm(self) -> Communicator:
        if self.num_stages == 1:
            return Communicator.alone(self.groups.taps)
        return Communicator(self._pipe, name="pipe", taps=self.groups.taps)

    def _agree(self) -> None:
        facts = {
            "schedule": self.pipeline_schedule,
            "micro-batches": self.window.accumulation_steps,
            "bounds of stages": self.module.parts,
            "chunks": self.module.chunks,
        }
        require_agreement(self.groups.world, "the pipeline", facts)


@lru_cache(maxsize=32)
def _plans(name: str, stages: int, micro_batches: int, chunks: int) -> Plans:
    """Every stage's instructions, each made once."""

    @cache
    def of(stage: int) -> Sequence[PipeInstruction]:
        if name == "inference":
            return tuple(plan_inference(stage, stages, micro_batches, chunks=chunks))
        return tuple(plan(name, stage, stages, micro_batches, chunks=chunks))

    return of


def _let_go(links: Links, group: Any, process: int) -> None:
    """What an engine holds beside memory goes with it, if nobody destroyed it."""
    if os.getpid() == process:
        links.close()
        release(group)


def _device_of(module: PipelineModule) -> torch.device:
    param = next(module.parameters(), None)
    return torch.device("cpu") if param is None else param.device


def _mark_counted(module: PipelineModule) -> None:
    """Let this stage's parameters count in the norm over all stages, each exactly once.

    Strategies read the attribute by which Megatron-style code marks what only one rank of the
    model group holds; every parameter of a stage is of that kind, except copies of tied ones and,
    within a stage, what is not cut over the slices.
    """
    if module.grid.get_model_parallel_world_size() == 1:
        return
    copies = module.ties.copies()
    for param in module.parameters():
        if param not in copies and module.grid.slice_id == 0:
            param.model_parallel = True  # type: ignore[attr-defined]
