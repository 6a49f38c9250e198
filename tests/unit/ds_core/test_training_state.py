"""An engine's checkpoint holds everything, and fits or says why not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ds_core.contracts import LoadWhat
from ds_core.engine import Engine
from ds_core.errors import CheckpointError, ConfigError
from ds_core.groups import make_groups
from ds_core.optimizers import parameter_groups
from ds_core.precision import DynamicLossScaler, PrecisionSettings
from ds_core.replicated import Replicated
from ds_core.schedules import WarmupLR
from ds_core.testing import RecordingHook
from ds_core.training_state import SaveOptions, load_engine, load_weights, save_engine


class Tied(nn.Module):
    """Three names for one weight, none of them first; a frozen tie; a buffer."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(3, 3)
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.again = nn.Linear(3, 5, bias=False)
        self.head.weight = self.again.weight = self.embed.weight
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.also_frozen = nn.Linear(3, 3)
        self.also_frozen.weight = self.frozen.weight
        self.register_buffer("mean", torch.randn(3))
        self.register_buffer("scratch", torch.randn(3), persistent=False)

    def forward(self, rows):
        hidden = self.also_frozen(self.frozen(self.first(self.embed(rows)))) + self.mean
        return self.head(hidden).logsumexp(-1).mean() + self.again(hidden).square().mean()


def engine_over(module, *, scaler=None, hooks=()):
    groups = make_groups()
    precision = PrecisionSettings() if scaler is None else PrecisionSettings(make_scaler=scaler)
    strategy = Replicated(
        module,
        parameter_groups(p for p in module.parameters() if p.requires_grad),
        lambda params: torch.optim.AdamW(params, lr=0.1),
        groups=groups,
        precision=precision,
    )
    schedule = WarmupLR(strategy.optimizer, warmup_num_steps=4)
    return Engine(module, strategy, groups=groups, schedule=schedule, hooks=hooks)


def train(engine, steps):
    for _ in range(steps):
        engine.backward(engine(torch.randint(5, (4,))))
        engine.step()


def test_everything_comes_back_also_into_a_fresh_random_model(tmp_path):
    first = engine_over(
        Tied(0), scaler=lambda: DynamicLossScaler(initial=8), hooks=[RecordingHook()]
    )
    train(first, 3)
    save_engine(first, tmp_path, "t", client_state={"epoch": 2})
    hook = RecordingHook()
    second = engine_over(Tied(1), scaler=lambda: DynamicLossScaler(initial=2), hooks=[hook])
    with load_engine(second, tmp_path) as checkpoint:
        assert checkpoint.client_state() == {"epoch": 2}
    for name, value in first.module.state_dict().items():
        assert torch.equal(second.module.state_dict()[name], value), name
    assert second.counters == first.counters
    assert second.schedule.get_last_lr() == first.schedule.get_last_lr()
    assert second.strategy.scaler_scale == 8
    assert hook.restored == 3
    train(first, 2)
    load_engine(second, tmp_path).close()
    train(second, 2)
    assert torch.equal(first.module.first.weight, second.module.first.weight)


def test_ties_are_recorded_by_identity(tmp_path):
    engine = engine_over(Tied(0))
    save_engine(engine, tmp_path, "t")
    with load_engine(engine, tmp_path) as checkpoint:
        names = set(checkpoint.reader.names())
        for alias in ("head.weight", "again.weight"):
            assert checkpoint.reader.slots(alias) == checkpoint.reader.slots("embed.weight")
    assert "head.weight" not in names
    assert "embed.weight" in names


def test_frozen_parameters_are_kept_unless_left_out(tmp_path):
    engine = engine_over(Tied(0))
    save_engine(engine, tmp_path, "all")
    save_engine(engine, tmp_path, "trained", options=SaveOptions(exclude_frozen=True))
    sizes = {tag: folder_size(tmp_path / tag) for tag in ("all", "trained")}
    assert sizes["trained"] < sizes["all"]


def folder_size(folder):
    return sum(file.stat().st_size for file in folder.glob("weights*"))


