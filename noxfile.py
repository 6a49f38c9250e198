"""Every task of the repository. `nox -l` lists them; arguments after `--` go to the tool.

All sessions but `alone`, `wheels` and `peer` share one environment, `.venv`, which is made on first
use and brought up to date when the files it is made from change.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "types", "unit"]

ROOT = Path(__file__).parent.resolve()
VENV = ".venv"
ORDER = [
    "ds-core",
    "ds-aio",
    "ds-kernels",
    "ds-profiler",
    "ds-data",
    "ds-zero",
    "ds-pipeline",
    "deepspeed",
]
PACKAGES = [name for name in ORDER if (ROOT / "packages" / name / "pyproject.toml").exists()]
BUILD = ["hatchling", "editables", "scikit-build-core", "pybind11", "cmake", "ninja"]
RUNTIME = ["torch", "numpy", "safetensors", "pydantic", "tqdm", "rich"]
EXTRAS = ["tensorboard", "matplotlib", "psutil"]
TESTING = ["pytest", "pytest-timeout", "hypothesis"]
CHECKING = ["ruff", "mypy", "import-linter"]
THREADS = {"OMP_NUM_THREADS": "1"}


def install(session: nox.Session, *requirements: str) -> None:
    """Install from the index, at the tested versions."""
    session.install("-c", "constraints.txt", *requirements, silent=True)


def install_ours(session: nox.Session) -> None:
    """Our packages, editable, never from an index."""
    targets = [part for name in PACKAGES for part in ("-e", f"packages/{name}")]
    session.install("--no-deps", "--no-build-isolation", *targets, silent=True)


def prepare(session: nox.Session) -> None:
    """Bring `.venv` up to date; nothing to do if no file it depends on has changed."""
    inputs = [ROOT / "noxfile.py", ROOT / "constraints.txt"]
    for name in PACKAGES:
        folder = ROOT / "packages" / name
        inputs += [folder / "pyproject.toml", folder / "CMakeLists.txt"]
        inputs += sorted(
            file for file in folder.rglob("*") if file.suffix in (".cpp", ".hpp", ".h")
        )
    digest = hashlib.sha256()
    for file in inputs:
        if file.exists():
            digest.update(str(file).encode() + file.read_bytes())
    stamp = Path(session.virtualenv.location) / "ours.sha256"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    session.log("setting up %s (some minutes the first time)", session.virtualenv.location)
    install(session, *BUILD, *RUNTIME, *EXTRAS, *TESTING, *CHECKING)
    install_ours(session)
    stamp.write_text(digest.hexdigest())


@nox.session(venv_location=VENV)
def setup(session: nox.Session) -> None:
    """Make the shared environment."""
    prepare(session)


@nox.session(venv_location=VENV)
def quickstart(session: nox.Session) -> None:
    """Train a small GPT on real text on 2 processes; `-- --resume` goes on after a kill."""
    prepare(session)
    session.run("python", "examples/gpt/quickstart.py", *session.posargs)


@nox.session(venv_location=VENV)
def tests(session: nox.Session) -> None:
    """All tests that need no accelerator: unit, contract, integration."""
    prepare(session)
    paths = [] if any(not arg.startswith("-") for arg in session.posargs) else ["tests"]
    session.run("pytest", "-m", "not gpu", *paths, *session.posargs, env=THREADS)


@nox.session(venv_location=VENV)
def unit(session: nox.Session) -> None:
    """The quick tests: unit and contract, without those marked slow."""
    prepare(session)
    session.run(
        "pytest",
        "-m",
        "not slow and not gpu",
        "tests/unit",
        "tests/contract",
        *session.posargs,
        env=THREADS,
    )


@nox.session(venv_location=VENV)
def integration(session: nox.Session) -> None:
    """Tests on several gloo ranks and of whole programs."""
    prepare(session)
    session.run("pytest", "-m", "not gpu", "tests/integration", *session.posargs, env=THREADS)


@nox.session(venv_location=VENV)
def lint(session: nox.Session) -> None:
    """Format, style and the doors between packages."""
    prepare(session)
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("lint-imports")


@nox.session(venv_location=VENV)
def types(session: nox.Session) -> None:
    """mypy, strict, over every package."""
    prepare(session)
    session.run("mypy", *(f"packages/{name}/src" for name in PACKAGES))


@nox.session
@nox.parametrize("package", PACKAGES)
def alone(session: nox.Session, package: str) -> None:
    """Build a package's wheel, install it with as little of ours as it declares, run its tests."""
    wheels = Path(session.create_tmp())
    shutil.rmtree(wheels / "dist", ignore_errors=True)
    needed = [package, *siblings(package)]
    for name in needed:
        session.run_install(
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            f"packages/{name}",
            "--wheel-dir",
            str(wheels / "dist"),
            external=True,
        )
    install(session, *RUNTIME_OF.get(package, ["torch", "numpy"]), *TESTING)
    built = [str(wheel) for wheel in sorted((wheels / "dist").glob("*.whl"))]
    session.install("--no-deps", "--no-index", "--force-reinstall", *built, silent=True)
    module = package.replace("-", "_")
    session.run("python", "-c", f"import {module}; print({module}.__version__)")
    session.run("pytest", f"tests/unit/{module}", *session.posargs, env=THREADS)


