"""A linear layer cut into tiles, so that stage 3 never gathers it whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def split_tensor_along_last_dim(
    tensor: Tensor, partitions: Sequence[int], contiguous_split_chunks: bool = False
) -> tuple[Tensor, ...]:
    """Views of `tensor` of the given widths in its last dim; copies if asked to be contiguous."""
    parts = torch.split(tensor, list(partitions), dim=-1)
    return tuple(part.contiguous() for part in parts) if contiguous_split_chunks else parts


class TiledLinear(nn.Module):
    """`y = x W^T + b` as a grid of `out_splits` by `in_splits` linear layers.

    Args:
        in_features, out_features, bias: as in `nn.Linear`.
        in_splits, out_splits: tiles along each side; sides need not divide evenly.
        input_is_already_split: `forward` takes a sequence of inputs, one for each input tile.
        combine_out_splits: False returns the list of outputs, one for each output tile.
        linear_cls: class of a tile, called as `linear_cls(in, out, bias=..., **kwargs)`.
        init_linear: layer whose weights the tiles take over.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        in_splits: int = 1,
        out_splits: int = 1,
        input_is_already_split: bool = False,
        combine_out_splits: bool = True,
        linear_cls: type[nn.Module] = nn.Linear,
        init_linear: nn.Module | None = None,
        **kwargs: Any,  # what `linear_cls` takes besides
    ) -> None:
        super().__init__()
        for name, parts, whole in (
            ("in_splits", in_splits, in_features),
            ("out_splits", out_splits, out_features),
        ):
            if not 1 <= parts <= whole:
                raise ValueError(f"{name} must lie in 1..{whole}, not {parts}")
        self.in_features, self.out_features = in_features, out_features
        self.use_bias = bias
        self.in_splits, self.out_splits = in_splits, out_splits
        self.input_is_already_split = input_is_already_split
        self.combine_out_splits = combine_out_splits
        self.in_parts = _even(in_features, in_splits)
        self.out_parts = _even(out_features, out_splits)
        # Only the last tile of a row adds the bias, so that it is added once.
        self.linears = nn.ModuleList(
            nn.ModuleList(
                linear_cls(width, height, bias=bias and column == in_splits - 1, **kwargs)
                for column, width in enumerate(self.in_parts)
            )
            for height in self.out_parts
        )
        if init_linear is not None:
            self.copy_params_from(init_linear)

    def forward(self, input_: Any) -> Any:
        inputs = self._split(input_)
        return self._join([self._row(row, inputs) for row in self._rows()])

    def copy_params_from(self, other: nn.Module) -> None:
        """Take over the weights of `other`, a whole linear layer of the same shape."""
        weight: Tensor = other.weight  # type: ignore[assignment]
        with torch.no_grad():
            for row, block in zip(self._rows(), torch.split(weight, self.out_parts), strict=True):
                tiles = torch.split(block, self.in_parts, dim=1)
                for tile, part in zip(row, tiles, strict=True):
                    tile.weight.copy_(part)
            if self.use_bias and other.bias is not None:
                bias: Tensor = other.bias  # type: ignore[assignment]
                for row, part in zip(self._rows(), torch.split(bias, self.out_parts), strict=True):
                    row[-1].bias.copy_(part)

    def _rows(self) -> list[list[Any]]:
        return [list(row) for row in self.linears]  # type: ignore[call-overload]

    def _split(self, input_: Any) -> Sequence[Tensor]:
        if self.input_is_already_split:
            if len(input_) != self.in_splits:
                raise ValueError(f"expected {self.in_splits} inputs, got {len(input_)}")
            return input_  # type: ignore[no-any-return]
        if input_.shape[-1] != self.in_features:
            raise ValueError(f"expected a last dim of {self.in_features}, got {input_.shape[-1]}")
        return split_tensor_along_last_dim(input_, self.in_parts)

    def _row(self, row: list[Any], inputs: Sequence[Tensor]) -> Any:
        return self._add([tile(x) for tile, x in zip(row, inputs, strict=True)])

    def _add(self, outputs: list[Any]) -> Any:
        total = outputs[0]
        for output in outputs[1:]:
            total = total + output
        return total

    def _join(self, rows: list[Any]) -> Any:
        return torch.cat(rows, dim=-1) if self.combine_out_splits else rows


class TiledLinearReturnBias(TiledLinear):
    """Tiles of a layer that returns `(output, bias)` and leaves the addition to its caller."""

    def _add(self, outputs: list[Any]) -> Any:
        total = super()._add([output for output, _ in outputs])
        biases = [bias for _, bias in outputs if bias is not None]
        return total, (super()._add(biases) if biases else None)

    def _join(self, rows: list[Any]) -> Any:
        outputs = [output for output, _ in rows]
        biases = [bias for _, bias in rows if bias is not None]
        if not self.combine_out_splits:
            return outputs, biases or None
        return torch.cat(outputs, dim=-1), (torch.cat(biases, dim=-1) if biases else None)


def _even(total: int, parts: int) -> list[int]:
    base, extra = divmod(total, parts)
    return [base + (index < extra) for index in range(parts)]
