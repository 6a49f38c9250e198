"""What programs ask an engine about its configuration."""

from __future__ import annotations

from typing import Any

import torch

from deepspeed.config import Config
from deepspeed.precision import DTYPES, compute_dtype
from deepspeed.section_answers import SectionAnswers


class ConfigAnswers(SectionAnswers):
    """One method a question, each answered from the configuration the engine was made with."""

    configuration: Config

    def train_batch_size(self) -> int:
        """Samples of one step over all ranks."""
        return self.configuration.batch.train

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples of one forward on one rank."""
        return self.configuration.batch.micro

    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of a step."""
        return self.configuration.batch.accumulation

    def get_batch_info(self) -> tuple[int, int, int]:
        """(train batch size, micro-batch size, accumulation steps)."""
        batch = self.configuration.batch
        return batch.train, batch.micro, batch.accumulation

    def gradient_clipping(self) -> float:
        return self.configuration.general.gradient_clipping or 0.0

    def steps_per_print(self) -> int | None:
        return self.configuration.general.steps_per_print

    def dump_state(self) -> bool:
        return self.configuration.general.dump_state

    def memory_breakdown(self) -> bool:
        return self.configuration.general.memory_breakdown

    def postscale_gradients(self) -> bool:
        return not self.configuration.general.prescale_gradients

    def gradient_predivide_factor(self) -> float:
        return self.configuration.general.gradient_predivide_factor

    def sparse_gradients_enabled(self) -> bool:
        return self.configuration.general.sparse_gradients

    def dataloader_drop_last(self) -> bool:
        return self.configuration.general.dataloader_drop_last

    def zero_allow_untested_optimizer(self) -> bool:
        return self.configuration.general.zero_allow_untested_optimizer

    def zero_force_ds_cpu_optimizer(self) -> bool:
        return self.configuration.general.zero_force_ds_cpu_optimizer

    @property
    def communication_data_type(self) -> torch.dtype:
        """Format of gradients on the wire."""
        wire = self.configuration.general.communication_data_type
        return DTYPES[wire] if wire else torch.float32

    def fp16_enabled(self) -> bool:
        return bool(self.configuration.section("fp16").enabled)

    def bfloat16_enabled(self) -> bool:
        return bool(self.configuration.section("bf16").enabled)

    def amp_enabled(self) -> bool:
        """Always false: NVIDIA's amp is superseded by `torch_autocast`."""
        return False

    def fp16_auto_cast(self) -> bool:
        return bool(self.configuration.section("fp16").auto_cast)

    def fp16_master_weights_and_gradients(self) -> bool:
        return bool(self.configuration.section("fp16").fp16_master_weights_and_grads)

    def bf16_master_weights_and_gradients(self) -> bool:
        return bool(self.configuration.section("bf16").bf16_master_weights_and_grads)

    def bf16_optimizer_states(self) -> bool:
        return bool(self.configuration.section("bf16").bf16_optimizer_states)

    def torch_autocast_enabled(self) -> bool:
        return bool(self.configuration.section("torch_autocast").enabled)

    def torch_autocast_dtype(self) -> torch.dtype:
        return DTYPES[self.configuration.section("torch_autocast").dtype]

    def torch_autocast_lower_precision_safe_modules(self) -> list[str] | None:
        found: list[str] | None = self.configuration.section(
            "torch_autocast"
        ).lower_precision_safe_modules
        return found

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        """(format of the weights, format gradients accumulate in)."""
        chosen = self.configuration.section("data_types").grad_accum_dtype
        return compute_dtype(self.configuration), DTYPES[chosen or "fp32"]

    def dynamic_loss_scale(self) -> bool:
        fp16 = self.configuration.section("fp16")
        return bool(fp16.enabled) and not fp16.loss_scale

    def initial_dynamic_scale(self) -> float:
        return float(2.0 ** self.configuration.section("fp16").initial_scale_power)

    def dynamic_loss_scale_args(self) -> dict[str, Any]:
        fp16 = self.configuration.section("fp16")
        return {
            "init_scale": self.initial_dynamic_scale(),
            "scale_window": fp16.loss_scale_window,
            "delayed_shift": fp16.hysteresis,
            "consecutive_hysteresis": fp16.consecutive_hysteresis,
            "min_scale": fp16.min_loss_scale,
        }

    def optimizer_name(self) -> str | None:
        section = self.configuration.sections.get("optimizer")
        return None if section is None else str(section.type).lower()  # type: ignore[attr-defined]

    def optimizer_params(self) -> dict[str, Any] | None:
        section = self.configuration.sections.get("optimizer")
        return None if section is None else dict(section.params)  # type: ignore[attr-defined]

    def scheduler_name(self) -> str | None:
        section = self.configuration.sections.get("scheduler")
        return None if section is None else section.type  # type: ignore[attr-defined]

    def scheduler_params(self) -> dict[str, Any] | None:
        section = self.configuration.sections.get("scheduler")
        return None if section is None else dict(section.params)  # type: ignore[attr-defined]

    def checkpoint_tag_validation_enabled(self) -> bool:
        return bool(self.configuration.section("checkpoint").tag_validation != "Ignore")

    def checkpoint_tag_validation_fail(self) -> bool:
        return bool(self.configuration.section("checkpoint").tag_validation == "Fail")

    def use_node_local_storage(self) -> bool:
        return bool(self.configuration.section("checkpoint").use_node_local_storage)

    def load_universal_checkpoint(self) -> bool:
        return bool(self.configuration.section("checkpoint").load_universal)

    def wall_clock_breakdown(self) -> bool:
        return self._enabled("wall_clock_breakdown")

    def flops_profiler_enabled(self) -> bool:
        return self._enabled("flops_profiler")

    def curriculum_enabled_legacy(self) -> bool:
        return self._enabled("curriculum_learning")

    def data_efficiency_enabled(self) -> bool:
        return self._enabled("data_efficiency")

    def pld_enabled(self) -> bool:
        return self._enabled("progressive_layer_drop")

    def elasticity_enabled(self) -> bool:
        """Always false: any checkpoint loads at any world size."""
        return False

    def autotuning_enabled(self) -> bool:
        """Always false: nothing here tunes."""
        return False

    def zero_optimization(self) -> bool:
        return self.zero_optimization_stage() > 0

    def zero_optimization_stage(self) -> int:
        return int(self._zero("stage", 0))

    def zero_optimization_partition_gradients(self) -> bool:
        return self.zero_optimization_stage() >= 2

    def zero_optimization_partition_weights(self) -> bool:
        return self.zero_optimization_stage() >= 3

    def zero_offload_optimizer(self) -> Any:
        """The section, or None."""
        return self._zero("offload_optimizer", None)

    def zero_offload_param(self) -> Any:
        """The section, or None."""
        return self._zero("offload_param", None)

    def zero_cpu_offload(self) -> bool:
        return _device(self.zero_offload_optimizer()) in ("cpu", "nvme")

    zero_use_cpu_optimizer = zero_cpu_offload

    def zero_nvme_offload_optimizer(self) -> bool:
        return _device(self.zero_offload_optimizer()) == "nvme"

    def zero_partial_offload(self) -> float:
        section = self.zero_offload_optimizer()
        return 1.0 if section is None else float(section.ratio)

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        return bool(self._zero("stage3_gather_16bit_weights_on_model_save", False))

    def zero_reduce_scatter(self) -> bool:
        return bool(self._zero("reduce_scatter", True))

    def zero_overlap_comm(self) -> bool:
        return self._zero("overlap_comm", None) is not False

    def zero_reduce_bucket_size(self) -> int:
        return int(self._zero("reduce_bucket_size", 500_000_000))

    def zero_allgather_bucket_size(self) -> int:
        return int(self._zero("allgather_bucket_size", 500_000_000))

    def zero_allgather_partitions(self) -> bool:
        return bool(self._zero("allgather_partitions", True))

    def zero_contiguous_gradients(self) -> bool:
        return bool(self._zero("contiguous_gradients", True))

    def zero_load_from_fp32_weights(self) -> bool:
        return bool(self._zero("load_from_fp32_weights", True))

    def zero_elastic_checkpoint(self) -> bool:
        return bool(self._zero("elastic_checkpoint", False))

    def zero_sub_group_size(self) -> int:
        return int(self._zero("sub_group_size", 1_000_000_000))

    def zero_prefetch_bucket_size(self) -> int:
        return int(self._zero("stage3_prefetch_bucket_size", 50_000_000))

    def zero_param_persistence_threshold(self) -> int:
        return int(self._zero("stage3_param_persistence_threshold", 100_000))

    def zero_max_live_parameters(self) -> int:
        return int(self._zero("stage3_max_live_parameters", 1_000_000_000))

    def zero_max_reuse_distance(self) -> int:
        return int(self._zero("stage3_max_reuse_distance", 1_000_000_000))

    def zero_round_robin_gradients(self) -> bool:
        return bool(self._zero("round_robin_gradients", False))

    def zero_ignore_unused_parameters(self) -> bool:
        return bool(self._zero("ignore_unused_parameters", True))

    def zero_hpz_partition_size(self) -> int:
        return int(self._zero("zero_hpz_partition_size", 1))

    def _zero(self, name: str, default: Any) -> Any:
        """A key of `zero_optimization`; the default where ds-zero is not installed."""
        if "zero_optimization" not in self.configuration.installed:
            return default
        return getattr(self.configuration.section("zero_optimization"), name, default)

    def _enabled(self, name: str) -> bool:
        return bool(getattr(self.configuration.sections.get(name), "enabled", False))


def _device(section: Any) -> str | None:
    if section is None:
        return None
    return str(getattr(section.device, "value", section.device))
