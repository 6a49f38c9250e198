"""Bytes of real text, split into training and validation, and batches of them by step."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

LIMIT = 16 * 2**20
EVERY = 20
"""One file in this many is for validation; of a single file, its last twentieth."""


def read_text(source: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Training and validation bytes of a file or folder; default: Python's standard library."""
    if source is None:
        source = Path(sysconfig.get_path("stdlib"))
        files = sorted(source.glob("*.py")) + sorted(source.glob("*/*.py"))
        files = [file for file in files if "site-packages" not in file.parts]
    elif source.is_dir():
        files = sorted(file for file in source.rglob("*") if file.is_file())
    elif source.is_file():
        content = np.fromfile(source, dtype=np.uint8, count=LIMIT)
        cut = len(content) - len(content) // EVERY
        return content[:cut], content[cut:]
    else:
        raise FileNotFoundError(f"--data {source}: no such file or folder")
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    total = 0
    for number, file in enumerate(files):
        content = file.read_bytes()
        parts[number % EVERY == EVERY - 1].append(content)
        total += len(content)
        if total > LIMIT:
            break
    train, valid = (np.frombuffer(b"".join(part), dtype=np.uint8) for part in parts)
    if len(train) < 10_000 or len(valid) < 1_000:
        raise ValueError(
            f"{source} holds {len(train)} training bytes: too little text to learn from"
        )
    return train, valid


def batch_at(
    text: np.ndarray, *, step: int, rank: int, seed: int, batch: int, context: int
) -> tuple[Tensor, Tensor]:
    """Tokens and their successors, (batch, context) each: a function of the arguments alone.

    That is what lets a run that was killed go on with the batches it would have seen.
    """
    random = np.random.default_rng((seed, step, rank))
    starts = random.integers(0, len(text) - context - 1, size=batch)
    windows = np.stack([text[start : start + context + 1] for start in starts])
    tokens = torch.from_numpy(windows.astype(np.int64))
    return tokens[:, :-1], tokens[:, 1:]
