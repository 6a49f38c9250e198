"""One process: the engine steps where it should, and leaves nothing behind."""

import gc
import weakref

import pytest
import torch
from torch import nn

from ds_core.engine import Engine
from ds_core.errors import ConfigError, StateError
from ds_core.groups import make_groups
from ds_core.optimizers import parameter_groups
from ds_core.precision import PrecisionSettings
from ds_core.replicated import Replicated, ReplicatedSettings
from ds_core.testing import RecordingHook
from support.strategies import Setup, build_engine
from support.training import assert_same_run, engine_run, make_batch, make_model, plain_run


def small_engine(module, *, accumulation=1, lr=0.1, hooks=(), schedule=None, **settings):
    groups = make_groups()
    strategy = Replicated(
        module,
        parameter_groups(p for p in module.parameters() if p.requires_grad),
        lambda params: torch.optim.SGD(params, lr=lr),
        groups=groups,
        precision=PrecisionSettings(),
        settings=ReplicatedSettings(**settings),
    )
    return Engine(
        module,
        strategy,
        groups=groups,
        accumulation_steps=accumulation,
        micro_batch_size=2,
        hooks=hooks,
        schedule=None if schedule is None else schedule(strategy.optimizer),
    )


def test_a_step_runs_its_phases_in_order_and_counts():
    hook = RecordingHook()
    engine = small_engine(nn.Linear(2, 1), accumulation=2, hooks=[hook])
    for _ in range(2):
        engine.backward(engine(torch.ones(2, 2)).sum())
        engine.step()
    micro = ["before_forward", "after_forward", "before_backward", "after_backward"]
    assert hook.phases == [*micro, *micro, "before_step", "after_step"]
    assert (engine.counters.steps, engine.counters.micro_batches, engine.counters.samples) == (
        1,
        2,
        4,
    )
    assert hook.events[0].samples == 4
    assert hook.events[0].lr == (0.1,)


def test_evaluation_runs_no_hooks_and_keeps_the_window():
    hook = RecordingHook()
    engine = small_engine(nn.Linear(2, 1), accumulation=2, hooks=[hook])
    engine.backward(engine(torch.ones(2, 2)).sum())
    hook.phases.clear()
    with torch.no_grad():
        engine.eval()(torch.ones(2, 2))
    assert hook.phases == []
    assert engine.window.seen == 1


def test_a_gradient_is_the_mean_over_micro_batches():
    module = nn.Linear(2, 1, bias=False)
    engine = small_engine(module, accumulation=4)
    for value in (1.0, 2.0, 3.0, 6.0):
        engine.backward(engine(torch.full((1, 2), value)).sum())
    assert torch.equal(module.weight.grad, torch.full((1, 2), 3.0))


@pytest.mark.parametrize("forced", [False, True])
def test_the_tail_of_an_epoch_is_kept_or_stepped_by_force(forced):
    """10 micro-batches at accumulation 4: the last 2 wait for the next epoch, unless forced."""
    module = nn.Linear(1, 1, bias=False)
    engine = small_engine(module, accumulation=4)
    for number in range(10):
        if forced and number == 9:
            engine.set_gradient_accumulation_boundary(True)
        engine.backward(engine(torch.full((1, 1), float(number))).sum())
        report = engine.step()
    assert engine.counters.steps == (3 if forced else 2)
    assert engine.window.seen == (0 if forced else 2)
    if forced:
        assert report.grad_norm == pytest.approx(8.5)  # the mean of 8 and 9


def test_a_forced_boundary_can_be_given_back():
    engine = small_engine(nn.Linear(1, 1), accumulation=2)
    engine.set_gradient_accumulation_boundary(True)
    engine.backward(engine(torch.ones(1, 1)).sum())
    engine.step()
    engine.set_gradient_accumulation_boundary(None)
    engine.backward(engine(torch.ones(1, 1)).sum())
    assert engine.step() is None


def test_plain_backward_trains_like_the_engines():
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    second.load_state_dict(first.state_dict())
    ours, plain = small_engine(first), small_engine(second)
    for _ in range(3):
        ours.backward(ours(torch.ones(1, 2)).sum())
        plain(torch.ones(1, 2)).sum().backward()
        ours.step()
        plain.step()
    assert torch.equal(first.weight, second.weight)


def test_two_backwards_before_a_step_add_up():
    module = nn.Linear(1, 1, bias=False)
    engine = small_engine(module)
    engine.backward(engine(torch.full((1, 1), 2.0)).sum())
    engine.backward(engine(torch.full((1, 1), 3.0)).sum())
    assert module.weight.grad.item() == 5.0


