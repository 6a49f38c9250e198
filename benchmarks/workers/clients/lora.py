"""peft's LoRA over a frozen model in a plain deepspeed loop."""

from __future__ import annotations

import argparse

import torch
from peft import LoraConfig, get_peft_model
from toy import Tokens, answer, collate, llama, mean_over_ranks

import deepspeed

MICRO = 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    deepspeed.init_distributed(dist_backend="gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    base = llama()
    torch.manual_seed(3)
    model = get_peft_model(
        base,
        LoraConfig(
            r=4,
            lora_alpha=8,
            lora_dropout=0.0,
            target_modules=["q_proj", "v_proj"],
            init_lora_weights="gaussian",
            task_type="CAUSAL_LM",
        ),
    )
    trained = [param for param in model.parameters() if param.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=trained,
        config={
            "train_micro_batch_size_per_gpu": MICRO,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.05, "torch_adam": True}},
            "zero_optimization": {"stage": args.stage, "stage3_param_persistence_threshold": 0},
        },
    )
    data = Tokens(args.steps * MICRO * world)
    losses = []
    for step in range(args.steps):
        first = (step * world + rank) * MICRO
        batch = collate([data[first + index] for index in range(MICRO)])
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()
        losses.append(mean_over_ranks(loss))
    answer(losses)


if __name__ == "__main__":
    main()
