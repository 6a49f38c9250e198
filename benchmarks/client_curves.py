"""Loss curves of programs that people have, on ours and on the real deepspeed.

    python benchmarks/client_curves.py --python ENV/bin/python --peer-python PEER_ENV/bin/python

The programs in workers/clients run unchanged in both environments, on 2 gloo ranks: the Hugging
Face Trainer, accelerate's loop, peft's LoRA, two engines in one process, the BERT tutorial.
`--json FILE` keeps the curves, `--figure FILE` draws them. Exits 1 if a curve leaves the tolerance
of its format; where the original fails by itself, its error stands in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).parent / "workers" / "clients"
TOLERANCE = {"fp32": 2e-4, "bf16": 2e-2, "fp16": 2e-2}
RANKS = 2


@dataclass
class Outcome:
    """What one environment made of a program: its curve, or why there is none."""

    losses: list[float] = field(default_factory=list)
    error: str = ""


def cases() -> dict[str, tuple[str, list[str]]]:
    """Name -> (format, program with its arguments)."""
    found: dict[str, tuple[str, list[str]]] = {}
    for stage in (0, 1, 2, 3):
        trainer = ["trainer.py", "--stage", str(stage)]
        found[f"Trainer, stage {stage}"] = ("fp32", trainer)
        found[f"Trainer, stage {stage}, all from the JSON"] = ("fp32", [*trainer, "--from_json"])
        found[f"Trainer, stage {stage}, bf16"] = ("bf16", [*trainer, "--bf16"])
    pretrained = ["trainer.py", "--stage", "3", "--from_pretrained"]
    found["Trainer, stage 3, zero.Init in from_pretrained"] = ("fp32", pretrained)
    for stage in (0, 1, 2, 3):
        found[f"accelerate loop, stage {stage}"] = (
            "fp32",
            ["accelerate_loop.py", "--stage", str(stage)],
        )
    for stage in (2, 3):
        found[f"peft LoRA, stage {stage}"] = ("fp32", ["lora.py", "--stage", str(stage)])
    for stage in (0, 1, 2, 3):
        found[f"GAN, stage {stage}"] = ("fp32", ["gan.py", "--stage", str(stage)])
    for stage in (0, 1, 2, 3):
        program = ["gan.py", "--stage", str(stage), "--tutorial"]
        found[f"GAN as in the tutorial, stage {stage}"] = ("fp32", program)
    for kind in ("fp32", "bf16", "fp16"):
        found[f"BERT tutorial, {kind}"] = (kind, ["bert.py", "--format", kind])
    found["BERT tutorial, stage 2"] = ("fp32", ["bert.py", "--stage", "2"])
    return found


def run(python: str, program: list[str], timeout: float = 200.0) -> Outcome:
    """Run a program on its ranks."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        answer = Path(folder) / "answer.json"
        place = {
            "WORLD_SIZE": str(RANKS),
            "LOCAL_WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TORCH_EXTENSIONS_DIR": str(Path(python).parent.parent / "torch_extensions"),
            "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
            "SCRATCH": folder,
            "ANSWER": str(answer),
        }
        ranks = [
            subprocess.Popen(
                [python, str(PROGRAMS / program[0]), *program[1:]],
                env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        try:
            texts = [rank.communicate(timeout=timeout)[1] for rank in ranks]
            failed = any(rank.returncode for rank in ranks)
        except subprocess.TimeoutExpired:  # some train, answer, and then never leave Python
            texts, failed = [f"TimeoutError: after {timeout:.0f} s"], not answer.exists()
        finally:
            for rank in ranks:
                rank.kill()
        if failed:
            return Outcome(error=last_error(texts))
        return Outcome(json.loads(answer.read_text())["losses"])


def last_error(texts: list[str]) -> str:
    """The last line of a traceback, of the rank that has one."""
    for text in texts:
        lines = [line for line in text.splitlines() if line[:1].isalpha() and "Error" in line]
        if lines:
            return lines[-1][:300]
    return (texts[0].strip().splitlines() or ["no message"])[-1][:300]


def row(name: str, kind: str, ours: Outcome, peer: Outcome) -> tuple[str, bool]:
    """A line of the table, and whether the case is as it should be."""
    if ours.error or peer.error:
        cell = f"ours: {ours.error}" if ours.error else f"the original fails: {peer.error}"
        last = f"{ours.losses[-1]:.5f}" if ours.losses else "-"
        theirs = f"{peer.losses[-1]:.5f}" if peer.losses else "-"
        text = cell.replace("|", "\\|")
        return f"| {name} | {kind} | {text} | | {last} | {theirs} |", not ours.error
    worst = max(abs(a - b) / abs(b) for a, b in zip(ours.losses, peer.losses, strict=True))
    allowed = TOLERANCE[kind]
    line = (
        f"| {name} | {kind} | {worst:.1e} | {allowed:.0e} | {ours.losses[-1]:.5f} | "
        f"{peer.losses[-1]:.5f} |"
    )
    return line, worst <= allowed


def draw(curves: dict[str, dict[str, list[float]]], target: str) -> None:
    """One small plot a program: ours as a line, the original as dots."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = 4
    rows = -(-len(curves) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(3.2 * columns, 2.1 * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(curves) :]:
        axis.axis("off")
    for axis, (name, pair) in zip(axes.flat, curves.items(), strict=False):
        axis.plot(pair["ours"], color="tab:blue", linewidth=1.5, label="ours")
        if pair["peer"]:
            axis.plot(pair["peer"], "o", color="tab:orange", markersize=3, label="0.19.6")
        axis.set_title(name, fontsize=7)
        axis.tick_params(labelsize=6)
        axis.legend(fontsize=6)
    figure.savefig(target, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the clients and our deepspeed")
    parser.add_argument("--peer-python", help="the same clients with deepspeed 0.19.6")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--json", help="keep the curves here, adding to what it holds")
    parser.add_argument("--figure", help="draw the curves of --json, and run nothing if no peer")
    args = parser.parse_args()
    kept = Path(args.json) if args.json else None
    curves = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    failed = []
    if args.peer_python:
        print("| program | format | largest difference | allowed | last loss, ours | original |")
        print("| --- " * 6 + "|")
        for name, (kind, program) in cases().items():
            if args.only not in name:
                continue
            ours, peer = run(args.python, program), run(args.peer_python, program)
            line, good = row(name, kind, ours, peer)
            print(line, flush=True)
            curves[name] = {"ours": ours.losses, "peer": peer.losses}
            if kept is not None:
                kept.write_text(json.dumps(curves))
            if not good:
                failed.append(name)
    if args.figure:
        draw(curves, args.figure)
    if failed:
        sys.exit(f"left the tolerance or failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