RUNTIME_OF = {
    "ds-core": ["torch", "numpy", "safetensors"],
    "ds-zero": ["torch", "numpy", "safetensors"],
    "ds-pipeline": ["torch", "numpy", "safetensors", "matplotlib"],
    "ds-profiler": ["torch", "numpy", "rich", "tensorboard"],
    "ds-aio": ["torch", "numpy", "safetensors", "tqdm", "matplotlib"],
    "ds-data": ["torch", "numpy", "tqdm"],
    "deepspeed": ["torch", "numpy", "safetensors", "pydantic", "tqdm"],
}


def siblings(package: str) -> list[str]:
    """The packages of ours that this one declares as dependencies."""
    text = (ROOT / "packages" / package / "pyproject.toml").read_text()
    table = text.partition("dependencies = [")[2].partition("]")[0]
    return [name for name in PACKAGES if name != package and f'"{name}>' in table]


@nox.session
def wheels(session: nox.Session) -> None:
    """Build every wheel into dist/."""
    for name in PACKAGES:
        session.run(
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            f"packages/{name}",
            "--wheel-dir",
            "dist",
            external=True,
        )


@nox.session(venv_location=VENV)
def bench(session: nox.Session) -> None:
    """Run benchmarks by name (`-- engine`); without a name, list them."""
    prepare(session)
    scripts = {script.stem: script for script in sorted((ROOT / "benchmarks").glob("*.py"))}
    if not session.posargs:
        session.log("benchmarks: %s", ", ".join(scripts))
        return
    name, *rest = session.posargs
    session.run("python", str(scripts[name]), *rest)


@nox.session
def peer(session: nox.Session) -> None:
    """Compare loss curves with the real deepspeed 0.19.6, each in its own environment."""
    shared = ROOT / VENV / "bin" / "python"
    if not shared.exists():
        session.error("run `nox -s setup` first: the comparison runs ours in .venv")
    install(session, "torch", "setuptools", "wheel", "ninja", "pybind11", "py-cpuinfo", "numpy")
    session.install(
        "--no-build-isolation",
        "-c",
        "constraints.txt",
        "deepspeed==0.19.6",
        env={"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"},
        silent=True,
    )
    session.run(
        str(shared),
        "benchmarks/peer_curves.py",
        "--peer-python",
        str(Path(session.virtualenv.location) / "bin" / "python"),
        *session.posargs,
        external=True,
    )


@nox.session(venv_location=VENV)
def gpu(session: nox.Session) -> None:
    """Run tests/gpu; skips by name where there is no accelerator."""
    prepare(session)
    probe = "import torch; print(torch.accelerator.is_available())"
    if "True" not in str(session.run("python", "-c", probe, silent=True)):
        names = ", ".join(sorted(file.name for file in (ROOT / "tests" / "gpu").glob("test_*.py")))
        session.skip(f"no accelerator on this machine; not run: {names or 'nothing there yet'}")
    session.run("pytest", "-m", "gpu", "tests/gpu", *session.posargs)
