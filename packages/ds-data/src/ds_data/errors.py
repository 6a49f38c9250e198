"""What ds_data raises."""

from __future__ import annotations


class DataError(Exception):
    """Root of every error of this package."""


class RuleError(DataError, ValueError):
    """A value breaks a rule; the message says which, and what to do."""


class FormatError(DataError):
    """A file is not what its name or header says."""


class MissingPart(DataError):
    """A piece that another worker should have written is not there."""
