"""A backward pass in two parts: gradients of inputs now, gradients of weights later.

The graph is cut at the operations that have both the input and a weight behind them (a matrix
product, a scale). The first part runs through them towards the input and keeps what arrived at
each; the second runs each of them again, towards its weights only: nothing is computed twice.
The scheme is that of Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

Node = Any  # torch.autograd.graph.Node; its attributes are not all typed


class SplitBackward:
    """The two backward parts of one micro-batch.

    Args:
        roots: outputs that have gradients.
        grads: these gradients.
        inputs: leaves whose gradients are wanted first.
    """

    def __init__(
        self, roots: Sequence[Tensor], grads: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> None:
        self._roots, self._grads, self._inputs = list(roots), list(grads), list(inputs)
        self._cuts = _find_cuts(self._roots, self._inputs)
        self._caught: list[tuple[Node, tuple[Tensor | None, ...]]] = []

    @property
    def whole(self) -> bool:
        """True if the graph cannot be cut: the first part does everything."""
        return self._cuts is None

    def run_inputs(self) -> None:
        """Leave gradients in `inputs`; keep what the weights need."""
        if self._cuts is None:
            torch.autograd.backward(self._roots, self._grads)
            return
        handles = [node.register_prehook(self._catcher(node)) for node in self._cuts]
        try:
            found = torch.autograd.grad(
                self._roots, self._inputs, self._grads, retain_graph=True, allow_unused=True
            )
        finally:
            for handle in handles:
                handle.remove()
        for tensor, grad in zip(self._inputs, found, strict=True):
            tensor.grad = grad
        self._roots, self._grads = [], []

    def run_weights(self) -> None:
        """Accumulate the gradients of weights; the graph is freed."""
        if self._cuts is None:
            return
        for node, grads in self._caught:
            edges = [GradientEdge(node, slot) for slot, g in enumerate(grads) if g is not None]
            present = [grad for grad in grads if grad is not None]
            if present:
                torch.autograd.backward(edges, present, inputs=self._cuts[node])
        self._caught.clear()
        self._cuts.clear()

    def _catcher(self, node: Node) -> Callable[[tuple[Tensor | None, ...]], None]:
        def catch(grads: tuple[Tensor | None, ...]) -> None:
            self._caught.append((node, grads))

        return catch


def _find_cuts(
    roots: Sequence[Tensor], inputs: Sequence[Tensor]
) -> dict[Node, list[Tensor]] | None:
    """The nodes to cut at and the weights behind each; None if the graph cannot be cut."""
    starts = [root.grad_fn for root in roots]
    if not inputs or any(start is None for start in starts):
        return None
    targets = {torch.autograd.graph.get_gradient_edge(tensor).node for tensor in inputs}
    order = _children_first(starts)
    if any(node.name().endswith("CheckpointFunctionBackward") for node in order):
        return None  # reentrant checkpoints accumulate gradients of weights by themselves
    to_input = {node: node in targets for node in order}
    leaves: dict[Node, dict[Node, None]] = {}
    cuts: dict[Node, list[Tensor]] = {}
    taken: set[Node] = set()
    for node in order:
        children = [child for child, _ in node.next_functions if child is not None]
        to_input[node] |= any(to_input[child] for child in children)
        own = {node: None} if hasattr(node, "variable") and node not in targets else {}
        for child in children:
            if not to_input[child]:
                own.update(leaves[child])
        leaves[node] = {} if to_input[node] else own
        if to_input[node] and own:
            if taken & own.keys():
                return None  # a weight used twice: its gradient is the sum of two paths
            taken |= own.keys()
            cuts[node] = [leaf.variable for leaf in own]
    if not all(to_input[start] for start in starts):
        return None
    return cuts


def _children_first(starts: Sequence[Node]) -> list[Node]:
    order: list[Node] = []
    seen: set[Node] = set()
    stack = [(start, False) for start in starts]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(child, False) for child, _ in node.next_functions if child is not None]
    return order
