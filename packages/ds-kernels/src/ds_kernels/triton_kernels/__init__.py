"""Multi-tensor optimizer steps as Triton kernels. Importing this package imports triton."""

from ds_kernels.triton_kernels.launch import run

__all__ = ["run"]
