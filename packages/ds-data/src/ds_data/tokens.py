"""Training counted in tokens: when to stop, and how fast the learning rate decays."""

from __future__ import annotations

import math
from typing import Any, Literal

from torch.optim import Optimizer

from ds_data.errors import RuleError


class TokenBudget:
    """Ends training at an exact number of tokens, when sequences change their length.

    Call `add` with the tokens of each global batch; `done` says whether the budget is spent.
    """

    def __init__(self, train_tokens: int) -> None:
        if train_tokens < 1:
            raise RuleError(f"train_tokens is {train_tokens}: it must be at least 1")
        self.train_tokens = train_tokens
        self.consumed = 0

    def add(self, tokens: int) -> bool:
        """Count `tokens` as consumed; returns `done`."""
        self.consumed += tokens
        return self.done

    @property
    def done(self) -> bool:
        return self.consumed >= self.train_tokens

    def state_dict(self) -> dict[str, int]:
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.consumed = int(state["consumed"])


def warmup_steps(tokens: int, *, min_difficulty: int, global_batch_size: int) -> int:
    """Steps that warm up over about `tokens`, as long as sequences have their first length."""
    return math.ceil(tokens / (min_difficulty * global_batch_size))


class TokenDecayLR:
    """Warms up by steps and decays by tokens.

    Short sequences early in a curriculum would make a decay by steps too fast, and a warm-up by
    tokens too slow. The rates of the optimizer at construction are the peaks.

    Args:
        decay_tokens: the lowest rate is reached when this many tokens are consumed.
        warmup: steps from 0 to the peak; 0 means the peak at once.
        lowest: fraction of the peak that is kept.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        decay_tokens: int,
        warmup: int = 0,
        lowest: float = 0.0,
        style: Literal["cosine", "linear"] = "cosine",
    ) -> None:
        if decay_tokens < 1 or warmup < 0 or style not in ("cosine", "linear"):
            raise RuleError(
                f"decay_tokens {decay_tokens} must be at least 1, warmup {warmup} at least 0, "
                f"style {style!r} 'cosine' or 'linear'"
            )
        self.optimizer = optimizer
        self.decay_tokens, self.warmup, self.lowest, self.style = (
            decay_tokens,
            warmup,
            lowest,
            style,
        )
        self._peaks = [float(group["lr"]) for group in optimizer.param_groups]
        self._steps = 0
        self._tokens = 0
        self._warmed_at = 0
        self._write()

    def factor(self) -> float:
        """The present rate as a fraction of the peak."""
        if self._steps < self.warmup:
            return (self._steps + 1) / self.warmup
        way = (self._tokens - self._warmed_at) / max(1, self.decay_tokens - self._warmed_at)
        way = min(max(way, 0.0), 1.0)
        fall = way if self.style == "linear" else 0.5 * (1 - math.cos(math.pi * way))
        return 1.0 - (1.0 - self.lowest) * fall

    def step(self, tokens: int) -> None:
        """Finish a step that consumed `tokens` tokens over all ranks."""
        self._steps += 1
        self._tokens += tokens
        if self._steps <= self.warmup:
            self._warmed_at = self._tokens
        self._write()

    def get_last_lr(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self._steps,
            "tokens": self._tokens,
            "warmed_at": self._warmed_at,
            "peaks": list(self._peaks),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps, self._tokens = int(state["steps"]), int(state["tokens"])
        self._warmed_at, self._peaks = int(state["warmed_at"]), list(state["peaks"])
        self._write()

    def _write(self) -> None:
        factor = self.factor()
        for group, peak in zip(self.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
