"""Ulysses: each rank trades its tokens of all heads for all tokens of its heads, attends by itself, and trades back."""

import torch
import torch.distributed as dist

from ringlab.peers import kernels
from ringlab.peers.systems import Family, System, choose, positions
from ringlab.peers.world import Absent

NAME = "ulysses"


class _AllToAll(torch.autograd.Function):
    """Part i of dimension 0 goes to rank i; part i of what comes back is from rank i. Its own transpose."""

    @staticmethod
    def forward(ctx, x):
        received = torch.empty_like(x)
        dist.all_to_all_single(received, x)
        return received

    @staticmethod
    def backward(ctx, gradient):
        return _AllToAll.forward(ctx, gradient.contiguous())


def to_heads(tensors, ranks):
    """Tensors (1, tokens of the shard, heads, dim) -> (1, all tokens, heads / ranks, dim), in one message for all."""
    parts = [x[0].unflatten(1, (ranks, -1)) for x in tensors]
    received = _AllToAll.apply(torch.cat(parts, 2).transpose(0, 1).contiguous())
    return received.flatten(0, 1).unsqueeze(0).split([part.shape[2] for part in parts], 2)


def to_tokens(o, ranks):
    """(1, all tokens, heads / ranks, dim) -> (1, tokens of the shard, heads, dim)"""
    received = _AllToAll.apply(o[0].unflatten(0, (ranks, -1)).contiguous())
    return received.transpose(0, 1).flatten(1, 2).unsqueeze(0)


def _make(name, argument, case, world):
    for what, heads in (("query heads", case.query_heads), ("kv heads", case.kv_heads)):
        if heads % world.size:
            raise Absent(f"{world.size} ranks do not divide {heads} {what}, of which Ulysses gives each rank an equal "
                         "part; choose --heads that they divide")
    own = positions(case, world, "contiguous")
    attend_whole = kernels.attend_to_case(kernels.find(argument, world.device, case), case, world.device)

    def attend(q, k, v):
        return to_tokens(attend_whole(*to_heads((q, k, v), world.size)), world.size)

    return System(name, NAME, "ulysses", "contiguous", argument, own, attend)


FAMILY = Family("ulysses[:KERNELS]", "all-to-all over heads, attention of the whole sequence, all-to-all back; sdpa if "
                "nothing is said", "sdpa", lambda argument: choose("kernels", argument, kernels.NAMES), _make)
