"""A profile as one HTML page that needs nothing else."""

from __future__ import annotations

import html
import json
from importlib import resources

from ds_profiler.result import Profile


def html_report(profile: Profile, *, title: str | None = None) -> str:
    """A page with a zoomable icicle chart and a sortable table; works without a network.

    The page carries the profile's JSON (`Profile.to_dict`) in an element with the id `profile`,
    and draws everything from it.
    """
    page = resources.files("ds_profiler.report").joinpath("page.html").read_text(encoding="utf-8")
    with profile.room():
        text = json.dumps(profile.to_dict())
    data = text.replace("<", "\\u003c")  # no text may end the element
    heading = html.escape(title or f"Profile of {profile.root.kind}")
    parts = (part.replace("{{title}}", heading) for part in page.split("{{profile}}"))
    return data.join(parts)
