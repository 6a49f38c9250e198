"""Carries out the instructions of one stage."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ds_core.contracts import StepEvent, StepReport
from ds_core.engine import Engine
from ds_pipeline import instructions as todo
from ds_pipeline.batches import BatchSource
from ds_pipeline.deferred import DeferredWeights
from ds_pipeline.errors import PipelineError
from ds_pipeline.instructions import PipeInstruction
from ds_pipeline.links import Links
from ds_pipeline.module import PipelineModule
from ds_pipeline.recording import Recorder
from ds_pipeline.stage_strategy import StageStrategy
from ds_pipeline.wire import tensors_of

Place = tuple[int, int]
"""Micro-batch (or buffer) and chunk."""


@dataclass
class Pass:
    """What one pass holds, by micro-batch and chunk.

    Attributes:
        split: where gradients of weights wait for a `BackwardWeight`.
        leaves: the tensors of an input that get a gradient, as they came: layers may change the
            dict or list that they came in, and which of its tensors need one.
        outputs: what goes to the next stage; once it is sent, its tensors that get a gradient.
    """

    training: bool
    compute_loss: bool = True
    micro_batches: int = 1
    split: frozenset[Place] = frozenset()
    inputs: dict[Place, Any] = field(default_factory=dict)
    leaves: dict[Place, list[Tensor]] = field(default_factory=dict)
    labels: dict[int, Any] = field(default_factory=dict)
    outputs: dict[Place, Any] = field(default_factory=dict)
    grads: dict[Place, list[Tensor | None]] = field(default_factory=dict)
    waiting: dict[Place, DeferredWeights] = field(default_factory=dict)
    losses: list[Tensor] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)


class StageEngine(Engine):
    """An `Engine` with a handler for each class of instruction.

    `_INSTRUCTION_MAP` says which; its entries are called as `handler(engine, **kwargs)` of the
    instruction. The owner sets the attributes below.
    """

    _INSTRUCTION_MAP: ClassVar[dict[type[PipeInstruction], Callable[..., None]]] = {}
    module: PipelineModule
    strategy: StageStrategy
    stage_id: int
    num_stages: int
    agg_train_loss: Tensor | None
    _pass: Pass
    _take_loss: Callable[[], Tensor]
    _links: Links
    _source: BatchSource
    _recorder: Recorder | None
    _pipe_device: torch.device

    def is_last_stage(self) -> bool:
        return self.stage_id == self.num_stages - 1

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
        value = self._links.receive_activation(buffer_id, chunk)
        self._pass.inputs[buffer_id, chunk] = value
        if self._pass.training:
            self._pass.leaves[buffer_id, chunk] = _needing(value)

    def _exec_forward_pass(self, buffer_id: int, chunk: int = 0) -> None:
        now, place = self._pass, (buffer_id, chunk)
        value = now.inputs.pop(place)
        self.module.micro_offset = self.counters.micro_batches + buffer_id
        prepare = self.hooks.before_forward if now.training else self.hooks.prepare_inputs
        changed, keywords = prepare((value,) if self._is_first(chunk) else (), {})
        value = changed[0] if changed else value
        with self._autocast():
            output = self.module.run(value, chunk=chunk, inside=self._inside(place), **keywords)
            if self._is_last(chunk):
                output = self._finish_forward(output, now.labels.pop(buffer_id, None), keywords)
        if now.training:
            self.hooks.after_forward(output)
        if now.training or not self._is_last(chunk):
            now.outputs[place] = output

    def _inside(self, place: Place) -> AbstractContextManager[Any]:
        """What layers run in, also when their activations are computed again."""
        if place not in self._pass.split:
            return nullcontext()
        self._pass.waiting[place] = DeferredWeights()
        return self._pass.waiting[place]

    def _finish_forward(self, output: Any, labels: Any, keywords: dict[str, Any]) -> Any:
        """The loss of the last stage, where it is wanted."""
        now = self._pass
        if not now.training:
            now.results.append(output)
        if not now.compute_loss:
            return output
        loss = self.module.loss(output, labels, **keywords)
        if not torch.is_tensor(loss) or loss.numel() != 1:
            raise PipelineError(
                f"the loss must be one number as a tensor, not {_kind(loss)}; return what backward "
                "begins from, and keep the rest elsewhere"
            )
        now.losses.append(loss.detach().float().reshape(()))
        return loss

    def _exec_send_activations(self, buffer_id: int, chunk: int = 0) -> None:
        output = self._pass.outputs.pop((buffer_id, chunk))
        self._links.send_activation(buffer_id, chunk, output)
        if self._pass.training:
            self._pass.outputs[buffer_id, chunk] = _needing(output)

    def _exec_recv_grads(self, buffer_id: int, chunk: int = 0) -> None:
        self._pass.grads[buffer_id, chunk] = self._links.receive_gradients(buffer_id, chunk)

    def _exec_backward_pass(self, buffer_id: int, chunk: int = 0) -> None:
        roots, grads = self._roots(buffer_id, chunk)
        if roots:
            torch.autograd.backward(roots, grads)
        self._after_backward(chunk)

    def _exec_backward_weight(self, buffer_id: int, chunk: int = 0) -> None:
        self._pass.waiting.pop((buffer_id, chunk)).run()

    def _exec_send_grads(self, buffer_id: int, chunk: int = 0) -> None:
        grads = [tensor.grad for tensor in self._pass.leaves.pop((buffer_id, chunk))]
        self._links.send_gradients(buffer_id, chunk, grads)

    def _exec_reduce_tied_grads(self) -> None:
        """The strategy of the stage does it at the beginning of its step."""

    def _exec_reduce_grads(self) -> None:
        """The strategy of the stage does it at the beginning of its step."""

    def _exec_optimizer_step(self) -> None:
        micro_batches = self._pass.micro_batches
        self._take_loss = self._mean_loss(self._pass, everywhere=True)
        for _ in range(micro_batches):
            self.window.add(None, divided=False)
        self.counters.micro_batches += micro_batches
        self._backward_since_step = True
        super().step()

    def _event(self, report: StepReport, lr: tuple[float, ...], micro_batches: int) -> StepEvent:
        """Only now wait for the loss of all stages: this one's gradients are long reduced."""
        self.agg_train_loss = self._take_loss()
        self._losses = self.agg_train_loss * micro_batches
        return super()._event(report, lr, micro_batches)

    def _roots(self, buffer_id: int, chunk: int) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs to go back from, with their gradients."""
        place = (buffer_id, chunk)
        output = self._pass.outputs.pop(place)
        if self._is_last(chunk):
            self.hooks.before_backward(output)
            return [output], [torch.full_like(output, self.strategy.root)]
        pairs = zip(output, self._pass.grads.pop(place), strict=True)
        known = [(tensor, grad) for tensor, grad in pairs if grad is not None]
        return [tensor for tensor, _ in known], [grad for _, grad in known]

    def _after_backward(self, chunk: int) -> None:
        if self._is_last(chunk):
            self.hooks.after_backward()

    def _mean_loss(self, done: Pass, *, everywhere: bool) -> Callable[[], Tensor]:
        """Start to average the loss; what is returned waits for it."""
        own = torch.stack(done.losses).sum() if done.losses else torch.zeros(())
        comm = self.groups.world if everywhere else self.groups.data
        box = own.double().to(comm.device)
        work = comm.all_reduce(box, label="loss", async_op=True)
        ranks = comm.world_size // self.num_stages if everywhere else comm.world_size

        def take() -> Tensor:
            work.wait()
            return (box / (ranks * done.micro_batches)).float().to(self._pipe_device)

        return take

    def _is_first(self, chunk: int) -> bool:
        return self.stage_id == 0 and chunk == 0

    def _is_last(self, chunk: int) -> bool:
        return self.is_last_stage() and chunk == self.module.chunks - 1


def _kind(value: Any) -> str:
    if torch.is_tensor(value):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _needing(value: Any) -> list[Tensor]:
    """The tensors of a nested value that get a gradient."""
    return [tensor for tensor in tensors_of(value) if tensor.requires_grad]


_COMPUTATIONS = (todo.ForwardPass, todo.BackwardPass, todo.BackwardInput, todo.BackwardWeight)

StageEngine._INSTRUCTION_MAP.update(
    {
        todo.OptimizerStep: StageEngine._exec_optimizer_step,
        todo.ReduceGrads: StageEngine._exec_reduce_grads,
        todo.ReduceTiedGrads: StageEngine._exec_reduce_tied_grads,
        todo.LoadMicroBatch: StageEngine._exec_load_micro_batch,
        todo.ForwardPass: StageEngine._exec_forward_pass,
        todo.BackwardPass: StageEngine._exec_backward_pass,
        todo.BackwardInput: StageEngine._exec_backward_pass,
        todo.BackwardWeight: StageEngine._exec_backward_weight,
        todo.SendActivation: StageEngine._exec_send_activations,
        todo.RecvActivation: StageEngine._exec_recv_activations,
        todo.SendGrad: StageEngine._exec_send_grads,
        todo.RecvGrad: StageEngine._exec_recv_grads,
    }
)
