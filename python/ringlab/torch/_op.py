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
from ringlab._library import BrokenRing, Refused
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


class _Meaning:
    """What a forward and a backward pass ask for, wherever their tensors lie. `refusal` says why it is none, or is empty;
    `calls` are what all ranks must call with, and their digests, by pass."""

    def __init__(self, q, k, v, sinks, cu_seqlens, seed, named, deterministic):
        self.mask, self.layout, self.schedule, _, scale, soft_cap, dropout, _, own_seed = named
        self.refusal, self.length = _refusal(q, k, v, sinks, cu_seqlens), 0
        self._of_ranks, self.latest_key = {}, None  # of the latest lengths
        self.changeable = any(sign in name for name in named[:2] for sign in ("file:", "@"))
        self.device = q.device.type
        self.calls = {which: ({}, digest_of({})) for which in ("forward", "backward")}
        if self.refusal:
            return
        (batch, self.length, query_heads, head_dim), (kv_heads, value_dim) = q.shape, v.shape[2:]
        self._spec, self._mask_tokens = joined_mask(self.mask, cu_seqlens)
        try:
            self.files = contents_of_files(self.mask, self.layout)
        except OSError as error:
            self.refusal = f"a file that mask {self.mask} or layout {self.layout} names cannot be read: {error}"
            return
        self.sinks, self.deterministic = sinks is not None, deterministic
        self._sizes = (query_heads, kv_heads, head_dim, value_dim, scale, soft_cap, dropout,
                       _library.DTYPES[DTYPES[q.dtype]])
        self._batch = batch
        call = {"mask": self._spec, "layout": self.layout, "schedule": self.schedule, "dtype": DTYPES[q.dtype],
                "batch": batch, "heads": f"{query_heads}:{kv_heads}", "dims": f"{head_dim}/{value_dim}", "scale": scale,
                "soft_cap": soft_cap, "dropout": dropout, "dropout_seed": "drawn" if own_seed else seed,
                "sinks": self.sinks, "files": self.files, "device": self.device, "deterministic": deterministic}
        for which in self.calls:
            of_pass = {"pass": which, **call}
            self.calls[which] = of_pass, digest_of(of_pass)

    @staticmethod
    def of(q, k, v, sinks, cu_seqlens, seed, named):
        """One of the latest, if it is the same."""
        deterministic = named[-2] or torch.are_deterministic_algorithms_enabled()
        key = (q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, seed, named,
               deterministic, sinks if sinks is None else (sinks.shape, sinks.dtype, sinks.device),
               cu_seqlens if cu_seqlens is None else (cu_seqlens.dtype, cu_seqlens.shape, tuple(cu_seqlens.tolist())))
        meaning = _meanings.get(key)
        if meaning is None:
            meaning = _Meaning(q, k, v, sinks, cu_seqlens, seed, named, deterministic)
            if not meaning.refusal and not meaning.changeable:
                _keep_latest(_meanings, key, meaning)
        return meaning

    def of_ranks(self, lengths):
        """Problem and choices of ranks whose shards have these lengths, and by what their plan is known. Raises
        Refused."""
        found = self._of_ranks.get(lengths)
        if found is None:
            tokens = sum(lengths)
            if len(set(lengths)) > 1 and not self.layout.startswith("file:"):
                raise Refused(f"the ranks' shards have {', '.join(map(str, lengths))} tokens; layout {self.layout} "
                              "gives all the same: pad the sequence before it is sharded (ringlab.torch.shard with pad=)")
            if self._mask_tokens is not None and self._mask_tokens > tokens:
                raise Refused(f"cu_seqlens ends at {self._mask_tokens}, the ranks' shards have {tokens} tokens "
                              "together; give those of the whole sequence, sharded by the same layout")
            problem = self._batch, tokens, *self._sizes
            chosen = self._spec, self.layout, self.schedule, tokens, self._mask_tokens or tokens, len(lengths)
            # A text, because it keeps its hash.
            found = problem, chosen, repr((problem, chosen, self.files, self.sinks, self.deterministic))
            self._of_ranks, self.latest_key = {lengths: found}, found[-1]
        return found


MOST_MEANINGS = 64
_meanings, _meanings_lock = {}, threading.Lock()  # by all that they depend on, the oldest first


def _keep_latest(table, key, value):
    with _meanings_lock:
        while len(table) >= MOST_MEANINGS:
            table.pop(next(iter(table)))
        table[key] = value


