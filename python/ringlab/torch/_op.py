"""The operators that torch.compile and autograd see: tensors and names in, tensors out."""

import atexit
import contextlib
import itertools
import threading
import weakref
from typing import Optional

import torch
import torch.distributed as dist
from torch import Tensor

from ringlab import _cuda, _library
from ringlab._library import Refused
from ringlab.torch import _record
from ringlab.torch._ring import contents_of_files, digest_of, ring_of, shortened
from ringlab.torch._split_heads import PLAIN

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}


def accumulator(dtype):
    """The dtype of sums and row statistics of tensors with `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def is_narrow(dtype):
    """Whether o loses digits when it is rounded to its dtype: the backward pass then wants it as it was before."""
    return dtype in (torch.bfloat16, torch.float16)


# ---- What a call means ----


def _refusal(q, k, v, sinks, cu_seqlens):
    """Why these tensors cannot be attended with, in one line; empty if they can."""
    if q.is_cuda:
        try:
            _cuda.library()
        except Refused as error:
            return f"q lies on {q.device}; {error}"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.device.type not in ("cpu", "cuda"):
            return f"{name} lies on {x.device}; ringlab computes on CPU and CUDA tensors"
        if x.device != q.device:
            return f"{name} lies on {x.device}, q on {q.device}; they must be equal"
        if q.is_cuda and not is_narrow(x.dtype):
            return f"{name} is {x.dtype}; on CUDA ringlab computes in bfloat16 or float16"
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
    if sinks is not None and (sinks.shape != (q.shape[2],) or sinks.device != q.device
                              or not sinks.is_floating_point()):
        return (f"sinks are {sinks.dtype} of shape {tuple(sinks.shape)} on {sinks.device}; they must be a number for "
                f"each of the {q.shape[2]} query heads, on {q.device}")
    return "" if cu_seqlens is None else _wrong_ends(cu_seqlens)


def _wrong_sinks(sinks, dtype):
    """Why these sinks, rounded to `dtype`, are none; empty if they are. CUDA sinks make the host wait for the stream."""
    wrong = sinks[~(sinks.detach().to(dtype) < torch.inf)].tolist()
    return f"sinks hold {wrong[0]}; each must be a number, or -inf for a head without a sink" if wrong else ""


def is_dense(x):
    return x.layout is torch.strided and not x.is_nested


def is_integers(x):
    """Whether a tensor holds integers that the host can read."""
    return is_dense(x) and not (x.is_meta or x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def shown(value):
    """A value in one line of a message."""
    return shortened(" ".join(repr(value).split()))


def unlike_ends(cu_seqlens):
    """Why a tensor can be no cu_seqlens, whatever its numbers; empty if it can."""
    if is_integers(cu_seqlens) and cu_seqlens.dim() == 1 and len(cu_seqlens) >= 2:
        return ""
    return (f"cu_seqlens is {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)} on {cu_seqlens.device}; it must be "
            "integers (documents + 1,)")


def _wrong_ends(cu_seqlens):
    ends = cu_seqlens.tolist()
    if ends[0] == 0 and ends[-1] > 0 and all(begin <= end for begin, end in itertools.pairwise(ends)):
        return ""
    return (f"cu_seqlens begins {ends[:5]}; it must be 0 and then the ends of the documents of the whole sequence, in "
            "order")


def joined_mask(mask, cu_seqlens):
    """The mask with the documents of cu_seqlens, and the tokens that it is of: those behind are padding. Raises Refused."""
    if cu_seqlens is None:
        return mask, None
    if not isinstance(cu_seqlens, Tensor):
        raise Refused(f"cu_seqlens is a {type(cu_seqlens).__name__}; it must be a tensor")
    if why := unlike_ends(cu_seqlens) or _wrong_ends(cu_seqlens):
        raise Refused(why)
    lengths = [end - begin for begin, end in itertools.pairwise(cu_seqlens.tolist()) if end > begin]
    runs = ((length, len(list(same))) for length, same in itertools.groupby(lengths))
    return f"{mask}+documents:{','.join(f'{length}x{count}' for length, count in runs)}", sum(lengths)


class Kind:
    """Calls that differ in the numbers of their tensors alone. `refusal` says why there can be none, or is empty; `call` is
    what all ranks must call with, and `digest` tells it from others."""

    def __init__(self, q, k, v, sinks, cu_seqlens, named, deterministic):
        self.named, self.cu_seqlens, self.shapes, self.dtype = named, cu_seqlens, (q.shape, k.shape, v.shape), q.dtype
        self.mask, self.layout, self.schedule, self.group, scale, soft_cap, self.dropout, _, self.draws = named
        self.refusal = _refusal(q, k, v, sinks, cu_seqlens)
        self.device, self.on_cuda, self.tokens = q.device, q.is_cuda, 0
        self.lengths = self.problem = self.choices = self.plan = None  # of the latest call
        self.is_lasting = not any(sign in name for name in named[:2] for sign in ("file:", "@"))  # as files may change
        self.call, self.digest = {}, digest_of({})
        if self.refusal:
            return
        (batch, self.tokens, query_heads, head_dim), (kv_heads, value_dim) = q.shape, v.shape[2:]
        self.sinks, self.deterministic, self.accumulator = sinks is not None, deterministic, accumulator(q.dtype)
        self._spec, self._mask_tokens = joined_mask(self.mask, cu_seqlens)
        try:
            files = contents_of_files(self.mask, self.layout)
        except OSError as error:
            self.refusal = f"a file that mask {self.mask} or layout {self.layout} names cannot be read: {error}"
            return
        self._batch = batch
        self._sizes = (query_heads, kv_heads, head_dim, value_dim, scale, soft_cap, self.dropout,
                       _library.DTYPES[DTYPES[q.dtype]])
        self.call = {"mask": self._spec, "layout": self.layout, "schedule": self.schedule, "dtype": DTYPES[q.dtype],
                     "batch": batch, "heads": f"{query_heads}:{kv_heads}", "dims": f"{head_dim}/{value_dim}",
                     "scale": scale, "soft_cap": soft_cap, "dropout": self.dropout,
                     "dropout_seed": "drawn" if self.draws else "given", "sinks": self.sinks, "files": files,
                     "device": self.device.type, "deterministic": deterministic}
        self.digest = digest_of(self.call)

    def plan_of(self, ring, lengths):
        """The plan for shards of these lengths. Raises Refused, on all ranks."""
        if lengths != self.lengths:
            self._take(lengths)
        if self.on_cuda:
            return ring.cuda_plan((self.digest, lengths), self.device, self.problem, self.choices, self.sinks,
                                  self.deterministic)
        if self.plan is None:
            self.plan = _library.Plan(_library.Problem(*self.problem), _library.choices(*self.choices))
        return self.plan

    def _take(self, lengths):
        tokens = sum(lengths)
        if len(set(lengths)) > 1 and not self.layout.startswith("file:"):
            raise Refused(f"the ranks' shards have {', '.join(map(str, lengths))} tokens; layout {self.layout} "
                          "gives all the same: pad the sequence before it is sharded (ringlab.torch.shard with pad=)")
        if self._mask_tokens is not None and self._mask_tokens > tokens:
            raise Refused(f"cu_seqlens ends at {self._mask_tokens}, the ranks' shards have {tokens} tokens "
                          "together; give those of the whole sequence, sharded by the same layout")
        choices = self._spec, self.layout, self.schedule, tokens, self._mask_tokens or tokens, len(lengths)
        if self.layout.startswith("file:"):
            for rank, length in enumerate(lengths):
                share = len(_library.positions(_library.choices(*choices), rank, False))
                if share != length:
                    raise Refused(f"rank {rank} brings {length} tokens; layout {self.layout} gives it {share}")
        self.lengths, self.problem, self.choices = lengths, (self._batch, tokens, *self._sizes), choices
        self.plan = None


MOST_KINDS = 128
_kinds, _kinds_lock = {}, threading.Lock()  # by all that they depend on, the oldest first
atexit.register(_kinds.clear)  # as meshes have groups, see _ring


def key_of(q, k, v, sinks, cu_seqlens, *more):
    """What tells a call's Kind, if `more` are its other arguments; None if one has no hash, as some that are refused."""
    try:
        key = (q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, q.layout, k.layout,
               v.layout, torch.are_deterministic_algorithms_enabled(), more,
               sinks if sinks is None else (sinks.shape, sinks.dtype, sinks.device, sinks.layout), cu_seqlens
               if cu_seqlens is None else (cu_seqlens.dtype, cu_seqlens.layout, tuple(cu_seqlens.tolist())))
        hash(key)
        return key
    except (AttributeError, TypeError, RuntimeError):
        return None


