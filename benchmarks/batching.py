"""Time and waste of batching by tokens, against numpy's argsort and the real deepspeed.

    python benchmarks/batching.py --peer-python PEER_ENV/bin/python

Claims: 10^5 samples in under 0.1 s; 10^6 in at most ten times numpy's argsort of the same lengths
for the orders that the peer knows; growth no worse than n log n up to 10^7; `best_fit` wastes less
than 2 %. Log-normal lengths (median 245, at most 4,096), 4,096 tokens a micro-batch, 8
micro-batches a batch. Repetitions of all contenders take turns; medians are reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

MAX_TOKENS, MICRO_BATCHES = 4096, 8
REFERENCE = ("dataloader", "seqlen", "random")
PEER = "ANSWER "


def lengths_of(count: int) -> np.ndarray:
    drawn = np.random.default_rng(count).lognormal(5.5, 1.0, count)
    return drawn.astype(np.int64).clip(1, MAX_TOKENS)


def waste(lengths: np.ndarray, packs: list[Any], budget_counts_padding: bool) -> dict[str, float]:
    """What a list of micro-batches makes of the samples."""
    sizes = np.asarray([len(pack) for pack in packs])
    flat = lengths[np.concatenate([np.asarray(pack) for pack in packs])]
    starts = np.append(0, np.cumsum(sizes))[:-1]
    longest, tokens = np.maximum.reduceat(flat, starts), np.add.reduceat(flat, starts)
    padded = sizes * longest
    return {
        "kept": len(flat) / len(lengths),
        "useful": tokens.sum() / padded.sum(),
        "filled": float((padded if budget_counts_padding else tokens).mean() / MAX_TOKENS),
        "widest": int(padded.max()),
    }


def serve_peer() -> None:
    """In the peer's interpreter: answer requests, one JSON line each."""
    from deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr import (
        batch_by_seqlens,
    )

    for line in sys.stdin:
        request = json.loads(line)
        lengths = np.load(request["lengths"])
        listed = lengths.tolist()
        start = time.perf_counter()
        packs, _, _ = batch_by_seqlens(
            seqlens=listed,
            max_tokens=MAX_TOKENS,
            sequence_picking_order=request["order"],
            effective_batch_size=MICRO_BATCHES,
            seed=0,
        )
        seconds = time.perf_counter() - start
        answer = {"seconds": seconds, **waste(lengths, [ids for _, ids in packs], False)}
        print(PEER + json.dumps(answer), flush=True)


class Peer:
    """The peer's worker, kept alive so that its repetitions can take turns with ours."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [python, __file__, "--serve-peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.folder = Path(tempfile.mkdtemp())

    def ask(self, lengths: np.ndarray, order: str) -> dict[str, float]:
        path = self.folder / f"{len(lengths)}.npy"
        if not path.exists():
            np.save(path, lengths)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"lengths": str(path), "order": order}) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(PEER):
                return json.loads(line[len(PEER) :])
        raise RuntimeError("the peer's worker ended without an answer")


def ours(lengths: np.ndarray, order: str, count: str) -> tuple[float, Any]:
    from ds_data import BatchRules, plan_batches

    start = time.perf_counter()
    rules = BatchRules(max_tokens=MAX_TOKENS, order=order, count=count)
    plan = plan_batches(lengths, rules, micro_batches=MICRO_BATCHES)
    return time.perf_counter() - start, plan


def seconds_of(action: Any) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def time_table(peer: Peer | None, sizes: list[int], peer_most: int, repeats: int) -> None:
    orders = [(order, count) for count in ("padded", "unpadded") for order in REFERENCE]
    orders += [("bucketed", "padded"), ("best_fit", "padded"), ("best_fit", "unpadded")]
    print("\n| samples | order | budget counts | ours, ms | x argsort | peer, ms | peer / ours |")
    print("|---:|---|---|---:|---:|---:|---:|")
    for size in sizes:
        lengths = lengths_of(size)
        times: dict[Any, list[float]] = {key: [] for key in ["argsort", *orders]}
        theirs: dict[str, list[float]] = {order: [] for order in REFERENCE}
        for _ in range(repeats if size < 10**7 else 3):
            times["argsort"].append(seconds_of(lambda: np.argsort(lengths)))  # noqa: B023
            for order, count in orders:
                times[order, count].append(ours(lengths, order, count)[0])
            for order in REFERENCE if peer and size <= peer_most else ():
                theirs[order].append(peer.ask(lengths, order)["seconds"])
        floor = statistics.median(times["argsort"])
        for order, count in orders:
            mine = statistics.median(times[order, count])
            row = f"| {size:,} | {order} | {count} | {mine * 1e3:.1f} | {mine / floor:.1f} |"
            if count == "unpadded" and theirs.get(order):
                other = statistics.median(theirs[order])
                row += f" {other * 1e3:.0f} | {other / mine:.0f} |"
            else:
                row += " | |"
            print(row, flush=True)


def waste_table(peer: Peer | None, size: int) -> None:
    lengths = lengths_of(size)
    print(f"\n{size:,} samples, {MAX_TOKENS} tokens a micro-batch\n")
    print("| contender | order | budget counts | samples kept | useful share if padded |"
          " budget filled | widest padded micro-batch |")  # fmt: skip
    print("|---|---|---|---:|---:|---:|---:|")

    def row(name: str, order: str, count: str, found: dict[str, float]) -> None:
        print(
            f"| {name} | {order} | {count} | {found['kept']:.2%} | {found['useful']:.1%} |"
            f" {found['filled']:.1%} | {int(found['widest']):,} |"
        )

    for count in ("padded", "unpadded"):
        for order in (*REFERENCE, "bucketed", "best_fit"):
            _, plan = ours(lengths, order, count)
            packs = [plan.micro_batch(index) for index in range(len(plan.sizes))]
            row("ours", order, count, waste(lengths, packs, count == "padded"))
    for order in REFERENCE if peer else ():
        row("peer", order, "unpadded", peer.ask(lengths, order))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", help="interpreter with deepspeed 0.19.6")
    parser.add_argument("--serve-peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--peer-most", type=int, default=2_000, help="largest size for the peer")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    if args.serve_peer:
        serve_peer()
        return
    peer = Peer(args.peer_python) if args.peer_python else None
    peers = [args.peer_most // 2, args.peer_most] if peer else []
    sizes = sorted({*args.sizes, *peers})
    time_table(peer, sizes, args.peer_most, args.repeats)
    waste_table(peer, args.peer_most)
    waste_table(None, 100_000)
    if peer:
        assert peer.process.stdin is not None
        peer.process.stdin.close()
        peer.process.wait()


if __name__ == "__main__":
    main()
