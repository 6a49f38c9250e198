"""ZeRO for PyTorch: optimizer state, gradients and parameters sharded over ranks."""

__version__ = "0.1.0"
