"""Hooks of the data packages reach a model in a pipeline."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import torch
from torch import nn

import deepspeed
from deepspeed.pipe import LayerSpec, PipelineModule
from support.pipelines import Case, batches, gpt_layers, gpt_loss
from support.ranks import run_ranks

CASE = Case("gpt", 2, "1f1b", 2)
EXAMPLE = Path(__file__).parents[3] / "examples" / "variable_batch"


class Shorten(nn.Module):
    """Cuts tokens to the length of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def forward(self, tokens, curriculum_seqlen=None):
        self.lengths.append(curriculum_seqlen or tokens.shape[1])
        return tokens[:, :curriculum_seqlen]


def loss_of_short(logits, targets, curriculum_seqlen=None):
    return gpt_loss(logits, targets[:, :curriculum_seqlen])


def train_by_curriculum():
    layers = [LayerSpec(Shorten), *gpt_layers()]
    model = PipelineModule(
        layers, num_stages=2, loss_fn=loss_of_short, seed_layers=True, partition_method="uniform"
    )
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
        "curriculum_learning": {
            "enabled": True,
            "curriculum_type": "seqlen",
            "min_difficulty": 2,
            "max_difficulty": 6,
            "schedule_type": "fixed_linear",
            "schedule_config": {"total_curriculum_step": 4, "difficulty_step": 2},
        },
    }
    engine, *_ = deepspeed.initialize(model=model, config=config)
    losses = [engine.train_batch(batches(CASE, step, 0)).item() for step in range(5)]
    first = next((m for m in model.modules() if isinstance(m, Shorten)), None)
    return losses, first.lengths if first is not None else None


def test_a_seqlen_curriculum_shortens_inputs_and_labels():
    (losses, lengths), (others, none) = run_ranks(train_by_curriculum, 2)
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1], len(lengths)) == (2, 6, 10)
    assert none is None
    assert losses == others
    assert all(torch.isfinite(torch.tensor(losses)))


def run_example(folder):
    sys.path.insert(0, str(EXAMPLE))
    spec = importlib.util.spec_from_file_location("variable_train", EXAMPLE / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments = ["--pipeline-num-stages", "2", "--epochs", "2", "--sentences", "60"]
    return module.main([*arguments, "--metrics-path", str(folder)])


def test_the_variable_batch_example_runs_in_a_pipeline(tmp_path):
    first, second = run_ranks(run_example, 2, tmp_path)
    assert json.dumps(first) == json.dumps(second)
    assert len(first) >= 2
    assert first[-1] < first[0]
