"""How many bytes the model states need a rank, before anything is built."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from torch import nn

logger = logging.getLogger(__name__)
_GIB = 2**30


def zero2_bytes(
    total: int,
    *,
    devices: int = 1,
    nodes: int = 1,
    offload_optimizer: bool = True,
    buffer_factor: float = 1.5,
) -> tuple[int, int]:
    """(host bytes a node, device bytes a device) at stage 2 with 16-bit weights."""
    if offload_optimizer:
        return int(total * max(4 * devices * nodes, 16) * buffer_factor), 2 * total
    host = int(total * 4 * devices * buffer_factor)
    return host, 4 * total + int(16 * total / (devices * nodes))


def zero3_bytes(
    total: int,
    largest_layer: int,
    *,
    devices: int = 1,
    nodes: int = 1,
    offload_optimizer: bool = True,
    offload_param: bool = True,
    zero_init: bool = True,
    buffer_factor: float = 1.5,
) -> tuple[int, int, int]:
    """(host bytes a node, device bytes a device, bytes of the largest gathered layer)."""
    part = 1 / nodes
    gathered = 4 * largest_layer
    if offload_optimizer:
        owned = 18 if offload_param else 16
        device = gathered if offload_param else gathered + int(2 * total / (devices * nodes))
        before = 0 if zero_init else total * 4 * devices
        return int(max(before, total * owned * part) * buffer_factor), device, gathered
    device = gathered + int(18 * total / (devices * nodes))
    built = largest_layer if zero_init else total
    return int(built * 4 * devices * buffer_factor), device, gathered


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """(all parameters of `model`, those of its largest layer); a shared one counts once."""
    total = sum(_numel(p) for p in model.parameters())
    largest = max(
        (sum(_numel(p) for p in m.parameters(recurse=False)) for m in model.modules()), default=0
    )
    return total, largest


def estimate_zero2_model_states_mem_needs(
    total_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    additional_buffer_factor: float = 1.5,
) -> tuple[int, int]:
    """(host bytes a node, device bytes a device) at stage 2; see `zero2_bytes`."""
    return zero2_bytes(
        total_params,
        devices=num_gpus_per_node,
        nodes=num_nodes,
        offload_optimizer=cpu_offload,
        buffer_factor=additional_buffer_factor,
    )


def estimate_zero3_model_states_mem_needs(
    total_params: int,
    largest_layer_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    cpu_offload_params: bool = True,
    zero_init: bool = True,
    additional_buffer_factor: float = 1.5,
) -> tuple[int, int, int]:
    """(host bytes a node, device bytes a device, largest layer bytes); see `zero3_bytes`."""
    return zero3_bytes(
        total_params,
        largest_layer_params,
        devices=num_gpus_per_node,
        nodes=num_nodes,
        offload_optimizer=cpu_offload,
        offload_param=cpu_offload_params,
        zero_init=zero_init,
        buffer_factor=additional_buffer_factor,
    )


def estimate_zero2_model_states_mem_needs_all_cold(
    total_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
    *,
    report: Callable[[str], object] = print,
) -> None:
    """Print the need of every stage 2 option for a model of which only the size is known."""
    report(_heading(num_gpus_per_node, num_nodes, f"{total_params // 10**6}M total params."))
    for offload in (True, False):
        needs = zero2_bytes(
            total_params,
            devices=num_gpus_per_node,
            nodes=num_nodes,
            offload_optimizer=offload,
            buffer_factor=additional_buffer_factor,
        )
        report(_row(needs[0], needs[1], f"offload_optimizer={_device(offload)}"))


def estimate_zero2_model_states_mem_needs_all_live(
    model: nn.Module,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """Print the need of every stage 2 option for `model`."""
    estimate_zero2_model_states_mem_needs_all_cold(
        count_parameters(model)[0], num_gpus_per_node, num_nodes, additional_buffer_factor
    )


def estimate_zero3_model_states_mem_needs_all_cold(
    total_params: int,
    largest_layer_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
    *,
    report: Callable[[str], object] = print,
) -> None:
    """Print the need of every stage 3 option for a model of which only sizes are known."""
    size = f"{total_params // 10**6}M total params"
    layer = f"{largest_layer_params // 10**6}M largest layer params."
    report(_heading(num_gpus_per_node, num_nodes, f"{size}, {layer}"))
    for optimizer, param in ((True, True), (True, False), (False, False)):
        for zero_init in (True, False):
            needs = zero3_bytes(
                total_params,
                largest_layer_params,
                devices=num_gpus_per_node,
                nodes=num_nodes,
                offload_optimizer=optimizer,
                offload_param=param,
                zero_init=zero_init,
                buffer_factor=additional_buffer_factor,
            )
            options = f"offload_param={_device(param)}, offload_optimizer={_device(optimizer)}"
            report(_row(needs[0], needs[1], f"{options}, zero_init={int(zero_init)}"))


def estimate_zero3_model_states_mem_needs_all_live(
    model: nn.Module,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """Print the need of every stage 3 option for `model`."""
    total, largest = count_parameters(model)
    estimate_zero3_model_states_mem_needs_all_cold(
        total, largest, num_gpus_per_node, num_nodes, additional_buffer_factor
    )


def _numel(param: nn.Parameter) -> int:
    return int(getattr(param, "ds_numel", param.numel()))  # a parameter of stage 3 is empty


def _device(offload: bool) -> str:
    return "cpu" if offload else "none"


def _heading(devices: int, nodes: int, model: str) -> str:
    return "\n".join(_heading_lines(devices, nodes, model))


def _heading_lines(devices: int, nodes: int, model: str) -> Iterator[str]:
    def count(number: int, noun: str) -> str:
        return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

    yield "Estimated memory needed for params, optim states and gradients for a:"
    yield f"HW: Setup with {count(nodes, 'node')}, {count(devices, 'GPU')} per node."
    yield f"SW: Model with {model}"
    yield "  per CPU  |  per GPU |   Options"


def _row(host: int, device: int, options: str) -> str:
    return f"  {host / _GIB:6.2f}GB | {device / _GIB:6.2f}GB | {options}"
