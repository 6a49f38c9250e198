"""Step time of the engine at stage 0 against a plain DDP loop and the real deepspeed.

    python benchmarks/engine.py --peer-python PEER_ENV/bin/python

Claim: at most 1.03 of the DDP loop's time, below the peer's. A 20 M-parameter GPT, 2 processes,
one thread each, fp32 and bf16. The DDP loop uses torch's fused AdamW and clips as the engine does;
for bf16 it is shown with fp32 masters (the same work as the engine's) and without.
"""

from __future__ import annotations

import argparse
import json
import sys

from contest import Contender, contest, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", help="interpreter with deepspeed 0.19.6")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), help="only this one")
    args = parser.parse_args()
    for dtype in [args.dtype] if args.dtype else ["fp32", "bf16"]:
        shared = ["--dtype", dtype]
        contenders = [Contender("DDP", sys.executable, ["--contender", "ddp", *shared])]
        if dtype == "bf16":
            contenders.append(
                Contender(
                    "DDP, fp32 masters", sys.executable, ["--contender", "ddp_masters", *shared]
                )
            )
        engine = ["--contender", "engine", *shared]
        contenders.append(Contender("ours, stage 0", sys.executable, engine))
        if args.peer_python:
            zero = ["--config", json.dumps({"zero_optimization": {"stage": 0}})]
            contenders.append(Contender("peer, stage 0", args.peer_python, [*engine, *zero]))
        contest(contenders, rounds=args.rounds, steps=args.steps)
        print(f"\n{dtype}\n\n{table(contenders, contenders[-2 if args.peer_python else -1].name)}")
        print("(ratios to ours; losses " + ", ".join(f"{c.loss:.4f}" for c in contenders) + ")")


if __name__ == "__main__":
    main()
