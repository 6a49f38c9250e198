"""Middle layers see a random, ordered part of the tokens; the rest pass by unchanged."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ds_data import (
    LTDRules,
    RandomLayerTokenDrop,
    RandomLTDScheduler,
    RuleError,
    attach_random_ltd,
    convert_to_random_ltd,
    remove_random_ltd_state_dict,
    save_without_random_ltd,
)
from ds_data.random_ltd import (
    gather_mask,
    gather_places,
    gather_tokens,
    sample_tokens,
    scatter_tokens,
)


def config(**changes):
    schedule = {
        "min_value": 4,
        "max_value": 16,
        "schedule_type": "fixed_linear",
        "schedule_config": {"require_steps": 10, "seq_per_step": 4},
    }
    return {
        "total_layer_num": 4,
        "random_ltd_layer_num": 2,
        "global_batch_size": 2,
        "random_ltd_schedule": schedule | changes,
    }


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.integers(1, 40), st.data())
def test_kept_tokens_are_sorted_and_distinct(batch, length, data):
    keep = data.draw(st.integers(1, length))
    kept = sample_tokens(batch, length, keep)
    assert kept.shape == (batch, keep)
    assert (kept.diff(dim=1) > 0).all()
    assert kept.min() >= 0
    assert kept.max() < length


def test_every_token_is_kept_equally_often():
    kept = sample_tokens(4000, 10, 3, generator=torch.Generator().manual_seed(0))
    counts = np.bincount(kept.flatten().numpy(), minlength=10)
    assert abs(counts / 4000 - 0.3).max() < 0.03


def test_scatter_puts_back_what_gather_took():
    hidden, kept = torch.randn(2, 7, 3), sample_tokens(2, 7, 4)
    assert scatter_tokens(hidden, kept, gather_tokens(hidden, kept)).equal(hidden)
    changed = scatter_tokens(hidden, kept, torch.zeros(2, 4, 3))
    assert (changed == 0).all(dim=2).sum().item() == 8


def test_gradients_reach_kept_and_passing_tokens():
    hidden = torch.randn(2, 5, 3, requires_grad=True)
    kept = torch.tensor([[0, 2], [1, 4]])
    scatter_tokens(hidden, kept, 3 * gather_tokens(hidden, kept)).sum().backward()
    assert hidden.grad[0, :, 0].tolist() == [3, 1, 3, 1, 1]
    assert hidden.grad[1, :, 0].tolist() == [1, 3, 1, 1, 3]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", [(1, 1, 6, 6), (2, 1, 6, 6), (2, 1, 1, 6), (2, 6)])
def test_mask_among_kept_tokens_is_the_one_between_their_places(shape, causal):
    mask = torch.arange(6)[:, None] >= torch.arange(6)[None, :]
    if shape[-2] == 1 or len(shape) == 2:
        mask = torch.rand(shape) > 0.5
    mask = mask.expand(shape)
    kept = torch.tensor([[0, 2, 5], [1, 3, 4]])
    got = gather_mask(mask, kept, causal=causal)
    for sample in range(2):
        full = mask[min(sample, mask.shape[0] - 1)]
        rows = full[0] if full.dim() == 3 else full
        wanted = rows[..., kept[sample]]
        wanted = wanted[kept[sample]] if wanted.dim() == 2 and wanted.shape[0] > 1 else wanted
        part = got[min(sample, got.shape[0] - 1)]
        assert (part[0] if part.dim() == 3 else part).equal(wanted)


def test_schedule_rises_in_steps_to_the_whole_sequence():
    schedule = RandomLTDScheduler(config())
    assert [schedule.get_value(k) for k in range(12)] == [4, 4, 4, 4, 8, 8, 8, 12, 12, 12, 16, 16]


@pytest.mark.parametrize(("least", "multiple", "most"), [(5, 4, 16), (4, 8, 17), (128, 16, 2048)])
def test_schedule_stays_between_its_ends(least, multiple, most):
    steps = {"require_steps": 50, "seq_per_step": multiple}
    schedule = RandomLTDScheduler(config(min_value=least, max_value=most, schedule_config=steps))
    path = [schedule.get_value(k) for k in range(60)]
    assert path == sorted(path)
    assert path[0] == least
    assert path[50] == most


def test_layer_tokens_are_counted_once_a_step():
    schedule = RandomLTDScheduler(config())
    for step in (0, 0, 1):
        schedule.update_seq(step)
    assert schedule.state_dict()["consumed_layer_tokens"] == 2 * 2 * (4 * 2 + 16 * 2)
    assert schedule.get_total_layer_tokens(2) == 160
    other = RandomLTDScheduler(config())
    other.load_state_dict(schedule.state_dict())
    assert other.get_state() == schedule.get_state()


@pytest.mark.parametrize("changes", [{"min_value": 0}, {"min_value": 99}])
def test_a_schedule_that_cannot_rise_is_refused(changes):
    with pytest.raises(RuleError, match="must lie in 1"):
        RandomLTDScheduler(config(**changes))


class Block(nn.Module):
    """Adds 1 to what it sees and remembers the shapes."""

    def __init__(self, *, as_tuple=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.as_tuple, self.seen = as_tuple, None

    def forward(self, hidden, attention_mask=None):
        self.seen = (hidden.shape, None if attention_mask is None else attention_mask.shape)
        out = hidden + self.weight
        return (out, "cache") if self.as_tuple else out


def wrapped(order="batch_seq_dim", **options):
    layer = RandomLayerTokenDrop(Block(**options))
    layer.attach(RandomLTDScheduler(config()), LTDRules(mask_name="attention_mask", order=order))
    return layer


@pytest.mark.parametrize("order", ["batch_seq_dim", "seq_batch_dim"])
def test_a_wrapped_layer_works_on_a_part_in_training(order):
    layer = wrapped(order)
    shape = (2, 10, 3) if order == "batch_seq_dim" else (10, 2, 3)
    out = layer(torch.zeros(shape), attention_mask=torch.ones(2, 1, 10, 10))
    part = (2, 4, 3) if order == "batch_seq_dim" else (4, 2, 3)
    assert layer.random_ltd_layer.seen == (part, (2, 1, 4, 4))
    assert out.shape == shape
    assert out.sum() == 2 * 4 * 3


def test_a_wrapped_layer_is_whole_in_evaluation_and_before_a_schedule():
    hidden = torch.zeros(2, 10, 3)
    assert wrapped().eval()(hidden).sum() == 60
    assert RandomLayerTokenDrop(Block())(hidden).sum() == 60


def test_further_results_of_a_layer_pass_through():
    out, cache = wrapped(as_tuple=True)(torch.zeros(2, 10, 3))
    assert (out.shape, cache) == ((2, 10, 3), "cache")


def test_conversion_wraps_layers_and_keeps_their_names_on_export():
    model = nn.Sequential(Block(), nn.Linear(3, 3), nn.Sequential(Block()))
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    convert_to_random_ltd(model, Block)
    assert isinstance(model[0], RandomLayerTokenDrop)
    assert isinstance(model[2][0], RandomLayerTokenDrop)
    assert set(model.state_dict()) != set(plain)
    for saved in (remove_random_ltd_state_dict(model.state_dict()), save_without_random_ltd(model)):
        assert {name: value.tolist() for name, value in saved.items()} == {
            name: value.tolist() for name, value in plain.items()
        }


def test_converting_twice_wraps_once():
    model = nn.Sequential(Block())
    convert_to_random_ltd(model, Block)
    with pytest.raises(RuleError, match="has no Block to convert"):
        convert_to_random_ltd(model, Block)


def test_only_the_named_layers_drop_tokens():
    model = convert_to_random_ltd(nn.Sequential(*[Block() for _ in range(4)]), Block)
    number = attach_random_ltd(model, RandomLTDScheduler(config()), LTDRules(), [1, 2])
    model(torch.zeros(2, 10, 3))
    assert number == 2
    assert [layer.random_ltd_layer.seen[0][1] for layer in model] == [10, 4, 4, 10]


def test_a_layer_id_the_model_lacks_is_refused():
    model = convert_to_random_ltd(nn.Sequential(Block()), Block)
    with pytest.raises(RuleError, match=r"\[3\]: the model has 1"):
        attach_random_ltd(model, RandomLTDScheduler(config()), LTDRules(), [0, 3])


def test_what_runs_along_the_sequence_is_kept_at_the_same_places():
    kept = torch.tensor([[0, 2], [1, 3]])
    angles = torch.arange(8.0).view(1, 4, 2)
    positions, rotary = gather_places((torch.arange(4)[None], (angles, None)), kept)
    assert positions.equal(kept)
    assert rotary[0].equal(torch.stack([angles[0, [0, 2]], angles[0, [1, 3]]]))
    assert rotary[1] is None


def test_a_layer_gets_the_positions_of_its_tokens():
    class Placed(Block):
        def forward(self, hidden, position_ids=None):
            return hidden + position_ids[..., None]

    layer = RandomLayerTokenDrop(Placed())
    rules = LTDRules(sequence_names=("position_ids",))
    layer.attach(RandomLTDScheduler(config()), rules)
    out = layer(torch.zeros(2, 10, 1), position_ids=torch.arange(10)[None])
    changed = out[..., 0].nonzero(as_tuple=True)
    assert out[..., 0][changed].equal(changed[1].float())


def test_a_layer_used_twice_is_wrapped_in_both_places():
    layer = nn.Linear(4, 4)
    model = convert_to_random_ltd(nn.Sequential(layer, layer), nn.Linear)
    assert all(isinstance(part, RandomLayerTokenDrop) for part in model)


def test_a_missing_key_of_the_schedule_is_named():
    with pytest.raises(RuleError, match="random-LTD needs 'schedule_config'"):
        RandomLTDScheduler({"random_ltd_schedule": {"min_value": 8}})
