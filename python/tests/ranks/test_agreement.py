"""How ranks agree on a call: through shared memory on one host, over gloo where a rank cannot open it."""

import pytest
import torch
import torch.distributed as dist
from dense import random_tensors

import ringlab
from ringlab.torch import _host_all_gather, _ring, connect, ring_attention, shard


def ring_of_a_new_group():
    group = dist.new_group(list(range(dist.get_world_size())))
    connect(group)
    return _ring.ring_of(_ring.group_name(group)), group


def calls_are_agreed_on(ring, group):
    q, k, v = (shard(x, group=group) for x in random_tensors()[:3])
    here = {"mask": "full"} if ring.rank == 1 else {}
    with pytest.raises(ringlab.Refused, match="rank 1 calls with mask full, rank 0 with causal"):
        ring_attention(q, k, v, group=group, **here)
    first = ring_attention(q, k, v, group=group)
    assert torch.equal(first, ring_attention(*(shard(x) for x in random_tensors()[:3])))


def test_ranks_of_one_host_share_memory():
    ring, group = ring_of_a_new_group()
    assert ring._on_host is not None
    calls_are_agreed_on(ring, group)


def test_a_rank_that_cannot_open_the_memory_sends_all_to_gloo(monkeypatch):
    if dist.get_rank() == 1:
        monkeypatch.setattr(_host_all_gather, "_succeeds", lambda *_: False)
    ring, group = ring_of_a_new_group()
    assert ring._on_host is None
    calls_are_agreed_on(ring, group)


def test_memory_that_one_rank_lacks_is_refused_by_all_and_they_stay_in_step(monkeypatch):
    q, k, v = (shard(x).requires_grad_() for x in random_tensors()[:3])
    expected, made = ring_attention(q, k, v), torch.empty_like

    def none_left(*_, **__):
        raise torch.OutOfMemoryError("out of memory: it was asked for too much")

    for backward in (False, True):
        o = ring_attention(q, k, v) if backward else None
        call = (lambda: o.sum().backward()) if backward else (lambda: ring_attention(q, k, v))
        if dist.get_rank() == 1:
            monkeypatch.setattr(torch, "empty_like", none_left)
            with pytest.raises(torch.OutOfMemoryError):
                call()
            monkeypatch.setattr(torch, "empty_like", made)
        else:
            with pytest.raises(ringlab.Refused, match="rank 1 refuses the call: out of memory"):
                call()
        assert torch.equal(ring_attention(q, k, v), expected)
