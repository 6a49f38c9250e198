"""Writing a profile in the form that the file's name asks for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ds_profiler.report.html import html_report
from ds_profiler.report.text import text_report
from ds_profiler.report.trace import chrome_trace
from ds_profiler.result import Profile


def write_report(
    profile: Profile,
    output_file: str | Path | None = None,
    *,
    profile_step: int = 1,
    module_depth: int = -1,
    top_modules: int = 1,
    detailed: bool = True,
) -> None:
    """Write to a file: `.html`, `.json`, `.trace.json` (Chrome trace), otherwise text.

    None writes text to standard output. The other arguments are those of `text_report`.
    """
    name = "" if output_file is None else str(output_file).lower()
    if name.endswith(".html"):
        text = html_report(profile)
    elif name.endswith(".trace.json"):
        text = json.dumps(chrome_trace(profile))
    elif name.endswith(".json"):
        text = json.dumps(profile.to_dict(), indent=1)
    else:
        text = text_report(
            profile,
            profile_step=profile_step,
            module_depth=module_depth,
            top_modules=top_modules,
            detailed=detailed,
        )
    write_text(text, output_file)


def write_text(text: str, output_file: str | Path | None) -> None:
    """Write `text` to a file, making its folder, or to standard output."""
    if output_file is None:
        sys.stdout.write(text)
        return
    path = Path(output_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
