"""A process without a group; what is kept of groups that their owner destroys, and of messages when a process ends."""

import gc
import threading
import weakref

import pytest
import torch
import torch.distributed as dist

import ringlab
from ringlab.torch import _op, _ring, ring_attention


def test_a_process_without_a_group_compiles_its_calls_and_goes_on_after_a_refusal():
    tensors = [torch.randn(1, 16, 2, 8) for _ in range(3)]
    compiled = torch.compile(lambda *x: ring_attention(*x) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*tensors), ring_attention(*tensors) + 1)
    with pytest.raises(ringlab.Refused, match="sinks hold nan"):
        ring_attention(*tensors, sinks=torch.tensor([0, torch.nan]))
    assert ring_attention(*tensors).isfinite().all()


def test_calls_that_are_known_do_not_keep_a_destroyed_group():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    groups = [weakref.ref(dist.group.WORLD), weakref.ref(dist.new_group([0]))]
    q, k, v = (torch.randn(1, 16, 2, 8) for _ in range(3))
    _op._kinds.clear()
    for group in (None, groups[1]()):
        ring_attention(q, k, v, group=group)
    assert len(_op._kinds) == 4  # by its arguments, and by what the operator has of them
    group = None
    dist.destroy_process_group()
    _ring._let_groups_go()  # a ring keeps its group until it is asked for again
    gc.collect()
    assert [group() for group in groups] == [None, None]


class Message:
    """One that has arrived when the test says so."""

    def __init__(self):
        self.arrived = threading.Event()

    def wait(self, limit):
        self.arrived.wait(limit)


def test_the_end_of_a_process_waits_for_messages_but_not_for_ever():
    waiters, message, told = _ring._Waiters(), Message(), []
    waiters.settle(60)
    waiters.wait_for(message, 60, told.append)
    waiters.settle(0.01)
    assert told == []
    threading.Timer(0.05, message.arrived.set).start()
    waiters.settle(60)
    assert told == [None]
