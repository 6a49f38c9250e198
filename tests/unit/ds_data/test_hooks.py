"""The hooks move with the steps of an engine and go into its checkpoints."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from ds_data import RuleError, convert_to_random_ltd
from ds_data.hooks import StateHook, curriculum_hook, layer_drop_hook, random_ltd_hook
from ds_data.sections import (
    CurriculumLearningSection,
    CurriculumMetric,
    DataEfficiencySection,
    DataRouting,
    DynamicBatching,
    LTDSchedule,
    LTDScheduleConfig,
    ProgressiveLayerDropSection,
    RandomLTD,
    SamplingCurriculum,
    ScheduleConfig,
)


@dataclass
class Context:
    module: nn.Module
    train_batch_size: int = 4


@dataclass
class Step:
    step: int


class Model(nn.Module):
    def forward(self, x, curriculum_seqlen=None, progressive_layer_drop=False, pld_theta=1.0):
        return x


class Plain(nn.Module):
    def forward(self, x):
        return x


class Open(nn.Module):
    def forward(self, x, **kwargs):
        return x


CURRICULUM = CurriculumLearningSection(
    enabled=True,
    min_difficulty=8,
    max_difficulty=64,
    schedule_type="fixed_linear",
    schedule_config=ScheduleConfig(total_curriculum_step=10, difficulty_step=8),
)
LTD = DataEfficiencySection(
    enabled=True,
    data_routing=DataRouting(
        enabled=True,
        random_ltd=RandomLTD(
            enabled=True,
            total_layer_num=4,
            random_ltd_layer_num=2,
            random_ltd_layer_id=[1, 2],
            random_ltd_schedule=LTDSchedule(
                min_value=4, max_value=16, schedule_config=LTDScheduleConfig(require_steps=10)
            ),
        ),
    ),
)
DROP = ProgressiveLayerDropSection(enabled=True, theta=0.5, gamma=0.1)


@pytest.mark.parametrize(
    ("make", "section"),
    [
        (curriculum_hook, replace(CURRICULUM, enabled=False)),
        (layer_drop_hook, replace(DROP, enabled=False)),
        (random_ltd_hook, replace(LTD, enabled=False)),
        (random_ltd_hook, DataEfficiencySection(enabled=True)),
    ],
)
def test_a_disabled_section_makes_no_hook(make, section):
    assert make(section, Context(Plain())) is None


def lengths(hook, first, last):
    seen = []
    for step in range(first, last):
        seen.append(hook.before_forward((), {})[1]["curriculum_seqlen"])
        hook.after_step(Step(step + 1))
    return seen


def test_sequence_length_rises_with_the_steps_and_survives_a_checkpoint():
    hook = curriculum_hook(CURRICULUM, Context(Model()))
    assert lengths(hook, 0, 4) == [8, 16, 24, 24]
    resumed = curriculum_hook(CURRICULUM, Context(Model()))
    resumed.load_state_dict(hook.state_dict())
    assert lengths(resumed, 4, 12) == lengths(hook, 4, 12) == [32, 40, 40, 48, 56, 64, 64, 64]


@pytest.mark.parametrize(
    ("make", "section", "keyword"),
    [
        (curriculum_hook, CURRICULUM, "curriculum_seqlen"),
        (layer_drop_hook, DROP, "progressive_layer_drop and no pld_theta"),
    ],
)
def test_a_model_without_the_keyword_is_one_clear_error(make, section, keyword):
    with pytest.raises(RuleError, match=rf"Plain.forward takes no {keyword}: add the keyword"):
        make(section, Context(Plain()))
    assert make(section, Context(Open())) is not None


def test_theta_falls_by_the_written_formula():
    hook = layer_drop_hook(DROP, Context(Model()))
    seen = []
    for step in range(1, 60):
        seen.append(hook.before_forward((), {"x": 1})[1]["pld_theta"])
        hook.after_step(Step(step))
    wanted = [0.5 * torch.exp(torch.tensor(-0.1 * k)).item() + 0.5 for k in range(59)]
    assert seen == pytest.approx(wanted, rel=1e-5)
    assert seen[0] == 1.0
    resumed = layer_drop_hook(DROP, Context(Model()))
    resumed.load_state_dict(hook.state_dict())
    assert resumed.before_forward((), {})[1] == hook.before_forward((), {})[1]


def layers(number=4):
    return nn.Sequential(*[nn.Linear(3, 3) for _ in range(number)])


@pytest.mark.parametrize("convert_first", [True, False])
def test_layers_may_be_wrapped_before_or_after_the_hook_is_made(convert_first):
    model = layers()
    if convert_first:
        convert_to_random_ltd(model, nn.Linear)
    hook = random_ltd_hook(LTD, Context(model))
    if not convert_first:
        convert_to_random_ltd(model, nn.Linear)
    hook.before_forward((), {})
    assert [layer.attached for layer in model] == [False, True, True, False]


def test_random_ltd_without_a_wrapped_layer_says_what_to_call():
    hook = random_ltd_hook(LTD, Context(layers()))
    with pytest.raises(RuleError, match="call convert_to_random_ltd"):
        hook.before_forward((), {})


def test_kept_length_follows_the_steps_and_survives_a_checkpoint():
    hook = random_ltd_hook(LTD, Context(layers()))
    for step in range(1, 6):
        hook.after_step(Step(step))
    assert hook.schedule.get_current_seq() == 10
    resumed = random_ltd_hook(LTD, Context(layers()))
    resumed.load_state_dict(hook.state_dict())
    assert resumed.state_dict() == hook.state_dict()


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        (LTD.data_routing.random_ltd, {"total_layer_num": None}, "total_layer_num is missing"),
        (LTD.data_routing.random_ltd, {"random_ltd_layer_num": 3}, "names 2 layers"),
        (CURRICULUM, {"max_difficulty": None}, "needs 'max_difficulty'"),
        (DynamicBatching(), {"enabled": True}, "max_tokens is missing"),
        (DynamicBatching(), {"max_batch_size": 2, "min_batch_size": 3}, "is below min_batch_size"),
        (
            SamplingCurriculum(),
            {"enabled": True, "curriculum_metrics": {"len": CurriculumMetric()}},
            "curriculum_metrics.len: a curriculum needs 'min_difficulty'",
        ),
    ],
)
def test_a_section_names_what_it_lacks(section, changes, message):
    with pytest.raises(RuleError, match=message):
        replace(section, **changes)


def test_a_loader_s_state_goes_through_a_hook():
    class Loader:
        state = 3

        def state_dict(self):
            return {"state": self.state}

        def load_state_dict(self, state):
            self.state = state["state"] + 1

    owner = Loader()
    hook = StateHook("data", owner)
    hook.load_state_dict(hook.state_dict())
    assert owner.state == 4
