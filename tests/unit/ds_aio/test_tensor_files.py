"""State dicts survive, in the format others read, within bounded memory."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import ds_aio
from ds_aio import Faults, FormatError, Options
from ds_aio.safetensors_header import parse_header, plan_layout

from .conftest import random_bytes


def state() -> dict[str, torch.Tensor]:
    return {
        "layers.0.weight": torch.randn(1000, 700),
        "layers.0.bias": torch.randn(700).bfloat16(),
        "half": torch.randn(3, 5).half(),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "odd": random_bytes(1001),
        "flags": torch.tensor([True, False, True]),
        "long": torch.arange(7),
        "strided": torch.randn(900, 800).t()[::2],
        "small float": torch.randn(33).to(torch.float8_e4m3fn),
        "complex": torch.randn(9, dtype=torch.complex64).conj(),
        "näme": torch.ones(2, requires_grad=True),
    }


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    def bits(t: torch.Tensor) -> torch.Tensor:
        return t.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8)

    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype
        and a[k].shape == b[k].shape
        and torch.equal(bits(a[k]), bits(b[k]))
        for k in a
    )


def test_what_is_saved_is_loaded(backend: str, folder: Path) -> None:
    options = Options(backend=backend)
    kept = state()
    ds_aio.save(folder / "m", kept, metadata={"a": "1"}, options=options)
    assert same(ds_aio.load(folder / "m", options=options), kept)
    assert ds_aio.read_metadata(folder / "m") == {"a": "1"}


def test_some_names_are_loaded_alone(tmp_path: Path) -> None:
    tensors = state()
    ds_aio.save(tmp_path / "m", tensors)
    names = ["odd", "layers.0.weight", "empty"]
    assert same(ds_aio.load(tmp_path / "m", names=names), {n: tensors[n] for n in names})
    with pytest.raises(KeyError, match="nothing"):
        ds_aio.load(tmp_path / "m", names=["nothing"])


def test_no_tensors_are_a_file_too(tmp_path: Path) -> None:
    ds_aio.save(tmp_path / "m", {})
    assert ds_aio.load(tmp_path / "m") == {}


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    ds_aio.save(tmp_path / "m", {"a": torch.ones(3)})
    faults = Faults(fail_errno=errno.EIO, fail_offset=4096)
    with pytest.raises(ds_aio.TransferError):
        ds_aio.save(tmp_path / "m", {"a": torch.zeros(5000)}, options=Options(faults=faults))
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert same(ds_aio.load(tmp_path / "m"), {"a": torch.ones(3)})


def test_each_large_tensor_has_memory_of_its_own(tmp_path: Path) -> None:
    ds_aio.save(tmp_path / "m", {"a": torch.ones(400_000), "b": torch.ones(400_000)})
    loaded = ds_aio.load(tmp_path / "m")
    assert all(t.untyped_storage().nbytes() == 1_600_000 for t in loaded.values())


@pytest.mark.parametrize("keep", [0, 7, 8, 100, 5000])
def test_a_cut_file_is_refused(tmp_path: Path, keep: int) -> None:
    ds_aio.save(tmp_path / "m", {"a": torch.ones(1000)})
    (tmp_path / "m").write_bytes((tmp_path / "m").read_bytes()[:keep])
    with pytest.raises(FormatError):
        ds_aio.load(tmp_path / "m")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]},
        {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1]},
        {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0.0, 4.0]},
        [],
    ],
)
def test_a_header_that_lies_is_refused(entry: object) -> None:
    text = json.dumps({"a": entry}).encode()
    with pytest.raises(FormatError):
        parse_header(text, 8 + len(text) + 4)


def test_a_header_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(FormatError):
        parse_header(b"[" * 100_000, 100_008)


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({1: torch.ones(1)}, {}),
        ({"\udce9": torch.ones(1)}, {}),
        ({"a": torch.ones(1)}, {"step": 3}),
    ],
)
def test_names_and_metadata_are_text(
    tmp_path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]
) -> None:
    with pytest.raises(FormatError, match="text"):
        ds_aio.save(tmp_path / "m", tensors, metadata=metadata)


def test_wide_dtypes_come_first_so_that_all_are_aligned() -> None:
    layout = plan_layout(state(), {})
    assert len(layout.header) % 4096 == 0
    assert all(e.start % e.dtype.itemsize == 0 for e in layout.entries)


def test_saving_and_loading_need_little_extra_memory(tmp_path: Path) -> None:
    code = (
        "import sys, torch, ds_aio\n"
        "status = lambda: open('/proc/self/status').read()\n"
        "peak = lambda: int(status().split('VmHWM:')[1].split()[0]) >> 10\n"
        "t = {'a': torch.ones(1 << 26), 'b': torch.ones(8192, 8192).t()}\n"
        "before = peak(); ds_aio.save(sys.argv[1], t); extra = peak() - before\n"
        "assert extra < 256, f'save took {extra} MiB'\n"
        "del t; before = peak(); t = ds_aio.load(sys.argv[1])\n"
        "assert peak() - before < 256, 'load took too much'\n"
        "assert t['a'].sum() == 1 << 26\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "m"], check=True, timeout=120)
    (tmp_path / "m").unlink()


KILLED_SAVE = """
import os, signal, sys, torch, ds_aio
from ds_aio.aside import Aside
aside = Aside(sys.argv[1])
print(aside.path, flush=True)
sys.stdin.readline()
"""


def test_what_a_killed_save_left_is_removed_by_the_next_and_a_live_save_is_not(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", KILLED_SAVE, str(tmp_path / "m")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    dead, live = (subprocess.Popen(command, **pipes) for _ in range(2))  # type: ignore[call-overload]
    left, held = (Path(job.stdout.readline().strip()) for job in (dead, live))
    dead.kill()
    dead.communicate()
    others = [tmp_path / "m.5.part", tmp_path / "mm.5.01234567.part", tmp_path / "m.5.0123456.part"]
    for path in others:
        path.touch()
    ds_aio.save(tmp_path / "m", {"a": torch.ones(3)})
    assert not left.exists()
    assert {held, *others} <= set(tmp_path.iterdir())
    live.communicate("\n")


def wait_for_removals() -> None:
    for thread in threading.enumerate():
        if thread.name == "ds_aio remove":
            thread.join()


def test_a_large_file_that_is_replaced_is_removed_after_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ds_aio.aside.LARGE", 0)
    gate, unlink = threading.Event(), os.unlink
    monkeypatch.setattr("os.unlink", lambda path: (gate.wait(20), unlink(path)))
    ds_aio.save(tmp_path / "m", {"a": torch.ones(3)})
    ds_aio.save(tmp_path / "m", {"a": torch.zeros(3)})
    assert len(list(tmp_path.iterdir())) == 2
    gate.set()
    wait_for_removals()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert same(ds_aio.load(tmp_path / "m"), {"a": torch.zeros(3)})


@pytest.mark.parametrize("refused", ["link", "replace"])
def test_where_a_large_file_cannot_be_replaced_that_way_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "refused")

    monkeypatch.setattr("ds_aio.aside.LARGE", 0)
    ds_aio.save(tmp_path / "m", {"a": torch.ones(3)})
    monkeypatch.setattr(f"os.{refused}", refuse)
    with pytest.raises(PermissionError) if refused == "replace" else contextlib.nullcontext():
        ds_aio.save(tmp_path / "m", {"a": torch.zeros(3)})
    wait_for_removals()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert ds_aio.load(tmp_path / "m")["a"].eq(refused == "replace").all()


def test_saves_to_one_path_side_by_side_do_not_take_each_other_for_dead(tmp_path: Path) -> None:
    def save(value: int) -> None:
        for _ in range(40):
            ds_aio.save(tmp_path / "m", {"a": torch.full((9,), value)}, durable=False)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(4)))
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert len(ds_aio.load(tmp_path / "m")["a"].unique()) == 1
