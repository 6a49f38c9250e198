"""`import deepspeed` is cheap, silent, and touches no device."""

from __future__ import annotations

import json
import subprocess
import sys

PROBE = """
import json, sys, time
import torch
before = set(sys.modules)
start = time.perf_counter()
import deepspeed
seconds = time.perf_counter() - start
print(json.dumps({
    "seconds": seconds,
    "device": torch.cuda.is_initialized(),
    "loaded": sorted(set(sys.modules) - before),
}), file=open(sys.argv[1], "w"))
"""


def probe(tmp_path):
    answer = tmp_path / "answer.json"
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(answer)], capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr, json.loads(answer.read_text())


def test_import_prints_nothing_and_initialises_no_device(tmp_path):
    printed, answer = probe(tmp_path)
    assert printed == ""
    assert not answer["device"]


def test_import_loads_no_optional_library(tmp_path):
    _, answer = probe(tmp_path)
    roots = {name.partition(".")[0] for name in answer["loaded"]}
    assert not roots & {"triton", "tensorboard", "matplotlib", "wandb", "comet_ml", "pydantic"}
    assert len(answer["loaded"]) < 60  # what makes an import slow is what it pulls in