class _Call:
    """One call on all ranks of a ring: agreed on, with its plan and its memory."""

    def __init__(self, which, q, k, v, sinks, cu_seqlens, seed, named, meaning, results):
        """`results` gives the tensors of a pass besides its inputs; it may make them."""
        group, dropout, own_seed = named[3], named[6], named[8]
        self.ring = ring_of(group)
        self.on_cuda, self.device = q.is_cuda, q.device
        seed = int(seed) if dropout else 0
        if meaning is None:
            meaning = _Meaning.of(q, k, v, sinks, None if cu_seqlens is None else cu_seqlens.cpu(),
                                  0 if own_seed else seed, named)
        refusal = meaning.refusal or self.ring.other_device(self.device)
        if sinks is not None and not refusal and which == "forward":  # the backward pass has the same
            refusal = _wrong_sinks(sinks, accumulator(q.dtype))
        if self.on_cuda and not refusal and torch.cuda.is_current_stream_capturing():
            refusal = "ring_attention cannot be captured in a CUDA graph"
        if not refusal and _record.active:
            refusal = _record.active.refusal(q, group)
        self._kept, self.results, no_memory = [], None, None  # until the library has been called
        while True:
            # All memory before ranks agree: afterwards, the others have begun the pass.
            known = self.ring.known_cuda_plan(meaning.latest_key)
            try:
                if not refusal and self.results is None:
                    self.results = results(self._suited)
                    self._take_inputs(q, k, v, sinks)
                size = known.scratch[which] if known and not refusal else 0
                self._scratch = torch.empty(size, dtype=torch.uint8, device=self.device) if size else None
            except torch.OutOfMemoryError as error:
                refusal, no_memory = str(error).splitlines()[0], error
            try:
                lengths, drawn = self.ring.agree(*meaning.calls[which], meaning.length, seed, refusal)
            except Refused:
                if no_memory:
                    raise no_memory from None
                raise
            *self._what, key = meaning.of_ranks(lengths)
            if not self.on_cuda:
                self.plan = self.ring.plan(key, *self._what)
                break
            self.plan = self.ring.cuda_plan(key, self.device, *self._what, meaning.sinks, meaning.deterministic)
            if self.plan is known:
                break
        self.seed = drawn if own_seed else seed
        if meaning.layout.startswith("file:"):
            for rank, length in enumerate(lengths):
                share = len(_library.positions(_library.choices(*self._what[1]), rank, False))
                if share != length:
                    raise Refused(f"rank {rank} brings {length} tokens; layout {meaning.layout} gives it {share}")
        self._inputs = _library.INPUTS.pack(*self._own, self.seed & (2**64 - 1))

    def _take_inputs(self, q, k, v, sinks):
        own_sinks = 0
        if sinks is not None:
            own = sinks.detach().resolve_neg().to(torch.float32 if self.on_cuda else torch.float64)
            self._kept.append(own.contiguous())
            own_sinks = self._kept[-1].data_ptr()
        q, k, v = self._suited(q), self._suited(k), self._suited(v)
        self._own = (q.data_ptr(), *q.stride(), k.data_ptr(), *k.stride(), v.data_ptr(), *v.stride(), own_sinks)

    def _suited(self, x):
        """The tensor, or a copy that the library takes."""
        if x.is_neg() or x._is_zerotensor():  # the memory is not what the tensor stands for
            x = torch.empty_like(x, memory_format=torch.contiguous_format).copy_(x)
        elif self.on_cuda and not _suits_kernels(x):
            x = x.clone(memory_format=torch.contiguous_format)
        else:
            return x
        self._kept.append(x)
        return x

    def forward(self):
        self._pass("forward", *(x.data_ptr() for x in self.results))

    def backward(self):
        dout, *rest = self.results
        self._pass("backward", _library.TENSOR.pack(dout.data_ptr(), *dout.stride()),
                   *(0 if x is None else x.data_ptr() for x in rest))

    def _pass(self, which, *arguments):
        recording = _record.active
        if recording:
            recording.begin(which, *self._what)
        if self.on_cuda:
            # torch.cuda.current_stream() makes an object first, which takes longer than most of a call.
            stream = torch._C._cuda_getCurrentRawStream(self.device.index)
            self.ring.pass_(_cuda.call, f"ringlab_cuda_{which}", self.plan.handle, self._inputs, *arguments,
                            0 if self._scratch is None else self._scratch.data_ptr(), stream)
        else:
            self.ring.pass_(_library.call, f"ringlab_{which}", self.plan.handle, self.ring.handle, self._inputs,
                            *arguments)
            if recording:
                recording.end(_library.spans(self.ring.handle))


