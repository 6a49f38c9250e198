"""Loss scales follow the written rule step by step."""

import pytest

from ds_core.errors import ConfigError, StateError
from ds_core.gate import PATIENCE, StepGate
from ds_core.precision import DynamicLossScaler, StaticLossScaler

NOBODY = tuple


def feed(scaler, script):
    """The scale after each step; `o` overflows, `.` is a good step."""
    scales = []
    for step in script:
        scaler.update(overflow=step == "o")
        scales.append(scaler.scale)
    return scales


@pytest.mark.parametrize(
    ("options", "script", "expected"),
    [
        ({"hysteresis": 1}, "oo", [32, 16]),
        ({"hysteresis": 2}, "ooo", [64, 32, 16]),
        ({"hysteresis": 2, "window": 4}, "o...o", [64, 64, 64, 64, 32]),
        ({"hysteresis": 2, "window": 4}, "o....oo", [64, 64, 64, 64, 128, 128, 64]),
        ({"hysteresis": 2, "consecutive_hysteresis": True}, "o.o.oo", [64, 64, 64, 64, 64, 32]),
        ({"hysteresis": 1, "window": 2}, "....", [64, 128, 128, 256]),
        ({"hysteresis": 1, "minimum": 32}, "ooo", [32, 32, 32]),
    ],
)
def test_dynamic_scale_follows_the_rule(options, script, expected):
    scaler = DynamicLossScaler(initial=64, **{"window": 1000, **options})
    assert feed(scaler, script) == expected


def test_static_scale_stays():
    assert feed(StaticLossScaler(128), "o.o.") == [128] * 4


def test_dynamic_scale_resumes_in_mid_window():
    first = DynamicLossScaler(initial=64, window=4, hysteresis=2)
    feed(first, "o..")
    second = DynamicLossScaler(initial=2, window=4, hysteresis=2)
    second.load_state_dict(first.state_dict())
    assert feed(first, "..oo") == feed(second, "..oo")


@pytest.mark.parametrize(
    "options", [{"window": 0}, {"hysteresis": 0}, {"minimum": 0}, {"initial": 1, "minimum": 2}]
)
def test_impossible_rules_are_refused(options):
    with pytest.raises(ConfigError):
        DynamicLossScaler(**options)


def test_static_scale_must_be_positive():
    with pytest.raises(ConfigError, match="must be positive"):
        StaticLossScaler(0)


@pytest.mark.parametrize(
    ("norm", "scale", "max_norm", "factor"),
    [(8.0, 4.0, 0.0, 0.25), (8.0, 4.0, 1.0, 0.125), (8.0, 4.0, 3.0, 0.25), (0.0, 1.0, 1.0, 1.0)],
)
def test_gate_unscales_and_clips_in_one_factor(norm, scale, max_norm, factor):
    gate = StepGate(StaticLossScaler(scale), max_norm=max_norm)
    found, report = gate.admit(norm, NOBODY)
    assert found == pytest.approx(factor, rel=1e-6)
    assert report.grad_norm == norm / scale


@pytest.mark.parametrize("norm", [float("inf"), float("nan"), float("-inf")])
def test_a_norm_that_is_not_finite_skips_and_never_becomes_a_factor(norm, caplog):
    gate = StepGate(StaticLossScaler(), max_norm=1.0)
    factor, report = gate.admit(norm, lambda: ("layer.weight",))
    assert (factor, report.skipped, report.nonfinite) == (0.0, True, ("layer.weight",))
    assert caplog.messages == ["step skipped: the gradient of 'layer.weight' is not finite"]


def test_a_skipped_step_tells_what_becomes_of_the_scale(caplog):
    gate = StepGate(DynamicLossScaler(initial=4, hysteresis=2))
    for _ in range(2):
        gate.admit(float("inf"), lambda: ("w",))
    kept, lowered = caplog.messages
    assert kept.endswith("is not finite (loss scale stays 4)")
    assert lowered.endswith("is not finite (loss scale 4, now 2)")


def test_a_run_stuck_at_the_smallest_scale_is_stopped_with_names():
    gate = StepGate(DynamicLossScaler(initial=4, hysteresis=1))

    def fifty_overflows():
        for _ in range(50):
            gate.admit(float("inf"), lambda: ("layer.weight",))

    with pytest.raises(StateError, match=r"20 steps in a row .* layer\.weight"):
        fifty_overflows()


def test_a_good_step_restores_patience():
    gate = StepGate(StaticLossScaler())
    for _ in range(PATIENCE - 1):
        gate.admit(float("inf"), NOBODY)
    gate.admit(1.0, NOBODY)
    for _ in range(PATIENCE - 1):
        assert gate.admit(float("inf"), NOBODY)[1].skipped
