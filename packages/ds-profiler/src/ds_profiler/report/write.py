"""Writing a profile in the form that the file's name asks for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal

from ds_profiler.errors import UsageError
from ds_profiler.report.html import html_report
from ds_profiler.report.text import text_report
from ds_profiler.report.trace import chrome_trace
from ds_profiler.result import Profile

Form = Literal["html", "json", "trace", "text"]

_ENDINGS: dict[str, Form] = {
    ".html": "html",
    ".trace.json": "trace",
    ".json": "json",
    ".txt": "text",
    ".log": "text",
}


def form_of(output_file: str | Path, *, unknown: Form | None = None) -> Form:
    """The form that a file's name asks for; text where it has no ending.

    Args:
        output_file: the name.
        unknown: the form for other endings.

    Raises:
        UsageError: nothing is known of its ending, and `unknown` is None.
    """
    path = Path(output_file)
    for ending, form in _ENDINGS.items():
        if path.name.lower().endswith(ending):
            return form
    if not path.suffix:
        return "text"
    if unknown is not None:
        return unknown
    raise UsageError(
        f"{str(output_file)!r}: a report's name ends in {', '.join(_ENDINGS)}, or has no ending "
        "(text); form='text' writes text under any name"
    )


def write_report(
    profile: Profile,
    output_file: str | Path | None = None,
    *,
    profile_step: int = 1,
    module_depth: int = -1,
    top_modules: int = 1,
    detailed: bool = True,
    form: Form | None = None,
) -> None:
    """Write to a file: `.html`, `.json`, `.trace.json` (Chrome trace), `.txt`, `.log`.

    None writes text to standard output. `form` says what to write whatever the file is called.
    The other arguments are those of `text_report`.
    """
    if form is None:
        form = "text" if output_file is None else form_of(output_file)
    if form == "html":
        text = html_report(profile)
    elif form == "trace":
        text = json.dumps(chrome_trace(profile))
    elif form == "json":
        text = profile.to_json()
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
