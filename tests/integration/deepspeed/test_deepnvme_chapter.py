"""Every fragment of the DeepNVMe chapter as it stands there, with smaller tensors, on the CPU."""

from __future__ import annotations

import doctest
import json
import pydoc
from pathlib import Path

import pytest

from deepspeed.ops.op_builder import AsyncIOBuilder, GDSBuilder, OpBuilder
from ds_aio.tune import command

SIZE = 1024**2 * 5
START = """
>>> import os
>>> os.path.isfile('/local_nvme/test_1GB.pt')
False
>>> import torch
"""
END = """
>>> os.path.isfile('/local_nvme/test_1GB.pt')
True
>>> os.path.getsize('/local_nvme/test_1GB.pt')
1073741824
"""
BLOCKING = """
>>> t=torch.empty(1024**3, dtype=torch.uint8).cuda()
>>> from deepspeed.ops.op_builder import AsyncIOBuilder
>>> h = AsyncIOBuilder().load().aio_handle()
>>> h.sync_pwrite(t,'/local_nvme/test_1GB.pt')
1
"""
NON_BLOCKING = """
>>> t=torch.empty(1024**3, dtype=torch.uint8).cuda()
>>> from deepspeed.ops.op_builder import AsyncIOBuilder
>>> h = AsyncIOBuilder().load().aio_handle()
>>> h.async_pwrite(t,'/local_nvme/test_1GB.pt')
0
>>> h.wait()
1
"""
# The chapter shows what not to do; this is what it says to do instead.
NO_RACE = NON_BLOCKING + ">>> t += 1\n"
PARALLEL = NON_BLOCKING.replace("aio_handle()", "aio_handle(intra_op_parallelism=4)")
# Without a GPU torch pins nothing; the handle locks host memory itself.
PINNED = """
>>> from deepspeed.ops.op_builder import AsyncIOBuilder
>>> h = AsyncIOBuilder().load().aio_handle()
>>> t=h.new_cpu_locked_tensor(1024**3, torch.empty(0, dtype=torch.uint8))
>>> h.async_pwrite(t,'/local_nvme/test_1GB.pt')
0
>>> h.wait()
1
>>> h.free_cpu_locked_tensor(t)
True
"""
PINNED_DEVICE = """
>>> t=torch.empty(1024**3, dtype=torch.uint8).cuda()
>>> from deepspeed.ops.op_builder import GDSBuilder
>>> h = GDSBuilder().load().gds_handle()
>>> _ = h.pin_device_tensor(t)
>>> h.async_pwrite(t,'/local_nvme/test_1GB.pt')
0
>>> h.wait()
1
"""
UNPIN = ">>> _ = h.unpin_device_tensor(t)\n"
TUNED = """
>>> from deepspeed.ops.op_builder import AsyncIOBuilder
>>> h = AsyncIOBuilder().load().aio_handle(block_size=1048576,
...                                        queue_depth=32,
...                                        single_submit=False,
...                                        overlap_events=True,
...                                        intra_op_parallelism=8)
>>> t=torch.empty(1024**3, dtype=torch.uint8).cuda()
>>> h.sync_pwrite(t,'/local_nvme/test_1GB.pt')
1
>>> h.sync_pread(t,'/local_nvme/test_1GB.pt')
1
"""
FRAGMENTS = {
    "blocking": START + BLOCKING + END,
    "non-blocking": START + NON_BLOCKING + END,
    "no race": START + NO_RACE + END,
    "parallel": START + PARALLEL + END,
    "pinned": START + PINNED + END,
    "pinned device": START + PINNED_DEVICE + END + UNPIN,
    "tuned": START + TUNED + END,
}


@pytest.mark.parametrize("name", FRAGMENTS)
def test_a_fragment_does_what_the_chapter_shows(name: str, tmp_path: Path) -> None:
    text = FRAGMENTS[name].replace("/local_nvme", str(tmp_path)).replace(".cuda()", "")
    text = text.replace("1024**3", str(SIZE)).replace("1073741824", str(SIZE))
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    failures: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=failures.append)
    assert result.attempted > 8
    assert not result.failed, "".join(failures)


def test_both_handles_are_made_as_shown() -> None:
    aio_handle = AsyncIOBuilder().load().aio_handle()
    gds_handle = GDSBuilder().load().gds_handle()
    for name in ("queue_depth", "single_submit", "intra_op_parallelism", "block_size"):
        assert getattr(aio_handle, f"get_{name}")() == getattr(gds_handle, f"get_{name}")()
    assert gds_handle.get_overlap_events() is False
    device = {"new_pinned_device_tensor", "free_pinned_device_tensor"}
    assert device <= set(dir(gds_handle))


def test_help_shows_the_defaults_of_the_constructor() -> None:
    shown = pydoc.render_doc(AsyncIOBuilder().load().aio_handle(), renderer=pydoc.plaintext)
    for text in (
        "block_size: 'int' = 1048576",
        "queue_depth: 'int' = 128",
        "single_submit: 'bool' = False",
        "overlap_events: 'bool' = False",
        "intra_op_parallelism: 'int' = 1",
    ):
        assert text in shown


def test_what_tuning_recommends_makes_a_handle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "sweep.json"
    sweep.write_text(json.dumps({"block_size": ["1M"], "queue_depth": [4], "io_parallel": [1, 8]}))
    arguments = ["--nvme_dir", str(tmp_path), "--sweep_config", str(sweep), "--io_size", "2M"]
    assert command.main([*arguments, "--loops", "1", "--log_dir", str(tmp_path / "logs")]) == 0
    printed = capsys.readouterr().out
    assert "Running DeepNVMe performance tuning on" in printed
    assert "Best performance (GB/sec): read =" in printed
    found, _ = json.JSONDecoder().raw_decode(printed, printed.index("{\n"))
    found = found["aio"]
    assert set(found) >= {"single_submit", "overlap_events", "intra_op_parallelism", "queue_depth"}
    handle = AsyncIOBuilder().load().aio_handle(**found)
    assert handle.get_block_size() == 1048576


def test_the_options_of_the_tuner_are_the_listed_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    listed = "nvme_dir sweep_config no_read no_write io_size gpu gds flush_page_cache log_dir loops"
    shown = capsys.readouterr().out
    assert all(f"--{name}" in shown for name in [*listed.split(), "verbose"])


@pytest.mark.parametrize("builder", [AsyncIOBuilder, GDSBuilder])
def test_the_builders_of_tensor_io_are_op_builders(builder: type[OpBuilder]) -> None:
    assert isinstance(builder(), OpBuilder)
    assert builder().absolute_name().startswith("ds_aio.")
    assert builder().jit_load() is not None
    assert builder().sources() == []
