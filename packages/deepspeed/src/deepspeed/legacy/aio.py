"""Where tensor I/O is found under its old import paths."""

from __future__ import annotations

_BUILDERS = "deepspeed.adapters.op_builder_aio"
_WRITERS = "deepspeed.adapters.file_writers"
_PARSER = "!the parts of ds_nvme_tune are not offered one by one; run the command, or ds_aio.tune"

_ASYNC_IO = {"AsyncIOBuilder": f"{_BUILDERS}:AsyncIOBuilder"}
_GDS = {"GDSBuilder": f"{_BUILDERS}:GDSBuilder"}

NAMES: dict[str, dict[str, str]] = {
    "deepspeed.ops.aio": _ASYNC_IO,
    "deepspeed.ops.gds": _GDS,
    "deepspeed.ops.op_builder": {**_ASYNC_IO, **_GDS},
    "deepspeed.ops.op_builder.async_io": _ASYNC_IO,
    "deepspeed.ops.op_builder.gds": _GDS,
    "deepspeed.io": {
        name: f"{_WRITERS}:{name}"
        for name in ("FastFileWriter", "FastFileWriterConfig", "MockFileWriter", "PyFileWriter")
    },
    "deepspeed.nvme": {
        "ds_io_main": "ds_aio.throughput:main",
        "sweep_main": _PARSER,
        "parse_sweep_arguments": _PARSER,
        "generate_main": _PARSER,
    },
}
