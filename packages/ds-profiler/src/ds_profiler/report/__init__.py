"""Ways to show a profile."""

from ds_profiler.report.compare import Change, compare, comparison_text
from ds_profiler.report.html import html_report
from ds_profiler.report.table import rich_table
from ds_profiler.report.text import aggregated_report, text_report
from ds_profiler.report.trace import chrome_trace
from ds_profiler.report.write import write_report

__all__ = [
    "Change",
    "aggregated_report",
    "chrome_trace",
    "compare",
    "comparison_text",
    "html_report",
    "rich_table",
    "text_report",
    "write_report",
]
