"""Attention over the whole sequence by PyTorch in fp64, and a ring compared with it, within Ringlab's own bounds."""

import ctypes
from types import SimpleNamespace

import torch

from ringlab import _library
from ringlab.torch import ring_attention, shard, unshard

QUERY_HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM = 4, 2, 8, 5


def parts(lengths):
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def _visible(rule, there=None):
    """(tokens, tokens) from a rule of rows and keys; padding neither sees nor is seen."""
    def build(tokens):
        row, key = torch.arange(tokens)[:, None], torch.arange(tokens)[None, :]
        seen = rule(row, key).expand(tokens, tokens)
        real = torch.ones(tokens, dtype=torch.bool) if there is None else there(tokens)
        return seen & real[:, None] & real[None, :]
    return build


LENGTHS = [1, 13, 7, 43]  # of 64 tokens
SEGMENT = parts(LENGTHS)
ROOM = parts([16, 16, 32])  # padded-segments:16/8,16/0,32/20
THERE = torch.cat([torch.arange(room) < real for room, real in ((16, 8), (16, 0), (32, 20))])

# Each mask by its sentence in ringlab.masks(): how it is typed, and who sees whom of 64 tokens.
MASKS = {
    "full": ("full", _visible(lambda row, key: key >= 0)),
    "causal": ("causal", _visible(lambda row, key: key <= row)),
    "window": ("window:6,4", _visible(lambda row, key: (row - key <= 6) & (key - row <= 4))),
    "chunks": ("causal+chunks:12", _visible(lambda row, key: (key <= row) & (row // 12 == key // 12))),
    "sink": ("window:8,0+sink:3", _visible(lambda row, key: (key <= row) & ((row - key <= 8) | (key < 3)))),
    "documents": ("causal+documents:1,13,7,43", _visible(
        lambda row, key: (key <= row) & (SEGMENT[row] == SEGMENT[key]))),
    "prefix": ("prefix:20", _visible(lambda row, key: (key <= row) | (key < 20))),
    "prefix-documents": ("prefix-documents:1,13,7,43", _visible(
        lambda row, key: (SEGMENT[row] // 2 == SEGMENT[key] // 2) & (
            (key <= row) | ((SEGMENT[row] == SEGMENT[key]) & (SEGMENT[row] % 2 == 0))))),
    "block-causal": ("block-causal:1,13,7,43", _visible(lambda row, key: SEGMENT[key] <= SEGMENT[row])),
    "shared-question": ("shared-question:1,13,7,43", _visible(
        lambda row, key: (key <= row) & ((SEGMENT[key] == 0) | (SEGMENT[key] == SEGMENT[row])))),
    "padded-segments": ("padded-segments:16/8,16/0,32/20", _visible(
        lambda row, key: ROOM[key] <= ROOM[row], lambda tokens: THERE)),
    "valid": ("causal+valid:2-19,23-50", _visible(lambda row, key: key <= row, lambda tokens: sum(
        ((torch.arange(tokens) >= begin) & (torch.arange(tokens) < end) for begin, end in ((2, 19), (23, 50)))) > 0)),
}


def random_tensors(tokens=64, batch=1, dtype=torch.float64, heads=(QUERY_HEADS, KV_HEADS), dims=(HEAD_DIM, VALUE_DIM)):
    """q, k, v and the gradient of o, of the whole sequence, the same on every rank; numbers of `dtype`."""
    generator = torch.Generator().manual_seed(17)
    shapes = [(heads[0], dims[0]), (heads[1], dims[0]), (heads[1], dims[1]), (heads[0], dims[1])]
    return [torch.randn(batch, tokens, *shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def dense(q, k, v, dout, visible, scale=None, soft_cap=None, sinks=None, kept=None):
    """o, lse and gradients in fp64, by PyTorch's operations and autograd; `kept` is what dropout multiplies p by,
    (batch, heads, rows, keys)."""
    q, k, v, dout = (x.detach().double().requires_grad_() for x in (q, k, v, dout))
    sinks = None if sinks is None else sinks.detach().double().requires_grad_()
    group = q.shape[2] // k.shape[2]
    expanded = [x.repeat_interleave(group, 2).transpose(1, 2) for x in (k, v)]
    scores = q.transpose(1, 2) @ expanded[0].transpose(2, 3) * (scale or q.shape[3] ** -0.5)
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], 3)
    lse = torch.logsumexp(scores, 3)
    p = torch.exp(scores - torch.where(lse.isinf(), 0, lse)[..., None])
    p = p[..., :k.shape[1]] * (1 if kept is None else kept)
    o = (p @ expanded[1]).transpose(1, 2)
    gradients = torch.autograd.grad(o, [q, k, v] + ([] if sinks is None else [sinks]), dout)
    named = {"dsinks": None, **dict(zip(("dq", "dk", "dv", "dsinks"), gradients))}
    return SimpleNamespace(o=o.detach(), lse=lse.transpose(1, 2).detach(), **named)


def ring_results(q, k, v, dout, sinks=None, device="cpu", **options):
    """The same by the ring on a device, of the whole sequence: sharded, attended to, differentiated and put together
    again."""
    where = {name: options[name] for name in ("mask", "layout", "group") if name in options}
    shards = [shard(x, **where).detach().to(device).requires_grad_() for x in (q, k, v)]
    own_sinks = None if sinks is None else sinks.detach().clone().to(device).requires_grad_()
    o, lse = ring_attention(*shards, sinks=own_sinks, return_lse=True, **options)
    inputs = shards + ([] if sinks is None else [own_sinks])
    gradients = [x.cpu() for x in torch.autograd.grad(o, inputs, shard(dout, **where).to(device))]
    if sinks is not None:
        dsinks = gradients[3].clone()
        torch.distributed.all_reduce(dsinks)
    dq, dk, dv = (unshard(x, **where) for x in gradients[:3])
    return SimpleNamespace(o=unshard(o.cpu(), **where).detach(), lse=unshard(lse.cpu(), **where), dq=dq, dk=dk, dv=dv,
                           dsinks=None if sinks is None else dsinks)


def bounds(q, k, v, dout, expected, mask, layout="zigzag", schedule="ring", ranks=None, scale=None, soft_cap=None,
           sinks=None, dropout=0.0, dropout_seed=0, **_):
    """What a right run may be off by, from the roundings of its arithmetic: reference/error/error_model.hpp."""
    name = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[q.dtype]
    problem = _library.Problem(q.shape[0], q.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3], scale or 0,
                               soft_cap or 0, dropout, _library.DTYPES[name])
    ranks = ranks or torch.distributed.get_world_size()
    plan = _library.Plan(problem, _library.choices(mask, layout, schedule, q.shape[1], q.shape[1], ranks))
    tensors = {"q": q, "k": k, "v": v, "dout": dout, "sinks": sinks, **vars(expected)}
    kept = {name: None if x is None else x.detach().double().contiguous() for name, x in tensors.items()}
    pointers = {name: None if x is None else x.data_ptr() for name, x in kept.items()}
    return plan.bounds(_library.Expected(seed=dropout_seed, **{key: ctypes.c_void_p(x) for key, x in pointers.items()}))


def complaint(measured, expected, allowed, dtype=torch.float64):
    """What is further off than a right run can be; empty if nothing is. Gradients are also rounded to their dtype, as
    autograd wants them: once, by half a unit in the last place at most."""
    last_place = {torch.bfloat16: 2.0 ** -8, torch.float16: 2.0 ** -11, torch.float32: 2.0 ** -24}.get(dtype, 0.0)
    complaints = []
    for name in ("o", "lse", "dq", "dk", "dv", "dsinks"):
        got, want = getattr(measured, name), getattr(expected, name)
        if want is None:
            continue
        got, want = got.double(), want.double()
        if not torch.equal(got.isinf(), want.isinf()):
            complaints.append(f"{name} is infinite elsewhere")
            continue
        error = torch.where(want.isinf(), 0, got - want)
        want = torch.where(want.isinf(), 0, want)
        once = last_place if name.startswith("d") and name != "dsinks" else 0.0
        rms, largest = error.norm() / max(want.norm(), 1e-300), error.abs().max() / max(want.abs().max(), 1e-300)
        if not (rms <= allowed[name][0] + once and largest <= allowed[name][1] + once):
            complaints.append(f"{name} is off by {rms:.2e} ({allowed[name][0]:.2e} allowed), at most by {largest:.2e} "
                              f"({allowed[name][1]:.2e})")
    return "; ".join(complaints)


def complaint_of_ring(mask, visible, dtype=torch.float64, sinks=None, tensors=None, **options):
    q, k, v, dout = tensors or random_tensors(dtype=dtype)
    measured = ring_results(q, k, v, dout, sinks=sinks, mask=mask, **options)
    expected = dense(q, k, v, dout, visible(q.shape[1]), options.get("scale"), options.get("soft_cap"), sinks)
    return complaint(measured, expected, bounds(q, k, v, dout, expected, mask, sinks=sinks, **options), dtype)
