"""What programs ask an engine about its data, curricula and token dropping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from deepspeed.config import Config
from ds_core.hooks import HookList


class DataAnswers:
    """A mixin of `DeepSpeedEngine`; ds-data is imported when one of its sections is used."""

    configuration: Config
    hooks: HookList
    training_dataloader: Any
    _post_process: Callable[[Any, dict[str, Any]], Any] | None = None

    def _data_efficiency(self) -> dict[str, Any]:
        section = self.configuration.sections.get("data_efficiency")
        return {} if section is None else asdict(section)  # type: ignore[call-overload]

    def data_efficiency_config(self) -> dict[str, Any]:
        return self._data_efficiency()

    def data_sampling_config(self) -> dict[str, Any]:
        found: dict[str, Any] = self._data_efficiency().get("data_sampling", {})
        return found

    def data_sampling_enabled(self) -> bool:
        enabled = self._data_efficiency().get("enabled", False)
        return bool(enabled and self.data_sampling_config().get("enabled", False))

    def curriculum_learning_config(self) -> dict[str, Any]:
        found: dict[str, Any] = self.data_sampling_config().get("curriculum_learning", {})
        return found

    def curriculum_learning_enabled(self) -> bool:
        chosen = self.curriculum_learning_config().get("enabled", False)
        return bool(self.data_sampling_enabled() and chosen)

    def curriculum_params_legacy(self) -> dict[str, Any] | None:
        section = self.configuration.sections.get("curriculum_learning")
        return None if section is None else asdict(section)  # type: ignore[call-overload]

    def random_ltd_config(self) -> dict[str, Any]:
        routing: dict[str, Any] = self._data_efficiency().get("data_routing", {})
        found: dict[str, Any] = routing.get("random_ltd", {})
        return found

    def random_ltd_enabled(self) -> bool:
        return self._hook("random_ltd") is not None

    @property
    def random_ltd_scheduler(self) -> Any:
        """The schedule of kept tokens, or None."""
        hook = self._hook("random_ltd")
        return None if hook is None else hook.schedule

    @property
    def curriculum_scheduler_legacy(self) -> Any:
        """The schedule of the top-level `curriculum_learning`, or None."""
        hook = self._hook("curriculum_learning")
        return None if hook is None else hook.schedule

    @property
    def progressive_layer_drop(self) -> Any:
        """The `ProgressiveLayerDrop`, or None."""
        hook = self._hook("progressive_layer_drop")
        return None if hook is None else hook.layer_drop

    def pld_params(self) -> dict[str, Any]:
        section: Any = self.configuration.sections.get("progressive_layer_drop")
        return {} if section is None else {"theta": section.theta, "gamma": section.gamma}

    def pld_theta(self) -> float | None:
        found: float | None = self.pld_params().get("theta")
        return found

    def pld_gamma(self) -> float | None:
        found: float | None = self.pld_params().get("gamma")
        return found

    def get_pld_theta(self) -> float | None:
        """The share of layers kept now, or None without layer drop."""
        drop = self.progressive_layer_drop
        return None if drop is None else float(drop.get_theta())

    def curriculum_io(self, dataset: Any, collate_fn: Any, *, drop_last: bool) -> Any:
        """The loader of `data_sampling`; its state joins the engine's checkpoints."""
        from deepspeed.adapters.data import curriculum_loader, data_efficiency, keep_state
        from ds_data import Shares

        batch, data = self.configuration.batch, self.groups.data  # type: ignore[attr-defined]
        shares = Shares(
            micro_batch_size=batch.micro,
            rank=data.rank,
            world_size=data.world_size,
            accumulation_steps=batch.accumulation,
        )
        loader = curriculum_loader(
            dataset,
            data_efficiency(self.configuration),
            shares,
            collate_fn=collate_fn,
            drop_last=drop_last,
        )
        loader.post_process = self._post_process
        keep_state(self, "data_sampler", loader)
        return loader

    def set_data_post_process_func(
        self, post_process_func: Callable[[Any, dict[str, Any]], Any]
    ) -> None:
        """Call `post_process_func(batch, sampler_state)` on each batch of the curriculum's
        loader; `sampler_state["current_difficulties"]` tells the difficulty of each metric."""
        self._post_process = post_process_func
        if self.training_dataloader is not None:
            self.training_dataloader.post_process = post_process_func

    def set_custom_curriculum_learning_schedule(
        self, schedule_func_dict: Mapping[str, Callable[[int], int]]
    ) -> None:
        """The function from step to difficulty of each `custom` metric."""
        from deepspeed.adapters.data import set_custom_schedules

        if self.curriculum_scheduler_legacy is not None and not self.curriculum_learning_enabled():
            for function in schedule_func_dict.values():
                self.curriculum_scheduler_legacy.set_custom_get_difficulty(function)
            return
        set_custom_schedules(self.training_dataloader.sampler, schedule_func_dict)

    def random_ltd_initialize(self) -> None:
        """Nothing to do: wrapped layers are found before the next forward."""

    def _hook(self, key: str) -> Any:
        return next((hook for hook in self.hooks.hooks if hook.key == key), None)
