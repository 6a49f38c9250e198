"""How many devices this machine offers, found without importing torch or touching a device."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from deepspeed import environment
from deepspeed.launcher.cores import numa_nodes
from deepspeed.launcher.errors import LaunchError


@dataclass(frozen=True)
class LocalDevices:
    """The devices of this machine.

    `visibility` names the environment variable that restricts a process to some of them ('' for
    CPUs, where any number of ranks may be asked for), `names` what to write into it, slot by slot.
    """

    kind: str
    visibility: str
    names: dict[int, str]

    def visible(self, slots: list[int]) -> dict[str, str]:
        """The environment that shows just `slots` to a process."""
        if not self.visibility:
            return {}
        return {self.visibility: ",".join(self.names.get(slot, str(slot)) for slot in slots)}


def find_devices() -> LocalDevices:
    """GPUs where torch is built for them and the driver shows some, else the CPU.

    The CPU counts one slot a NUMA node: ranks on one node share its memory bandwidth, and one
    rank's threads fill its cores, so more of them gain nothing by default.
    """
    forced = environment.forced_accelerator()
    kind = forced or built_for()
    limit = environment.visible_devices()
    if kind in ("cuda", "rocm"):
        variable = "CUDA_VISIBLE_DEVICES" if limit is None else limit[0]
        if limit is not None:
            return _limited(kind, variable, limit[1]) if limit[1] else _cpu()
        count = _nvidia_count() if kind == "cuda" else _amd_count()
        if count or forced:
            return LocalDevices(kind, variable, {slot: str(slot) for slot in range(count)})
    elif kind != "cpu":
        count = _count_by_torch()
        if count:
            return LocalDevices(kind, "", {slot: str(slot) for slot in range(count)})
    return _cpu()


def _cpu() -> LocalDevices:
    return LocalDevices("cpu", "", {slot: str(slot) for slot in range(numa_nodes())})


def _limited(kind: str, variable: str, listed: list[str]) -> LocalDevices:
    """Slots are the device numbers of the list, or places in it where it holds unique names."""
    if len(set(listed)) != len(listed):
        raise LaunchError(f"{variable}={','.join(listed)}: a device stands in it twice")
    if all(name.isdecimal() for name in listed):
        return LocalDevices(kind, variable, {int(name): name for name in listed})
    return LocalDevices(kind, variable, dict(enumerate(listed)))


def built_for() -> str:
    """What the installed torch was built for, read from its version file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "cpu"
    text = ""
    with contextlib.suppress(OSError):
        text = (Path(spec.origin).parent / "version.py").read_text()
    built = {
        name
        for name, value in re.findall(r"^(\w+)\s*(?::[^=]*)?=\s*(.+)$", text, re.M)
        if value.strip() not in ("None", "''", '""')
    }
    for name, kind in (("cuda", "cuda"), ("hip", "rocm"), ("xpu", "xpu")):
        if name in built:
            return kind
    return "mps" if sys.platform == "darwin" else "cpu"


def _nvidia_count() -> int:
    with contextlib.suppress(OSError):
        library = ctypes.CDLL("libnvidia-ml.so.1")
        count = ctypes.c_uint()
        if library.nvmlInit_v2() == 0:
            good = library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
            library.nvmlShutdown()
            return count.value if good else 0
    return 0


def _amd_count() -> int:
    ids = Path("/sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    return sum(path.read_text().strip() != "0" for path in ids)


def _count_by_torch() -> int:
    """For other accelerators only torch knows; asked in a process of its own."""
    code = "import torch; print(torch.accelerator.device_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    words = done.stdout.split()
    return int(words[-1]) if done.returncode == 0 and words and words[-1].isdecimal() else 0