def weakly(group):
    """For a key, in which a group that is destroyed should not live on."""
    return weakref.ref(group) if isinstance(group, dist.ProcessGroup) else group


def known(key):
    """The Kind of an earlier call with this key, or None."""
    return _kinds.get(key)


def know(key, kind):
    if key is None or kind.refusal or not kind.is_lasting:
        return
    with _kinds_lock:
        while len(_kinds) >= MOST_KINDS:
            _kinds.pop(next(iter(_kinds)))
        _kinds[key] = kind


def _kind_of(q, k, v, sinks, cu_seqlens, named):
    """The Kind of arguments that the operators have."""
    key = key_of(q, k, v, sinks, cu_seqlens, named)
    kind = known(key)
    if kind is None:
        deterministic = named[-2] or torch.are_deterministic_algorithms_enabled()
        kind = Kind(q, k, v, sinks, None if cu_seqlens is None else cu_seqlens.cpu().clone(), named, deterministic)
        know(key, kind)
    return kind


class _Call:
    """One pass on all ranks of a ring: agreed on, with its plan and its memory."""

    def __init__(self, backward, kind, ring, q, k, v, sinks, seed, results):
        """`results` gives the tensors of the pass besides its inputs; it may make them."""
        self.kind, self.ring, self.results, self._kept = kind, ring, None, []  # kept until the library has been called
        refusal = kind.refusal or self._refusal(backward, q, sinks)
        no_memory = None
        while True:
            # All memory before ranks agree: afterwards, the others have begun the pass. Whether the plan is known must be
            # the same on all ranks: it does not depend on what this process remembers besides.
            scratch = None
            known_plan = ring.known_plan((kind.digest, (kind.tokens,) * ring.size)) if kind.on_cuda else None
            try:
                if not refusal and self.results is None:
                    self.results, own_sinks = results(self._suited), self._sinks(sinks)
                    own_q, own_k, own_v = map(self._suited, (q, k, v))
                if known_plan and known_plan.scratch[backward] and not refusal:
                    scratch = torch.empty(known_plan.scratch[backward], dtype=torch.uint8, device=kind.device)
            except torch.OutOfMemoryError as error:
                refusal, no_memory = str(error).splitlines()[0], error
            try:
                lengths, self.seed = ring.agree(kind.call, kind.digest, kind.tokens, seed, refusal, backward,
                                                kind.draws and not backward)
            except Refused:
                if no_memory:
                    raise no_memory from None
                raise
            self.plan = kind.plan_of(ring, lengths)
            if self.plan is known_plan or not kind.on_cuda:
                break
        self._scratch = scratch
        self._inputs = _library.INPUTS.pack(own_q.data_ptr(), *own_q.stride(), own_k.data_ptr(), *own_k.stride(),
                                            own_v.data_ptr(), *own_v.stride(), own_sinks, self.seed & (2**64 - 1))

    def _refusal(self, backward, q, sinks):
        """Why this rank cannot take part now; empty if it can."""
        if sinks is not None and not backward:  # the backward pass has the same
            if refusal := _wrong_sinks(sinks, self.kind.accumulator):
                return refusal
        if self.kind.on_cuda:
            if refusal := self.ring.other_device(q.device):
                return refusal
            if torch.cuda.is_current_stream_capturing():
                return "ring_attention cannot be captured in a CUDA graph"
        return _record.active.refusal(q, self.kind.group) if _record.active else ""

    def _sinks(self, sinks):
        if sinks is None:
            return 0
        own = sinks.detach().resolve_neg().to(torch.float32 if self.kind.on_cuda else torch.float64)
        self._kept.append(own.contiguous())
        return self._kept[-1].data_ptr()

    def _suited(self, x):
        """The tensor, or a copy that the library takes."""
        if x.is_neg() or x._is_zerotensor():  # the memory is not what the tensor stands for
            x = torch.empty_like(x, memory_format=torch.contiguous_format).copy_(x)
        elif self.kind.on_cuda and not _suits_kernels(x):
            x = x.clone(memory_format=torch.contiguous_format)
        else:
            return x
        self._kept.append(x)
        return x

    def run(self, which, *arguments):
        """The pass: "forward" or "backward", with what the library is given besides inputs."""
        kind, ring, recording = self.kind, self.ring, _record.active
        if recording:
            recording.begin(which, kind.problem, kind.choices)
        if kind.on_cuda:
            # torch.cuda.current_stream() makes an object first, which takes longer than most of a call.
            stream = torch._C._cuda_getCurrentRawStream(kind.device.index)
            ring.pass_(_cuda.call, "ringlab_cuda_" + which, self.plan.handle, self._inputs, *arguments,
                       0 if self._scratch is None else self._scratch.data_ptr(), stream)
        else:
            ring.pass_(_library.call, "ringlab_" + which, self.plan.handle, ring.handle, self._inputs, *arguments)
            if recording:
                recording.end(_library.spans(ring.handle))


