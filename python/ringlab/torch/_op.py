"""The operators that torch.compile and autograd see: tensors and names in, tensors out."""

import collections
import itertools
import threading
from ctypes import byref, c_double
from typing import Optional

import torch
from torch import Tensor

from ringlab import _library
from ringlab._library import Refused
from ringlab.torch._ring import contents_of_files, ring_of

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}


def accumulator(dtype):
    """Of sums and statistics."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def is_narrow(dtype):
    """Whether o loses digits when it is rounded to its dtype: the backward pass then wants it as it was before."""
    return dtype in (torch.bfloat16, torch.float16)


# ---- What a call means ----


def _refusal(q, k, v, sinks, cu_seqlens):
    """Why these tensors are no attention, in one line; empty if they are."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.device.type != "cpu":
            return f"{name} lies on {x.device}; this build of ringlab computes on CPU tensors"
        if x.dtype not in DTYPES:
            return f"{name} is {x.dtype}; ringlab computes in float64, float32, bfloat16 or float16"
        if x.dtype != q.dtype:
            return f"{name} is {x.dtype}, q is {q.dtype}; they must be equal"
        if x.dim() != 4:
            return f"{name} has shape {tuple(x.shape)}; it must be (batch, tokens, heads, head_dim)"
        if x.shape[:2] != q.shape[:2]:
            hint = "; a KV cache is not supported" if x.shape[1] > q.shape[1] else ""
            return (f"{name} has {x.shape[0]} x {x.shape[1]} (batch x tokens), q has {q.shape[0]} x {q.shape[1]}; they "
                    f"must be equal{hint}")
    if k.shape[2] != v.shape[2]:
        return f"k has {k.shape[2]} heads, v has {v.shape[2]}; they must be equal"
    if k.shape[3] != q.shape[3]:
        return f"q has head_dim {q.shape[3]}, k has {k.shape[3]}; they must be equal"
    if sinks is not None and (sinks.shape != (q.shape[2],) or sinks.device.type != "cpu"
                              or not sinks.is_floating_point()):
        return (f"sinks are {sinks.dtype} of shape {tuple(sinks.shape)} on {sinks.device}; they must be a number for "
                f"each of the {q.shape[2]} query heads, on the CPU")
    if cu_seqlens is not None and (cu_seqlens.dim() != 1 or cu_seqlens.is_floating_point() or len(cu_seqlens) < 2
                                   or cu_seqlens[0] != 0 or (cu_seqlens.diff() < 0).any() or cu_seqlens[-1] == 0):
        return (f"cu_seqlens begins {cu_seqlens.flatten()[:5].tolist()}; it must be 0 and then the ends of the "
                "documents of the whole sequence, in order")
    return ""


def joined_mask(mask, cu_seqlens):
    """The mask with the documents of cu_seqlens, and the tokens that it is of: those behind are padding."""
    if cu_seqlens is None:
        return mask, None
    lengths = [length for length in cu_seqlens.diff().tolist() if length > 0]
    runs = ((length, len(list(same))) for length, same in itertools.groupby(lengths))
    return f"{mask}+documents:{','.join(f'{length}x{count}' for length, count in runs)}", sum(lengths)


class _Plans:
    """The latest plans, by what they were made of."""

    def __init__(self, most):
        self._most, self._plans, self._lock = most, collections.OrderedDict(), threading.Lock()

    def get(self, problem, chosen, files):
        key = (problem, chosen, tuple(files))
        with self._lock:
            plan = self._plans.get(key)
            if plan is None:
                plan = _library.Plan(_library.Problem(*problem), _library.choices(*chosen))
                self._plans[key] = plan
            self._plans.move_to_end(key)
            if len(self._plans) > self._most:
                self._plans.popitem(last=False)
            return plan


_plans = _Plans(64)


class _Call:
    """One call on all ranks of a ring: agreed on, with its plan."""

    def __init__(self, which, q, k, v, sinks, cu_seqlens, seed, named):
        mask, layout, schedule, group, scale, soft_cap, dropout, own_seed = named
        self.ring = ring_of(group)
        refusal = _refusal(q, k, v, sinks, cu_seqlens)
        seed, call, length = int(seed), {}, 0
        if not refusal:
            (batch, length, query_heads, head_dim), (kv_heads, value_dim) = q.shape, v.shape[2:]
            spec, mask_tokens = joined_mask(mask, cu_seqlens)
            dtype, files = DTYPES[q.dtype], contents_of_files(mask, layout)
            call = {"pass": which, "mask": spec, "layout": layout, "schedule": schedule, "dtype": dtype, "batch": batch,
                    "heads": f"{query_heads}:{kv_heads}", "dims": f"{head_dim}/{value_dim}", "scale": scale,
                    "soft_cap": soft_cap, "dropout": dropout, "dropout_seed": "drawn" if own_seed else seed,
                    "sinks": sinks is not None, "files": files}
        lengths, drawn = self.ring.agree(call, length, seed, refusal)
        self.seed = drawn if own_seed else seed
        tokens, ranks = sum(lengths), self.ring.size
        if len(set(lengths)) > 1 and not layout.startswith("file:"):
            raise Refused(f"the ranks' shards have {', '.join(map(str, lengths))} tokens; layout {layout} gives all "
                          "the same: pad the sequence before it is sharded (ringlab.torch.shard with pad=)")
        if mask_tokens is not None and mask_tokens > tokens:
            raise Refused(f"cu_seqlens ends at {mask_tokens}, the ranks' shards have {tokens} tokens together; give "
                          "those of the whole sequence, sharded by the same layout")
        problem = (batch, tokens, query_heads, kv_heads, head_dim, value_dim, scale, soft_cap, dropout,
                   _library.DTYPES[dtype])
        chosen = (spec, layout, schedule, tokens, mask_tokens or tokens, ranks)
        self.plan = _plans.get(problem, chosen, files)
        if layout.startswith("file:"):
            for rank, length in enumerate(lengths):
                share = len(_library.positions(_library.choices(*chosen), rank, False))
                if share != length:
                    raise Refused(f"rank {rank} brings {length} tokens; layout {layout} gives it {share}")
        self._sinks = None if sinks is None else sinks.detach().to(torch.float64).contiguous()
        self.inputs = _library.Inputs(_tensor(q), _tensor(k), _tensor(v),
                                      None if sinks is None else self._sinks.data_ptr(), self.seed & (2**64 - 1))


