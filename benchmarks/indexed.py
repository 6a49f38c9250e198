"""Indexed data sets and data analysis against the real deepspeed.

    python benchmarks/indexed.py --peer-python PEER_ENV/bin/python

Claims: random reads below the peer's time; an analysis within twice the time that loading and the
metric alone take, into fewer than 20 files. Items of 1 to 512 token ids (int32); the metric is the
sequence length. Turns alternate; medians are reported. Both read and write the same files: reads
are of one data set, written by the contender named in the row.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

PEER = "ANSWER "
LONGEST = 512


class Tokens(torch.utils.data.Dataset):
    """Token sequences of an indexed data set, as tensors."""

    def __init__(self, indexed: Any, count: int) -> None:
        self.indexed, self.count = indexed, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.indexed[index].astype(np.int64))


def seqlen(batch: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([len(sample) for sample in batch])


def items(count: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    sizes = random.integers(1, LONGEST + 1, count)
    flat = random.integers(0, 50_000, int(sizes.sum()), dtype=np.int32)
    return np.split(flat, np.cumsum(sizes)[:-1])


def build(builder_of: Any, folder: str, count: int) -> float:
    wanted = items(count)
    start = time.perf_counter()
    builder = builder_of(f"{folder}/data.bin", dtype=np.int32)
    for item in wanted:
        builder.add_item_numpy(item)
    builder.end_document()
    builder.finalize(f"{folder}/data.idx")
    return time.perf_counter() - start


def read(dataset: Any, reads: int) -> float:
    places = np.random.default_rng(1).integers(0, len(dataset), reads).tolist()
    total = 0
    start = time.perf_counter()
    for place in places:
        total += len(dataset[place])
    return (time.perf_counter() - start) / reads + 0 * total


def floor(dataset: Any, batch_size: int) -> float:
    """Loading and the metric alone."""
    start = time.perf_counter()
    for begin in range(0, len(dataset), batch_size):
        seqlen([dataset[i] for i in range(begin, min(begin + batch_size, len(dataset)))])
    return time.perf_counter() - start


def act(library: dict[str, Any], request: dict[str, Any]) -> dict[str, float]:
    """One measurement, the same code for every contender."""
    folder, count = request["folder"], request["count"]
    if request["what"] == "build":
        return {"seconds": build(library["builder"], folder, count)}
    dataset = library["dataset"](f"{folder}/data")
    if request["what"] == "read":
        return {"seconds": read(dataset, request["reads"])}
    tokens = Tokens(dataset, count)
    if request["what"] == "floor":
        return {"seconds": floor(tokens, request["batch_size"])}
    out = tempfile.mkdtemp(dir=folder)
    start = time.perf_counter()
    library["analyze"](tokens, out, request["batch_size"])
    seconds = time.perf_counter() - start
    files = sum(len(names) for _, _, names in os.walk(out))
    shutil.rmtree(out)
    return {"seconds": seconds, "files": files}


def our_library() -> dict[str, Any]:
    from ds_data import DataAnalyzer, Metric, MMapIndexedDataset, MMapIndexedDatasetBuilder

    def analyze(dataset: Any, folder: str, batch_size: int) -> None:
        DataAnalyzer(
            dataset, [Metric("seqlen", seqlen)], folder, batch_size=batch_size, collate_fn=list
        ).run_map_reduce()

    return {
        "builder": MMapIndexedDatasetBuilder,
        "dataset": MMapIndexedDataset,
        "analyze": analyze,
    }


def peer_library() -> dict[str, Any]:
    from deepspeed.runtime.data_pipeline.data_sampling.data_analyzer import DataAnalyzer
    from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import (
        MMapIndexedDataset,
        MMapIndexedDatasetBuilder,
    )

    def analyze(dataset: Any, folder: str, batch_size: int) -> None:
        analyzer = DataAnalyzer(
            dataset,
            batch_size=batch_size,
            metric_names=["seqlen"],
            metric_functions=[seqlen],
            metric_types=["single_value_per_sample"],
            metric_dtypes=[torch.int64],
            save_path=f"{folder}/",
            collate_fn=list,
        )
        analyzer.run_map()
        analyzer.run_reduce()

    return {
        "builder": MMapIndexedDatasetBuilder,
        "dataset": lambda path: MMapIndexedDataset(path, skip_warmup=True),
        "analyze": analyze,
    }


def serve_peer() -> None:
    library = peer_library()
    for line in sys.stdin:
        print(PEER + json.dumps(act(library, json.loads(line))), flush=True)


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

    def act(self, request: dict[str, Any]) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(PEER):
                return json.loads(line[len(PEER) :])
        raise RuntimeError("the peer's worker ended without an answer")


def compare(contenders: dict[str, Any], repeats: int, **request: Any) -> dict[str, dict[str, Any]]:
    """Medians of turns."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, contender in contenders.items():
            found[name].append(contender(request))
    return {
        name: {key: statistics.median(item[key] for item in turns) for key in turns[0]}
        for name, turns in found.items()
    }


def same_bytes(contenders: dict[str, Any], folder: str, count: int) -> bool:
    """Whether all contenders write the same files."""
    written = set()
    for contender in contenders.values():
        contender({"what": "build", "folder": folder, "count": count})
        written.add(tuple(Path(folder, f"data.{kind}").read_bytes() for kind in ("bin", "idx")))
    return len(written) == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", help="interpreter with deepspeed 0.19.6")
    parser.add_argument("--serve-peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--reads", type=int, default=200_000)
    parser.add_argument("--folder", help="where files are written; default: a temporary folder")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.serve_peer:
        serve_peer()
        return
    folder = tempfile.mkdtemp(dir=args.folder)
    library = our_library()
    contenders: dict[str, Any] = {"ours": lambda request: act(library, request)}
    peer = Peer(args.peer_python) if args.peer_python else None
    if peer:
        contenders["peer"] = peer.act
    shared = {"folder": folder, "count": args.count}
    if peer:
        print(f"same bytes from both builders: {same_bytes(contenders, folder, 1000)}")
    print("\n| task | contender | time | to the peer | files |\n|---|---|---:|---:|---:|")

    def report(task: str, found: dict[str, dict[str, Any]], unit: float, name: str) -> None:
        for who, result in found.items():
            ratio = result["seconds"] / found["peer"]["seconds"] if "peer" in found else 1.0
            files = int(result["files"]) if "files" in result else ""
            value = result["seconds"] * unit
            print(f"| {task} | {who} | {value:.2f} {name} | {ratio:.3f} | {files} |", flush=True)

    wrote = compare(contenders, 3, what="build", **shared)
    report(f"build, {args.count:,} items one by one", wrote, 1.0, "s")
    reads = compare(contenders, 5, what="read", reads=args.reads, **shared)
    report("random read, an item", reads, 1e6, "us")
    least = compare({"floor": contenders["ours"]}, 3, what="floor", batch_size=100, **shared)
    report("loading and the metric alone", least, 1.0, "s")
    whole = compare(contenders, 2, what="analyze", batch_size=100, **shared)
    report("analysis, map and reduce", whole, 1.0, "s")
    for who, result in whole.items():
        print(f"\n{who}: {result['seconds'] / least['floor']['seconds']:.2f} x the floor", end="")
    print()
    shutil.rmtree(folder)
    if peer:
        assert peer.process.stdin is not None
        peer.process.stdin.close()
        peer.process.wait()


if __name__ == "__main__":
    main()
