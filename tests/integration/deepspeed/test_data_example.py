"""The example program for dynamic batching, as its README runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.ranks import run_ranks

FOLDER = Path(__file__).parents[3] / "examples/variable_batch"


def example(metrics_path, stages):
    sys.path.insert(0, str(FOLDER))
    from train import main

    return main(
        ["--epochs", "3", "--pipeline-num-stages", str(stages), "--metrics-path", metrics_path]
    )


@pytest.mark.parametrize("stages", [0, 2])
def test_example_learns_on_two_processes(tmp_path, stages):
    for losses in run_ranks(example, 2, str(tmp_path), stages):
        assert sum(losses[-5:]) < sum(losses[:5]) / 2
    assert (tmp_path / "seqlen/seqlen_sample_to_metric.idx").exists()
