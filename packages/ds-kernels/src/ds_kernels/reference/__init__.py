"""Plain torch versions of every kernel: the fallback, and what the tests compare against."""

from ds_kernels.reference.many import update_many
from ds_kernels.reference.updates import update

__all__ = ["update", "update_many"]