def test_two_engines_in_one_process_do_not_touch_each_other():
    """One loss through both, stepped in turn: the parameters of plain torch."""
    torch.manual_seed(0)
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    plain[0].load_state_dict(generator.state_dict())
    plain[1].load_state_dict(critic.state_dict())
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in plain]
    a, b = small_engine(generator), small_engine(critic)
    for number in range(4):
        b(a(torch.ones(1, 2))).sum().backward()
        plain(torch.ones(1, 2)).sum().backward()
        turn = number % 2
        (a, b)[turn].step()
        (b, a)[turn].zero_grad()
        optimizers[turn].step()
        plain.zero_grad()
    assert torch.allclose(generator.weight, plain[0].weight)
    assert torch.allclose(critic.weight, plain[1].weight)


def test_a_loss_of_zero_times_the_parameters_changes_nothing():
    module = nn.Linear(2, 1)
    before = module.weight.detach().clone()
    engine = small_engine(module, max_norm=1.0)
    engine.backward(0 * engine(torch.ones(1, 2)).sum())
    assert not engine.step().skipped
    assert torch.equal(module.weight, before)


def test_one_infinite_gradient_skips_the_step_and_names_the_parameter(caplog):
    module = nn.Linear(2, 1)
    before = module.weight.detach().clone()
    engine = small_engine(module, max_norm=1.0)
    engine.backward(engine(torch.tensor([[float("inf"), 1.0]])).sum())
    report = engine.step()
    assert (report.skipped, report.nonfinite) == (True, ("weight",))
    assert "'weight'" in caplog.text
    assert torch.equal(module.weight, before)
    assert engine.counters.skipped == 1


def test_a_schedule_moves_once_an_applied_step():
    module = nn.Linear(1, 1)
    engine = small_engine(
        module, schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    )
    for value in (1.0, float("nan"), 1.0):
        engine.backward(engine(torch.full((1, 1), value)).sum())
        engine.step()
    assert engine.schedule.get_last_lr() == [0.025]


def test_bfloat16_gradients_are_clipped_to_the_limit():
    module = nn.Linear(4, 1, bias=False)
    groups = make_groups()
    strategy = Replicated(
        module.to(torch.bfloat16),
        parameter_groups(module.parameters()),
        lambda params: torch.optim.SGD(params, lr=1.0),
        groups=groups,
        precision=PrecisionSettings(torch.bfloat16),
        settings=ReplicatedSettings(max_norm=1.0),
    )
    master = strategy.held(module.weight)
    before = master.detach().clone()
    engine = Engine(module, strategy, groups=groups)
    engine.backward(engine(torch.full((1, 4), 5.0, dtype=torch.bfloat16)).sum())
    assert engine.step().grad_norm == pytest.approx(10.0)
    assert (before - master).norm().item() == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize(
    "loss", [torch.ones(3, requires_grad=True), torch.tensor(1, dtype=torch.int64)]
)
def test_a_loss_that_is_not_one_number_is_refused(loss):
    engine = small_engine(nn.Linear(1, 1))
    with pytest.raises(ConfigError, match="one floating-point number"):
        engine.backward(loss)


def test_zero_grad_forgets_the_window():
    module = nn.Linear(1, 1, bias=False)
    engine = small_engine(module, accumulation=2)
    engine.backward(engine(torch.ones(1, 1)).sum())
    engine.zero_grad()
    for _ in range(2):
        engine.backward(engine(torch.full((1, 1), 3.0)).sum())
        report = engine.step()
    assert report.grad_norm == 3.0


def test_a_destroyed_engine_gives_the_module_back():
    module = nn.Linear(2, 1)
    engine = small_engine(module)
    engine.backward(engine(torch.ones(1, 2)).sum())
    engine.destroy()
    engine.destroy()
    assert module.weight.grad is None
    assert not module.weight._post_accumulate_grad_hooks
    module(torch.ones(1, 2)).sum().backward()
    with pytest.raises(StateError, match="destroyed"):
        engine(torch.ones(1, 2))