def test_a_checkpoint_without_frozen_weights_lists_what_it_left_alone(tmp_path, caplog):
    save_engine(engine_over(Tied(0)), tmp_path, "t", options=SaveOptions(exclude_frozen=True))
    second = engine_over(Tied(1))
    before = second.module.frozen.weight.clone()
    load_engine(second, tmp_path).close()
    assert torch.equal(second.module.frozen.weight, before)
    assert "frozen.weight" in caplog.text


def test_a_missing_trained_parameter_is_an_error_naming_it(tmp_path):
    save_engine(engine_over(nn.Linear(2, 2, bias=False)), tmp_path, "t")
    with pytest.raises(CheckpointError, match="not in the checkpoint: bias"):
        load_engine(engine_over(nn.Linear(2, 2)), tmp_path)


def test_another_shape_is_an_error_before_anything_is_written(tmp_path):
    save_engine(engine_over(nn.Linear(2, 2)), tmp_path, "t")
    wider = nn.Linear(2, 3)
    before = wider.weight.detach().clone()
    with pytest.raises(CheckpointError, match=r"weight: \(2, 2\) saved, \(3, 2\) here"):
        load_engine(engine_over(wider), tmp_path)
    assert torch.equal(wider.weight, before)


def test_names_the_model_does_not_know_are_an_error_unless_lenient(tmp_path):
    save_engine(engine_over(nn.Linear(2, 2)), tmp_path, "t")
    small = nn.Linear(2, 2, bias=False)
    with pytest.raises(CheckpointError, match="not in the model: bias"):
        load_engine(engine_over(small), tmp_path)
    load_engine(engine_over(small), tmp_path, what=LoadWhat(strict=False)).close()


def test_weights_alone_leave_the_progress(tmp_path):
    module = nn.Linear(2, 2)
    first = engine_over(module)
    first.backward(first(torch.ones(1, 2)).sum())
    first.step()
    save_engine(first, tmp_path, "t")
    second = engine_over(nn.Linear(2, 2))
    load_weights(second, tmp_path)
    assert second.counters.steps == 0
    assert torch.equal(second.module.weight, module.weight)


def test_what_cannot_be_stored_in_client_state_is_refused_by_its_path(tmp_path):
    with pytest.raises(ConfigError, match=r"client_state.*model"):
        save_engine(engine_over(nn.Linear(1, 1)), tmp_path, "t", client_state={"model": object()})
    assert not (tmp_path / "t").exists()


PAIRS = [
    (torch.bfloat16, torch.float16),
    (torch.float32, torch.bfloat16),
    (torch.int8, None),
]


@pytest.mark.parametrize(("dtype", "accumulate"), PAIRS)
def test_pairs_of_formats_that_do_not_go_together_are_refused_by_name(dtype, accumulate):
    with pytest.raises(ConfigError, match=str(dtype)):
        PrecisionSettings(accumulate_dtype=accumulate).accumulate_in(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_accumulates_in_fp32_unless_asked(dtype):
    assert PrecisionSettings().accumulate_in(dtype) == torch.float32
    assert PrecisionSettings(accumulate_dtype=dtype).accumulate_in(dtype) == dtype


def test_a_load_forgets_the_open_window_with_its_losses(tmp_path):
    events = []

    class Losses:  # without state, so without a key for it
        def after_step(self, event):
            events.append(event.loss)

    engine = engine_over(nn.Linear(2, 2), hooks=[Losses()])
    save_engine(engine, tmp_path, "t")
    engine.backward(engine(torch.ones(1, 2)).sum() + 1000.0)
    load_engine(engine, tmp_path).close()
    engine.backward(engine(torch.ones(1, 2)).sum())
    engine.step()
    assert events[0].abs() < 100
    assert engine.counters.micro_batches == 1


def test_a_checkpoint_without_the_schedule_is_refused_before_anything_is_written(tmp_path):
    first = engine_over(nn.Linear(2, 2))
    first.schedule = None
    save_engine(first, tmp_path, "t")
    second = engine_over(nn.Linear(2, 2))
    before = second.module.weight.detach().clone()
    with pytest.raises(CheckpointError, match="load_lr_scheduler_states=False"):
        load_engine(second, tmp_path)
    assert torch.equal(second.module.weight, before)