def _suits_kernels(x):
    """Whether kernels read the tensor in place: adjacent dims of a head, address and strides in multiples of 16 bytes."""
    if x.data_ptr() % 16 == 0 and x.is_contiguous() and x.shape[-1] * x.element_size() % 16 == 0:
        return True
    return x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(
        size <= 1 or (stride > 0 and stride * x.element_size() % 16 == 0)
        for size, stride in zip(x.shape[:-1], x.stride()))


_no_label = contextlib.nullcontext()


def _label(which, q, k, v, cu_seqlens, mask, layout, schedule, group, *_):
    """A range of the profiler; of NVTX under torch.autograd.profiler.emit_nvtx()."""
    if not torch.autograd._profiler_enabled():
        return _no_label
    shapes = ", ".join(f"{name} {'x'.join(map(str, x.shape))}" for name, x in (("q", q), ("k", k), ("v", v)))
    documents = "" if cu_seqlens is None else "+documents"
    return torch.profiler.record_function(
        f"ringlab {which}: {shortened(mask)}{documents} {layout} {schedule}, P={ring_of(group).size}, {shapes}, "
        f"{str(q.dtype).removeprefix('torch.')}")


# ---- The operators ----

_no_seed = torch.zeros(1, dtype=torch.int64)  # that a call without dropout had; nobody writes to it


def _attention(q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], cu_seqlens: Optional[Tensor], seed: Tensor,
               mask: str, layout: str, schedule: str, group: str, scale: float, soft_cap: float, dropout: float,
               deterministic: bool, own_seed: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    named = (mask, layout, schedule, group, scale, soft_cap, dropout, deterministic, own_seed)
    return _forward(q, k, v, sinks, cu_seqlens, seed, named)


def _forward(q, k, v, sinks, cu_seqlens, seed, named, meaning=None):
    """o, lse, o before it was rounded (empty where it is not), and the seed that dropout had."""
    def results(_):
        o = q.new_empty(*q.shape[:3], v.shape[3])
        return o, torch.empty_like(o, dtype=accumulator(q.dtype)), q.new_empty(q.shape[:3], dtype=accumulator(q.dtype))

    with _label("forward", q, k, v, cu_seqlens, *named), ring_of(named[3]).lock:
        call = _Call("forward", q, k, v, sinks, cu_seqlens, seed, named, meaning, results)
        call.forward()
        o, exact, lse = call.results
        seed = torch.tensor([call.seed]) if call.seed else _no_seed
        return o, lse, exact if is_narrow(q.dtype) else lse.new_empty(0), seed


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
                        deterministic: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    named = (mask, layout, schedule, group, scale, soft_cap, dropout, deterministic)
    return _backward(dout, q, k, v, sinks, cu_seqlens, seed, o, lse, named)


def _backward(dout, q, k, v, sinks, cu_seqlens, seed, o, lse, named, meaning=None):
    """dq, dk, dv, and what this rank's rows add to the sinks' gradient (empty without sinks)."""
    def results(suited):
        gradients = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        dsinks = None if sinks is None else q.new_empty(q.shape[2], dtype=torch.float32 if q.is_cuda else torch.float64)
        return suited(dout.to(q.dtype)), o.contiguous(), lse.contiguous(), *gradients, dsinks

    with _label("backward", q, k, v, cu_seqlens, *named), ring_of(named[3]).lock:
        call = _Call("backward", q, k, v, sinks, cu_seqlens, seed, (*named, False), meaning, results)
        call.backward()
        *_, dq, dk, dv, dsinks = call.results
        return dq, dk, dv, q.new_empty(0) if sinks is None else dsinks.to(sinks.dtype)


attention_backward = torch.library.custom_op("ringlab::attention_backward", mutates_args=())(_attention_backward)


@attention_backward.register_fake
def _(dout, q, k, v, sinks, cu_seqlens, seed, o, lse, mask, layout, schedule, group, scale, soft_cap, dropout,
      deterministic):
    return (*(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)),
            q.new_empty(0) if sinks is None else torch.empty_like(sinks))


