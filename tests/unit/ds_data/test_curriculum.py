"""Difficulty schedules keep their promises."""

import pytest

from ds_data import CurriculumScheduler, RuleError


def scheduler(kind="fixed_linear", least=8, most=1024, **config):
    defaults = {"total_curriculum_step": 100, "difficulty_step": 8, "root_degree": 2}
    return CurriculumScheduler(
        {
            "min_difficulty": least,
            "max_difficulty": most,
            "schedule_type": kind,
            "schedule_config": defaults | config,
        }
    )


@pytest.mark.parametrize("kind", ["fixed_linear", "fixed_root"])
@pytest.mark.parametrize("most", [1024, 1000])
@pytest.mark.parametrize(("least", "step"), [(8, 16), (1, 8), (10, 8), (64, 16)])
def test_difficulty_stays_in_range_and_on_the_grid(kind, most, least, step):
    schedule = scheduler(kind, least, most, difficulty_step=step)
    path = [schedule.get_current_difficulty()]
    path += [schedule.update_difficulty(k) for k in range(1, 121)]
    assert path[0] == -(-least // step) * step
    assert all(least <= value <= most for value in path)
    assert path == sorted(path)
    assert all(value % step == 0 for value in path if value != most)
    assert path[100] == most
    assert path[99] < most


def test_linear_is_root_of_degree_one():
    linear, root = scheduler("fixed_linear"), scheduler("fixed_root", root_degree=1)
    assert [linear.get_difficulty(k) for k in range(120)] == [
        root.get_difficulty(k) for k in range(120)
    ]


def test_linear_follows_the_written_formula():
    schedule = scheduler(most=1008, total_curriculum_step=10)
    assert [schedule.get_difficulty(k) for k in (1, 5, 9)] == [104, 504, 904]


def test_discrete_levels_switch_after_their_last_step():
    schedule = scheduler("fixed_discrete", 1, 3, difficulty=[1, 2, 3], max_step=[5, 10])
    assert [schedule.update_difficulty(k) for k in (1, 5, 6, 10, 11, 99)] == [1, 1, 2, 2, 3, 3]


def test_custom_function_is_clamped_and_needed():
    schedule = CurriculumScheduler(
        {"min_difficulty": 2, "max_difficulty": 9, "schedule_type": "custom"}
    )
    with pytest.raises(RuleError, match="set_custom_get_difficulty"):
        schedule.update_difficulty(1)
    schedule.set_custom_get_difficulty(lambda step: step * 3)
    assert [schedule.update_difficulty(k) for k in (0, 1, 2, 5)] == [2, 3, 6, 9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule_type": "fixed"}, "expected one of fixed_linear"),
        ({"schedule_type": None}, "needs 'schedule_type'"),
        ({"min_difficulty": 99}, "between 0 and the second"),
        ({"schedule_config": {"difficulty_step": 8}}, "schedule_config.total_curriculum_step"),
        ({"schedule_config": {"total_curriculum_step": 0, "difficulty_step": 8}}, "at least 1"),
        (
            {
                "schedule_type": "fixed_discrete",
                "schedule_config": {"difficulty": [8, 9], "max_step": [1, 2]},
            },
            "the last difficulty has no end",
        ),
    ],
)
def test_a_wrong_config_is_refused_by_name(changes, message):
    config = {
        "min_difficulty": 8,
        "max_difficulty": 16,
        "schedule_type": "fixed_linear",
        "schedule_config": {"total_curriculum_step": 10, "difficulty_step": 8},
    }
    with pytest.raises(RuleError, match=message):
        CurriculumScheduler(config | changes)


def test_state_restores_the_difficulty():
    schedule = scheduler()
    schedule.update_difficulty(50)
    other = scheduler()
    other.set_state(schedule.get_state())
    assert other.get_current_difficulty() == schedule.get_current_difficulty() > 8


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("fixed_root", {"root_degree": float("nan")}, "root_degree is nan: expected a number"),
        ("fixed_linear", {"difficulty_step": "8"}, "difficulty_step is '8': expected a number"),
        ("fixed_discrete", {"difficulty": 8}, "difficulty is 8: expected a list"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(kind, config, message):
    with pytest.raises(RuleError, match=message):
        scheduler(kind, **({"max_step": []} | config))
