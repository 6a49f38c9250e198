"""Models as lists of layers, in one process."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ds_core.errors import CheckpointError, ConfigError
from ds_pipeline import LayerSpec, PartitionError, PipelineModule, TiedLayerSpec
from ds_pipeline.weigh import class_names, measured_times, parameter_counts


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(200, 200))

    def forward(self, value):
        for _ in range(20):
            value = value @ self.weight / 200
        return value


class Reads(nn.Module):
    """Cannot be built without memory: it looks at its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.first = self.linear.weight[0, 0].item()


def layers():
    return [LayerSpec(nn.Linear, 4, 8), torch.relu, LayerSpec(nn.Linear, 8, 4, bias=False)]


def test_layers_are_named_by_their_number_and_run_in_order():
    module = PipelineModule(layers(), num_stages=1)
    names = [name for name, _ in module.named_parameters()]
    assert names == ["0.weight", "0.bias", "2.weight"]
    value = torch.randn(2, 4)
    first, second = module.get_submodule("0"), module.get_submodule("2")
    assert torch.equal(module(value), second(torch.relu(first(value))))
    assert (module.stage_owner(2), module.partitions()) == (0, [0, 3])


def test_tied_layers_of_one_stage_are_one_module():
    spec = TiedLayerSpec("e", nn.Linear, 4, 4, bias=False)
    backwards = TiedLayerSpec("e", nn.Linear, 4, 4, forward_fn=lambda m, v: v @ m.weight)
    module = PipelineModule([spec, torch.tanh, backwards], num_stages=1)
    assert [name for name, _ in module.named_parameters()] == ["tied_modules.e.weight"]
    assert not module.ties
    module(torch.randn(2, 4)).sum().backward()
    assert module.tied_modules["e"].weight.grad is not None


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_recomputed_activations_change_nothing(interval):
    specs = [*layers(), nn.Dropout(0.5), LayerSpec(nn.Linear, 4, 4)]
    found = []
    for used in (0, interval):
        torch.manual_seed(3)
        module = PipelineModule(
            specs, num_stages=1, seed_layers=True, activation_checkpoint_interval=used
        )
        value = torch.ones(2, 4, requires_grad=True)
        module(value).sum().backward()
        found.append((value.grad, [param.grad for param in module.parameters()]))
    torch.testing.assert_close(found[0], found[1])


def test_only_the_layers_that_are_named_are_recomputed():
    seen = []

    def note(run, *inputs):
        seen.append(len(inputs))
        return run(*inputs)

    arguments = {"activation_checkpoint_interval": 1, "activation_checkpoint_func": note}
    PipelineModule(layers(), 1, checkpointable_layers=["Linear"], **arguments)(torch.randn(2, 4))
    assert seen == [1, 1]
    with torch.no_grad():
        PipelineModule(layers(), 1, **arguments)(torch.randn(2, 4))
    assert seen == [1, 1]


def test_weights_of_layers_are_found_without_building_them():
    specs = [*layers(), LayerSpec(Reads), nn.Linear(2, 2).requires_grad_(False)]
    state = torch.get_rng_state()
    assert parameter_counts(specs) == [40, 0, 32, 12, 0]
    assert torch.equal(state, torch.get_rng_state())
    assert class_names(specs) == ["Linear", "relu", "Linear", "Reads", "Linear"]


def test_weights_are_kept_in_a_file_a_layer(tmp_path):
    module = PipelineModule([*layers(), LayerSpec(nn.Linear, 4, 4)], 1)
    module.get_submodule("3").weight.requires_grad_(False)
    folder = module.ckpt_prefix(tmp_path, "step7")
    module.save_state_dict(folder)
    path = module.ckpt_layer_path(folder, 2)
    assert path == str(tmp_path / "step7" / "layer_02-model_states.pt")
    assert module.ckpt_layer_path_list(folder, 2) == [path]
    assert list(torch.load(path)) == ["weight"]
    other = PipelineModule([*layers(), LayerSpec(nn.Linear, 4, 4)], 1)
    other.load_state_dir(folder)
    assert all(map(torch.equal, module.state_dict().values(), other.state_dict().values()))
    module.save_state_dict(folder, exclude_frozen_params=True)
    other.load_state_dir(folder, strict=False)
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dir(folder)


