"""Pictures of schedules and of recorded runs."""

from __future__ import annotations

import re

import pytest

from ds_pipeline.cli import main
from ds_pipeline.draw import held, html
from ds_pipeline.recording import write_recording
from ds_pipeline.schedules import plan
from ds_pipeline.simulate import Span, Timeline, simulate


def timeline(name="1f1b", chunks=1):
    return simulate([plan(name, s, 4, 8, chunks=chunks) for s in range(4)], chunks=chunks)


def test_a_page_has_a_block_for_each_computation_and_says_the_idle_share():
    page = html(timeline(), "1f1b")
    assert len(re.findall("<g><title>", page)) == 4 * 8 * 2
    assert "idle 27.3%" in page
    assert "at most 4 micro-batches held" in page
    assert "http" not in page


def test_what_is_held_rises_and_falls_to_nothing():
    for stage, steps in enumerate(held(timeline("zb-h1"))):
        assert max(number for _, number in steps) <= 4, stage
        assert steps[-1][1] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--schedule", "1f1b"],
        ["--schedule", "zb-h1", "--stages", "3", "--micro-batches", "5"],
        ["--schedule", "interleaved", "--chunks", "2", "--travel", "0.2"],
    ],
)
@pytest.mark.parametrize("suffix", ["html", "png"])
def test_the_command_writes_pictures(tmp_path, capsys, arguments, suffix):
    path = tmp_path / f"picture.{suffix}"
    assert main(["draw", *arguments, "-o", str(path)]) == 0
    assert path.stat().st_size > 2000
    assert "idle" in capsys.readouterr().out


def test_a_recorded_run_is_drawn_with_its_times(tmp_path, capsys):
    spans = [
        Span(0, "ForwardPass", 0, 0, 0.0, 0.25),
        Span(1, "ForwardPass", 0, 0, 0.25, 0.5),
        Span(1, "BackwardPass", 0, 0, 0.5, 0.75),
        Span(0, "BackwardPass", 0, 0, 0.75, 1.0),
    ]
    write_recording(Timeline(spans, 2), tmp_path / "run.json")
    output = tmp_path / "run.html"
    assert main(["draw", "--recorded", str(tmp_path / "run.json"), "-o", str(output)]) == 0
    assert "length 1000.0 ms, idle 50.0%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "picture.pdf"], "must end in .html or .png"),
        (["--micro-batches", "0"], "0 micro-batches"),
        (["--recorded", "missing.json"], "missing.json"),
    ],
)
def test_faults_are_one_line(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert main(["draw", *arguments]) == 1
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1
