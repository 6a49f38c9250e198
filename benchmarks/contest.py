"""Contenders kept alive side by side and measured in turn, so that drift hits all alike."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parent / "workers" / "train_step.py"


@dataclass
class Contender:
    """`ranks` processes of a worker script in some interpreter.

    Attributes:
        name: the row's label.
        python: interpreter to run it with.
        arguments: of the worker.
        times: seconds of each measured step.
        peak_mb: largest resident memory of rank 0 so far, in MiB.
    """

    name: str
    python: str
    arguments: Sequence[str]
    ranks: int = 2
    env: dict[str, str] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    loss: float = float("nan")
    _processes: list[subprocess.Popen[str]] = field(default_factory=list, repr=False)
    _answers: Any = field(default=None, repr=False)

    def start(self) -> None:
        """Start all ranks and do one burst to warm up."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        reading, writing = os.pipe()
        for rank in range(self.ranks):
            place = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(self.ranks),
                "LOCAL_WORLD_SIZE": str(self.ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "ANSWER_FD": str(writing),
                "DS_ACCELERATOR": "cpu",
            }
            self._processes.append(
                subprocess.Popen(
                    [self.python, str(WORKER), *self.arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    pass_fds=[writing],
                    env=os.environ | place | self.env,
                )
            )
        os.close(writing)
        self._answers = os.fdopen(reading)
        self.burst(2)
        self.times.clear()

    def burst(self, steps: int) -> None:
        """Measure some steps."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"run {steps}\n")
            process.stdin.flush()
        line = self._answers.readline()
        if not line:
            _, errors = self._processes[0].communicate()
            raise RuntimeError(f"{self.name} died:\n{errors[-3000:]}")
        answer = json.loads(line)
        self.times += answer["times"]
        self.peak_mb, self.loss = answer["peak_mb"], answer["loss"]

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    @property
    def median(self) -> float:
        return statistics.median(self.times)


def contest(contenders: Sequence[Contender], *, rounds: int, steps: int) -> None:
    """Measure each in turn, `rounds` times; a progress line goes to standard error."""
    try:
        for contender in contenders:
            contender.start()
        for number in range(rounds):
            for contender in contenders:
                contender.burst(steps)
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    finally:
        for contender in contenders:
            contender.stop()


def table(contenders: Sequence[Contender], baseline: str) -> str:
    """Rows of median, spread, memory, and the ratio to the baseline's median."""
    base = next(c for c in contenders if c.name == baseline).median
    lines = ["| contender | median ms | min | max | ratio | peak MiB |", "| --- " * 6 + "|"]
    for c in contenders:
        lines.append(
            f"| {c.name} | {c.median * 1e3:.1f} | {min(c.times) * 1e3:.1f} | "
            f"{max(c.times) * 1e3:.1f} | {c.median / base:.3f} | {c.peak_mb:.0f} |"
        )
    return "\n".join(lines)
