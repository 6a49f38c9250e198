"""Builds the compiled module with AddressSanitizer and runs the random calls on it.

    python sanitized.py [arguments of random_calls.py]

Needs a compiler, cmake, ninja and pybind11; builds into `build/sanitized` beside this folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pybind11

PACKAGE = Path(__file__).resolve().parents[1]
BUILD = PACKAGE / "build" / "sanitized"


def build() -> Path:
    """The sanitized module."""
    configure = ["cmake", "-S", PACKAGE, "-B", BUILD, "-G", "Ninja", "-DDS_KERNELS_SANITIZE=ON"]
    configure += ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", f"-DPython_EXECUTABLE={sys.executable}"]
    configure += [f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", BUILD], check=True, stdout=subprocess.DEVNULL)
    (module,) = BUILD.glob("_native*.so")
    return module


def runtime(name: str) -> str:
    """Path of a sanitizer's run-time library of the compiler."""
    found = subprocess.run(
        [os.environ.get("CXX", "g++"), f"-print-file-name={name}"],
        check=True,
        capture_output=True,
        text=True,
    )
    return found.stdout.strip()


def main() -> None:
    module = build()
    env = os.environ | {
        "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",  # the interpreter never frees all it has
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    script = str(PACKAGE / "fuzz" / "random_calls.py")
    command = [sys.executable, script, "--native", str(module), *sys.argv[1:]]
    raise SystemExit(subprocess.run(command, env=env, check=False).returncode)


if __name__ == "__main__":
    main()