def _tensor(x):
    return _library.Tensor(x.data_ptr(), tuple(x.stride()))


def _label(which, mask, layout, schedule, *_):
    return torch.profiler.record_function(f"ringlab {which}: {mask} {layout} {schedule}")


# ---- The operators ----


@torch.library.custom_op("ringlab::attention", mutates_args=())
def attention(q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], cu_seqlens: Optional[Tensor], seed: Tensor,
              mask: str, layout: str, schedule: str, group: str, scale: float, soft_cap: float, dropout: float,
              own_seed: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """o, lse, o before it was rounded (empty where it is not), and the seed that dropout had."""
    named = (mask, layout, schedule, group, scale, soft_cap, dropout, own_seed)
    with _label("forward", *named):
        call = _Call("forward", q, k, v, sinks, cu_seqlens, seed, named)
        o = q.new_empty(*q.shape[:3], v.shape[3])
        lse = q.new_empty(q.shape[:3], dtype=accumulator(q.dtype))
        exact = torch.empty_like(o, dtype=accumulator(q.dtype))
        call.ring.pass_("ringlab_forward", call.plan.handle, call.ring.handle, byref(call.inputs), o.data_ptr(),
                        exact.data_ptr(), lse.data_ptr())
        return o, lse, exact if is_narrow(q.dtype) else lse.new_empty(0), torch.tensor([call.seed])


@attention.register_fake
def _(q, k, v, sinks, cu_seqlens, seed, mask, layout, schedule, group, scale, soft_cap, dropout, own_seed):
    o = q.new_empty(*q.shape[:3], v.shape[3])
    exact = torch.empty_like(o, dtype=accumulator(q.dtype)) if is_narrow(q.dtype) else o.new_empty(
        0, dtype=accumulator(q.dtype))
    return o, q.new_empty(q.shape[:3], dtype=accumulator(q.dtype)), exact, torch.empty_like(seed)


@torch.library.custom_op("ringlab::attention_backward", mutates_args=())
def attention_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor],
                       cu_seqlens: Optional[Tensor], seed: Tensor, o: Tensor, lse: Tensor, mask: str, layout: str,
                       schedule: str, group: str, scale: float, soft_cap: float,
                       dropout: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, and what this rank's rows add to the sinks' gradient (empty without sinks)."""
    named = (mask, layout, schedule, group, scale, soft_cap, dropout, False)
    with _label("backward", *named):
        call = _Call("backward", q, k, v, sinks, cu_seqlens, seed, named)
        dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        dsinks = (c_double * q.shape[2])()
        dout, o, lse = dout.to(q.dtype), o.contiguous(), lse.contiguous()
        call.ring.pass_("ringlab_backward", call.plan.handle, call.ring.handle, byref(call.inputs),
                        byref(_tensor(dout)), o.data_ptr(), lse.data_ptr(), dq.data_ptr(), dk.data_ptr(), dv.data_ptr(),
                        dsinks)
        return dq, dk, dv, q.new_empty(0) if sinks is None else torch.tensor(
            list(dsinks), dtype=torch.float64).to(sinks.dtype)


@attention_backward.register_fake
def _(dout, q, k, v, sinks, cu_seqlens, seed, o, lse, mask, layout, schedule, group, scale, soft_cap, dropout):
    return (*(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)),
            q.new_empty(0) if sinks is None else torch.empty_like(sinks))


def _keep(ctx, inputs, output):
    q, k, v, sinks, cu_seqlens, _, *ctx.named = inputs
    o, lse, exact, seed = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, sinks, cu_seqlens, seed, exact if is_narrow(q.dtype) else o, lse)


def _differentiate(ctx, dout, *_):
    if dout is None:
        return (None,) * 14
    q, k, v, sinks, *rest = ctx.saved_tensors
    dq, dk, dv, dsinks = attention_backward(dout, q, k, v, sinks, *rest, *ctx.named[:-1])
    return dq, dk, dv, None if sinks is None else dsinks, *(None,) * 10


attention.register_autograd(_differentiate, setup_context=_keep)


def _refuse_twice(ctx, *_):
    raise RuntimeError("ring_attention has no second derivative: call backward() without create_graph")


attention_backward.register_autograd(_refuse_twice, setup_context=lambda ctx, inputs, output: None)
