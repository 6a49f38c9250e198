"""Checkpoints of sharded training beside the reference's: save, load, consolidate, resize.

    python benchmarks/checkpoint.py --peer-python PEER_ENV/bin/python [--stage 2] [--shape 6x512]

Both train the same GPT on 2 ranks and are alive all the time; they save, load and consolidate in
turn, medians are compared. A save counts twice: until the call returns, and until all bytes are on
the disk. Consolidation is the script that lies in the checkpoint, started as a user would. The
least a checkpoint can take is 12 bytes a trained parameter: an fp32 weight and two moments.
Last, what was saved on 2 ranks is loaded on 1 and on 3, without any conversion.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WORKER = Path(__file__).resolve().parent / "workers" / "checkpoint.py"
SAVED_ON = 2


def configuration(stage: int, dtype: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": stage},
    }
    return config | ({"bf16": {"enabled": True}} if dtype == "bf16" else {})


class Contender:
    """The ranks of one library."""

    def __init__(self, python: str, job: dict[str, Any], ranks: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        self.python, self.folder, self.failure = python, Path(job["folder"]), ""
        self._ranks = []
        for rank in range(ranks):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            place |= {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
            self._ranks.append(
                subprocess.Popen(
                    [python, str(WORKER), json.dumps(job)],
                    env=os.environ | place,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
        self._answers()

    def ask(self, command: str) -> dict[str, Any]:
        """The answers of the ranks, of each number the largest."""
        for process in self._ranks:
            assert process.stdin is not None
            process.stdin.write(command + "\n")
            process.stdin.flush()
        answers = self._answers()
        failed = [answer for answer in answers if "error" in answer]
        if failed:
            return failed[0]
        return {key: max(answer[key] for answer in answers) for key in answers[0]}

    def end(self) -> None:
        for process in self._ranks:
            process.communicate()

    def consolidate(self, *options: str) -> float:
        """Seconds of the recovery script in the checkpoint, its interpreter's start included.

        NaN if it fails; `failure` is its last words then.
        """
        output = self.folder / "consolidated"
        shutil.rmtree(output, ignore_errors=True)
        script = str(self.folder / "zero_to_fp32.py")
        begin = time.perf_counter()
        done = subprocess.run(
            [self.python, script, str(self.folder), str(output), "--tag", "t0", *options],
            capture_output=True,
            text=True,
            env=os.environ | {"DS_ACCELERATOR": "cpu"},
        )
        if done.returncode:
            words = [line.strip() for line in done.stderr.splitlines() if "Error" in line]
            self.failure = " ".join([*words, done.stderr.strip()[-400:]][:1])
            return float("nan")
        return time.perf_counter() - begin

    def _answers(self) -> list[dict[str, Any]]:
        return [self._answer(process) for process in self._ranks]

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        for line in process.stdout or ():
            if line.startswith("ANSWER "):
                found: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
                return found
        raise RuntimeError(f"a rank of {self.python} ended early")


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(contenders: dict[str, Contender], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each action of each contender; the first round warms up and does not count."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in contenders}
    for name, contender in contenders.items():
        contender.ask("train 0")
        assert "error" not in contender.ask("save t0"), name
    for number in range(rounds):
        for name, contender in contenders.items():
            os.sync()
            saved = contender.ask(f"save r{number}")
            loaded = contender.ask("load t0")
            seconds = {
                "save, returned": saved["returned"],
                "save, on disk": saved["on disk"],
                "load": loaded["seconds"],
                "consolidate to .bin": contender.consolidate(),
                "consolidate to safetensors": contender.consolidate("--safe_serialization"),
            }
            for action, value in seconds.items():
                found[name].setdefault(action, []).append(value)
            shutil.rmtree(contender.folder / f"r{number}")
    return found


def report(found: dict[str, dict[str, list[float]]], stage: int) -> None:
    print(f"\n| stage {stage} | ours s | reference s | ours / reference |")
    print("| --- | ---: | ---: | ---: |")
    for action, seconds in found["ours"].items():
        ours = statistics.median(seconds)
        peer = statistics.median(found["reference"][action]) if "reference" in found else None
        rest = " |  | |" if peer is None else f" | {peer:.2f} | {ours / peer:.2f} |"
        print(f"| {action} | {ours:.2f}{rest}")


def resized(python: str, job: dict[str, Any], expected: float) -> str:
    """What happens when the checkpoint is loaded on other numbers of ranks."""
    said = []
    for ranks in (1, 3):
        contender = Contender(python, job | {"seed": 1}, ranks)
        answer = contender.ask("load t0")
        if "error" not in answer:
            loss = contender.ask("train 1")["loss"]
            off = abs(loss / expected - 1)
            answer = {"said": f"next loss {'the same' if off < 1e-5 else f'off by {off:.1e}'}"}
        contender.end()
        said.append(f"{ranks} ranks: {answer.get('error', answer.get('said'))}")
    return "; ".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", default=None)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--shape", default="6x512", help="blocks x width of the GPT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    layers, width = map(int, options.shape.split("x"))
    pythons = {"ours": sys.executable}
    if options.peer_python:
        pythons["reference"] = options.peer_python
    root = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        jobs = {
            name: {
                "seed": 0,
                "shape": [layers, width],
                "folder": str(root / name),
                "config": configuration(options.stage, options.dtype),
            }
            for name in pythons
        }
        contenders = {n: Contender(pythons[n], job, SAVED_ON) for n, job in jobs.items()}
        report(measure(contenders, options.rounds), options.stage)
        parameters = 12 * layers * width**2 + layers * 9 * width + 2 * width + 256 * width
        for name, contender in contenders.items():
            contender.ask("load t0")
            expected = contender.ask("train 1")["loss"]
            contender.end()
            over = bytes_below(root / name / "t0") / (12 * parameters) - 1
            if contender.failure:
                print(f"\n{name}: consolidation failed: {contender.failure}")
            print(f"\n{name}: bytes on disk {over:+.2%} over 12 a parameter; ", end="", flush=True)
            print(resized(pythons[name], jobs[name], expected), flush=True)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
