"""Every task of the repository. `nox -l` lists them; arguments after `--` go to the tool.

Most sessions share one environment, `.venv`, which is made on first use and brought up to date when
the files it is made from change. `alone` and `peer` have environments of their own.
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
BIN = ROOT / ".venv" / "bin"
LEAVES = ["ds-aio", "ds-kernels", "ds-profiler", "ds-data"]
ORDER = ["ds-core", *LEAVES, "ds-zero", "ds-pipeline", "deepspeed"]
PACKAGES = [name for name in ORDER if (ROOT / "packages" / name / "pyproject.toml").exists()]
BUILD = ["hatchling", "editables", "scikit-build-core", "pybind11", "cmake", "ninja"]
RUNTIME = ["torch", "numpy", "safetensors", "zlib-ng", "pydantic", "tqdm", "rich"]
EXTRAS = ["tensorboard", "matplotlib", "psutil", "setuptools", "triton", "wandb", "comet_ml"]
TESTING = ["pytest", "pytest-timeout", "pytest-xdist", "hypothesis"]
SIDE_BY_SIDE = ["-n", "2", "--dist", "loadfile"]
CHECKING = ["ruff", "mypy", "import-linter"]
DOCS = ["mkdocs", "mkdocs-material", "mkdocstrings[python]", "ruff"]
NEEDS = {
    "ds-core": ["torch", "numpy", "safetensors", "zlib-ng"],
    "ds-zero": ["torch", "numpy", "safetensors", "zlib-ng"],
    "ds-pipeline": ["torch", "numpy", "safetensors", "zlib-ng", "matplotlib"],
    "ds-profiler": ["torch", "numpy", "rich", "tensorboard"],
    "ds-aio": ["torch", "numpy", "safetensors", "tqdm", "matplotlib"],
    "ds-kernels": ["torch", "numpy", "triton"],
    "ds-data": ["torch", "numpy", "tqdm"],
    "deepspeed": ["torch", "numpy", "safetensors", "zlib-ng", "pydantic", "tqdm"],
}
"""What a package's own tests run with, from the index."""


def run(session: nox.Session, tool: str, *arguments: str, **env: str) -> None:
    """Run a tool of the shared environment."""
    session.run(str(BIN / tool), *arguments, external=True, env=env or None)


def prepare(session: nox.Session) -> None:
    """Bring `.venv` up to date; nothing to do if no file it depends on has changed."""
    stamp, digest = BIN.parent / "ours.sha256", _digest_of_inputs()
    if stamp.exists() and stamp.read_text() == digest:
        return
    session.log("setting up .venv (some minutes the first time)")
    if not (BIN / "python").exists():
        session.run(sys.executable, "-m", "venv", str(BIN.parent), external=True)
    wanted = [*BUILD, *RUNTIME, *EXTRAS, *TESTING, *CHECKING]
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(session, "python", *pip, "-c", "constraints.txt", *wanted)
    ours = [part for name in PACKAGES for part in ("-e", f"packages/{name}")]
    run(session, "python", *pip, "--no-deps", "--no-build-isolation", *ours)
    stamp.write_text(digest)


def _digest_of_inputs() -> str:
    inputs = [ROOT / "noxfile.py", ROOT / "constraints.txt"]
    for name in PACKAGES:
        folder = ROOT / "packages" / name
        inputs += [folder / "pyproject.toml", folder / "CMakeLists.txt"]
        native = (file for file in folder.rglob("*") if file.suffix in (".cpp", ".hpp", ".h"))
        inputs += sorted(file for file in native if "build" not in file.parts)
    digest = hashlib.sha256()
    for file in inputs:
        if file.exists():
            digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()


@nox.session(venv_backend="none")
def setup(session: nox.Session) -> None:
    """Make the shared environment."""
    prepare(session)


@nox.session(venv_backend="none")
def quickstart(session: nox.Session) -> None:
    """Train a small GPT on real text on 2 processes; `-- --resume` goes on after a kill."""
    prepare(session)
    run(session, "python", "examples/gpt/quickstart.py", *session.posargs)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """All tests that need no accelerator: unit, contract, integration."""
    prepare(session)
    pytest(session, *SIDE_BY_SIDE, "-m", "not gpu", paths=["tests"])


@nox.session(venv_backend="none")
def unit(session: nox.Session) -> None:
    """The quick tests: unit and contract, without those marked slow."""
    prepare(session)
    pytest(session, "-m", "not slow and not gpu", paths=["tests/unit", "tests/contract"])


@nox.session(venv_backend="none")
def integration(session: nox.Session) -> None:
    """Tests on several gloo ranks and of whole programs."""
    prepare(session)
    pytest(session, "-m", "not gpu", paths=["tests/integration"])


