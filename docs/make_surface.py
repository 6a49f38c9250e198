"""Writes docs/surface.md: every public name programs know, and what it does here.

python docs/make_surface.py            write the page
python docs/make_surface.py --check    fail if it is out of date
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NOT_PART = "not part of this release"

_STEP = "a step inside the old implementation"
_MESSAGE = "one collective inside the old engine; gradients are reduced by strategies"
_TUNER = "of the old autotuner, " + NOT_PART
_EIGENVALUE = "of curvature estimates, " + NOT_PART
_COMPILER = "of compilers that rewrite the graph, " + NOT_PART
_BUILD = "of building at run time; extensions are built ahead of time"
_GRAPHS = "of device graphs; use torch.cuda.graph"

ABSENT: dict[str, dict[str, str]] = {
    "DeepSpeedAccelerator": {
        "build_extension export_envs set_visible_devices_envs": _BUILD,
        "capture_to_graph create_graph replay_graph": _GRAPHS,
        "prefer_triton_grouped_mm": _STEP,
        "register_host_memory unregister_host_memory unpin_memory": "use pin_memory(tensor)",
    },
    "DeepSpeedEngine": {
        "all_gather_scalar allreduce_and_copy allreduce_bucket allreduce_no_retain "
        "buffered_allreduce_fallback sparse_all_gather sparse_allreduce sparse_allreduce_bucket "
        "sparse_allreduce_no_retain": _MESSAGE,
        "amp_params clip_fp32_gradients coalesce_grad_reduction get_optimizer_configuration "
        "is_first_weights_partition_group optimizer_legacy_fusion print_forward_breakdown "
        "zero_save_muon_momentum_buffer_in_memory": _STEP,
        "autotuning_end_profile_step autotuning_metric autotuning_metric_path "
        "autotuning_model_info_path autotuning_profile_model_info "
        "autotuning_start_profile_step": _TUNER,
        "compile_autosp compile_autotp get_autosp_backend get_autotp_backend get_compile_time "
        "get_deepcompile_backend get_deepspeed_compile_backend register_compile_pass "
        "tensor_parallel_config": _COMPILER,
        "eigenvalue_gas_boundary_resolution eigenvalue_layer_name eigenvalue_layer_num "
        "eigenvalue_max_iter eigenvalue_stability eigenvalue_tol eigenvalue_verbose": _EIGENVALUE,
        "get_wall_clock_timers": "phases are hooks of ds_profiler; programs ask with hasattr",
        "load_moe_state_dict": "of mixtures of experts, " + NOT_PART,
    },
    "CheckpointFunction": {"backward forward": "checkpoint() is a function over autograd hooks"},
    "DynamicLossScaler": {"has_overflow_serial update_scale": "the step decides and updates"},
    "LossScaler": {"has_overflow": "the step decides"},
    "Init": {"get_partition_dp_group": "the group is given once"},
    "DeepSpeedZeroOffloadOptimizerConfig": {"set_pipeline": _STEP},
    "DeepSpeedDataSampler": {
        "get_new_cluster get_sample_based_on_metric_percentile get_sample_based_on_metric_value "
        "get_sample_from_cluster get_start_end_idx reshuffle_clusters sample_from_clusters": _STEP
    },
    "DataAnalyzer": {
        "finalize_metric_results get_metric_value_percentiles init_metric_results "
        "merge_gather_map_stats merge_map_results merge_metric_to_sample merge_sample_to_metric "
        "output_index_to_sample_percentile run_map_helper update_metric_results": _STEP
    },
    "DistributedDataAnalyzer": {"file_write_ordered run_map_helper": _STEP},
    "IndexedDataset": {"read_data read_index": _STEP},
    "RandomLayerTokenDrop": {"get_bsh get_sbh init_config": _STEP},
    "DeepSpeedCPUAdam": {"rollback_subgroup step_subgroup": "a strategy steps by segments"},
    "CPUAdamBuilder": {"libraries_args": _BUILD},
    "OpBuilder": {
        "builder command_exists cpu_arch deepspeed_src_path get_cuda_compile_flag "
        "get_rocm_gpu_arch get_rocm_wavefront_size has_function hipify_extension "
        "installed_rocm_version is_rocm_pytorch is_sycl_enabled nvcc_args simd_width "
        "strip_empty_entries sycl_extension validate_torch_op_version validate_torch_version "
        "warning": _BUILD
    },
    "DeepSpeedMonitorConfig": {"check_enabled": "sections are checked when they are read"},
}
"""Class -> names of methods it does not have here -> why."""


@dataclass(frozen=True)
class Row:
    """One public name.

    Attributes:
        status: works, refused, or not part.
        note: the message of a refusal; methods that are absent, with reasons.
        unexplained: methods that are absent for no stated reason.
    """

    module: str
    name: str
    status: str
    note: str
    unexplained: tuple[str, ...] = ()


def read_names(path: Path = HERE / "surface_names.txt") -> dict[str, dict[str, list[str]]]:
    """Module -> name -> methods."""
    found: dict[str, dict[str, list[str]]] = {}
    names: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("  "):
            name, _, methods = line.strip().partition(":")
            names[name] = methods.split()
        elif line and not line.startswith("#"):
            names = found.setdefault(line, {})
    return found


def probe() -> Iterator[Row]:
    """Look every name up; ImportError and AttributeError are the caller's to see."""
    known = read_names()
    for module in known:  # all first: a submodule can hide a name of its parent
        importlib.import_module(module)
    for module, names in known.items():
        loaded = importlib.import_module(module)
        for name, methods in names.items():
            yield _row(module, name, methods, getattr(loaded, name))


def _row(module: str, name: str, methods: list[str], value: Any) -> Row:
    doc = value.__doc__ or ""
    if isinstance(value, type) and doc.startswith("Not offered: "):
        message = doc.removeprefix("Not offered: ")
        return Row(module, name, "not part" if NOT_PART in message else "refused", message)
    reasons = {
        method: why for group, why in ABSENT.get(name, {}).items() for method in group.split()
    }
    absent = [method for method in methods if not hasattr(value, method)]
    notes: dict[str, list[str]] = {}
    for method in absent:
        notes.setdefault(reasons.get(method, "?"), []).append(f"`{method}`")
    note = "; ".join(f"without {', '.join(names)}: {why}" for why, names in notes.items())
    unexplained = tuple(method for method in absent if method not in reasons)
    return Row(module, name, "works", note, unexplained)


def page() -> str:
    """The whole page."""
    rows = list(probe())
    count = Counter(row.status for row in rows)
    lines = [
        "# The public names of `deepspeed`, one by one",
        "",
        "Generated by `docs/make_surface.py`; a test keeps it true. *Works*: imports and does its",
        "job; methods it lacks are listed with the reason. *Refused*: imports, and using it raises",
        "the message. *Not part*: the same, and the feature itself is not part of this release.",
        "",
        f"{len(rows)} names: {count['works']} work, {count['refused']} are refused, "
        f"{count['not part']} are not part of this release.",
    ]
    module = ""
    for row in rows:
        if row.module != module:
            module = row.module
            lines += ["", f"## `{module}`", "", "| name | status | note |", "| --- | --- | --- |"]
        lines.append(f"| `{row.name}` | {row.status} | {_cell(row.note)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    target = HERE / "surface.md"
    text = page()
    if parser.parse_args().check:
        return int(not target.exists() or target.read_text() != text)
    target.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