def _keep(ctx, inputs, output):
    q, k, v, sinks, cu_seqlens, _, *ctx.named = inputs
    o, lse, exact, seed = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, sinks, cu_seqlens, seed, exact if is_narrow(q.dtype) else o, lse)


def _differentiate(ctx, dout, *_, backward=attention_backward):
    if dout is None:
        return (None,) * 15
    q, k, v, sinks, *rest = ctx.saved_tensors
    dq, dk, dv, dsinks = backward(dout, q, k, v, sinks, *rest, *ctx.named[:-1])
    return dq, dk, dv, None if sinks is None else dsinks, *(None,) * 11


attention.register_autograd(_differentiate, setup_context=_keep)


def _refuse_twice(ctx, *_):
    raise RuntimeError("ring_attention has no second derivative: call backward() without create_graph")


attention_backward.register_autograd(_refuse_twice, setup_context=lambda ctx, inputs, output: None)


# ---- Without the operators, whose dispatch takes longer than a short pass: for calls that nobody but autograd sees ----


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sinks, cu_seqlens, seed, named, meaning):  # autograd looks at each: names are one
        output = _forward(q, k, v, sinks, cu_seqlens, seed, named, meaning)
        o, lse, *_ = output
        ctx.mark_non_differentiable(lse)
        _keep(ctx, (q, k, v, sinks, cu_seqlens, seed, *named), output)
        ctx.meaning = meaning
        return o, lse  # each further one would take autograd as long as an operation

    @staticmethod
    def backward(ctx, *gradients):
        # With create_graph by the operator, which refuses the second derivative.
        def backward(*inputs):
            if torch.is_grad_enabled():
                return attention_backward(*inputs)
            return _backward(*inputs[:9], inputs[9:], ctx.meaning)
        return _differentiate(ctx, *gradients, backward=backward)[:8]


def _is_plain(x):
    return x is None or type(x) in PLAIN


def attend(*inputs):
    """o and lse of attention()."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or not all(map(_is_plain, inputs[:6])):
        return attention(*inputs)[:2]
    return _attend_eagerly(*inputs[:6], inputs[6:], None)


def _attend_eagerly(q, k, v, sinks, cu_seqlens, seed, named, meaning):
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad
                                    or sinks is not None and sinks.requires_grad):
        return _Eager.apply(q, k, v, sinks, cu_seqlens, seed, named, meaning)
    return _forward(q, k, v, sinks, cu_seqlens, seed, named, meaning)[:2]


# ---- Calls like an earlier one ----
# Nobody looks at their arguments again. After other work of the host, when no code is in the caches, that would take
# as long as the rest of the call.

_known = {}  # names and meaning, by all that ring_attention() was given, the oldest first
atexit.register(_known.clear)  # as meshes have groups, see _ring


def _weakly(group):
    """A group that is destroyed should not live on in a key."""
    return weakref.ref(group) if isinstance(group, dist.ProcessGroup) else group


def kind(q, k, v, group, given):
    """The key of all calls that are like this one; None if an argument has no hash. Calls with dropout, sinks or cu_seqlens
    have no key."""
    try:
        key = (type(q), type(k), type(v), q.shape, k.shape, v.shape, q.layout, k.layout, v.layout, q.dtype, k.dtype,
               v.dtype, q.device, k.device, v.device, torch.are_deterministic_algorithms_enabled(), _weakly(dist.group.WORLD), _weakly(group), given)
        hash(key)
        return key
    except (AttributeError, TypeError, RuntimeError):  # this is refused where arguments are looked at
        return None


def attend_as_known(key, q, k, v):
    """o and lse of attention() if there was a call of this kind, otherwise None."""
    found = _known.get(key)
    if found is None or torch._C._len_torch_dispatch_stack() or torch.is_autocast_enabled(found[1].device):
        return None
    return _attend_eagerly(q, k, v, None, None, _no_seed, *found)


def know(key, q, k, v, named):
    """Remembers what a call by attend() meant, for attend_as_known(). The call had no dropout, sinks and cu_seqlens."""
    if type(q) in PLAIN and type(k) in PLAIN and type(v) in PLAIN:
        meaning = _Meaning.of(q, k, v, None, None, 0, named)
        if not meaning.changeable:
            _keep_latest(_known, key, (named, meaning))
