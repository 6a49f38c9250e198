"""The loop of the BERT pretraining tutorial with its JSON, over a small masked-language model."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch
from toy import answer, mean_over_ranks
from transformers import BertConfig, BertForMaskedLM

import deepspeed

VOCABULARY, LENGTH, MASK, MICRO = 60, 12, 1, 8


def make_config(kind: str, stage: int) -> dict:
    params = {"lr": 2e-3, "weight_decay": 0.01, "bias_correction": False}
    config = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": MICRO,
        "steps_per_print": 1000,
        "optimizer": {"type": "Adam", "params": params},
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 1.0,
    }
    if kind == "fp16":
        config["fp16"] = {"enabled": True, "loss_scale": 0, "initial_scale_power": 10}
    elif kind == "bf16":
        config["bf16"] = {"enabled": True}
    return config


def make_model() -> BertForMaskedLM:
    torch.manual_seed(0)
    shape = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForMaskedLM(shape)


def masked_batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens with some masked, and the labels at those places."""
    generator = torch.Generator().manual_seed(number)
    start = torch.randint(2, VOCABULARY, (MICRO, 1), generator=generator)
    tokens = 2 + (start + torch.arange(LENGTH)) % (VOCABULARY - 2)
    hidden = torch.rand(MICRO, LENGTH, generator=generator) < 0.3
    return tokens.masked_fill(hidden, MASK), tokens.masked_fill(~hidden, -100)


def parameter_groups(model: torch.nn.Module) -> list[dict]:
    named = list(model.named_parameters())
    decay = [p for n, p in named if "bias" not in n and "LayerNorm" not in n]
    rest = [p for n, p in named if "bias" in n or "LayerNorm" in n]
    return [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--format", default="fp32", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser = deepspeed.add_config_arguments(parser)
    with tempfile.TemporaryDirectory() as folder:
        args = parser.parse_args()
        args.deepspeed_config = str(Path(folder) / "bert.json")
        Path(args.deepspeed_config).write_text(json.dumps(make_config(args.format, args.stage)))
        deepspeed.init_distributed(dist_backend="gloo")
        model = make_model()
        engine, *_ = deepspeed.initialize(
            args=args, model=model, model_parameters=parameter_groups(model)
        )
    losses = []
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    for number in range(args.steps * engine.gradient_accumulation_steps()):
        tokens, labels = masked_batch(number * world + rank)
        loss = engine(input_ids=tokens, labels=labels).loss
        engine.backward(loss)
        engine.step()
        losses.append(mean_over_ranks(loss))
    answer(losses)


if __name__ == "__main__":
    main()
