"""Short notices through a pipe arrive in order, and its end is seen."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest

from ds_pipeline.notices import Bell, Ear


@pytest.fixture
def ends():
    bell = Bell()
    ear = Ear(os.getpid(), bell.number, timedelta(seconds=0.05))
    bell.heard()
    yield bell, ear
    bell.close()
    ear.close()


def test_notices_arrive_in_order(ends):
    bell, ear = ends
    sent = [(number, -number, 2**62, number) for number in range(100)]
    for words in sent:
        bell.ring(words)
    assert [ear.listen() for _ in sent] == sent


def test_waiting_has_an_end(ends):
    _, ear = ends
    with pytest.raises(TimeoutError, match="no notice within"):
        ear.listen()


def test_what_was_sent_before_the_end_is_heard(ends):
    bell, ear = ends
    bell.ring((1, 2, 3, 4))
    copy = os.dup(bell._write)  # as a forked child has
    bell.close()
    assert ear.listen() == (1, 2, 3, 4)
    with pytest.raises(ConnectionResetError, match="closed"):
        ear.listen()
    os.close(copy)


def test_nobody_listens(ends):
    bell, ear = ends
    ear.close()
    with pytest.raises(BrokenPipeError):
        bell.ring((1, 2, 3, 4))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_that_lets_go_ends_nothing(ends):
    bell, ear = ends
    child = os.fork()
    if child == 0:
        bell.close()
        os._exit(0)
    os.waitpid(child, 0)
    bell.ring((1, 2, 3, 4))
    assert ear.listen() == (1, 2, 3, 4)


def test_patience_may_be_longer_than_the_system_can_wait():
    bell = Bell()
    ear = Ear(os.getpid(), bell.number, timedelta(days=365))
    bell.ring((1, 2, 3, 4))
    assert ear.listen() == (1, 2, 3, 4)
    bell.close()
    ear.close()


def test_both_ends_give_their_file_descriptors_back():
    before = len(os.listdir("/proc/self/fd"))
    bell = Bell()
    ear = Ear(os.getpid(), bell.number, None)
    bell.close()
    ear.close()
    assert len(os.listdir("/proc/self/fd")) == before
