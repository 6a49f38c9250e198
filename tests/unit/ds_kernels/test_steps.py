"""The functional steps: slices, dtype mixtures, several tensors, background, instruction levels."""

from __future__ import annotations

import itertools
import math
import os
import threading

import numpy as np
import pytest
import torch
from torch import Tensor

from ds_kernels import (
    OptionError,
    StepQueue,
    adagrad_step,
    adam_step,
    backend,
    lamb_step,
    lion_step,
    sgd_step,
)

pytestmark = pytest.mark.native

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FLUSHED = 1.2e-38  # smaller numbers count as zero
HYPER = {"lr": 1e-2, "weight_decay": 0.1}


def buffers(size: int, offset: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Master, gradient, first and second moment as slices at an offset."""
    whole = torch.randn(4, size + offset)
    master, grad, first, second = (row[offset:] for row in whole)
    return master, grad, first, second.abs_()


def adam_formula(
    master: Tensor, grad: Tensor, first: Tensor, second: Tensor, step: int, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """AdamW in float64, as in the paper."""
    p, g, m, v = (t.double() for t in (master, grad, first, second))
    g = g * scale
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    update = (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
    return p - 1e-2 * 0.1 * p - 1e-2 * update, m, v


@pytest.mark.parametrize("offset", [0, 1, 3, 8])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 15, 17, 1025])
def test_adam_on_slices_leaves_the_neighbours_alone(size: int, offset: int, level: str) -> None:
    whole = torch.rand(4, size + offset + 3)
    before = whole.clone()
    master, grad, first, second = (row[offset : offset + size] for row in whole)
    wanted, _, wanted_second = adam_formula(master, grad, first, second, 3)
    adam_step(master, grad, first, second, step=3, **HYPER)
    assert torch.allclose(master.double(), wanted, rtol=1e-6, atol=1e-7)
    assert torch.allclose(second.double(), wanted_second, rtol=1e-6, atol=0)
    assert torch.equal(whole[:, :offset], before[:, :offset])
    assert torch.equal(whole[:, offset + size :], before[:, offset + size :])


@pytest.mark.parametrize(
    ("param", "grad", "moments", "copy"), [*itertools.product(DTYPES, DTYPES, DTYPES[:2], DTYPES)]
)
def test_every_mixture_of_dtypes_rounds_the_float64_result(
    param: torch.dtype, grad: torch.dtype, moments: torch.dtype, copy: torch.dtype, level: str
) -> None:
    types = (param, grad, moments, moments)
    tensors = [t.to(kind) for t, kind in zip(buffers(1025, 1), types, strict=True)]
    out = torch.full((1025,), 7.0, dtype=copy)
    wanted = adam_formula(*tensors, step=2, scale=0.5)
    adam_step(*tensors, out, step=2, grad_scale=0.5, **HYPER)
    for actual, exact in zip([tensors[0], *tensors[2:], out], [*wanted, wanted[0]], strict=True):
        eps = max(torch.finfo(actual.dtype).eps, 1e-6)
        torch.testing.assert_close(actual.double(), exact, rtol=eps, atol=eps * 1e-2)


@pytest.mark.parametrize("kind", DTYPES[1:])
def test_rounding_to_low_precision_is_torchs(kind: torch.dtype, level: str) -> None:
    """ties, subnormals, overflow to infinity, infinity, NaN."""
    tiny, top = torch.finfo(kind).tiny, torch.finfo(kind).max
    special = [0.0, tiny, tiny / 3, -tiny / 7, top, top * 1.0001, torch.inf, -torch.inf]
    ties = 1.0 + torch.arange(64) * torch.finfo(kind).eps / 4
    grad = torch.cat([torch.tensor([*special, torch.nan]), ties, torch.randn(999) * 100])
    master, out = torch.zeros_like(grad), torch.empty_like(grad, dtype=kind)
    sgd_step(master, grad, None, out, step=1, lr=-1.0)
    torch.testing.assert_close(out, grad.to(kind), rtol=0, atol=FLUSHED, equal_nan=True)


@pytest.mark.parametrize("kind", DTYPES[1:])
def test_reading_low_precision_is_exact_for_every_bit_pattern(
    kind: torch.dtype, level: str
) -> None:
    bits = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)
    grad, master = bits.view(kind), torch.zeros(65536)
    sgd_step(master, grad, step=1, lr=-1.0)
    finite = grad.isfinite()
    torch.testing.assert_close(master[finite], grad[finite].float(), rtol=0, atol=FLUSHED)
    assert not master[~finite].isfinite().any()


def test_results_do_not_depend_on_cuts_or_threads(level: str) -> None:
    whole = buffers(200_001)
    parts = [t.clone() for t in whole]
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    adam_step(*whole, step=1, **HYPER)
    torch.set_num_threads(threads)
    cuts = [slice(0, 1), slice(1, 70_000), slice(70_000, 70_017), slice(70_017, None)]
    adam_step(*[[t[cut] for cut in cuts] for t in parts], step=1, **HYPER)
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


def test_lamb_does_not_depend_on_threads(level: str) -> None:
    one = buffers(200_001)
    three = [t.clone() for t in one]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    first = lamb_step(*one, step=1, **HYPER)
    torch.set_num_threads(3)
    second = lamb_step(*three, step=1, **HYPER)
    torch.set_num_threads(threads)
    assert first == second
    assert torch.equal(one[0], three[0])


def test_levels_agree_within_a_few_ulp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 1.5: one binary, all levels, the same tensors."""
    start, results = buffers(1025), []
    for name in backend.available():
        monkeypatch.setenv(backend.FORCE_VARIABLE, name)
        tensors = [t.clone() for t in start]
        for step in range(1, 11):
            adam_step(*tensors, step=step, **HYPER)
        results.append(tensors[0])
    assert all(torch.allclose(results[0], r, rtol=5e-7, atol=5e-8) for r in results)


@pytest.mark.parametrize("name", [name for name in backend.available() if name != "torch"])
def test_every_root_is_the_nearest_number(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mantissas of both parities of the exponent, exponents -120 to 100, zero and infinity."""
    mantissas = torch.linspace(1.0, 4.0, 300_007)
    powers = 2.0 ** torch.arange(-120, 100, dtype=torch.float64)
    sums = torch.cat([mantissas, *(mantissas[:97].double() * power for power in powers)]).float()
    sums = torch.cat([sums, torch.tensor([0.0, torch.inf])])
    grad = torch.full_like(sums, 2.0**-75)  # its square is too small to count
    with np.errstate(divide="ignore"):
        wanted = torch.from_numpy(grad.numpy() / np.sqrt(sums.numpy()))  # torch's may be one off
    master = torch.zeros_like(sums)
    monkeypatch.setenv(backend.FORCE_VARIABLE, name)
    adagrad_step(master, grad, sums, step=1, lr=-1.0, eps=0.0)
    assert torch.equal(master, wanted)


def test_background_steps_run_in_order_and_finish() -> None:
    queue, now, later = StepQueue(), buffers(100_000), []
    sync = [t.clone() for t in now]
    for step in range(1, 6):
        later.append(adam_step(*now, step=step, queue=queue, **HYPER))
        adam_step(*sync, step=step, **HYPER)
    for handle in later:
        handle.wait()
        handle.wait()
        assert handle.done()
    assert torch.equal(now[0], sync[0])


def test_a_dropped_handle_has_finished_its_work() -> None:
    tensors = buffers(500_000)
    same = [t.clone() for t in tensors]
    adam_step(*tensors, step=1, queue=StepQueue(), **HYPER)
    adam_step(*same, step=1, **HYPER)
    assert torch.equal(tensors[0], same[0])


def test_each_algorithm_takes_several_tensors(level: str) -> None:
    sizes = [5, 0, 1025]
    columns = list(zip(*[buffers(size) for size in sizes], strict=True))
    master, grad, first, second = [list(column) for column in columns]
    before = [t.clone() for t in master]
    adagrad_step(master, grad, second, step=1, lr=1e-2)
    lion_step(master, grad, first, lr=1e-2)
    sgd_step(master, grad, first, step=1, lr=1e-2, momentum=0.9)
    changed = [not torch.equal(a, b) for a, b in zip(master, before, strict=True)]
    assert changed == [True, False, True]


def test_steps_count_from_one() -> None:
    with pytest.raises(OptionError, match="step is 0; steps count from 1"):
        adam_step(*buffers(3), step=0, **HYPER)


def test_momentum_needs_its_buffer() -> None:
    with pytest.raises(OptionError, match="needs a momentum_buffer"):
        sgd_step(*buffers(3)[:2], step=1, lr=0.1, momentum=0.9)


def _child_steps(tensors: list[Tensor], queue: StepQueue) -> None:
    adam_step(*tensors, step=2, queue=queue, **HYPER).wait()
    values = tensors[0][:9].tolist()  # nothing that starts torch's own threads, which forks lack
    os._exit(0 if all(map(math.isfinite, values)) else 1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    queue, tensors = StepQueue(), buffers(200_000)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    adam_step(*tensors, step=1, queue=queue, **HYPER).wait()
    child = os.fork()
    if child == 0:
        _child_steps(tensors, queue)
    torch.set_num_threads(threads)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_steps_from_several_threads_take_turns() -> None:
    problems = [buffers(300_000) for _ in range(4)]
    copies = [[t.clone() for t in problem] for problem in problems]
    workers = [
        threading.Thread(target=adam_step, args=problem, kwargs={"step": 1, **HYPER})
        for problem in problems
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for problem, copy in zip(problems, copies, strict=True):
        adam_step(*copy, step=1, **HYPER)
        assert torch.equal(problem[0], copy[0])


def test_moments_that_decay_to_nothing_become_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subnormal numbers would slow every later step down several times."""
    from ds_kernels import backend

    for name in backend.available()[1:]:
        monkeypatch.setenv(backend.FORCE_VARIABLE, name)
        master, grad, first, second = torch.ones(33), *torch.zeros(3, 33)
        first.fill_(1e-42)
        adam_step(master, grad, first, second, step=9, **HYPER)
        assert not first.any()
    assert torch.tensor(1e-42) * 0.5 > 0  # the caller's own arithmetic keeps them
