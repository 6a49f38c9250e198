"""Random layerwise token dropping: middle layers see a random part of the tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ds_data.errors import RuleError


def sample_tokens(
    batch: int, length: int, keep: int, *, device: torch.device | str = "cpu", generator: Any = None
) -> Tensor:
    """Sorted positions of the tokens that stay: int64 `(batch, keep)`, without repetition.

    Sorted, so that causal attention among the kept tokens stays causal.
    """
    if not 0 < keep <= length:
        raise RuleError(f"cannot keep {keep} of {length} tokens")
    noise = torch.rand(batch, length, device=device, generator=generator)
    return noise.topk(keep, dim=1, sorted=False).indices.sort(dim=1).values


def gather_tokens(hidden: Tensor, kept: Tensor) -> Tensor:
    """The kept tokens of `(batch, tokens, dim)`; `kept` is `(batch, keep)`."""
    return hidden.gather(1, kept[:, :, None].expand(-1, -1, hidden.shape[2]))


def scatter_tokens(hidden: Tensor, kept: Tensor, part: Tensor) -> Tensor:
    """`hidden` with the kept tokens replaced by `part`; the others pass unchanged."""
    index = kept[:, :, None].expand(-1, -1, hidden.shape[2])
    return hidden.scatter(1, index, part.to(hidden.dtype))


def gather_mask(mask: Tensor, kept: Tensor, *, causal: bool) -> Tensor:
    """The attention mask among the kept tokens.

    Dimensions that have the full token count are reduced: `(B, S)`, `(B|1, 1, 1, S)`,
    `(B|1, 1, S, S)`. A causal mask shared by the batch is the same for any sorted choice, so its
    upper left corner is taken; one of its own per sample is gathered.
    """
    keep = kept.shape[1]
    if mask.dim() == 2 and mask.shape[0] != kept.shape[0]:
        return mask[:keep, :keep]
    if mask.dim() == 2:
        return mask.gather(1, kept)
    if mask.dim() != 4:
        raise RuleError(f"an attention mask has 2 or 4 dimensions, got shape {tuple(mask.shape)}")
    if causal and mask.shape[0] == 1 and mask.shape[2] > 1:
        return mask[:, :, :keep, :keep]
    mask = mask.expand(kept.shape[0], -1, -1, -1)
    columns = kept[:, None, None, :].expand(-1, mask.shape[1], mask.shape[2], -1)
    mask = mask.gather(3, columns)
    if mask.shape[2] > 1:
        rows = kept[:, None, :, None].expand(-1, mask.shape[1], -1, keep)
        mask = mask.gather(2, rows)
    return mask


def gather_places(value: Any, kept: Tensor) -> Any:
    """The kept places of a `(B|1, S, ...)` tensor, or of each in a tuple; None stays None."""
    if isinstance(value, tuple):
        return tuple(gather_places(item, kept) for item in value)
    if value is None:
        return None
    rows = torch.arange(kept.shape[0], device=kept.device)[:, None]
    return value.expand(kept.shape[0], *value.shape[1:])[rows, kept]


@dataclass(frozen=True, kw_only=True)
class LTDRules:
    """What a wrapped layer needs to know of its model.

    Attributes:
        mask_name: keyword of the attention mask, or None.
        model_type: `decoder` (causal) or `encoder`.
        order: which dimension of hidden states is which.
        sequence_names: keywords of tensors, or tuples of them, that run along the sequence in
            their second dimension (positions, rotary angles): only the kept places are passed on.
    """

    mask_name: str | None = None
    model_type: Literal["decoder", "encoder"] = "decoder"
    order: Literal["batch_seq_dim", "seq_batch_dim"] = "batch_seq_dim"
    sequence_names: tuple[str, ...] = ()


class RandomLTDScheduler:
    """Tokens kept at each step: a linear rise from `min_value` to `max_value`.

    Args:
        config: `total_layer_num`, `random_ltd_layer_num`, `random_ltd_schedule` and, for counting
            tokens, `global_batch_size`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        try:
            schedule = config["random_ltd_schedule"]
            self._read(config, schedule, schedule["schedule_config"])
        except KeyError as error:
            raise RuleError(f"random-LTD needs {error.args[0]!r}") from None
        if not 0 < self.min_value <= self.max_value or self._steps < 1 or self._multiple < 1:
            raise RuleError(
                f"min_value {self.min_value} must lie in 1..max_value {self.max_value}, "
                f"require_steps {self._steps} and seq_per_step {self._multiple} be at least 1"
            )
        if not 0 <= self.random_ltd_layer_num <= self.model_layer_num:
            raise RuleError(
                f"random_ltd_layer_num {self.random_ltd_layer_num} must lie in "
                f"0..total_layer_num {self.model_layer_num}"
            )
        self.reset_to_init()

    def _read(
        self, config: Mapping[str, Any], schedule: Mapping[str, Any], steps: Mapping[str, Any]
    ) -> None:
        self.model_layer_num = int(config["total_layer_num"])
        self.random_ltd_layer_num = int(config["random_ltd_layer_num"])
        self.global_batch_size = int(config.get("global_batch_size", 1))
        self.min_value, self.max_value = int(schedule["min_value"]), int(schedule["max_value"])
        self._steps, self._multiple = int(steps["require_steps"]), int(steps["seq_per_step"])

    def reset_to_init(self) -> None:
        self._current = self.min_value
        self._consumed = 0
        self._step = -1

    def get_value(self, global_steps: int) -> int:
        """Tokens kept at a step; a multiple of `seq_per_step` except at the two ends."""
        if global_steps >= self._steps:
            return self.max_value
        rise = self.max_value - self.min_value
        exact = int(max(global_steps, 0) / self._steps * rise + self.min_value)
        return max(self.min_value, exact // self._multiple * self._multiple)

    def update_seq(self, global_steps: int) -> None:
        """Move to a step, and count its layer tokens once."""
        if global_steps != self._step:
            self._current = self.get_value(global_steps)
            self._consumed += self._layer_tokens(self._current)
            self._step = global_steps

    def _layer_tokens(self, kept: int) -> int:
        whole = self.model_layer_num - self.random_ltd_layer_num
        tokens = kept * self.random_ltd_layer_num + self.max_value * whole
        return self.global_batch_size * tokens

    def get_total_layer_tokens(self, train_iters: int) -> int:
        """Tokens times layers that `train_iters` steps process."""
        return sum(self._layer_tokens(self.get_value(step)) for step in range(train_iters))

    def get_current_seq(self) -> int:
        return self._current

    def set_current_seq(self, seq_length: int) -> None:
        self._current = seq_length

    def get_random_ltd_layer_num(self) -> int:
        return self.random_ltd_layer_num

    def state_dict(self) -> dict[str, Any]:
        return {
            "consumed_layer_tokens": self._consumed,
            "current_steps": self._step,
            "current_value": self._current,
            "min_value": self.min_value,
            "max_value": self.max_value,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._consumed = int(state["consumed_layer_tokens"])
        self._step, self._current = int(state["current_steps"]), int(state["current_value"])

    def get_state(self) -> dict[str, Any]:
        return self.state_dict()

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.load_state_dict(state)


class RandomLayerTokenDrop(nn.Module):
    """A layer that, in training, sees a random part of its tokens; the rest pass by it.

    Until `attach` gives it a schedule, it is the layer. The first positional argument of forward
    is the hidden state, and so is the first result.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.random_ltd_layer = layer
        self._schedule: RandomLTDScheduler | None = None
        self._rules = LTDRules()

    def attach(self, schedule: RandomLTDScheduler, rules: LTDRules) -> None:
        """From now on keep `schedule.get_current_seq()` tokens."""
        self._schedule, self._rules = schedule, rules

    @property
    def attached(self) -> bool:
        return self._schedule is not None

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        rules, schedule = self._rules, self._schedule
        sequence = 1 if rules.order == "batch_seq_dim" else 0
        length = hidden_states.shape[sequence]
        keep = length if schedule is None else min(schedule.get_current_seq(), length)
        if not self.training or keep == length:
            return self.random_ltd_layer(hidden_states, *args, **kwargs)
        whole = hidden_states if sequence == 1 else hidden_states.transpose(0, 1)
        kept = sample_tokens(whole.shape[0], length, keep, device=whole.device)
        mask = kwargs.get(rules.mask_name) if rules.mask_name else None
        if mask is not None:
            causal = rules.model_type == "decoder"
            kwargs[rules.mask_name or ""] = gather_mask(mask, kept, causal=causal)
        for name in rules.sequence_names:
            kwargs[name] = gather_places(kwargs.get(name), kept)
        part = gather_tokens(whole, kept)
        part = part if sequence == 1 else part.transpose(0, 1)
        output = self.random_ltd_layer(part, *args, **kwargs)
        out = output[0] if isinstance(output, tuple) else output
        out = scatter_tokens(whole, kept, out if sequence == 1 else out.transpose(0, 1))
        out = out if sequence == 1 else out.transpose(0, 1)
        return (out, *output[1:]) if isinstance(output, tuple) else out


def convert_to_random_ltd(model: nn.Module, convert_type: type[nn.Module]) -> nn.Module:
    """Wrap every module of `convert_type` in `model`, in place; returns `model`.

    Which of them drop tokens is settled when a schedule is attached. The shape of the state dict
    changes: `remove_random_ltd_state_dict` gives the names of the plain model.
    """
    found = [
        (parent, name)
        for parent in model.modules()
        if not isinstance(parent, RandomLayerTokenDrop)
        for name, child in parent._modules.items()  # named_children tells a shared one once
        if isinstance(child, convert_type)
    ]
    if not found:
        raise RuleError(f"the model has no {convert_type.__name__} to convert")
    for parent, name in found:
        setattr(parent, name, RandomLayerTokenDrop(getattr(parent, name)))
    return model


def attach_random_ltd(
    model: nn.Module,
    schedule: RandomLTDScheduler,
    rules: LTDRules,
    layer_ids: list[int] | None = None,
) -> int:
    """Give the wrapped layers of `model` their schedule; returns how many now drop tokens.

    Args:
        layer_ids: positions among the wrapped layers; all but the first and last if None.
    """
    wrapped = [module for module in model.modules() if isinstance(module, RandomLayerTokenDrop)]
    chosen = range(1, len(wrapped) - 1) if layer_ids is None else layer_ids
    outside = [index for index in chosen if not 0 <= index < len(wrapped)]
    if wrapped and outside:
        raise RuleError(f"random_ltd_layer_id {outside}: the model has {len(wrapped)} such layers")
    for index in chosen if wrapped else []:
        wrapped[index].attach(schedule, rules)
    return len(chosen) if wrapped else 0


_INNER = ".random_ltd_layer"


def remove_random_ltd_state_dict(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The same weights under the names of the model without token dropping."""
    return {name.replace(_INNER, ""): value for name, value in state_dict.items()}


def save_without_random_ltd(model: nn.Module) -> dict[str, Any]:
    """The state dict of `model` (or of the module inside an engine) without token dropping."""
    inner = getattr(model, "module", model)
    return remove_random_ltd_state_dict(inner.state_dict())
