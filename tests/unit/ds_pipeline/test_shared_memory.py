"""Messages in memory that sender and receiver share."""

from __future__ import annotations

import errno
import os

import pytest
import torch

from ds_pipeline import shared_memory
from ds_pipeline.shared_memory import Inbox, Outbox, sharing_processes

SLOTS = 3


@pytest.fixture
def ends():
    outbox = Outbox(SLOTS)
    yield outbox, Inbox(os.getpid(), SLOTS)
    outbox.close()


def put(outbox, size, value):
    ticket, room = outbox.place(size)
    room.fill_(value)
    return ticket


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 1_000_003])
def test_a_message_arrives_and_its_slot_is_used_again(ends, size):
    outbox, inbox = ends
    for value in range(2 * SLOTS + 1):
        message = inbox.take(put(outbox, size, value), size)
        assert message.tolist()[-3:] == [value] * min(3, size)


def test_several_messages_wait_in_order_and_a_full_outbox_says_so(ends):
    outbox, inbox = ends
    tickets = [put(outbox, 8, value) for value in range(SLOTS)]
    assert outbox.place(8) is None
    assert inbox.take(tickets[0], 8).tolist() == [0] * 8
    tickets.append(put(outbox, 8, SLOTS))
    assert [int(inbox.take(ticket, 8)[0]) for ticket in tickets[1:]] == [1, 2, 3]


def test_a_message_taken_out_belongs_to_the_receiver(ends):
    outbox, inbox = ends
    message = inbox.take(put(outbox, 8, 1), 8)
    put(outbox, 8, 2)
    assert message.tolist() == [1] * 8


def test_larger_messages_get_larger_slots_while_smaller_ones_are_under_way(ends):
    outbox, inbox = ends
    small = put(outbox, 100, 1)
    large = put(outbox, 100_000, 2)
    assert small[0] != large[0]
    assert inbox.take(small, 100).tolist() == [1] * 100
    assert torch.equal(inbox.take(large, 100_000), torch.full((100_000,), 2, dtype=torch.uint8))
    assert put(outbox, 100, 3)[0] == large[0]


def test_without_memory_a_message_has_to_go_another_way(ends, monkeypatch):
    outbox, inbox = ends
    first = put(outbox, 8, 1)

    def full(fd, offset, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shared_memory.os, "posix_fallocate", full)
    before = len(os.listdir("/proc/self/fd"))
    assert outbox.place(1_000_000) is None
    assert outbox.place(2_000_000) is None
    assert len(os.listdir("/proc/self/fd")) == before
    assert inbox.take(first, 8).tolist() == [1] * 8
    assert int(inbox.take(put(outbox, 8, 2), 8)[0]) == 2


def test_a_sender_waits_until_its_memory_was_found(ends, monkeypatch):
    outbox, inbox = ends
    outbox.wait_until_found()  # nothing sent, nothing to find
    ticket = put(outbox, 8, 1)
    monkeypatch.setattr(shared_memory, "PATIENCE", 0.01)
    outbox.wait_until_found()
    inbox.take(ticket, 8)
    monkeypatch.setattr(shared_memory, "PATIENCE", 600.0)
    outbox.wait_until_found()


def test_both_ends_give_their_file_descriptors_back():
    before = len(os.listdir("/proc/self/fd"))
    outbox, inbox = Outbox(SLOTS), Inbox(os.getpid(), SLOTS)
    for size in (10, 10_000, 100_000):
        inbox.take(put(outbox, size, 1), size)
    outbox.close()
    del outbox, inbox
    assert len(os.listdir("/proc/self/fd")) == before


class Alone:
    rank = 0

    def all_gather_object(self, value):
        return [value]


def test_a_system_that_refuses_such_memory_sends_another_way(ends, monkeypatch):
    def refused(name, flags):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    outbox, inbox = ends
    first = put(outbox, 8, 1)
    monkeypatch.setattr(shared_memory.os, "memfd_create", refused)
    assert outbox.place(1_000_000) is None
    assert inbox.take(first, 8).tolist() == [1] * 8
    assert sharing_processes(Alone()) == [None]
