"""The training engine, its contracts and its first strategy."""

__version__ = "0.1.0"
