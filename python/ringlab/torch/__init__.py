"""Attention over a sequence that is sharded over the processes of a group, with autograd, on CPU or CUDA tensors.

    import torch.distributed as dist
    from ringlab.torch import ring_attention, shard, unshard

    dist.init_process_group("gloo")                          # started by torchrun
    q, k, v = (shard(x) for x in whole_q_k_v)                # this rank's tokens of (batch, tokens, heads, head_dim)
    o = unshard(ring_attention(q, k, v))                     # causal, zigzag, ring; differentiable
    dist.destroy_process_group()                             # without it PyTorch may abort a process that ends

Masks, layouts and schedules have the names that Ringlab's programs take: ringlab.masks(), layouts(), schedules().
"""

import torch
import torch.distributed as dist

from ringlab import _cuda, _library
from ringlab._library import BrokenRing, Refused
from ringlab.torch import _op, _ring, _split_heads

__all__ = ["BrokenRing", "Refused", "connect", "held_memory", "loss_weights", "next_token_labels", "padded_tokens",
           "positions", "ring_attention", "shard", "unshard"]


def connect(group=None, timeout=_ring.DEFAULT_TIMEOUT, transport="automatic"):
    """Makes the ring of a group, with a time-out in seconds: how long a call waits for other ranks while nothing moves.
    transport: what moves blocks of CUDA tensors, "copy" (engines, on one host), "nccl", or "automatic": the first inside
    a host, the second between hosts.

    All ranks of the group call it. Without it the first ring_attention() of a group makes the ring, with 600 s. A ring
    that ended by BrokenRing stays broken; make another process group for the ranks that are left.
    """
    if transport not in _cuda.TRANSPORTS:
        raise Refused(f"transport is '{transport}'; it must be one of {', '.join(_cuda.TRANSPORTS)}")
    _ring.ring_of(_ring.group_name(group), timeout, transport)


def held_memory(group=None):
    """Bytes that this process holds for a group's calls on CUDA tensors, besides PyTorch's: (device memory that the other
    ranks see, pinned host memory). Any rank may ask, at any time."""
    return _ring.held_memory(_ring.group_name(group))


