"""Collected only where the clients are installed (`nox -s clients`)."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os

import pytest

CLIENTS = ("transformers", "accelerate", "peft", "lightning", "trl")
if any(importlib.util.find_spec(name) is None for name in CLIENTS):
    collect_ignore_glob = ["test_*.py"]
else:
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_DISABLED": "1"}
    # Ranks are forked off a process that has imported the clients already: seconds a test.
    import support.ranks

    multiprocessing.get_context("forkserver").set_forkserver_preload(
        [
            "torch",
            "torch.distributed",
            "torch._dynamo",
            "transformers.trainer",
            "transformers.models.llama.modeling_llama",
            "accelerate",
            "peft",
            "deepspeed.wiring",
            "ds_zero.factory",
        ]
    )
    assert support.ranks is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "clients" in item.path.parts:  # what the clients warn of is their affair
            item.add_marker(pytest.mark.filterwarnings("default"))
