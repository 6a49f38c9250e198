"""A language model small enough for a CPU, its data, and its training in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, LENGTH = 64, 12
LEARNING_RATE, WEIGHT_DECAY = 5e-3, 0.1


class Tokens(Dataset[dict[str, Tensor]]):
    """Sequences that repeat a short random pattern, so that there is something to learn."""

    def __init__(self, count: int = 48, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        pattern = torch.randint(VOCABULARY, (count, LENGTH // 3), generator=generator)
        self.tokens = pattern.repeat(1, 3)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def tiny_config(**changes: Any) -> LlamaConfig:
    """Two layers; head tied to the embedding, as the small Llamas have it."""
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        **changes,
    )


def make_model(seed: int = 0) -> LlamaForCausalLM:
    """The same weights for the same seed, in fp32."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(tiny_config())


def make_optimizer(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)


def decaying(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """A schedule that moves visibly at each step."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.3 * step))


def collate(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.stack([sample[key] for sample in samples]) for key in samples[0]}


def batches(size: int, count: int, data: Tokens | None = None) -> list[dict[str, Tensor]]:
    """The first `count` batches, in order."""
    data = data or Tokens()
    every = [collate([data[i * size + j] for j in range(size)]) for i in range(count)]
    assert len(every) * size <= len(data)
    return every


def train_plain(
    *,
    steps: int,
    batch: int,
    micro_batches: int,
    max_norm: float,
    schedule: Callable[..., Any] | None = decaying,
    model: nn.Module | None = None,
    data: list[dict[str, Tensor]] | None = None,
) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """(loss a micro-batch, gradient norm a step, final weights) without any library.

    `micro_batches` of one step may come from accumulation or from ranks: it is all the same.
    """
    model = model or make_model()
    optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])
    moves = schedule(optimizer) if schedule is not None else None
    losses, norms = [], []
    every = iter(data or batches(batch, steps * micro_batches))
    for _ in range(steps):
        for _ in range(micro_batches):
            loss = model(**next(every)).loss
            losses.append(loss.item())
            (loss / micro_batches).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm or 1e9).item())
        optimizer.step()
        optimizer.zero_grad()
        if moves is not None:
            moves.step()
    return losses, norms, {key: value.detach().clone() for key, value in model.state_dict().items()}
