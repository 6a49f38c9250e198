"""The training loop of accelerate's documentation, with its DeepSpeed plugin."""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.utils import InitProcessGroupKwargs
from torch.utils.data import DataLoader
from toy import Tokens, answer, collate, llama

MICRO, ACCUMULATE, CLIP = 2, 2, 0.5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    plugin = DeepSpeedPlugin(
        zero_stage=args.stage, gradient_clipping=CLIP, gradient_accumulation_steps=ACCUMULATE
    )
    accelerator = Accelerator(
        deepspeed_plugin=plugin,
        gradient_accumulation_steps=ACCUMULATE,
        step_scheduler_with_optimizer=False,
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")],
    )
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.3 * step))
    count = args.steps * ACCUMULATE * MICRO * accelerator.num_processes
    loader = DataLoader(Tokens(count), batch_size=MICRO, collate_fn=collate)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses, norms = [], []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), CLIP)
                norms.append(None if norm is None else float(norm))
            optimizer.step()
            if accelerator.sync_gradients:
                schedule.step()
            optimizer.zero_grad()
    answer(losses, norms=norms)


if __name__ == "__main__":
    main()