def ring_attention(q, k, v, *, mask="causal", layout="zigzag", schedule="ring", group=None, scale=None, soft_cap=None,
                   sinks=None, dropout=0.0, dropout_seed=None, cu_seqlens=None, deterministic=False, return_lse=False):
    """Attention of this rank's query rows over the keys of all ranks of a group; every rank makes the same call.

    q: (batch, tokens, query_heads, head_dim), k: (batch, tokens, kv_heads, head_dim), v: (batch, tokens, kv_heads,
    value_dim), of the tokens that shard() gives this rank, in that order; any strides. Or without batch, (tokens,
    heads, head_dim), with cu_seqlens. float64 and float32 are computed as they are; bfloat16 and float16 are emulated:
    operands of products are rounded, sums are float32, and autograd keeps o in float32 besides. CUDA tensors are
    bfloat16 or float16 and computed by GPU kernels: each rank on its device, or several ranks on one.

    mask, layout, schedule: names as the programs take them. cu_seqlens: integers, 0 and the ends of the documents of
    the whole sequence (not of the shard); the mask is joined with documents, and tokens behind the last are padding.
    group: a ProcessGroup, a DeviceMesh of one dimension, or None for all processes. Under tensor parallelism, heads split
    over another dimension of the mesh, q, k and v are this process's heads; or DTensors split by heads, as o is then.
    scale: of q.k, 1/sqrt(head_dim) if None. soft_cap: c of c*tanh(s/c), 0 or None for none. sinks: (query_heads,) learned
    logits, -inf for a head without one; on CUDA the host reads them, and waits for the stream. dropout:
    probability, by dropout_seed, an int or a tensor of one, the same on every rank; without one rank 0 draws it from
    PyTorch's generator, so that checkpointing draws it again. deterministic: repeated calls give the same bits, as they
    do under torch.use_deterministic_algorithms(). CPU tensors always do; with CUDA tensors dQ is then added up in a
    fixed order, which takes longer.

    Returns o (batch, tokens, query_heads, value_dim), with return_lse also lse (batch, tokens, query_heads), which has
    no gradient: natural logarithm, -inf for a row that sees nothing. Gradients of q, k, v are those of this rank's
    tokens, of the sum of all ranks' losses. That of sinks is this rank's part, to be summed over the group as those of
    all parameters are.

    Raises Refused, on every rank, where an argument is wrong or ranks differ in one, and the process may go on; raises
    BrokenRing where a rank is gone or silent for longer than the time-out of connect().
    """
    # Nobody looks again at the arguments of a call like an earlier one. After other work of the host, when no code is in
    # the caches, that would take as long as the rest of the call.
    key, given = None, (q, k, v)
    if (dropout_seed is None and type(dropout) is float and type(deterministic) is bool and type(scale) in _NUMBER
            and type(soft_cap) in _NUMBER and not _op.are_seen_by_others(q, k, v, sinks, cu_seqlens)):
        key = _op.key_of(q, k, v, sinks, cu_seqlens, _op.weakly(dist.group.WORLD), _op.weakly(group), mask, layout,
                         schedule, scale, soft_cap, dropout, deterministic)
        kind = _op.known(key)
        if kind is not None and not torch.is_autocast_enabled(kind.device.type):
            o, lse = _op.attend(kind, q, k, v, sinks, int(_seed(dropout, None)) if dropout else 0)
            return (o, lse.detach()) if return_lse else o
    try:
        q, k, v, sinks, split_again = _split_heads.local_heads(q, k, v, sinks, group)
        numbers = [_number(name, x) for name, x in (("scale", scale), ("soft_cap", soft_cap), ("dropout", dropout))]
        dropout = numbers[2]
        _check(q, k, v, sinks, mask, layout, schedule, dropout, dropout_seed, cu_seqlens, deterministic)
        seed = _seed(dropout, dropout_seed)
    except Refused as error:
        _ring.refuse(group, error)
    packed = q.dim() == 3
    if packed:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    device = q.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        narrow = torch.get_autocast_dtype(device)
        q, k, v = (x if x.dtype == torch.float64 else x.to(narrow) for x in (q, k, v))
    named = (mask, layout, schedule, _ring.group_name(group), *numbers, deterministic,
             bool(dropout) and dropout_seed is None)
    o, lse, kind = _op.attend_anew(q, k, v, sinks, cu_seqlens, seed, named)
    if kind is not None and q is given[0] and k is given[1] and v is given[2]:  # not where they have become others above
        _op.know(key, kind)
    if packed:
        o, lse = o.squeeze(0), lse.squeeze(0)
    return (split_again(o), split_again(lse.detach())) if return_lse else split_again(o)


_NUMBER = float, type(None)  # not tensors, which are equal to themselves after they have changed


def _check(q, k, v, sinks, mask, layout, schedule, dropout, dropout_seed, cu_seqlens, deterministic):
    """Raises Refused for what is not even of the right type; more is asked of tensors in _op."""
    for name, x in (("q", q), ("k", k), ("v", v), ("sinks", sinks), ("cu_seqlens", cu_seqlens)):
        if not isinstance(x, torch.Tensor) and not (x is None and name in ("sinks", "cu_seqlens")):
            raise Refused(f"{name} is a {type(x).__name__}; it must be a tensor")
        if x is not None and not _op.is_dense(x):
            raise Refused(f"{name} is {'nested' if x.is_nested else x.layout}; it must be a dense tensor")
    if cu_seqlens is not None and (why := _op.unlike_ends(cu_seqlens)):
        raise Refused(why)
    for name, x in (("mask", mask), ("layout", layout), ("schedule", schedule)):
        if not isinstance(x, str):
            raise Refused(f"{name} is {x!r}; it must be a name, one of ringlab.{name}s()")
    if q.dim() == 3 and cu_seqlens is None:
        raise Refused(f"q has shape {tuple(q.shape)}; without cu_seqlens it must be (batch, tokens, heads, head_dim)")
    if not isinstance(deterministic, bool):
        raise Refused(f"deterministic is {deterministic!r}; it must be True or False")
    if dropout_seed is not None and not dropout:
        raise Refused("dropout_seed is given without dropout")


