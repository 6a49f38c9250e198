"""The pipeline example trains, draws and goes on with other stages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from support.ranks import run_ranks

EXAMPLE = Path(__file__).parents[3] / "examples" / "pipeline" / "train.py"


def run_example(arguments):
    spec = importlib.util.spec_from_file_location("pipeline_train", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main(arguments)


def test_it_trains_draws_and_resumes(tmp_path):
    common = ["--out", str(tmp_path), "--steps", "4"]
    first = run_ranks(run_example, 2, ["--stages", "2", *common])[0]
    assert first[-1] < first[0]
    assert "<svg" in (tmp_path / "1f1b.html").read_text()
    later = run_ranks(run_example, 1, ["--stages", "1", "--schedule", "gpipe", "--resume", *common])
    assert later[0][0] < first[0]
