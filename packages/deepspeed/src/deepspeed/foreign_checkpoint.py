"""Checkpoints that the original wrote, and the script that makes plain weights of ours."""

from __future__ import annotations

import logging
import shutil
import stat
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ds_core.contracts import LoadWhat
from ds_core.errors import ConfigError

logger = logging.getLogger(__name__)

RECOVERY_SCRIPT = "zero_to_fp32.py"


def foreign_folder(directory: Path, tag: str | None) -> Path | None:
    """The folder of a checkpoint of the original (or a universal one), or None if it is ours."""
    if tag is None:
        for name in ("latest", "latest_universal"):
            if (directory / name).is_file():
                tag = (directory / name).read_text(errors="replace").strip()
                break
    if not tag or not tag.isprintable():  # ours are refused with the reason where they are loaded
        return None
    folder = directory / tag
    if not any(folder.glob("*model_states.pt")) and not (folder / "zero").is_dir():
        return None
    if find_spec("ds_zero") is None:
        raise ConfigError(
            f"{folder} was written by the original: pip install ds-zero to read it (from a clone:"
            " packages/ds-zero)"
        )
    return folder


def load_foreign(
    engine: Any, folder: Path, *, what: LoadWhat, schedule: bool, progress: bool
) -> dict[str, Any]:
    """Fill the engine from a checkpoint of the original; its client state."""
    from ds_zero.universal import open_foreign  # the package is optional

    groups = engine.strategy.facts().get("param_groups", [])
    found = open_foreign(
        folder.parent, folder.name, group_names=[group["params"] for group in groups]
    )
    engine.strategy.load(found.reader, found.facts, what=what)
    if schedule and engine.schedule is not None and found.lr_scheduler is not None:
        engine.schedule.load_state_dict(found.lr_scheduler)
    if progress:
        counters = engine.counters
        counters.steps = found.counters.get("global_steps", counters.steps)
        counters.samples = found.counters.get("global_samples", counters.samples)
        counters.skipped = found.counters.get("skipped_steps", counters.skipped)
    engine.zero_grad()
    return found.client_state


def copy_recovery_script(directory: Path) -> Path | None:
    """Put `zero_to_fp32.py` beside the checkpoints: it makes plain weights with or without us."""
    spec = find_spec("ds_zero")
    if spec is None or spec.origin is None:
        return None
    target = directory / RECOVERY_SCRIPT
    shutil.copyfile(Path(spec.origin).with_name("recover.py"), target)
    make_executable(target)
    return target


def make_executable(file: Path) -> None:
    """Let the owner run `file`."""
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