class Folder:
    """Keeps files in a dict, as a checkpoint engine of a program may."""

    def __init__(self):
        self.files = {}

    def save(self, state_dict, path):
        self.files[path] = state_dict
        open(path, "w").close()

    def load(self, path, map_location=None):
        return self.files[path]


def test_files_of_layers_go_through_an_engine_of_the_program(tmp_path):
    module, engine = PipelineModule(layers(), 1), Folder()
    module.save_state_dict(tmp_path, engine)
    PipelineModule(layers(), 1).load_state_dir(tmp_path, engine)
    assert len(engine.files) == 2
    with pytest.raises(CheckpointError, match=r"layer_00-model_states\.pt; save_state_dict"):
        module.load_state_dir(tmp_path / "other")


def test_layers_are_compiled_one_by_one():
    module = PipelineModule(layers(), 1)
    value = torch.randn(2, 4)
    expected = module(value)
    module.compile(backend="eager")
    assert torch.equal(module(value), expected)
    assert module.get_submodule("0")._compiled_call_impl is not None


def test_times_are_measured_layer_by_layer():
    specs = [LayerSpec(nn.Linear, 200, 200), LayerSpec(Slow), torch.relu]
    times = measured_times(specs, torch.randn(64, 200), first=True)
    assert times[1] == max(times)
    with pytest.raises(ConfigError, match="needs example_input"):
        measured_times(specs, None, first=True)


@pytest.mark.parametrize("method", ["parameters", "uniform", "type:linear", "profile", [0, 3]])
def test_every_way_to_divide_is_accepted(method):
    module = PipelineModule(layers(), 1, partition_method=method, example_input=torch.randn(2, 4))
    assert module.parts == [0, 3]


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda: PipelineModule(layers()), ConfigError, "needs num_stages or a topology"),
        (lambda: PipelineModule(layers(), 2), ConfigError, "1 ranks cannot be divided into 2"),
        (lambda: PipelineModule(layers(), 1, chunks=2), ConfigError, "needs at least 2 stages"),
        (lambda: PipelineModule([3], 1), ConfigError, "layer 0 is 3; a layer is a LayerSpec"),
        (lambda: LayerSpec(torch.relu), ConfigError, "builds a subclass of nn.Module"),
        (
            lambda: PipelineModule(layers(), 1, partition_method="best-effort"),
            PartitionError,
            "known: parameters, uniform, type:REGEX",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(make, kind, said):
    with pytest.raises(kind, match=said):
        make()


def test_a_tuple_of_one_stays_a_tuple_where_activations_are_recomputed():

    module = PipelineModule(
        [lambda v: (v,), lambda values: (values[0] * 2,), lambda values: values[0]],
        num_stages=1,
        activation_checkpoint_interval=1,
        checkpointable_layers=["function"],
    )
    value = torch.ones(2, 4, requires_grad=True)
    assert torch.equal(module(value), value * 2)


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_reentrant_recomputation_trains_what_takes_inputs_without_gradients(interval):
    reentrant = partial(checkpoint, use_reentrant=True)
    layers = [LayerSpec(nn.Embedding, 7, 4), LayerSpec(nn.Linear, 4, 4), LayerSpec(nn.Linear, 4, 4)]
    arguments = {"seed_layers": True, "activation_checkpoint_func": reentrant}
    kept = PipelineModule(layers, 1, **arguments)
    recomputed = PipelineModule(layers, 1, **arguments, activation_checkpoint_interval=interval)
    for module in (kept, recomputed):
        module(torch.arange(7)).square().sum().backward()
    for mine, other in zip(recomputed.parameters(), kept.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad)
