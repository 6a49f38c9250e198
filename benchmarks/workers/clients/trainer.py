"""The Hugging Face Trainer with a DeepSpeed configuration that is mostly "auto"."""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import transformers.training_args
from accelerate import PartialState
from toy import Tokens, answer, collate, llama
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

FROM_JSON = {
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
            "total_num_steps": "auto",
        },
    },
}


def config_of(stage: int, from_json: bool) -> dict[str, Any]:
    zero = {
        "stage": stage,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_gather_16bit_weights_on_model_save": True,
    }
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": zero,
        **(FROM_JSON if from_json else {}),
    }


def arguments(folder: str, args: argparse.Namespace) -> TrainingArguments:
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    PartialState(backend="gloo")  # else accelerate counts one process on a CPU
    # TrainingArguments refuses bf16 on a CPU unless use_cpu, which would switch DeepSpeed off.
    transformers.training_args.is_torch_bf16_gpu_available = lambda: True
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_grad_norm=0.5,
        max_steps=args.steps,
        learning_rate=5e-3,
        weight_decay=0.1,
        warmup_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=7,
        bf16=args.bf16,
        deepspeed=config_of(args.stage, args.from_json),
        accelerator_config={"use_configured_state": True},
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--from_json", action="store_true", help="optimizer and schedule too")
    parser.add_argument("--from_pretrained", action="store_true", help="zero.Init at stage 3")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        chosen = arguments(os.environ.get("SCRATCH", scratch), args)  # before the model is made
        model = llama()
        if args.from_pretrained:
            shared = [scratch]
            dist.broadcast_object_list(shared, 0)  # transformers writes on the first rank only
            model.save_pretrained(shared[0])
            dist.barrier()
            model = AutoModelForCausalLM.from_pretrained(shared[0], dtype=torch.float32)
        trainer = make_trainer(model, chosen)
        trainer.train()
    losses = logged(trainer, "loss")
    answer(losses, norms=logged(trainer, "grad_norm"), rates=logged(trainer, "learning_rate"))


def make_trainer(model: Any, chosen: TrainingArguments) -> Trainer:
    return Trainer(model=model, args=chosen, train_dataset=Tokens(256), data_collator=collate)


def logged(trainer: Trainer, key: str) -> list[float]:
    return [float(entry[key]) for entry in trainer.state.log_history if key in entry]


if __name__ == "__main__":
    main()
