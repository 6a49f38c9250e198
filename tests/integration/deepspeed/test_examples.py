"""The commands of the examples' READMEs, with few steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepspeed.config import load_config

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CONFIGS = sorted(EXAMPLES.glob("*/d*s*config*.json"))
TINY_GPT = ["--layers", "1", "--width", "32", "--heads", "2", "--context", "64"]


def run(folder: str, *words: object) -> str:
    """Run `python ...` or `deepspeed ...` in an example's folder; its output."""
    program, *rest = (str(word) for word in words)
    command = [str(Path(sys.executable).with_name(program)), *rest]
    quiet = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    done = subprocess.run(
        command, cwd=EXAMPLES / folder, env=quiet, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def losses(file: Path) -> list[float]:
    return [row["loss"] for row in json.loads(file.read_text())]


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_configuration_of_an_example_has_no_fault(file):
    load_config(str(file), world_size=2, partial=True)


BERT = ["--max_seq_length", 16, "--max_steps", 5]
ADAM = ["--deepspeed", "--deepspeed_config", "deepspeed_bsz64_adam_config.json"]


@pytest.mark.slow
def test_bert_learns_the_same_in_plain_pytorch_and_on_two_processes(tmp_path):
    run("bert", "python", "train.py", *BERT, "--output_dir", tmp_path / "a")
    on_two = ["deepspeed", "--num_gpus", 2, "train_ds.py", *ADAM]
    run("bert", *on_two, *BERT, "--output_dir", tmp_path / "b")
    plain, ours = (losses(tmp_path / name / "losses.json") for name in "ab")
    assert len(plain) == 5
    assert ours == pytest.approx(plain, rel=1e-5)
    run("bert", "python", "plot.py", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 5_000


@pytest.mark.slow
def test_bert_resumes_and_takes_lamb(tmp_path):
    lamb = ["--deepspeed", "--deepspeed_config", "deepspeed_bsz256_lamb_config.json"]
    common = ["python", "train_ds.py", *lamb, "--max_seq_length", 16, "--output_dir", tmp_path]
    run("bert", *common, "--max_steps", 1)
    run("bert", *common, "--max_steps", 2, "--resume")
    assert len(losses(tmp_path / "losses.json")) == 2


@pytest.mark.slow
def test_gpt_trains_from_short_to_long_by_tokens(tmp_path):
    config = json.loads((EXAMPLES / "gpt/ds_config_seqlen.json").read_text())
    config["curriculum_learning"] |= {
        "min_difficulty": 16,
        "max_difficulty": 64,
        "schedule_config": {"total_curriculum_step": 6, "difficulty_step": 8},
    }
    (tmp_path / "ds.json").write_text(json.dumps(config))
    out = tmp_path / "seqlen"
    pace = ["--train-tokens", 3_000, "--valid-every", 4, "--valid-batches", 1, "--out", out]
    run("gpt", "python", "train.py", *TINY_GPT, *pace, "--deepspeed_config", tmp_path / "ds.json")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if "loss" in row]
    lengths = [row["seqlen"] for row in trained]
    assert lengths == sorted(lengths)
    assert lengths[0] == 24 < lengths[-1]
    assert trained[-1]["tokens"] == 8 * sum(lengths) >= 3_000
    assert trained[-1]["lr"] < trained[-2]["lr"] or len(trained) < 20
    run("gpt", "python", "history.py", out, "--out", tmp_path / "x.png")


@pytest.mark.slow
def test_a_range_test_suggests_the_rates_of_a_cycle(tmp_path):
    small = ["--width", 32, "--layers", 1, "--valid-every", 4]
    lrrt = ["--deepspeed_config", "ds_config_lrrt.json", "--steps", 12, "--out", tmp_path / "lrrt"]
    run("tuning", "deepspeed", "--num_gpus", 2, "train.py", *small, *lrrt)
    drawn = run("tuning", "python", "plot.py", "range_test", tmp_path / "lrrt", "--out",
                tmp_path / "range.png")  # fmt: skip
    flags = drawn.split()
    cycle = ["--lr_schedule", "OneCycle", "--cycle_first_step_size", 4, "--cycle_momentum", *flags]
    run("tuning", "python", "train.py", *small, *cycle, "--steps", 8, "--out", tmp_path / "cycle")
    rows = json.loads((tmp_path / "cycle/history.json").read_text())
    assert max(rows, key=lambda row: row["lr"])["step"] == 4
    assert min(rows, key=lambda row: row["momentum"])["step"] in (0, 4)
    run("tuning", "python", "plot.py", "schedules", tmp_path / "cycle", "--out",
        tmp_path / "cycle.png")  # fmt: skip


@pytest.mark.slow
def test_tensors_come_back_from_the_disk(tmp_path):
    printed = run("nvme", "python", "tensors.py", "--size", 16, "--repeats", 1, "--out", tmp_path)
    assert printed.count("equal: True") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"rates.json"}


@pytest.mark.slow
def test_losses_are_the_same_with_the_optimizer_on_a_disk(tmp_path):
    small = ["--layers", 2, "--width", 64, "--steps", 3, "--out", tmp_path]
    for device in ("none", "nvme"):
        run("nvme", "python", "offload.py", "--device", device, *small)
    found = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("none", "nvme")]
    assert found[0]["losses"] == found[1]["losses"]


@pytest.mark.slow
def test_a_model_is_profiled_into_every_form(tmp_path):
    size = ["--layers", 2, "--width", 64, "--heads", 2]
    printed = run("flops", "python", "profile_model.py", "--backward", *size, "--out", tmp_path)
    assert "without a rule: nothing" in printed
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"gpt.txt", "gpt.html", "gpt.json", "gpt.trace.json", "gpt.png"}


@pytest.mark.slow
def test_a_training_step_is_profiled(tmp_path):
    config = json.loads((EXAMPLES / "flops/ds_config_profile.json").read_text())
    config["flops_profiler"]["output_file"] = str(tmp_path / "step2.html")
    (tmp_path / "ds.json").write_text(json.dumps(config))
    pace = ["--steps", 3, "--valid-batches", 1, "--out", tmp_path / "run"]
    run("gpt", "python", "train.py", *TINY_GPT, *pace, "--deepspeed_config", tmp_path / "ds.json")
    assert "Attention" in (tmp_path / "step2.html").read_text()
