"""The whole training engine under the name that programs already use."""

__version__ = "0.20.0"