def _number(name, value):
    if isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled():
        raise Refused(f"{name} requires a gradient, and ringlab has none for it; give {name}.detach(), or multiply q by a "
                      "learned scale")
    try:
        number = 0.0 if value is None else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise Refused(f"{name} is {_op.shown(value)}; it must be a number") from None
    if name == "scale" and number == 0 and value is not None:
        raise Refused("scale is 0; it must be another number, or None for 1/sqrt(head_dim)")
    return number


_NO_SEED = torch.zeros(1, dtype=torch.int64)


def _seed(dropout, given):
    """A tensor of one int64."""
    if given is None:
        return torch.randint(2**62, (1,)) if dropout else _NO_SEED
    if isinstance(given, torch.Tensor) and _op.is_integers(given) and given.numel() == 1:
        return given.reshape(1).to(torch.int64)
    if isinstance(given, int) and -2**63 <= given < 2**63:
        return torch.full((1,), given, dtype=torch.int64)
    raise Refused(f"dropout_seed is {_op.shown(given)}; it must be an int of 64 bits or a tensor of one")


def _place(group):
    """This process's rank in a group, and its size."""
    found = _ring.process_group(group)
    return (0, 1) if found is None else (dist.get_rank(found), dist.get_world_size(found))


def padded_tokens(tokens, *, layout="zigzag", group=None):
    """The least number of tokens, from `tokens` on, that the layout divides over the group."""
    multiple = _library.granularity(layout, _place(group)[1])
    return -(-tokens // multiple) * multiple


def positions(tokens, *, mask=None, layout="zigzag", group=None, cu_seqlens=None, documents=False, rank=None):
    """Global positions of a rank's tokens in its local order, int64: what rotary embeddings go by.

    tokens: of the whole sequence, padding included. mask: that of the attention, which layouts need that follow the mask,
    such as balanced. With `documents` each token's place in its document. rank: in the group; this process's if None.
    Raises Refused.
    """
    own, ranks = _place(group)
    if mask is None:  # refused by layouts that follow the mask, also where there are documents
        _library.positions(_library.choices("", layout, "ring", tokens, tokens, ranks), 0, False)
    spec, mask_tokens = _op.joined_mask(mask or "full", cu_seqlens)
    chosen = _library.choices(spec, layout, "ring", tokens, mask_tokens or tokens, ranks)
    found = _library.positions(chosen, own if rank is None else rank, documents)
    return torch.frombuffer(found, dtype=torch.int64).clone() if len(found) else torch.empty(0, dtype=torch.int64)


def shard(x, dim=1, *, mask=None, layout="zigzag", group=None, cu_seqlens=None, pad=None):
    """This rank's tokens of a tensor of the whole sequence, tokens along `dim`, in local order; names as positions() takes
    them.

    With `pad` the tensor is first filled up with this value to what the layout divides. Differentiable: the gradient
    is that of this rank's tokens, 0 elsewhere. Raises Refused where the layout does not divide the tokens.
    """
    if pad is not None:
        missing = padded_tokens(x.shape[dim], layout=layout, group=group) - x.shape[dim]
        shape = list(x.shape)
        shape[dim] = missing
        x = torch.cat([x, x.new_full(shape, pad)], dim)
    own = positions(x.shape[dim], mask=mask, layout=layout, group=group, cu_seqlens=cu_seqlens)
    return x.index_select(dim, own.to(x.device))


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, all_positions, own, group):
        ctx.dim, ctx.own, ctx.group = dim, all_positions[own], group
        shape = list(x.shape)
        shape[dim] = sum(map(len, all_positions))
        whole = x.new_empty(shape)
        for rank, places in enumerate(all_positions):
            shape[dim] = len(places)
            part = x.detach().contiguous() if rank == own else x.new_empty(shape)
            if len(all_positions) > 1:
                dist.broadcast(part, group=group, group_src=rank)
            whole.index_copy_(dim, places.to(x.device), part)
        return whole

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        if ctx.group is not None:
            dist.all_reduce(gradient, group=ctx.group)
        return gradient.index_select(ctx.dim, ctx.own.to(gradient.device)), None, None, None, None