def _suits_kernels(x):
    """Whether kernels read the tensor in place: adjacent dims of a head, address and strides in multiples of 16 bytes."""
    if x.data_ptr() % 16 == 0 and x.is_contiguous() and x.shape[-1] * x.element_size() % 16 == 0:
        return True
    return x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(
        size <= 1 or (stride > 0 and stride * x.element_size() % 16 == 0)
        for size, stride in zip(x.shape[:-1], x.stride()))


_no_label = contextlib.nullcontext()


def _label(which, kind, ring):
    """A range of the profiler; of NVTX under torch.autograd.profiler.emit_nvtx()."""
    if not torch.autograd._profiler_enabled():
        return _no_label
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in zip("qkv", kind.shapes))
    documents = "" if kind.cu_seqlens is None else "+documents"
    return torch.profiler.record_function(
        f"ringlab {which}: {shortened(kind.mask)}{documents} {kind.layout} {kind.schedule}, P={ring.size}, {shapes}, "
        f"{str(kind.dtype).removeprefix('torch.')}")


# ---- The passes ----


def _forward(kind, q, k, v, sinks, seed):
    """o, lse, o before it was rounded where it is, and the seed that dropout had."""
    def results(_):
        rows = q.shape[:3]
        o = q.new_empty((*rows, v.shape[3]))
        return o, torch.empty_like(o, dtype=kind.accumulator), q.new_empty(rows, dtype=kind.accumulator)

    ring = ring_of(kind.group)
    with _label("forward", kind, ring), ring.lock:
        call = _Call(False, kind, ring, q, k, v, sinks, seed, results)
        o, exact, lse = call.results
        call.run("forward", o.data_ptr(), exact.data_ptr(), lse.data_ptr())
        return o, lse, exact if is_narrow(q.dtype) else None, call.seed


