"""Is a system's result right? Attention and its gradients in fp64, and how far a right result may be from them."""

import math

import torch
import torch.distributed as dist

from ringlab.peers.case import DTYPES

RESULTS = ("o", "dq", "dk", "dv")
ELEMENTS = 1 << 26  # of a block of scores


def reference(case, q, k, v, dout, world):
    """{result: (tokens, heads, dim)} of the whole sequence, on every rank; computed in fp64, each rank taking
    every ranks-th kv head, and kept in fp32 where the case is in 16 bits."""
    kept = torch.float32 if case.is_narrow() else torch.float64
    found = {name: torch.zeros(x.shape[1:], dtype=kept, device=x.device)
             for name, x in zip(RESULTS, (dout, q, k, v))}
    first, end = (x.to(q.device) for x in case.mask.ranges(case.tokens))
    group = case.query_heads // case.kv_heads
    for head in range(world.rank, case.kv_heads, world.size):
        rows = slice(head * group, (head + 1) * group)
        o, dq, dk, dv = _head(*(x[0, :, rows].double().transpose(0, 1) for x in (q, dout)),
                              *(x[0, :, head].double() for x in (k, v)), first, end, case.head_dim ** -0.5)
        found["o"][:, rows], found["dq"][:, rows] = o.transpose(0, 1).to(kept), dq.transpose(0, 1).to(kept)
        found["dk"][:, head], found["dv"][:, head] = dk.to(kept), dv.to(kept)
    for x in found.values():
        dist.all_reduce(x)
    return found


def _head(q, dout, k, v, first, end, scale):
    """o, dq, dk, dv of one kv head: q and dout (group, tokens, dim), k and v (tokens, dim), by blocks of rows."""
    group, tokens, _ = q.shape
    o, dq, dk, dv = torch.empty_like(dout), torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    step = max(1, ELEMENTS // (group * tokens))
    for begin in range(0, tokens, step):
        rows = slice(begin, min(begin + step, tokens))
        keys = slice(int(first[rows].min()), max(int(end[rows].max()), 1))
        at = torch.arange(keys.start, keys.stop, device=q.device)
        hidden = (at < first[rows, None]) | (at >= end[rows, None])
        s = (q[:, rows] @ k[keys].T * scale).masked_fill_(hidden, -math.inf)
        p = torch.softmax(s, 2).masked_fill_(hidden, 0.0)  # a row that sees nothing has NaN before this
        o[:, rows] = p @ v[keys]
        dp = dout[:, rows] @ v[keys].T
        ds = p * (dp - (dout[:, rows] * o[:, rows]).sum(2, keepdim=True)) * scale
        dq[:, rows] = ds @ k[keys]
        dk[keys] += (ds.transpose(1, 2) @ q[:, rows]).sum(0)
        dv[keys] += (p.transpose(1, 2) @ dout[:, rows]).sum(0)
    return o, dq, dk, dv


def allowed(case):
    """Relative RMS difference that a right result may have.

    One rounding to the case's dtype moves a tensor by at most u of its norm, u being half a unit in the last place. A
    result has had at most ranks + 3 of them: an operand of its product (P or dS), the o that the backward pass takes the
    row sums of, a partial result for each rank's block where these are rounded before they are added, and the result.
    In 16 bits sums are fp32 and add nothing. In fp32 and fp64 sums round as well, each addition by as much, in either
    direction: the error of a sum of n terms grows with the square root of n.
    """
    u = torch.finfo(DTYPES[case.dtype]).eps / 2
    terms = 1 if case.is_narrow() else case.tokens + case.head_dim
    return (case.ranks + 3) * u * math.sqrt(terms)


def errors(results, expected, positions, world):
    """{result: relative RMS difference over all ranks}, of this rank's results at these positions."""
    positions = positions.to(world.device)
    sums = []
    for name, found in zip(RESULTS, results):
        want = expected[name][positions].double()
        difference = found[0].double() - want
        sums += [difference.square().sum(), want.square().sum()]
    sums = torch.stack(sums).cpu()
    dist.all_reduce(sums)
    off, size = sums[0::2], sums[1::2]
    return {name: math.sqrt(a / b) for name, a, b in zip(RESULTS, off.tolist(), size.tolist())}


def complaint(found, case):
    """What is wrong, in one line; empty if nothing is."""
    limit = allowed(case)
    wrong = [f"{name} by {error:.2e}" for name, error in found.items() if not error <= limit]
    return f"wrong: off fp64 attention (relative RMS, {limit:.2e} allowed): {', '.join(wrong)}" if wrong else ""
