"""The optimizers and op builders under the import paths that existing programs use."""

from __future__ import annotations

import inspect

import pytest
import torch

import deepspeed  # noqa: F401  # installs the table of old import paths


def stepped(optimizer: torch.optim.Optimizer, param: torch.nn.Parameter) -> torch.Tensor:
    param.grad = torch.ones_like(param)
    optimizer.step()
    return param.detach()


@pytest.mark.parametrize(
    ("module", "name", "settings"),
    [
        ("adam", "DeepSpeedCPUAdam", {"adamw_mode": True, "weight_decay": 0.1}),
        ("adam", "FusedAdam", {"adam_w_mode": False, "weight_decay": 0.1}),
        ("adam.cpu_adam", "DeepSpeedCPUAdam", {"fp32_optimizer_states": False}),
        ("adagrad", "DeepSpeedCPUAdagrad", {}),
        ("lion", "DeepSpeedCPULion", {}),
        ("lion", "FusedLion", {}),
        ("lamb", "FusedLamb", {"max_coeff": 0.3, "min_coeff": 0.01}),
    ],
)
def test_old_optimizers_import_and_step(module: str, name: str, settings: dict) -> None:
    space = __import__(f"deepspeed.ops.{module}", fromlist=[name])
    param = torch.nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
    optimizer = getattr(space, name)([param], lr=0.1, **settings)
    assert (stepped(optimizer, param) < 1).all()
    state = torch.bfloat16 if settings.get("fp32_optimizer_states") is False else torch.float32
    moments = [v for k, v in optimizer.state[param].items() if k != "step"]
    assert {moment.dtype for moment in moments} == {state}


def test_old_arguments_keep_their_order() -> None:
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam

    cpu = list(inspect.signature(DeepSpeedCPUAdam).parameters)
    assert cpu[:5] == ["model_params", "lr", "bias_correction", "betas", "eps"]
    gpu = list(inspect.signature(FusedAdam).parameters)
    assert gpu[2:7] == ["bias_correction", "betas", "eps", "adam_w_mode", "weight_decay"]


@pytest.mark.parametrize(
    "name",
    ["CPUAdam", "CPUAdagrad", "CPULion", "FusedAdam", "FusedLamb", "FusedLion", "FPQuantizer"],
)
def test_op_builders_answer_at_once(name: str) -> None:
    from deepspeed.ops import op_builder

    builder = getattr(op_builder, f"{name}Builder")()
    assert builder.is_compatible()
    assert builder.builder_available
    assert builder.load() is not None


def test_the_loaded_cpu_adam_steps_by_number() -> None:
    from deepspeed.ops.op_builder import CPUAdamBuilder

    ops = CPUAdamBuilder().load()
    ops.create_adam(7, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False)
    param, grad, first, second = torch.ones(9), torch.ones(9), torch.zeros(9), torch.zeros(9)
    ops.adam_update(7, 1, 0.1, 0.9, 0.999, 1e-8, 0.0, True, param, grad, first, second)
    assert torch.allclose(param, torch.full((9,), 0.9))
    ops.destroy_adam(7)
    with pytest.raises(ValueError, match="call create_adam first"):
        ops.adam_update(7, 1, 0.1, 0.9, 0.999, 1e-8, 0.0, True, param, grad, first, second)


def test_names_without_counterpart_say_so() -> None:
    import deepspeed.ops.adam

    with pytest.raises(NotImplementedError, match="ZenFlow is not offered"):
        deepspeed.ops.adam.ZenFlowCPUAdam([])


def test_arguments_of_former_wrappers_are_refused() -> None:
    from deepspeed.ops.adam import FusedAdam

    optimizer = FusedAdam([torch.nn.Parameter(torch.ones(1))])
    with pytest.raises(ValueError, match="grads is no longer used"):
        optimizer.step(grads=[torch.ones(1)])
