"""The lines between a stage and those it hands values to or gets values from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ds_core.comm import Communicator
from ds_pipeline.errors import PipelineError
from ds_pipeline.faults import FaultBoard
from ds_pipeline.grid import patience_of
from ds_pipeline.instructions import PipeInstruction, SendActivation, SendGrad
from ds_pipeline.module import PipelineModule
from ds_pipeline.notices import Bell, Ear
from ds_pipeline.shared_memory import Inbox, Outbox, sharing_processes
from ds_pipeline.transport import Address, Incoming, Neighbour, Outgoing


class Links:
    """Activations and gradients by micro-batch and chunk.

    A place is a chunk of a stage, numbered along the model. Neighbouring places lie on
    neighbouring stages; from the last stage the model goes on in the next chunk of the first.

    Attributes:
        under_way: a pass has begun and has not ended well.
        failure: why no other pass can begin.
    """

    def __init__(
        self,
        module: PipelineModule,
        comm: Communicator,
        faults: FaultBoard,
        device: torch.device,
    ) -> None:
        self._stage, self._stages, self._chunks = module.stage_id, module.num_stages, module.chunks
        self._training = True
        self.under_way = False
        self.failure: str | None = None
        stages = {(self._stage - 1) % self._stages, (self._stage + 1) % self._stages}
        if self._chunks == 1:
            stages -= {-1 % self._stages} if self._stage == 0 else set()
            stages -= {0} if self._stage == self._stages - 1 and self._stages > 2 else set()
        stages.discard(self._stage)
        if self._stages == 2:
            stages = {1 - self._stage}
        limit = (2 + self._chunks) * self._stages + 4
        self._out: dict[int, Outgoing] = {}
        self._in: dict[int, Incoming] = {}
        on_host = device.type == "cpu" and comm.device.type == "cpu"
        processes = sharing_processes(comm, willing=on_host)
        bells = {stage: Bell() for stage in sorted(stages) if processes[stage]}
        ears = _open_ears(comm, bells, processes)
        slots = self._stages + 2
        for stage in sorted(stages):
            other, process = Neighbour(stage, comm.global_rank(stage)), processes[stage]
            outbox = (Outbox(slots), bells[stage]) if process else None
            inbox = (Inbox(process, slots), ears[stage]) if process else None
            self._out[stage] = Outgoing(comm, other, faults, limit=limit, shared=outbox)
            self._in[stage] = Incoming(comm, other, faults, device, shared=inbox)

    def begin(self, plans: Callable[[int], Sequence[PipeInstruction]], training: bool) -> None:
        """A pass begins in which stages do as planned."""
        if self.failure is not None:
            raise PipelineError(
                "the stages are not in step since a pass failed: end this run on all ranks, start "
                f"again and load a checkpoint. The pass failed with {self.failure}"
            )
        self._training = training
        expected = {stage: list(self._sent(plans(stage), stage, self._stage)) for stage in self._in}
        planned = {
            stage: list(self._sent(plans(self._stage), self._stage, stage)) for stage in self._out
        }
        self.under_way = True
        for stage, line in self._in.items():
            line.expect(expected[stage])
        for stage, out in self._out.items():
            out.open(planned[stage])

    def _sent(self, plan: Sequence[PipeInstruction], sender: int, to: int) -> Iterator[Address]:
        """What stage `sender` sends to stage `to`, in order."""
        for step in plan:
            if not isinstance(step, (SendActivation, SendGrad)):
                continue
            forward = isinstance(step, SendActivation)
            place = step.chunk * self._stages + sender + (1 if forward else -1)
            if place % self._stages == to:
                yield self._address(forward, place, step.buffer_id)

    def send_activation(self, micro_batch: int, chunk: int, value: Any) -> None:
        """Hand an output on."""
        place = chunk * self._stages + self._stage + 1
        self._out[place % self._stages].send(self._address(True, place, micro_batch), value)

    def receive_activation(self, micro_batch: int, chunk: int) -> Any:
        """Wait for an input."""
        place = chunk * self._stages + self._stage
        line = self._in[(place - 1) % self._stages]
        return line.receive(self._address(True, place, micro_batch))

    def send_gradients(self, micro_batch: int, chunk: int, grads: list[Tensor | None]) -> None:
        """Hand the gradients of an input back."""
        place = chunk * self._stages + self._stage - 1
        self._out[place % self._stages].send(self._address(False, place, micro_batch), grads)

    def receive_gradients(self, micro_batch: int, chunk: int) -> list[Tensor | None]:
        """Wait for the gradients of an output."""
        place = chunk * self._stages + self._stage
        after = (place + 1) % self._stages
        grads: list[Tensor | None] = self._in[after].receive(
            self._address(False, place, micro_batch)
        )
        self._out[after].settle(self._address(True, place + 1, micro_batch))
        return grads

    def drain(self) -> None:
        """Wait until everything sent has left."""
        for line in self._out.values():
            line.drain()
        self.under_way = False

    def fail(self, error: BaseException) -> None:
        """A pass ends early: messages that nobody took would be taken for those of the next."""
        if self.under_way and self._in and self.failure is None:
            self.failure = f"{type(error).__name__}: {error}"

    def close(self) -> None:
        """Let go of the lines."""
        for out in self._out.values():
            out.close()
        for line in self._in.values():
            line.close()
        self._out.clear()
        self._in.clear()

    def _address(self, forward: bool, place: int, micro_batch: int) -> Address:
        kind = "activations" if forward else "gradients"
        return f"{kind}/{place}/{'train' if self._training else 'eval'}", micro_batch


def _open_ears(
    comm: Communicator, bells: dict[int, Bell], processes: Sequence[int | None]
) -> dict[int, Ear]:
    """An ear for the bell that each neighbour made for this stage; all stages call this."""
    numbers = comm.all_gather_object({stage: bell.number for stage, bell in bells.items()})
    patience = patience_of(comm.group)
    ears = {
        stage: Ear(process, numbers[stage][comm.rank], patience)
        for stage, process in enumerate(processes)
        if process is not None and stage in bells
    }
    comm.barrier("bells")
    for bell in bells.values():
        bell.heard()
    return ears
