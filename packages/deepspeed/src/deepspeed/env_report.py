"""The command `ds_report`: what is installed here, and which native paths are used and why.

A package tells about itself through an entry point of the group `deepspeed.reports`:

    [project.entry-points."deepspeed.reports"]
    ds-aio = "ds_aio.report:rows"

The name is the heading. The callable takes nothing and returns rows `(label, status, reason)`,
three strings, such as `("file engine", "io_uring", "kernel 6.1, 64 entries")`,
`("fused step", "AVX2", "this CPU has no AVX-512")` or `("GPUDirect", "no", "no libcufile.so")`.
A status is a word or two: what is used, or "no". It must not initialise an accelerator. Each
callable runs in a process of its own: one that raises, dies or hangs becomes a row that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata, util
from pathlib import Path

from deepspeed import environment
from deepspeed.console import printing
from deepspeed.launcher import cores
from deepspeed.launcher.devices import built_for, find_devices
from deepspeed.launcher.errors import LaunchError
from deepspeed.legacy import fallback

Row = tuple[str, str, str]
GROUP = "deepspeed.reports"
PACKAGES = (
    *("deepspeed", "ds-core", "ds-zero", "ds-pipeline"),
    *("ds-data", "ds-aio", "ds-kernels", "ds-profiler"),
)
_OPTIONAL = ("triton", "pydantic", "safetensors", "numpy", "tensorboard", "mpi4py")
_PROBE_SECONDS = 120.0
_HEADS = {"title": "\033[1m", "no": "\033[33m", "failed": "\033[31m"}


def main(hide_operator_status: bool = False, hide_errors_and_warnings: bool = False) -> None:
    """Write the whole report to standard output.

    Args:
        hide_operator_status: leave out the native paths.
        hide_errors_and_warnings: leave out the reasons of what failed.
    """
    debug_report()
    if not hide_operator_status:
        op_report(verbose=not hide_errors_and_warnings)


@printing
def cli_main(arguments: Sequence[str] | None = None) -> int:
    """Entry of the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="ds_report", description="Show what is installed and which native paths are used."
    )
    parser.add_argument(
        "--hide_operator_status", action="store_true", help="leave out the native paths"
    )
    parser.add_argument(
        "--hide_errors_and_warnings", action="store_true", help="leave out reasons of failures"
    )
    parser.add_argument("--probe", metavar="NAME", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.probe is not None:
        return _probe(given.probe)
    main(given.hide_operator_status, given.hide_errors_and_warnings)
    return 0


def debug_report() -> None:
    """Write what is installed and what the machine has."""
    _write("Packages", package_rows())
    _write("Machine", machine_rows())


def op_report(verbose: bool = True) -> None:
    """Write which native paths the installed packages use; without reasons of failures unless
    `verbose`."""
    found = native_rows()
    if not found:
        _write("Native paths", [("none", "no", "no installed package reports any")])
    for name, rows in found.items():
        shown = [(a, b, c if verbose or b != "failed" else "") for a, b, c in rows]
        _write(f"Native paths of {name}", shown)


def package_rows() -> list[Row]:
    """Versions and places of torch, our packages and what they may use."""
    rows = [("python", platform.python_version(), sys.executable)]
    spec = util.find_spec("torch")
    where = str(Path(spec.origin).parent) if spec and spec.origin else "pip install torch"
    rows.append(("torch", _version("torch"), f"{where}, built for {built_for()}"))
    for name in PACKAGES:
        version = _version(name)
        rows.append(
            (name, version, f"from a clone: pip install packages/{name}" if version == "no" else "")
        )
    rows += [(name, _version(name), "") for name in _OPTIONAL]
    return rows


def machine_rows() -> list[Row]:
    """Devices, cores, shared memory and launching programs."""
    return [
        ("system", platform.system(), f"{platform.release()} {platform.machine()}"),
        _guarded("device", _device_row),
        _guarded("cores", _core_row),
        _guarded("shared memory", _shared_memory_row),
        *(_program_row(name) for name in ("pdsh", "ssh", "mpirun", "srun")),
    ]


def native_rows() -> dict[str, list[Row]]:
    """What each package of the entry point group says about its native paths."""
    names = sorted({entry.name for entry in metadata.entry_points(group=GROUP)})
    command = [sys.executable, "-m", "deepspeed.env_report", "--probe"]
    running = {
        name: subprocess.Popen(
            [*command, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name in names
    }
    return {name: _collect(process) for name, process in running.items()}


def _collect(process: subprocess.Popen[str]) -> list[Row]:
    try:
        out, err = process.communicate(timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return [("report", "failed", f"no answer within {_PROBE_SECONDS:.0f} s")]
    if process.returncode != 0:
        how = f"exit code {process.returncode}"
        if process.returncode < 0:
            how = f"killed by signal {-process.returncode}"
        last = err.strip().splitlines()[-1:] or ["it wrote nothing"]
        return [("report", "failed", f"{how}: {last[0]}")]
    rows = json.loads(out.rpartition("\x1e")[2])
    return [(str(label), str(status), str(reason)) for label, status, reason in rows]


def _probe(name: str) -> int:
    """Run one package's callable; its own output cannot be taken for the answer."""
    (entry, *_) = metadata.entry_points(group=GROUP, name=name)
    rows = [tuple(map(str, row)) for row in entry.load()()]
    sys.stdout.write("\x1e" + json.dumps(rows))
    return 0


def _guarded(label: str, row: Callable[[], Row]) -> Row:
    try:
        return row()
    except (OSError, LaunchError, environment.EnvironmentFault) as error:
        return (label, "failed", str(error))


def _device_row() -> Row:
    devices = find_devices()
    built = built_for()
    if devices.kind != "cpu":
        limit = environment.visible_devices()
        reason = f"{limit[0]}={','.join(limit[1])}" if limit else "as the driver says"
        return ("device", f"{len(devices.names)} x {devices.kind}", reason)
    if environment.forced_accelerator() == "cpu":
        reason = "DS_ACCELERATOR=cpu"
    elif built == "cpu":
        reason = "the installed torch is built for the CPU alone"
    else:
        reason = f"torch is built for {built}, but no such device is visible"
    return ("device", "cpu", reason)


def _core_row() -> Row:
    usable = cores.usable_cores()
    physical = len(cores.physical(usable))
    quota = cores.core_quota()
    limit = "" if quota == float("inf") else f", limited to {quota:g} by the control group"
    nodes = cores.numa_nodes()
    return ("cores", str(physical), f"{len(usable)} logical, {nodes} NUMA node(s){limit}")


def _shared_memory_row() -> Row:
    state = os.statvfs("/dev/shm")
    total, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    return ("shared memory", f"{total / 2**30:.1f} GiB", f"{free / 2**30:.1f} GiB free in /dev/shm")


def _program_row(name: str) -> Row:
    path = shutil.which(name)
    return (name, "yes" if path else "no", path or "needed only by --launcher options that use it")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "no"


def _write(title: str, rows: Sequence[Row]) -> None:
    first = max(len(label) for label, _, _ in rows)
    second = max(len(status) for _, status, _ in rows)
    lines = [_coloured("title", title)]
    for label, status, reason in rows:
        cell = _coloured(status, status.ljust(second))
        lines.append(f"  {label.ljust(first)}  {cell}  {reason}".rstrip())
    sys.stdout.write("\n".join(lines) + "\n\n")


def _coloured(kind: str, text: str) -> str:
    if kind not in _HEADS or not sys.stdout.isatty():
        return text
    return f"{_HEADS[kind]}{text}\033[0m"


if __name__ == "__main__":
    sys.exit(cli_main())


__getattr__ = fallback(__name__)
