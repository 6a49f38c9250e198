"""The engine of a pipeline: one call trains a batch over all stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from ds_core.agreement import require_agreement
from ds_core.comm import Communicator
from ds_core.contracts import UpdateStrategy
from ds_core.engine import Engine
from ds_core.groups import Groups
from ds_pipeline import instructions as todo
from ds_pipeline.backward import SplitBackward
from ds_pipeline.batches import BatchSource, concatenated, mean_of
from ds_pipeline.errors import PipelineError
from ds_pipeline.faults import FaultBoard
from ds_pipeline.instructions import PipeInstruction
from ds_pipeline.links import Links
from ds_pipeline.module import PipelineModule
from ds_pipeline.recording import Recorder
from ds_pipeline.schedules import plan, plan_inference
from ds_pipeline.simulate import Timeline
from ds_pipeline.stage_strategy import StageStrategy
from ds_pipeline.wire import tensors_of

Place = tuple[int, int]
"""Micro-batch (or buffer) and chunk."""

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
    """

    schedule: str | None = None
    record: bool = False
    device: torch.device | None = None


@dataclass
class _Pass:
    """What one pass holds, by micro-batch and chunk."""

    training: bool
    compute_loss: bool = True
    micro_batches: int = 1
    inputs: dict[Place, Any] = field(default_factory=dict)
    labels: dict[int, Any] = field(default_factory=dict)
    outputs: dict[Place, Any] = field(default_factory=dict)
    grads: dict[Place, list[Tensor | None]] = field(default_factory=dict)
    splits: dict[Place, SplitBackward] = field(default_factory=dict)
    losses: list[Tensor] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)


