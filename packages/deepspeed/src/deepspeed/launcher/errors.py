"""What the launcher raises when it cannot start a job."""

from __future__ import annotations

from ds_core.errors import DSError


class LaunchError(DSError, ValueError):
    """A job that cannot be started as asked; the message gives the value, the rule, the remedy."""
