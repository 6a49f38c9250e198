"""The schedule of the BERT pretraining recipe: a power up, an exponential down."""

from __future__ import annotations

from typing import Any

from ds_core.errors import ConfigError
from ds_core.schedules.base import PerGroup, Schedule, count, own_rates, per_group


def warmup_exp_decay_exp(
    global_step: float,
    decay_rate: float,
    decay_steps: float,
    total_steps: float,
    warmup: float = 0.002,
    degree: float = 2.0,
) -> float:
    """The factor on the learning rate at `global_step`.

    Up to `warmup * total_steps` it is `(global_step / warm-up steps) ** degree`; after that it
    is multiplied by `decay_rate` every `decay_steps` steps, smoothly. Without warm-up it decays
    from 1 at once.
    """
    warmup_end = warmup * total_steps
    if global_step < warmup_end:
        return float((global_step / warmup_end) ** degree)
    return float(decay_rate ** ((global_step - warmup_end) / decay_steps))


class WarmupExpDecayExp(Schedule):
    """`warmup_exp_decay_exp` as a schedule: the rate is `factor * max_lr + lr_offset`.

    Args:
        optimizer: any object with `param_groups`.
        total_num_steps: of which `warmup_proportion` are the warm-up.
        warmup_proportion: 0 gives the full rate in the first step.
        decay_rate: factor of the decay.
        decay_step: steps after which the decay has reached `decay_rate`.
        degree: power of the warm-up.
        max_lr: rate at the end of the warm-up; None for the rate each group has now.
        lr_offset: added to every rate.
        last_batch_iteration: -1 to begin; else the optimizer's rates are left as they are.
    """

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_proportion: float = 0.02,
        decay_rate: float = 0.9,
        decay_step: int = 250,
        degree: float = 2.0,
        max_lr: PerGroup | None = None,
        lr_offset: float = 0.0,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration=last_batch_iteration)
        if not 0 <= warmup_proportion <= 1:
            raise ConfigError(f"warmup_proportion is {warmup_proportion}: give 0 to 1")
        if not 0 < decay_rate <= 1:
            raise ConfigError(f"decay_rate is {decay_rate}: give more than 0, at most 1")
        self.total_num_steps = count(total_num_steps, "total_num_steps")
        self.decay_step = count(decay_step, "decay_step", least=1)
        self.warmup_proportion, self.decay_rate = warmup_proportion, decay_rate
        self.degree, self.lr_offset = degree, lr_offset
        self.max_lrs = (
            own_rates(optimizer) if max_lr is None else per_group(optimizer, max_lr, "max_lr")
        )
        self._begin()

    def get_lr(self) -> list[float]:
        factor = warmup_exp_decay_exp(
            self.last_batch_iteration + 1,
            self.decay_rate,
            self.decay_step,
            self.total_num_steps,
            self.warmup_proportion,
            self.degree,
        )
        return [rate * factor + self.lr_offset for rate in self.max_lrs]
