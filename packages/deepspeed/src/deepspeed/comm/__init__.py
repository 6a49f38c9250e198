"""`torch.distributed` under the name that programs use, with taps for observers."""

from deepspeed.comm.facade import *  # noqa: F403  (the facade's `__all__` is this package's face)
from deepspeed.comm.facade import __all__ as __all__
