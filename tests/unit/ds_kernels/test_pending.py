"""Steps under way when their memory is let go of, or when the process is forked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ds_kernels import StepQueue, adam_step
from ds_kernels.errors import BackendError
from ds_kernels.pending import PendingStep

pytestmark = [
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def buffers(size: int) -> list[Tensor]:
    return [torch.ones(size) for _ in range(4)]


def exit_code_of_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_tensors_may_be_given_other_memory_while_a_step_writes_the_old() -> None:
    tensors = buffers(5_000_000)
    pending = adam_step(*tensors, step=1, lr=0.1, queue=StepQueue())
    for tensor in tensors:
        tensor.data = torch.empty(0)
    pending.wait()


def test_a_forked_child_drops_a_queue_that_idles_in_its_parent() -> None:
    queues = [StepQueue()]
    adam_step(*buffers(9), step=1, lr=0.1, queue=queues[0]).wait()
    time.sleep(0.05)  # its thread waits for more
    assert exit_code_of_child(queues.clear) == 0


def test_a_forked_child_neither_hangs_on_nor_claims_a_step_of_its_parent() -> None:
    class Ticket:  # of a step that stays under way
        def done(self) -> bool:
            return False

    pending = PendingStep(Ticket(), ())  # type: ignore[arg-type]

    def work() -> None:
        with pytest.raises(BackendError, match="the process that forked this one"):
            pending.wait()
        pending.__del__()

    code = exit_code_of_child(work)
    pending._ticket = None
    assert code == 0
