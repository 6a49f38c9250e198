"""What a setting asks to be told is seen, also where nobody has set logging up."""

from __future__ import annotations

import logging

import pytest

from deepspeed.config import load_config
from deepspeed.logs import speak_as_configured


@pytest.fixture
def speak(monkeypatch):
    """Speaks as configured where logging is as a program finds it: no handler anywhere."""
    loggers = [logging.getLogger(n) for n in ("deepspeed", "deepspeed.progress", "ds_profiler")]
    levels = [each.level for each in loggers]

    def call(root=(), **settings):
        monkeypatch.setattr(logging.getLogger(), "handlers", list(root))
        speak_as_configured(load_config({"train_batch_size": 1, **settings}))

    yield call
    for each, level in zip(loggers, levels, strict=True):
        each.handlers.clear()
        each.setLevel(level)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"steps_per_print": 5}, "deepspeed.progress"),
        ({"memory_breakdown": True}, "deepspeed.progress"),
        ({"wall_clock_breakdown": True}, "ds_profiler.hooks"),
        ({"comms_logger": {"enabled": True}}, "ds_profiler.comms_log"),
        ({"log_level": "info"}, "deepspeed.engine_checkpoint"),
    ],
    ids=[
        "steps_per_print",
        "memory_breakdown",
        "wall_clock_breakdown",
        "comms_logger",
        "log_level",
    ],
)
def test_lines_that_a_setting_asks_for_are_seen(speak, capsys, settings, name):
    speak(**settings)
    logging.getLogger(name).info("a line")
    assert capsys.readouterr().err.count("a line") == 1


def test_nothing_is_seen_that_nothing_asks_for(speak, capsys):
    speak(wall_clock_breakdown=False)
    logging.getLogger("deepspeed.progress").info("a line")
    assert capsys.readouterr().err == ""


def test_a_program_that_has_set_logging_up_decides_itself(speak):
    speak(root=[logging.NullHandler()], steps_per_print=5, wall_clock_breakdown=True)
    assert logging.getLogger("deepspeed.progress").handlers == []
    assert logging.getLogger("ds_profiler").handlers == []


def test_a_program_that_sets_logging_up_later_takes_over(speak, capsys, monkeypatch):
    speak(steps_per_print=5)
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    logging.getLogger("deepspeed.progress").info("a line")
    assert capsys.readouterr().err == ""


def test_two_engines_say_a_line_once(speak, capsys):
    speak(steps_per_print=5)
    speak(steps_per_print=5)
    logging.getLogger("deepspeed.progress").info("a line")
    assert capsys.readouterr().err.count("a line") == 1
