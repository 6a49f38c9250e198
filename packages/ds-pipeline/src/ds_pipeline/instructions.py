"""The things a stage can do in a pass; a schedule is a list of them.

An instruction is plain data: its class says what, its `kwargs` are the arguments of the handler
that the engine has for the class. Programs may add classes of their own, with handlers.
"""

from __future__ import annotations

from typing import Any


class PipeInstruction:
    """Something a stage does; every keyword is an attribute too."""

    __slots__ = ("__dict__", "kwargs")

    def __init__(self, **kwargs: Any) -> None:
        self.kwargs = kwargs
        self.__dict__.update(kwargs)

    @property
    def name(self) -> str:
        """The name of the class."""
        return type(self).__name__

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.kwargs.items())
        return f"{self.name}({arguments})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PipeInstruction):
            return NotImplemented
        return type(self) is type(other) and self.kwargs == other.kwargs

    def __hash__(self) -> int:
        return hash((type(self), *self.kwargs.items()))


class OptimizerStep(PipeInstruction):
    """Update the weights and clear the gradients."""


class ReduceGrads(PipeInstruction):
    """Average gradients over the data-parallel ranks of the stage."""


class ReduceTiedGrads(PipeInstruction):
    """Sum the gradients of tied weights over the stages that hold them."""


class BufferOpInstruction(PipeInstruction):
    """Something done with one micro-batch.

    Args:
        buffer_id: which one. Schedules of this package number micro-batches from 0; a schedule
            that reuses numbers once a micro-batch is through is fine.
        chunk: which of the stage's chunks of layers (a keyword, left out where it is 0).
    """

    __slots__ = ("buffer_id", "chunk")

    def __init__(self, buffer_id: int, **kwargs: Any) -> None:
        self.buffer_id = buffer_id
        self.chunk: int = kwargs.get("chunk", 0)
        if not self.chunk:
            kwargs.pop("chunk", None)
        self.kwargs = {"buffer_id": buffer_id, **kwargs}
        for key, value in kwargs.items():
            if key != "chunk":
                self.__dict__[key] = value


class LoadMicroBatch(BufferOpInstruction):
    """Fetch inputs (first stage) or labels (last stage)."""


class ForwardPass(BufferOpInstruction):
    """Run the layers."""


class BackwardPass(BufferOpInstruction):
    """Gradients of inputs and of weights."""


class BackwardInput(BufferOpInstruction):
    """Gradients of inputs only; `BackwardWeight` follows later."""


class BackwardWeight(BufferOpInstruction):
    """The gradients of weights that `BackwardInput` left out."""


class SendActivation(BufferOpInstruction):
    """Hand the output to the next stage; returns before it has arrived."""


class RecvActivation(BufferOpInstruction):
    """Wait for the previous stage's output."""


class SendGrad(BufferOpInstruction):
    """Hand the gradients of inputs to the previous stage; returns before they have arrived."""


class RecvGrad(BufferOpInstruction):
    """Wait for the gradients of this stage's output."""