class PipelineEngine(Engine):
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

    _INSTRUCTION_MAP: ClassVar[dict[type[PipeInstruction], Callable[..., None]]] = {}
    module: PipelineModule
    strategy: StageStrategy

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
        self._faults = FaultBoard(me)
        self._pipe_device = settings.device or _device_of(module)
        self._links = Links(module, self._pipe_comm(), self._faults, self._pipe_device)
        self._source = BatchSource(me)
        self._recorder = Recorder(self.stage_id) if settings.record else None
        self._pass = _Pass(training=False)
        _mark_counted(module)
        module.ties.watch()
        self._agree()
        self.agg_train_loss: Tensor | None = None

    def train_batch(self, data_iter: Iterator[Any] | None = None) -> Tensor:
        """Train on one batch of `accumulation_steps` micro-batches a replica.

        Args:
            data_iter: micro-batches, for the first and the last stage; None takes those of
                `set_dataiterator` or `set_dataloader`.

        Returns:
            The mean loss over micro-batches and replicas, on every stage.
        """
        self._require_open()
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
        self._pass = _Pass(training=training, micro_batches=micro_batches)
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
        self._require_open()
        micro_batches = num_micro_batches or self.window.accumulation_steps
        self._pass = _Pass(False, compute_loss, micro_batches)
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

    def is_last_stage(self) -> bool:
        return self.stage_id == self.num_stages - 1

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
        self._links.close()
        super().destroy()

    def _run_pass(self, plans: Plans, data_iter: Iterator[Any] | None) -> _Pass:
        """Do this stage's part; whoever fails leaves its name for the others."""
        self._source.begin(data_iter)
        try:
            self._links.begin(plans, self._pass.training)
            for step in plans(self.stage_id):
                self._execute(step)
            self._links.drain()
        except BaseException as error:
            self._faults.report(error)
            if self._pass.training:
                self.strategy.zero_grad()
                self.window.close()
            raise
        finally:
            done, self._pass = self._pass, _Pass(training=False)
        return done

    def _execute(self, step: PipeInstruction) -> None:
        handler = self._INSTRUCTION_MAP.get(type(step))
        if handler is None:
            raise PipelineError(f"{step} has no handler in {type(self).__name__}._INSTRUCTION_MAP")
        timed = self._recorder is not None and type(step) in _COMPUTATIONS
        watch = self._recorder.span(step) if timed else nullcontext()  # type: ignore[union-attr, arg-type]
        with watch:
            handler(self, **step.kwargs)

    def _exec_load_micro_batch(self, buffer_id: int, chunk: int = 0) -> None:
        inputs, labels = self._source.next(self._pipe_device, self._pass)
        if self._is_first(chunk):
            self._pass.inputs[buffer_id, chunk] = inputs
        if self._is_last(chunk):
            self._pass.labels[buffer_id] = labels

    def _exec_recv_activations(self, buffer_id: int, chunk: int = 0) -> None:
        self._pass.inputs[buffer_id, chunk] = self._links.receive_activation(buffer_id, chunk)

    def _exec_forward_pass(self, buffer_id: int, chunk: int = 0) -> None:
        now, place = self._pass, (buffer_id, chunk)
        value = now.inputs[place] if now.training else now.inputs.pop(place)
        self.module.micro_offset = self.counters.micro_batches + buffer_id
        keywords: dict[str, Any] = {}
        if now.training:
            arguments = (value,) if self._is_first(chunk) else ()
            changed, keywords = self.hooks.before_forward(arguments, {})
            value = changed[0] if changed else value
        with self._autocast():
            output = self.module.run(value, chunk=chunk, **keywords)
            if self._is_last(chunk):
                output = self._finish_forward(output, now.labels.pop(buffer_id, None), keywords)
        if now.training:
            self.hooks.after_forward(output)
        if now.training or not self._is_last(chunk):
            now.outputs[place] = output

    def _finish_forward(self, output: Any, labels: Any, keywords: dict[str, Any]) -> Any:
        """The loss of the last stage, where it is wanted."""
        now = self._pass
        if not now.training:
            now.results.append(output)
        if not now.compute_loss:
            return output
        loss = self.module.loss(output, labels, **keywords)
        if not torch.is_tensor(loss) or loss.numel() != 1:
            raise PipelineError("the loss function must return one number as a tensor")
        now.losses.append(loss.detach().float().reshape(()))
        return loss

    def _exec_send_activations(self, buffer_id: int, chunk: int = 0) -> None:
        output = self._pass.outputs[buffer_id, chunk]
        self._links.send_activation(buffer_id, chunk, output)
        if not self._pass.training:
            del self._pass.outputs[buffer_id, chunk]

    def _exec_recv_grads(self, buffer_id: int, chunk: int = 0) -> None:
        self._pass.grads[buffer_id, chunk] = self._links.receive_gradients(buffer_id, chunk)

    def _exec_backward_pass(self, buffer_id: int, chunk: int = 0) -> None:
        roots, grads = self._roots(buffer_id, chunk)
        if roots:
            torch.autograd.backward(roots, grads)
        self._after_backward(chunk)

    def _exec_backward_input(self, buffer_id: int, chunk: int = 0) -> None:
        roots, grads = self._roots(buffer_id, chunk)
        if roots:
            inputs = [] if self._is_first(chunk) else self._needing(buffer_id, chunk)
            split = SplitBackward(roots, grads, inputs)
            split.run_inputs()
            self._pass.splits[buffer_id, chunk] = split
        self._after_backward(chunk)

    def _exec_backward_weight(self, buffer_id: int, chunk: int = 0) -> None:
        split = self._pass.splits.pop((buffer_id, chunk), None)
        if split is not None:
            split.run_weights()

    def _exec_send_grads(self, buffer_id: int, chunk: int = 0) -> None:
        grads = [tensor.grad for tensor in self._needing(buffer_id, chunk)]
        del self._pass.inputs[buffer_id, chunk]
        self._links.send_gradients(buffer_id, chunk, grads)

    def _exec_reduce_tied_grads(self) -> None:
        """The strategy of the stage does it at the beginning of its step."""

    def _exec_reduce_grads(self) -> None:
        """The strategy of the stage does it at the beginning of its step."""

    def _exec_optimizer_step(self) -> None:
        micro_batches = self._pass.micro_batches
        mean = self._mean_loss(self._pass, everywhere=True)
        self.agg_train_loss = mean
        self._losses = mean * micro_batches
        for _ in range(micro_batches):
            self.window.add(None, divided=False)
        self.counters.micro_batches += micro_batches
        self._backward_since_step = True
        super().step()

    def _roots(self, buffer_id: int, chunk: int) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs to go back from, with their gradients."""
        place = (buffer_id, chunk)
        output = self._pass.outputs.pop(place)
        if self._is_first(chunk):
            self._pass.inputs.pop(place, None)
        if self._is_last(chunk):
            self.hooks.before_backward(output)
            return [output], [torch.full_like(output, self.strategy.root)]
        needing = [tensor for tensor in tensors_of(output) if tensor.requires_grad]
        pairs = zip(needing, self._pass.grads.pop(place), strict=True)
        known = [(tensor, grad) for tensor, grad in pairs if grad is not None]
        return [tensor for tensor, _ in known], [grad for _, grad in known]

    def _after_backward(self, chunk: int) -> None:
        if self._is_last(chunk):
            self.hooks.after_backward()

    def _needing(self, buffer_id: int, chunk: int) -> list[Tensor]:
        """The tensors of an input that get a gradient."""
        found = tensors_of(self._pass.inputs[buffer_id, chunk])
        return [tensor for tensor in found if tensor.requires_grad]

    def _mean_loss(self, done: _Pass, *, everywhere: bool) -> Tensor:
        own = torch.stack(done.losses).sum() if done.losses else torch.zeros(())
        comm = self.groups.world if everywhere else self.groups.data
        box = own.double().to(comm.device)
        comm.all_reduce(box, label="loss").wait()
        ranks = comm.world_size // self.num_stages if everywhere else comm.world_size
        return (box / (ranks * done.micro_batches)).float().to(self._pipe_device)

    def _evaluated(self, done: _Pass, reduce: str | None, everywhere: bool) -> Any:
        if not done.compute_loss:
            if not self.is_last_stage():
                return None
            return done.results if reduce is None else mean_of(done.results)
        if reduce is None:
            return done.losses if self.is_last_stage() else None
        if reduce != "avg":
            raise PipelineError(f"reduce_output={reduce!r}: known are 'avg' and None")
        if everywhere or self.is_last_stage():
            return self._mean_loss(done, everywhere=everywhere)
        return None

    def _is_first(self, chunk: int) -> bool:
        return self.stage_id == 0 and chunk == 0

    def _is_last(self, chunk: int) -> bool:
        return self.is_last_stage() and chunk == self.module.chunks - 1

    def _pipe_comm(self) -> Communicator:
        if self.num_stages == 1:
            return Communicator.alone(self.groups.taps)
        return Communicator(self.grid.pp_group, name="pipe", taps=self.groups.taps)

    def _agree(self) -> None:
        facts = {
            "schedule": self.pipeline_schedule,
            "micro-batches": self.window.accumulation_steps,
            "bounds of stages": self.module.parts,
            "chunks": self.module.chunks,
        }
        require_agreement(self.groups.world, "the pipeline", facts)


_COMPUTATIONS = (todo.ForwardPass, todo.BackwardPass, todo.BackwardInput, todo.BackwardWeight)

PipelineEngine._INSTRUCTION_MAP.update(
    {
        todo.OptimizerStep: PipelineEngine._exec_optimizer_step,
        todo.ReduceGrads: PipelineEngine._exec_reduce_grads,
        todo.ReduceTiedGrads: PipelineEngine._exec_reduce_tied_grads,
        todo.LoadMicroBatch: PipelineEngine._exec_load_micro_batch,
        todo.ForwardPass: PipelineEngine._exec_forward_pass,
        todo.BackwardPass: PipelineEngine._exec_backward_pass,
        todo.BackwardInput: PipelineEngine._exec_backward_input,
        todo.BackwardWeight: PipelineEngine._exec_backward_weight,
        todo.SendActivation: PipelineEngine._exec_send_activations,
        todo.RecvActivation: PipelineEngine._exec_recv_activations,
        todo.SendGrad: PipelineEngine._exec_send_grads,
        todo.RecvGrad: PipelineEngine._exec_recv_grads,
    }
)


@lru_cache(maxsize=32)
def _plans(name: str, stages: int, micro_batches: int, chunks: int) -> Plans:
    """Every stage's instructions, each made once."""

    @cache
    def of(stage: int) -> Sequence[PipeInstruction]:
        if name == "inference":
            return tuple(plan_inference(stage, stages, micro_batches, chunks=chunks))
        return tuple(plan(name, stage, stages, micro_batches, chunks=chunks))

    return of


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
