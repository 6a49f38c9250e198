"""The search for the settings that suit a device."""

from ds_aio.tune.sweep import Point, Space, best_point, sweep

__all__ = ["Point", "Space", "best_point", "sweep"]
