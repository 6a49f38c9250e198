"""Ways to show a profile."""

from ds_profiler.report.text import text_report

__all__ = ["text_report"]
