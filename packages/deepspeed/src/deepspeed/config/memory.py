"""How much memory the training state of a configuration takes on each rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deepspeed.config.load import Config

_MOMENTS = {"adagrad": 1, "lion": 1, "sgd": 1, "muon": 1}
"""Values an optimizer keeps for a parameter, where it is not two as in Adam."""


@dataclass(frozen=True)
class StateMemory:
    """One kind of training state on one rank.

    Attributes:
        name: which state.
        nbytes: its size on this rank.
        place: `device`, `cpu` or `nvme`.
        ranks: over how many ranks it is split.
    """

    name: str
    nbytes: float
    place: str = "device"
    ranks: int = 1


def state_memory(config: Config, params: int) -> list[StateMemory]:
    """Weights, gradients, master weights and optimizer state of a model of `params` parameters."""
    fp16, bf16 = config.section("fp16"), config.section("bf16")
    half = fp16.enabled or bf16.enabled
    accumulate = config.section("data_types").grad_accum_dtype or "fp32"
    optimizer = config.sections.get("optimizer")
    moments = _MOMENTS.get(getattr(optimizer, "type", "").casefold(), 2)
    zero: Any = config.sections.get("zero_optimization")
    stage = 0 if zero is None else int(zero.stage)
    optimizer_place = _place(zero.offload_optimizer) if stage > 0 else "device"
    weight_place = _place(zero.offload_param) if stage > 2 else "device"

    def part(name: str, size: int, first_stage: int, place: str) -> StateMemory:
        ranks = config.batch.world_size if stage >= first_stage else 1
        return StateMemory(name, size * params / ranks, place, ranks)

    weight = 2 if half else 4
    state = [part("weights", weight, 3, weight_place)]
    if stage > 2:
        live = min(params, int(zero.stage3_max_live_parameters))
        state.append(StateMemory("gathered weights, at most", weight * live))
    grad_place = optimizer_place if stage > 1 and optimizer_place == "cpu" else "device"
    state.append(part("gradients", 4 if accumulate == "fp32" else 2, 2, grad_place))
    if half and not (fp16.fp16_master_weights_and_grads or bf16.bf16_master_weights_and_grads):
        state.append(part("master weights", 4, 1, optimizer_place))
    moment = 2 if bf16.bf16_optimizer_states else 4
    state.append(part("optimizer state", moments * moment, 1, optimizer_place))
    return state


def memory_lines(config: Config, params: int | None) -> list[str]:
    """The estimate laid out for reading; activations and buffers are not in it."""
    if params is None:
        return ["memory: give --params N for an estimate a rank"]
    state = state_memory(config, params)
    lines = [f"memory a rank, for {params:,} parameters, without activations and buffers"]
    for item in state:
        split = f"1/{item.ranks} of the whole" if item.ranks > 1 else ""
        row = f"  {item.name:<26}{_gib(item.nbytes):>12}  {item.place:<7} {split}"
        lines.append(row.rstrip())
    for place in dict.fromkeys(item.place for item in state):
        total = sum(item.nbytes for item in state if item.place == place)
        lines.append(f"  {'all':<26}{_gib(total):>12}  {place}")
    return lines


def _place(offload: Any) -> str:
    """`offload` is a section of whichever package serves zero_optimization, or None."""
    if offload is None or offload.device == "none":
        return "device"
    return str(getattr(offload.device, "value", offload.device))


def _gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.2f} GiB"
