"""Which path steps, and what is said about it (cases 1.4 and 1.5)."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from ds_kernels import BackendError, CPUAdam, backend, report


def test_every_level_of_the_machine_can_be_demanded(level: str) -> None:
    assert backend.select() == backend.Backend(level, "demanded by DS_KERNELS_ISA")


def test_the_fastest_level_is_picked_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backend.FORCE_VARIABLE, raising=False)
    chosen = backend.select()
    assert chosen.name == backend.available()[-1]
    assert "fastest" in chosen.reason


def test_an_unknown_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backend.FORCE_VARIABLE, "mmx")
    with pytest.raises(BackendError, match="mmx is unknown; choose one of scalar, avx2, avx512"):
        backend.select()


def test_a_level_the_processor_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backend.FORCE_VARIABLE, "avx512")
    monkeypatch.setattr(backend, "native_levels", lambda: (("scalar",), ""))
    with pytest.raises(BackendError, match="avx512 cannot be used: this processor has only scalar"):
        backend.select()


@pytest.fixture
def no_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither the compiled module nor what was learnt from it."""
    monkeypatch.setitem(sys.modules, "ds_kernels._native", None)
    backend.load_native.cache_clear()
    backend.native_levels.cache_clear()
    yield
    backend.native_levels.cache_clear()


@pytest.mark.usefixtures("no_module")
def test_without_the_compiled_module_torch_steps_and_the_reason_names_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(backend.FORCE_VARIABLE, raising=False)
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    CPUAdam([param], lr=0.5).step()
    assert param.tolist() == pytest.approx([0.5] * 3)
    assert "ds_kernels/_native" in backend.select().reason
    assert "reinstall" in backend.select().reason


@pytest.mark.usefixtures("no_module")
def test_a_demanded_level_without_the_module_fails_with_file_and_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(backend.FORCE_VARIABLE, "avx2")
    with pytest.raises(BackendError, match=r"ds_kernels/_native.*reinstall ds-kernels"):
        backend.select()


def test_the_report_names_path_and_reason_of_every_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(backend.FORCE_VARIABLE, raising=False)
    rows = {row.name: row for row in report()}
    assert rows["cpu_adam"].path == backend.available()[-1]
    assert {"cpu_lamb", "fused_adam", "fp_quantizer", "muon"} <= set(rows)
    assert all(row.reason and "\n" not in row.reason for row in rows.values())


@pytest.mark.usefixtures("no_module")
def test_the_report_tells_that_the_module_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backend.FORCE_VARIABLE, raising=False)
    assert report()[0].path == "torch"
    assert "ds_kernels/_native" in report()[0].reason