def test_nothing_outlives_a_destroyed_engine():
    module = make_model()
    references = []
    for _ in range(5):
        engine = build_engine("replicated", Setup(), module)
        engine_run(engine, steps=1, accumulation=1, masters=engine.strategy.held)
        references.append(weakref.ref(engine.strategy))
        engine.destroy()
    del engine
    gc.collect()
    assert [reference() for reference in references] == [None] * 5


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_compiled_module_trains_like_an_eager_one(when):
    module = make_model()
    if when == "before":
        module.compile(backend="eager")
    engine = build_engine("replicated", Setup(), module)
    if when == "after":
        module.compile(backend="eager")
    run = engine_run(engine, steps=3, accumulation=1, masters=engine.strategy.held)
    assert_same_run(run, plain_run(steps=3, accumulation=1, world_size=1), rtol=1e-6, atol=1e-6)
    assert set(module.state_dict()) == set(make_model().state_dict())


def test_attributes_of_the_module_are_reached_through_the_engine():
    engine = small_engine(nn.Linear(2, 1))
    assert engine.in_features == 2
    with pytest.raises(AttributeError, match="no_such_thing"):
        engine.no_such_thing  # noqa: B018


def test_a_failing_backward_leaves_a_usable_engine():
    module = nn.Linear(2, 1)
    engine = small_engine(module)
    output = engine(torch.ones(1, 2))
    output.register_hook(_raise)
    with pytest.raises(RuntimeError, match="out of luck"):
        engine.backward(output.sum())
    engine.zero_grad()
    engine.backward(engine(torch.ones(1, 2)).sum())
    assert not engine.step().skipped


def _raise(_):
    raise RuntimeError("out of luck")


def test_batches_are_functions_of_their_place():
    assert torch.equal(make_batch(3, 1, 0)[0], make_batch(3, 1, 0)[0])


def test_a_parameter_unfrozen_after_the_start_is_an_error_naming_it():
    module = nn.Linear(2, 1)
    module.bias.requires_grad_(False)
    groups = make_groups()
    strategy = Replicated(
        module,
        parameter_groups(module.parameters()),
        lambda params: torch.optim.SGD(params, lr=0.1),
        groups=groups,
        precision=PrecisionSettings(),
    )
    engine = Engine(module, strategy, groups=groups)
    module.bias.requires_grad_(True)
    engine.backward(engine(torch.ones(1, 2)).sum())
    with pytest.raises(StateError, match="'bias' was frozen when the engine was made"):
        engine.step()


@pytest.mark.parametrize("loss", [None, 1.0, (1, 2)])
def test_a_loss_that_is_no_tensor_is_refused(loss):
    with pytest.raises(ConfigError, match="needs the loss as a tensor"):
        small_engine(nn.Linear(1, 1)).backward(loss)


def test_a_detached_loss_is_refused():
    engine = small_engine(nn.Linear(1, 1))
    with pytest.raises(ConfigError, match="detached"):
        engine.backward(engine(torch.ones(1, 1)).sum().detach())


def step_without_backward(engine, *, first=False, every=1):
    for _ in range(0 if first else every):
        engine.backward(engine(torch.ones(1, 2)).sum())
        engine.step()
    engine.step()


@pytest.mark.parametrize(
    "mistake", [{"first": True}, {"every": 1}, {"every": 2}], ids=["first", "twice", "in_window"]
)
def test_a_step_without_a_backward_is_told_once(caplog, mistake):
    engine = small_engine(nn.Linear(2, 1), accumulation=mistake.get("every", 1))
    for _ in range(2):
        step_without_backward(engine, **mistake)
    told = [line for line in caplog.messages if "without a backward pass since" in line]
    assert len(told) == 1


def by_engine(engine, skips):
    loss = engine(torch.ones(1, 2)).sum()
    if not skips:
        engine.backward(loss)


def by_loss(engine, skips):
    engine(torch.ones(1, 2)).sum().backward()


def by_module(engine, skips):
    engine.module(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize("backward", [by_engine, by_loss, by_module])
def test_other_ways_to_step_are_not_warned_of(caplog, backward):
    engine = small_engine(nn.Linear(2, 1), accumulation=4)
    for step in range(8):
        backward(engine, skips=step == 2)
        engine.step()
    assert caplog.messages == []


def test_a_failing_backward_forgets_the_whole_window():
    engine = small_engine(nn.Linear(2, 1, bias=False), accumulation=2, lr=1.0)
    engine.module.weight.data.zero_()
    engine.backward(engine(torch.ones(1, 2)).sum())
    engine.step()
    loss = engine(torch.ones(1, 2)).sum()
    loss.register_hook(_raise)
    with pytest.raises(RuntimeError, match="out of luck"):
        engine.backward(loss)
    assert engine.window.seen == 0
    for _ in range(2):
        engine.backward(engine(torch.ones(1, 2)).sum())
        engine.step()
    assert engine.module.weight.tolist() == [[-1.0, -1.0]]