def pytest(session: nox.Session, *options: str, paths: list[str]) -> None:
    """Run pytest over `paths`, or over those given after `--`."""
    given = any((ROOT / argument.partition("::")[0]).exists() for argument in session.posargs)
    skip = ["--ignore=tests/integration/clients"]
    targets = [] if given else [*skip, *paths]
    run(session, "pytest", *options, *targets, *session.posargs, OMP_NUM_THREADS="1")


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Format, style and the doors between packages."""
    prepare(session)
    run(session, "ruff", "format", "--check", ".")
    run(session, "ruff", "check", ".")
    run(session, "lint-imports")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """mypy, strict, over every package."""
    prepare(session)
    run(session, "mypy", *(f"packages/{name}/src" for name in PACKAGES))


@nox.session
@nox.parametrize("package", PACKAGES)
def alone(session: nox.Session, package: str) -> None:
    """Build a package's wheel, install it with no more of ours than it declares, run its tests."""
    dist = Path(session.create_tmp()) / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for name in [package, *siblings(package)]:
        build_wheel(session, name, dist)
    wanted = [*NEEDS[package], *TESTING]
    session.install("-c", "constraints.txt", *wanted, silent=True)
    built = [str(wheel) for wheel in sorted(dist.glob("*.whl"))]
    session.install("--no-deps", "--no-index", "--force-reinstall", *built, silent=True)
    module = package.replace("-", "_")
    session.run("python", "-c", f"import {module}; print({module}.__version__)")
    session.run("pytest", f"tests/unit/{module}", *session.posargs, env={"OMP_NUM_THREADS": "1"})


def build_wheel(session: nox.Session, package: str, target: Path) -> None:
    """Build one wheel in an environment without torch."""
    command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
    session.run(*command, f"packages/{package}", "--wheel-dir", str(target), external=True)


def siblings(package: str) -> list[str]:
    """The packages of ours that this one declares as dependencies."""
    text = (ROOT / "packages" / package / "pyproject.toml").read_text()
    table = text.partition("\ndependencies = [")[2].partition("]")[0]
    return [name for name in PACKAGES if name != package and f'"{name}>' in table]


@nox.session(venv_backend="none")
def wheels(session: nox.Session) -> None:
    """Build every wheel into dist/."""
    for name in PACKAGES:
        build_wheel(session, name, ROOT / "dist")


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Run a benchmark by name (`-- engine`); without a name, list them."""
    prepare(session)
    scripts = {script.stem: script for script in sorted((ROOT / "benchmarks").glob("*.py"))}
    if not session.posargs:
        session.log("benchmarks: %s", ", ".join(scripts))
        return
    name, *rest = session.posargs
    run(session, "python", str(scripts[name]), *rest)


CLIENTS = [
    *("transformers==5.24.0", "accelerate==1.15.0", "peft==0.21.2", "lightning==2.6.6"),
    *("trl==1.16.0", "datasets==5.2.0", "tokenizers==0.23.3", "huggingface_hub==2.4.0"),
]


@nox.session
def clients(session: nox.Session) -> None:
    """The programs people have: transformers, accelerate, peft, lightning and trl on ours."""
    wanted = [*BUILD, *RUNTIME, *EXTRAS, *TESTING, *CLIENTS]
    session.install("-c", "constraints.txt", *wanted, silent=True)
    ours = [part for name in PACKAGES for part in ("-e", f"packages/{name}")]
    session.install("--no-deps", "--no-build-isolation", *ours, silent=True)
    quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    session.run("pytest", "tests/integration/clients", *session.posargs, env=quiet)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site into site/; warnings are errors. `-- serve` while you write."""
    session.install("-c", "constraints.txt", *DOCS, silent=True)
    session.run("mkdocs", *(session.posargs or ["build"]), env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session(venv_backend="none")
def fuzz(session: nox.Session) -> None:
    """10,000 random calls of the native optimizers under AddressSanitizer."""
    prepare(session)
    run(session, "python", "packages/ds-kernels/fuzz/sanitized.py", *session.posargs)


@nox.session
def peer(session: nox.Session) -> None:
    """Compare loss curves with the real deepspeed 0.19.6, each in its own environment."""
    prepare(session)
    theirs = install_peer(session)
    script = ("benchmarks/peer_curves.py", "--peer-python", theirs)
    run(session, "python", *script, *session.posargs)


@nox.session
def client_curves(session: nox.Session) -> None:
    """The same client programs on ours and on the real deepspeed; after `nox -s clients`."""
    prepare(session)
    ours = Path(session.virtualenv.location).with_name("clients") / "bin" / "python"
    if not ours.exists():
        session.error("the environment with our deepspeed is missing: nox -s clients")
    theirs = install_peer(session, *CLIENTS)
    script = ("benchmarks/client_curves.py", "--python", str(ours), "--peer-python", theirs)
    run(session, "python", *script, *session.posargs)


def install_peer(session: nox.Session, *more: str) -> str:
    """Install the real deepspeed into the session's environment; its interpreter."""
    tools = ["setuptools", "wheel", "ninja", "pybind11", "py-cpuinfo"]
    session.install("-c", "constraints.txt", "torch", "numpy", *tools, *more, silent=True)
    session.install(
        *("--no-build-isolation", "-c", "constraints.txt", "deepspeed==0.19.6"),
        env={"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"},
        silent=True,
    )
    return str(Path(session.virtualenv.location) / "bin" / "python")


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Run tests/gpu; skips by name where there is no accelerator."""
    prepare(session)
    probe = "import torch; print(torch.accelerator.is_available())"
    found = session.run(str(BIN / "python"), "-c", probe, external=True, silent=True)
    if "True" not in str(found):
        names = ", ".join(sorted(file.name for file in (ROOT / "tests" / "gpu").glob("test_*.py")))
        session.skip(f"no accelerator on this machine; not run: {names or 'nothing there yet'}")
    run(session, "pytest", "-m", "gpu", "tests/gpu", *session.posargs)
