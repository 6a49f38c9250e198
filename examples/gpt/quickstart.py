"""Train the example on this machine: 2 processes, or 1 where there is one core."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Replace this process by `deepspeed --num_gpus N train.py ...`."""
    processes = min(2, os.cpu_count() or 1)
    launcher = Path(sys.executable).with_name("deepspeed")
    script = Path(__file__).with_name("train.py")
    command = [str(launcher), "--num_gpus", str(processes), str(script), *sys.argv[1:]]
    print("$", " ".join(command), flush=True)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
