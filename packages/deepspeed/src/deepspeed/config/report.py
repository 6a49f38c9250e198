"""A resolved configuration laid out for reading, with what it costs in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from deepspeed.config.batch import ACCUMULATION, MICRO, TRAIN
from deepspeed.config.faults import show
from deepspeed.config.load import Config
from deepspeed.config.sections import ALIASES

_MOMENTS = {"adagrad": 1, "lion": 1, "sgd": 1, "muon": 1}
"""fp32 values an optimizer keeps for a parameter, where it is not two as in Adam."""


def settings_lines(config: Config) -> list[str]:
    """Every setting in force, one a line, marked where it is derived or a default."""
    batch = config.batch
    rows: list[tuple[str, str, str]] = []
    for key, value in (
        (TRAIN, batch.train),
        (MICRO, batch.micro),
        (ACCUMULATION, batch.accumulation),
    ):
        given = config.raw.get(key) not in (None, "auto")
        rows.append((key, str(value), "" if given else "derived"))
    rows.append(("data-parallel ranks", str(batch.world_size), f"from {batch.source}"))
    rows += _rows(config.general, config.raw, 0)
    old_names = {new: old for old, new in ALIASES.items()}
    for name, section in config.sections.items():
        raw = config.raw.get(name, config.raw.get(old_names.get(name, "")))
        rows.append((name, "", ""))
        rows += _rows(section, raw if isinstance(raw, Mapping) else {}, 1)
    width = max(len(name) for name, _, _ in rows) + 2
    return [f"{name:<{width}}{value:<12} {note}".rstrip() for name, value, note in rows]


def memory_lines(config: Config, params: int | None) -> list[str]:
    """The memory that training state takes on each rank; activations are left out."""
    if params is None:
        return ["memory: give --params N for an estimate a rank"]
    per_param = _bytes_per_param(config)
    total = sum(per_param.values()) * params
    parts = " + ".join(f"{name} {_gib(count * params)}" for name, count in per_param.items())
    return [f"memory a rank, without activations: {_gib(total)} = {parts}"]


def _rows(section: object, raw: Mapping[str, Any], depth: int) -> list[tuple[str, str, str]]:
    rows = []
    for item in fields(section):  # type: ignore[arg-type]  # sections are dataclasses
        value = getattr(section, item.name)
        name = "  " * depth + item.name
        written = next((key for key in (item.name, *_aliases(item)) if key in raw), None)
        note = "" if written is not None and raw[written] != "auto" else "default"
        if is_dataclass(value):
            inner = raw[written] if written is not None else {}
            rows.append((name, "", note))
            rows += _rows(value, inner if isinstance(inner, Mapping) else {}, depth + 1)
        else:
            rows.append((name, show(value), note))
    return rows


def _aliases(item: Any) -> tuple[str, ...]:
    """Other spellings of a field (dataclasses.Field is generic in a type nobody knows here)."""
    return tuple(item.metadata.get("aliases", ()))


def _bytes_per_param(config: Config) -> dict[str, int]:
    fp16, bf16 = config.section("fp16"), config.section("bf16")
    half = fp16.enabled or bf16.enabled
    accumulate = config.section("data_types").grad_accum_dtype or "fp32"
    optimizer = config.sections.get("optimizer")
    moments = _MOMENTS.get(getattr(optimizer, "type", "").casefold(), 2)
    sizes = {"weights": 2 if half else 4, "gradients": 4 if accumulate == "fp32" else 2}
    if half and not (fp16.fp16_master_weights_and_grads or bf16.bf16_master_weights_and_grads):
        sizes["master weights"] = 4
    sizes["optimizer"] = moments * (2 if bf16.bf16_optimizer_states else 4)
    return sizes


def _gib(count: float) -> str:
    return f"{count / 2**30:.2f} GiB"
