"""Tensors to and from storage at device speed."""

from ds_aio.engine import Engine, Options, Report, availability
from ds_aio.errors import (
    AccessDenied,
    AioError,
    BackendUnavailable,
    IsFolder,
    MissingFile,
    ShortFile,
    StoreError,
    TransferError,
    UnfitBuffer,
)
from ds_aio.faults import Faults
from ds_aio.files import File, open
from ds_aio.gds import GdsHandle, gds_handle, gds_unavailable
from ds_aio.handle import AioHandle, aio_handle
from ds_aio.memory import aligned_tensor
from ds_aio.safetensors_header import FormatError
from ds_aio.store import FileStore
from ds_aio.tensor_files import load, read_metadata, save
from ds_aio.transfer import Transfer

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "AioError",
    "AioHandle",
    "BackendUnavailable",
    "Engine",
    "Faults",
    "File",
    "FileStore",
    "FormatError",
    "GdsHandle",
    "IsFolder",
    "MissingFile",
    "Options",
    "Report",
    "ShortFile",
    "StoreError",
    "Transfer",
    "TransferError",
    "UnfitBuffer",
    "aio_handle",
    "aligned_tensor",
    "availability",
    "gds_handle",
    "gds_unavailable",
    "load",
    "open",
    "read_metadata",
    "save",
]
