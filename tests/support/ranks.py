"""Run a module-level function on N gloo ranks and collect what each returned."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo"])


class RankFailure(AssertionError):
    """A rank raised, died or did not finish in time."""


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float = 180.0,
    group_timeout: float | None = None,
    env: dict[str, str] | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Call `function(*args, **kwargs)` on `world_size` ranks of one gloo group.

    `function` lies at module level; arguments and results are pickled. The default process group
    is initialised from a file, each rank has one thread, and `RANK`, `WORLD_SIZE`, `LOCAL_RANK`
    are set. Returns the results in rank order; raises `RankFailure` with the first failing
    rank's traceback, or with the ranks that were still running when `timeout` seconds passed.
    Collectives fail after `group_timeout` seconds (default: `timeout`).
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        processes, readers = [], []
        for rank in range(world_size):
            reader, writer = _context.Pipe(duplex=False)
            target = (_file_of(function), function.__module__, function.__qualname__)
            process = _context.Process(
                target=_run_rank,
                args=(
                    writer,
                    target,
                    rank,
                    world_size,
                    folder,
                    group_timeout or timeout,
                    env or {},
                    args,
                    kwargs,
                ),
                daemon=False,
            )
            process.start()
            writer.close()
            processes.append(process)
            readers.append(reader)
        try:
            return _collect(readers, time.monotonic() + timeout, timeout)
        finally:
            for process in processes:
                process.join(timeout=0.5)
                if process.is_alive():
                    process.kill()
                    process.join()
                process.close()


def _file_of(function: Callable[..., Any]) -> str:
    return str(Path(function.__code__.co_filename).resolve())


def _collect(readers: list[Connection], deadline: float, timeout: float) -> list[Any]:
    results: dict[int, Any] = {}
    waiting = {reader: rank for rank, reader in enumerate(readers)}
    while waiting:
        ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            ranks = sorted(waiting.values())
            raise RankFailure(f"ranks {ranks} of {len(readers)} still ran after {timeout:g} s")
        for reader in ready:
            rank = waiting.pop(reader)  # type: ignore[call-overload]
            try:
                good, value = pickle.loads(reader.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                raise RankFailure(f"rank {rank} died without a word") from None
            if not good:
                raise RankFailure(f"rank {rank} of {len(readers)} failed:\n{value}")
            results[rank] = value
    return [results[rank] for rank in sorted(results)]


def _run_rank(
    writer: Connection,
    target: tuple[str, str, str],
    rank: int,
    world_size: int,
    folder: str,
    timeout: float,
    env: dict[str, str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    os.environ.update(
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
        | {"LOCAL_WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
        | env
    )
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout),
        )
        result = (True, _load(*target)(*args, **kwargs))
    except BaseException:
        result = (False, traceback.format_exc())
    try:
        message = pickle.dumps(result)  # by value: this process is gone before it is read
    except Exception:
        message = pickle.dumps((False, traceback.format_exc()))
    writer.send_bytes(message)
    writer.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a failed peer may never answer: leave without the group's goodbye


def _load(file: str, module_name: str, qualname: str) -> Callable[..., Any]:
    module = sys.modules.get(module_name)
    if module is None:
        tests = str(Path(__file__).resolve().parent.parent)
        if tests not in sys.path:
            sys.path.insert(0, tests)
        spec = importlib.util.spec_from_file_location(module_name, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot load {module_name} from {file}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    function: Any = module
    for part in qualname.split("."):
        function = getattr(function, part)
    return function  # type: ignore[no-any-return]