def unshard(x, dim=1, *, mask=None, layout="zigzag", group=None, cu_seqlens=None, tokens=None):
    """The whole sequence, on every rank, from the ranks' shards: the reverse of shard().

    tokens: of the whole sequence, padding included; if None all shards are alike. Differentiable: the gradient is the
    sum over the ranks. Raises Refused where a shard is not what the layout gives the rank.
    """
    own, ranks = _place(group)
    tokens = ranks * x.shape[dim] if tokens is None else tokens
    everyone = [positions(tokens, mask=mask, layout=layout, group=group, cu_seqlens=cu_seqlens, rank=rank)
                for rank in range(ranks)]
    if len(everyone[own]) != x.shape[dim]:
        raise Refused(f"the shard has {x.shape[dim]} tokens; layout {layout} of {tokens} gives rank {own} "
                      f"{len(everyone[own])}")
    return _Unshard.apply(x, dim % x.dim(), everyone, own, _ring.process_group(group))


def next_token_labels(tokens, *, cu_seqlens=None, ignore_index=-100):
    """Labels of the whole sequence, (batch, tokens) or (tokens): the next token of the same document, or ignore_index where there
    is none. To be sharded afterwards: a shard does not know the token behind each of its own. Raises Refused where the
    documents are longer than the sequence."""
    labels = torch.full_like(tokens, ignore_index)
    labels[..., :-1] = tokens[..., 1:]
    if cu_seqlens is not None:
        _, end = _op.joined_mask("", cu_seqlens)
        if end > tokens.shape[-1]:
            raise Refused(f"cu_seqlens ends at {end}, the sequence has {tokens.shape[-1]} tokens")
        labels[..., cu_seqlens[1:].to(torch.int64) - 1] = ignore_index
        labels[..., end:] = ignore_index
    return labels


def loss_weights(labels, *, group=None, replicas=None, ring_gradients="sum", ignore_index=-100):
    """What each token's loss is multiplied by, (batch, tokens) like this rank's labels, so that gradients are those of
    the mean over all tokens of all replicas' sequences: sum(weights * losses) is what backward() starts from.

    The rule: gradients of a ring's ranks are summed, those of replicas averaged. replicas: the group over which they
    are averaged, this ring among them; None if there is one ring. ring_gradients: "sum" if the caller adds up the
    ring's gradients, "mean" if they are averaged together with the replicas' (DDP or FSDP over all ranks).
    """
    if ring_gradients not in ("sum", "mean"):
        raise Refused(f"ring_gradients is '{ring_gradients}'; it must be 'sum' or 'mean'")
    counted = labels != ignore_index
    count = counted.sum().to(torch.float64)
    averaged = 1 if replicas is None else _place(replicas)[1]
    for which in (group,) if replicas is None else (group, replicas):
        if _place(which)[1] > 1:
            dist.all_reduce(count, group=_ring.process_group(which))
    if ring_gradients == "mean":
        averaged *= _place(group)[1]
    return counted.to(torch.get_default_dtype()) * (averaged / max(count.item(), 1.0))
