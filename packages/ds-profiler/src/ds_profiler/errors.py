"""The exceptions of this package."""

from __future__ import annotations


class ProfilerError(Exception):
    """Root of every error raised here; the message says what was wrong and what to do."""


class UsageError(ProfilerError):
    """A call in the wrong order or with an argument that cannot work."""


class MissingExtra(ProfilerError):
    """An optional library is needed and not installed."""

    def __init__(self, what: str, module: str, extra: str) -> None:
        super().__init__(f"{what} needs the library '{module}': pip install 'ds-profiler[{extra}]'")