def _backward(kind, dout, q, k, v, sinks, seed, o, lse):
    """dq, dk, dv, and what this rank's rows add to the sinks' gradient, or None; o as it was before it was rounded."""
    def results(suited):
        dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        dsinks = None if sinks is None else q.new_empty(q.shape[2], dtype=torch.float32 if q.is_cuda else torch.float64)
        own = suited(dout if dout.dtype == q.dtype else dout.to(q.dtype))
        return own, o.contiguous(), lse.contiguous(), dq, dk, dv, dsinks

    ring = ring_of(kind.group)
    with _label("backward", kind, ring), ring.lock:
        call = _Call(True, kind, ring, q, k, v, sinks, seed, results)
        own, o, lse, dq, dk, dv, dsinks = call.results
        call.run("backward", _library.TENSOR.pack(own.data_ptr(), *own.stride()), o.data_ptr(), lse.data_ptr(),
                 dq.data_ptr(), dk.data_ptr(), dv.data_ptr(), 0 if dsinks is None else dsinks.data_ptr())
        return dq, dk, dv, None if sinks is None else dsinks.to(sinks.dtype)


# ---- The operators ----


def _attention(q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], cu_seqlens: Optional[Tensor], seed: Tensor,
               mask: str, layout: str, schedule: str, group: str, scale: float, soft_cap: float, dropout: float,
               deterministic: bool, own_seed: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What _forward() gives; the third is empty where there is none."""
    named = (mask, layout, schedule, group, scale, soft_cap, dropout, deterministic, own_seed)
    kind = _kind_of(q, k, v, sinks, cu_seqlens, named)
    o, lse, exact, seed = _forward(kind, q, k, v, sinks, int(seed) if dropout else 0)
    return o, lse, lse.new_empty(0) if exact is None else exact, torch.tensor([seed])


attention = torch.library.custom_op("ringlab::attention", mutates_args=())(_attention)


@attention.register_fake
def _(q, k, v, sinks, cu_seqlens, seed, mask, layout, schedule, group, scale, soft_cap, dropout, deterministic,
      own_seed):
    o = q.new_empty(*q.shape[:3], v.shape[3])
    exact = torch.empty_like(o, dtype=accumulator(q.dtype)) if is_narrow(q.dtype) else o.new_empty(
        0, dtype=accumulator(q.dtype))
    return o, q.new_empty(q.shape[:3], dtype=accumulator(q.dtype)), exact, torch.empty_like(seed)


def _attention_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor],
                        cu_seqlens: Optional[Tensor], seed: Tensor, o: Tensor, lse: Tensor, mask: str, layout: str,
                        schedule: str, group: str, scale: float, soft_cap: float, dropout: float,
                        deterministic: bool, own_seed: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    named = (mask, layout, schedule, group, scale, soft_cap, dropout, deterministic, own_seed)
    kind = _kind_of(q, k, v, sinks, cu_seqlens, named)
    dq, dk, dv, dsinks = _backward(kind, dout, q, k, v, sinks, int(seed) if dropout else 0, o, lse)
    return dq, dk, dv, q.new_empty(0) if dsinks is None else dsinks


attention_backward = torch.library.custom_op("ringlab::attention_backward", mutates_args=())(_attention_backward)


@attention_backward.register_fake
def _(dout, q, k, v, sinks, *_):
    return (*(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)),
            q.new_empty(0) if sinks is None else torch.empty_like(sinks))


def _keep(ctx, inputs, output):
    q, k, v, sinks, cu_seqlens, _, *ctx.named = inputs
    o, lse, exact, seed = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, sinks, cu_seqlens, seed, exact if is_narrow(q.dtype) else o, lse)


def _differentiate(ctx, dout, *_):
    if dout is None:
        return (None,) * 15
    saved = ctx.saved_tensors
    dq, dk, dv, dsinks = attention_backward(dout, *saved, *ctx.named)
    return dq, dk, dv, None if saved[3] is None else dsinks, *(None,) * 11


attention.register_autograd(_differentiate, setup_context=_keep)


def _refuse_twice(ctx, *_):
    raise RuntimeError("ring_attention has no second derivative: call backward() without create_graph")


attention_backward.register_autograd(_refuse_twice, setup_context=lambda ctx, inputs, output: None)


# ---- Without the operators, whose dispatch takes longer than a short pass: for calls that nobody but autograd sees ----


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sinks, seed, kind):  # autograd looks at each argument and at each result
        o, lse, exact, ctx.seed = _forward(kind, q, k, v, sinks, seed)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, sinks, o if exact is None else exact, lse)
        ctx.kind = kind
        return o, lse

    @staticmethod
    def backward(ctx, dout, _):
        if dout is None:
            return (None,) * 6
        q, k, v, sinks, o, lse = ctx.saved_tensors
        if torch.is_grad_enabled():  # with create_graph by the operator, which refuses the second derivative
            gradients = attention_backward(dout, q, k, v, sinks, ctx.kind.cu_seqlens, torch.tensor([ctx.seed]), o, lse,
                                           *ctx.kind.named)
        else:
            gradients = _backward(ctx.kind, dout, q, k, v, sinks, ctx.seed, o, lse)
        return *gradients[:3], None if sinks is None else gradients[3], None, None


def attend(kind, q, k, v, sinks, seed):
    """o and lse of a call that nobody but autograd sees."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad
                                    or sinks is not None and sinks.requires_grad):
        return _Eager.apply(q, k, v, sinks, seed, kind)
    return _forward(kind, q, k, v, sinks, seed)[:2]


def are_seen_by_others(*tensors):
    """Whether somebody else than autograd sees operators on these tensors: a compiler, a mode, a class of their own."""
    return (torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0
            or not _SEEN_BY_NOBODY.issuperset(map(type, tensors)))


_SEEN_BY_NOBODY = {*PLAIN, type(None)}


def attend_anew(q, k, v, sinks, cu_seqlens, seed, named):
    """o and lse of attention(), and the Kind of the call, None where the operator was called."""
    if are_seen_by_others(q, k, v, sinks, cu_seqlens, seed):
        return *attention(q, k, v, sinks, cu_seqlens, seed, *named)[:2], None
    kind = _kind_of(q, k, v, sinks, cu_seqlens, named)
    return *attend(kind, q, k, v, sinks, int(seed) if kind.dropout else 0), kind
