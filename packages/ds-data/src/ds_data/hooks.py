"""Curriculum, random-LTD, layer drop, sampler state: as hooks of a training engine."""

from __future__ import annotations

import inspect
import logging
from dataclasses import asdict
from typing import Any, Protocol

from torch import nn

from ds_data.curriculum import CurriculumScheduler
from ds_data.errors import RuleError
from ds_data.layer_drop import ProgressiveLayerDrop
from ds_data.random_ltd import LTDRules, RandomLTDScheduler, attach_random_ltd
from ds_data.sections import (
    CurriculumLearningSection,
    DataEfficiencySection,
    ProgressiveLayerDropSection,
)

log = logging.getLogger(__name__)

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Context(Protocol):
    """What the engine's owner offers a hook."""

    module: nn.Module
    train_batch_size: int


class Step(Protocol):
    """What a finished step tells."""

    step: int


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class SeqlenCurriculumHook:
    """Passes the sequence length of the step as `curriculum_seqlen` to forward."""

    key = "curriculum_learning"

    def __init__(self, schedule: CurriculumScheduler) -> None:
        self.schedule = schedule
        self._step = 0

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        length = self.schedule.update_difficulty(self._step + 1)
        return args, kwargs | {"curriculum_seqlen": length}

    def after_step(self, event: Step) -> None:
        self._step = event.step

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, **self.schedule.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step = int(state["step"])
        self.schedule.set_state(state)


class LayerDropHook:
    """Passes `progressive_layer_drop` and `pld_theta` to forward."""

    key = "progressive_layer_drop"

    def __init__(self, layer_drop: ProgressiveLayerDrop) -> None:
        self.layer_drop = layer_drop
        self._step = 0

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return args, kwargs | self.layer_drop.get_state()

    def after_step(self, event: Step) -> None:
        self._step = event.step
        self.layer_drop.update_state(self._step)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step = int(state["step"])
        self.layer_drop.update_state(self._step)


class RandomLTDHook:
    """Moves the schedule of random-LTD, and attaches it to layers once they are wrapped.

    Layers may be wrapped (`convert_to_random_ltd`) before or after the engine is made.
    """

    key = "random_ltd"

    def __init__(
        self,
        module: nn.Module,
        schedule: RandomLTDScheduler,
        rules: LTDRules,
        layer_ids: list[int] | None = None,
    ) -> None:
        self.schedule = schedule
        self._module, self._rules, self._layer_ids = module, rules, layer_ids
        self._attached = False
        self.schedule.update_seq(0)

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        if not self._attached:
            number = attach_random_ltd(self._module, self.schedule, self._rules, self._layer_ids)
            if number == 0:
                raise RuleError(
                    "random_ltd is enabled, but no layer is wrapped: call "
                    "convert_to_random_ltd(model, LayerType) before the first step"
                )
            self._attached = True
        return args, kwargs

    def after_step(self, event: Step) -> None:
        self.schedule.update_seq(event.step)

    def state_dict(self) -> dict[str, Any]:
        return self.schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.schedule.load_state_dict(state)


class StateHook:
    """Puts the state of a loader or sampler into the engine's checkpoints."""

    def __init__(self, key: str, owner: Stateful) -> None:
        self.key = key
        self._owner = owner

    def state_dict(self) -> dict[str, Any]:
        return self._owner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._owner.load_state_dict(state)


def curriculum_hook(
    section: CurriculumLearningSection, context: Context
) -> SeqlenCurriculumHook | None:
    """The hook of the top-level section `curriculum_learning`."""
    if not section.enabled:
        return None
    _require_keywords(context.module, ("curriculum_seqlen",), "curriculum_learning")
    return SeqlenCurriculumHook(CurriculumScheduler(asdict(section)))


def layer_drop_hook(section: ProgressiveLayerDropSection, context: Context) -> LayerDropHook | None:
    """The hook of the section `progressive_layer_drop`."""
    if not section.enabled:
        return None
    _require_keywords(
        context.module, ("progressive_layer_drop", "pld_theta"), "progressive_layer_drop"
    )
    return LayerDropHook(ProgressiveLayerDrop(section.theta, section.gamma))


def random_ltd_hook(section: DataEfficiencySection, context: Context) -> RandomLTDHook | None:
    """The hook of `data_efficiency.data_routing.random_ltd`."""
    ltd = section.data_routing.random_ltd
    if not (section.enabled and section.data_routing.enabled and ltd.enabled):
        return None
    config = asdict(ltd) | {"global_batch_size": context.train_batch_size}
    rules = LTDRules(
        mask_name=ltd.model_mask_name,
        model_type=ltd.model_type,
        order=ltd.hidden_state_order,
        sequence_names=tuple(ltd.sequence_names),
    )
    return RandomLTDHook(context.module, RandomLTDScheduler(config), rules, ltd.random_ltd_layer_id)


def _require_keywords(module: nn.Module, names: tuple[str, ...], section: str) -> None:
    parameters = inspect.signature(module.forward).parameters
    if any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values()):
        return
    missing = [name for name in names if name not in parameters]
    if missing:
        raise RuleError(
            f"{section} is enabled, but {type(module).__name__}.forward takes no "
            f"{' and no '.join(missing)}: add the keyword to the model, or disable the section"
        )
