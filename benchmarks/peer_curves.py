"""Loss curves of ours and of the real deepspeed from the same seed and JSON.

    nox -s peer            # or: python benchmarks/peer_curves.py --peer-python PEER_ENV/bin/python

Each case trains a tiny GPT on 2 gloo ranks with both and compares the losses step by step. Exits 1
if a curve leaves the tolerance of its format.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parent / "workers" / "curve.py"
TOLERANCE = {"fp32": 2e-5, "bf16": 2e-2, "fp16": 5e-3}
RANKS = 2


def schedule(name: str, **params: Any) -> dict[str, Any]:
    return {"scheduler": {"type": name, "params": params}}


SCHEDULES = {
    "WarmupLR": schedule("WarmupLR", warmup_max_lr=1e-3, warmup_num_steps=6),
    "WarmupDecayLR": schedule(
        "WarmupDecayLR", warmup_max_lr=1e-3, warmup_num_steps=4, total_num_steps=20
    ),
    "WarmupCosineLR": schedule("WarmupCosineLR", warmup_num_steps=4, total_num_steps=20),
    "OneCycle": schedule("OneCycle", cycle_min_lr=1e-4, cycle_max_lr=2e-3, cycle_first_step_size=6),
    "LRRangeTest": schedule("LRRangeTest", lr_range_test_min_lr=1e-4, lr_range_test_step_size=3),
}


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> (format, what the JSON has beside the common part)."""
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "plain": ("fp32", {}),
        "accumulation 4": ("fp32", {"gradient_accumulation_steps": 4}),
        "clipping 0.1": ("fp32", {"gradient_clipping": 0.1}),
        "no clipping": ("fp32", {"gradient_clipping": 0.0}),
        "Adam": (
            "fp32",
            {"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "weight_decay": 0.1}}},
        ),
        "bf16": ("bf16", {"bf16": {"enabled": True}}),
        "bf16, accumulation 4": (
            "bf16",
            {"bf16": {"enabled": True}, "gradient_accumulation_steps": 4},
        ),
    }
    found |= {name: ("fp32", extra) for name, extra in SCHEDULES.items()}
    for stage in (1, 2, 3):
        zero = {"zero_optimization": {"stage": stage}}
        found[f"stage {stage}"] = ("fp32", {**zero, "gradient_accumulation_steps": 2})
        found[f"stage {stage}, bf16"] = ("bf16", {**zero, "bf16": {"enabled": True}})
    for stage in (2, 3):
        offload = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
        found[f"stage {stage}, offload"] = ("fp32", {"zero_optimization": offload})
    return found


def curve(python: str, config: dict[str, Any], steps: int) -> dict[str, list[float]]:
    """Losses and rates of one deepspeed."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        answer = Path(folder) / "answer.json"
        processes = []
        for rank in range(RANKS):
            place = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "DS_ACCELERATOR": "cpu",
                "ANSWER": str(answer),
            }
            processes.append(
                subprocess.Popen(
                    [python, str(WORKER), json.dumps({"config": config, "steps": steps})],
                    env=os.environ | place,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        errors = [process.communicate(timeout=600)[1] for process in processes]
        if not answer.exists():
            raise RuntimeError(f"{python} failed:\n{errors[0][-3000:]}")
        found: dict[str, list[float]] = json.loads(answer.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", required=True, help="interpreter with deepspeed 0.19.6")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--only", help="cases whose name holds this text")
    args = parser.parse_args()
    print("| case | format | largest relative difference | allowed | last loss, ours | peer's |")
    print("| --- " * 6 + "|")
    failed = []
    for name, (kind, extra) in cases().items():
        if args.only and args.only not in name:
            continue
        config = {
            "train_micro_batch_size_per_gpu": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
            **extra,
        }
        ours = curve(sys.executable, config, args.steps)["losses"]
        peers = curve(args.peer_python, config, args.steps)["losses"]
        worst = max(abs(a - b) / abs(b) for a, b in zip(ours, peers, strict=True))
        if not worst <= TOLERANCE[kind]:
            failed.append(name)
        print(
            f"| {name} | {kind} | {worst:.2e} | {TOLERANCE[kind]:.0e} | {ours[-1]:.6f} | "
            f"{peers[-1]:.6f} |",
            flush=True,
        )
    if failed:
        sys.exit(f"left the tolerance: {', '.join(failed)}")


if __name__ == "__main__":
    main()
