"""A profile as plain text: summary, by depth, and as a tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ds_profiler.result import ModuleProfile, Profile
from ds_profiler.units import (
    bytes_to_string,
    duration_to_string,
    flops_to_string,
    macs_to_string,
    number_to_string,
    params_to_string,
    percent,
)

_NOTATIONS = """Notations:
data parallel size (dp_size), model parallel size(mp_size),
number of parameters (params), number of multiply-accumulate operations(MACs),
number of floating-point operations (flops), floating-point operations per second (FLOPS),
fwd latency (forward propagation latency), bwd latency (backward propagation latency),
step (weights update latency), iter latency (sum of fwd, bwd and step latency)
"""

_NOTES = """Each module profile is listed after its name in the following order:
params, percentage of total params, MACs, percentage of total MACs, fwd latency, \
percentage of total fwd latency, fwd FLOPS

Note: 1. A module may compute with functions instead of modules of its own. They are not printed,
and make up the difference between a module and the sum of those below it.
2. Percentages of shared modules are told where the module is first listed.
3. The fwd latency of the top module is taken at its own forward function, so it is a little less
than the one above, which the caller saw.
"""

_WIDTH = 72


def text_report(
    profile: Profile,
    *,
    profile_step: int = 1,
    module_depth: int = -1,
    top_modules: int = 1,
    detailed: bool = True,
) -> str:
    """The report, in the sections that users of the reference know.

    Args:
        profile: what to report.
        profile_step: the step it was taken at, for the heading.
        module_depth: depth to aggregate at; -1 reports every depth.
        top_modules: how many kinds of modules to list at a depth.
        detailed: whether to add the tree of all modules.
    """
    lines = [
        "",
        "-------------------------- DeepSpeed Flops Profiler --------------------------",
        f"Profile Summary at step {profile_step}:",
        _NOTATIONS,
        *(f"{label + ':':<{_WIDTH}}{value}" for label, value in _summary(profile)),
        *_uncounted(profile),
        "",
        aggregated_report(profile, module_depth=module_depth, top_modules=top_modules),
    ]
    if detailed:
        lines += [
            "",
            f"{' Detailed Profile per GPU ':-^86}",
            _NOTES,
            *_tree(profile),
        ]
    lines += ["-" * 78, ""]
    return "\n".join(lines)


def _summary(profile: Profile) -> Iterator[tuple[str, str]]:
    spread = profile.model_parallel
    forward, backward, again = profile.root.forward, profile.root.backward, profile.root.recompute
    yield "world size", str(profile.world_size)
    yield "data parallel size", str(profile.data_parallel)
    yield "model parallel size", str(profile.model_parallel)
    if profile.samples is not None:
        yield "batch size per GPU", str(profile.samples)
    yield "params per GPU", params_to_string(profile.params)
    yield "params of model = params per GPU * mp_size", params_to_string(profile.params * spread)
    yield "fwd MACs per GPU", macs_to_string(forward.macs)
    yield "fwd flops per GPU", number_to_string(forward.flops)
    yield (
        "fwd flops of model = fwd flops per GPU * mp_size",
        number_to_string(forward.flops * spread),
    )
    if backward.flops:
        yield "bwd MACs per GPU (counted)", macs_to_string(backward.macs)
        yield "bwd flops per GPU (counted)", number_to_string(backward.flops)
    if again.flops:
        yield "recomputed flops per GPU (activation checkpointing)", number_to_string(again.flops)
    if profile.root.activation_bytes:
        yield "activations kept for bwd", bytes_to_string(profile.root.activation_bytes)
    yield from _latencies(profile)


def _latencies(profile: Profile) -> Iterator[tuple[str, str]]:
    forward, backward = profile.root.forward, profile.root.backward
    ahead, back, step = profile.forward_seconds, profile.backward_seconds, profile.step_seconds
    if ahead:
        yield "fwd latency", duration_to_string(ahead)
    if back:
        yield "bwd latency", duration_to_string(back)
    if ahead:
        yield (
            "fwd FLOPS per GPU = fwd flops per GPU / fwd latency",
            flops_to_string(forward.flops / ahead),
        )
    if back:
        flops = backward.flops or 2 * forward.flops
        rule = "bwd flops per GPU" if backward.flops else "2 * fwd flops per GPU"
        whole = "(fwd+bwd) flops per GPU" if backward.flops else "3 * fwd flops per GPU"
        yield f"bwd FLOPS per GPU = {rule} / bwd latency", flops_to_string(flops / back)
        yield (
            f"fwd+bwd FLOPS per GPU = {whole} / (fwd+bwd latency)",
            flops_to_string((forward.flops + flops) / (ahead + back)),
        )
    if step:
        yield "step latency", duration_to_string(step)
        yield "iter latency", duration_to_string(ahead + back + step)
        if profile.samples:
            rate = profile.samples * profile.data_parallel / (ahead + back + step)
            yield "samples/second", f"{rate:.2f}"
    if profile.utilisation is not None:
        yield "utilisation of the device's peak (MFU)", f"{100 * profile.utilisation:.1f}%"


def _uncounted(profile: Profile) -> list[str]:
    if not profile.uncounted:
        return []
    rows = (f"    {name}: {calls} calls" for name, calls in sorted(profile.uncounted.items()))
    return ["", "Operators without a counting rule (their work is NOT in the numbers):", *rows]


@dataclass
class _Kind:
    params: int = 0
    macs: int = 0
    seconds: float = 0.0


def aggregated_report(profile: Profile, *, module_depth: int = -1, top_modules: int = 1) -> str:
    """The most expensive kinds of modules at each depth."""
    depths: dict[int, dict[str, _Kind]] = defaultdict(lambda: defaultdict(_Kind))
    for depth, module in profile.root.walk():
        kind = depths[depth][module.kind]
        kind.params += module.params
        kind.macs += module.forward.macs
        kind.seconds += module.forward_seconds
    wanted = range(len(depths)) if module_depth < 0 else [min(module_depth, len(depths) - 1)]
    lines = [
        "----------------------------- Aggregated Profile per GPU -----------------------------",
        f"Top {top_modules} modules in terms of params, MACs or fwd latency at different model "
        "depths:",
    ]
    for depth in wanted:
        lines += [f"depth {depth}:", *_top(depths[depth], top_modules)]
    return "\n".join(lines)


def _top(kinds: dict[str, _Kind], count: int) -> Iterator[str]:
    columns: list[tuple[str, Callable[[_Kind], float], Callable[[float], str]]] = [
        ("params     ", lambda kind: kind.params, params_to_string),
        ("MACs       ", lambda kind: kind.macs, macs_to_string),
        ("fwd latency", lambda kind: kind.seconds, duration_to_string),
    ]
    for title, key, show in columns:
        best = sorted(kinds.items(), key=lambda item: key(item[1]), reverse=True)[: max(count, 0)]
        yield f"    {title} - { {name: show(key(kind)) for name, kind in best} }"


def _tree(profile: Profile) -> Iterator[str]:
    left: list[ModuleProfile | str] = [profile.root]
    depths = {id(module): depth for depth, module in profile.root.walk()}
    while left:
        module = left.pop()
        if isinstance(module, str):
            yield module
            continue
        indent = "  " * depths[id(module)]
        yield from _module_lines(module, profile, indent)
        if module.children:
            left += [f"{indent})", *reversed(module.children)]


def _module_lines(module: ModuleProfile, profile: Profile, indent: str) -> Iterator[str]:
    title = f"({module.label}): {module.kind}" if module is not profile.root else module.kind
    if module.shared_with is not None:
        yield f"{indent}{title}(shared with {module.shared_with or 'the model itself'})"
        return
    numbers = ", ".join(_numbers(module, profile))
    if not module.children:
        yield f"{indent}{title}({', '.join(part for part in (numbers, module.extra) if part)})"
        return
    yield f"{indent}{title}("
    yield f"{indent}  {numbers}"


def _numbers(module: ModuleProfile, profile: Profile) -> Iterator[str]:
    root, seconds = profile.root, module.forward_seconds
    yield f"{params_to_string(module.params)} = {percent(module.params, root.params)} Params"
    yield (
        f"{macs_to_string(module.forward.macs)} = "
        f"{percent(module.forward.macs, root.forward.macs)} MACs"
    )
    if root.forward_seconds:
        yield f"{duration_to_string(seconds)} = {percent(seconds, root.forward_seconds)} latency"
        yield flops_to_string(module.forward.flops / seconds if seconds else 0.0)
