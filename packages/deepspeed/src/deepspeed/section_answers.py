"""What programs ask an engine about sections that optional packages serve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from torch.utils.data import IterableDataset

from deepspeed.config import Config


class SectionAnswers:
    """One method a question; where a section or its package is missing, the default."""

    configuration: Config

    def flops_profiler_profile_step(self) -> int:
        return int(self._section("flops_profiler", "profile_step", 1))

    def flops_profiler_module_depth(self) -> int:
        return int(self._section("flops_profiler", "module_depth", -1))

    def flops_profiler_top_modules(self) -> int:
        return int(self._section("flops_profiler", "top_modules", 1))

    def flops_profiler_detailed(self) -> bool:
        return bool(self._section("flops_profiler", "detailed", True))

    def flops_profiler_output_file(self) -> str | None:
        found: str | None = self._section("flops_profiler", "output_file", None)
        return found

    def flops_profiler_recompute_fwd_factor(self) -> float:
        return float(self._section("flops_profiler", "recompute_fwd_factor", 0.0))

    def aio_config(self) -> dict[str, Any]:
        """The keys of `aio`; empty without ds-aio."""
        section = self.configuration.sections.get("aio")
        return asdict(section) if is_dataclass(section) and not isinstance(section, type) else {}

    def swap_tensor_config(self) -> dict[str, Any]:
        return self.aio_config()

    def checkpoint_serialization_enabled(self) -> bool:
        """False: checkpoints are safetensors files, never pickled."""
        return False

    def checkpoint_writer_enabled(self) -> bool:
        return self.configuration.section("checkpoint").writer is not None

    def log_level(self) -> str | None:
        found: str | None = self.configuration.general.log_level
        return found

    def graph_harvesting(self) -> bool:
        return bool(self.configuration.general.graph_harvesting)

    def managed_gradient_accumulation(self) -> bool:
        return bool(self.configuration.general.managed_gradient_accumulation)

    def autotp_size(self) -> int:
        """1: automatic tensor parallelism is not offered."""
        return 1

    def zenflow_config(self) -> None:
        """None: ZenFlow is not offered."""
        return None

    def super_offload(self) -> bool:
        """False: SuperOffload is not offered."""
        return False

    def cpuadam_cores_perc(self) -> float:
        return float(getattr(self._zero_part("offload_optimizer"), "cpuadam_cores_perc", 0.8))

    def quantize_training(self) -> bool:
        """False: training with fake quantisation is not offered."""
        return False

    def eigenvalue_enabled(self) -> bool:
        """False: curvature is not estimated."""
        return False

    def is_deepcompile_enabled(self) -> bool:
        """False: `compile()` is torch's."""
        return False

    is_deepcompile_active = is_deepcompile_enabled
    compile_zero_optimization_stage = is_deepcompile_enabled
    uses_parallelization_pass_only = is_deepcompile_enabled

    def is_elastic_model_parallel_supported(self) -> bool:
        """False; checkpoints load at any data-parallel size all the same."""
        return False

    def is_sanity_checks_enabled(self) -> bool:
        return bool(self._section("zero_optimization", "enable_sanity_checks", False))

    def mics_shard_size(self) -> int:
        """-1: MiCS is not offered."""
        return -1

    def zero_allgather_sequential(self) -> bool:
        return bool(self._section("zero_optimization", "stage3_allgather_sequential", False))

    def zero_log_trace_cache_warnings(self) -> bool:
        return bool(self._section("zero_optimization", "log_trace_cache_warnings", False))

    def zero_model_persistence_threshold(self) -> int:
        key = "stage3_model_persistence_threshold"
        return int(self._section("zero_optimization", key, 1 << 62))

    def zero_module_granularity_threshold(self) -> int:
        return int(self._section("zero_optimization", "stage3_module_granularity_threshold", 0))

    def zero_quantized_weights(self) -> bool:
        return bool(self._section("zero_optimization", "zero_quantized_weights", False))

    def zero_quantized_gradients(self) -> bool:
        return bool(self._section("zero_optimization", "zero_quantized_gradients", False))

    def zero_quantized_nontrainable_weights(self) -> bool:
        key = "zero_quantized_nontrainable_weights"
        return bool(self._section("zero_optimization", key, False))

    def zeropp_loco_param(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self._section(
            "zero_optimization", "zeropp_loco_param", None
        )
        return found

    def zero_legacy_stage1(self) -> bool:
        """False: there is one stage 1."""
        return False

    def zero_multi_rank_bucket_allreduce(self) -> bool:
        return bool(self._section("zero_optimization", "use_multi_rank_bucket_allreduce", True))

    def get_type(self) -> None:
        """None: momentum types of 1Cycle have no other name here."""
        return None

    @staticmethod
    def is_map_style_dataset(obj: Any) -> bool:
        return hasattr(obj, "__getitem__") and hasattr(obj, "__len__")

    @staticmethod
    def is_iterable_style_dataset(obj: Any) -> bool:
        return isinstance(obj, (IterableDataset, Iterable)) and not hasattr(obj, "__getitem__")

    def _section(self, name: str, key: str, default: Any) -> Any:
        """A key of a section; `default` where nothing installed serves it."""
        section = self.configuration.sections.get(name)
        return getattr(section, key, default)

    def _zero_part(self, name: str) -> Any:
        return self._section("zero_optimization", name, None)
