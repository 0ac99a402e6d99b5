"""The rings of the package ring-flash-attn, over any kernels here.

The package calls four functions of flash_attn.flash_attn_interface. It gets those below instead, which call the kernels
that are asked for: one installation serves all of them, and flash-attn need not be compiled.
"""

import contextlib
import importlib
import itertools
import sys
import types

import torch
import torch.distributed as dist

from ringlab.peers import kernels
from ringlab.peers.kernels import Block, Packing
from ringlab.peers.systems import Family, System, choose, positions, split
from ringlab.peers.world import Absent

NAME = "ring-flash-attention"
RINGS = ("contiguous", "zigzag", "striped", "llama3")

# What the four functions call. Autograd calls them on threads of its own, so this is no variable of one thread.
_chosen = None


# ---- What the package calls; other arguments that it passes by name have no effect at the values that it has here ----


def _flash_attn_forward(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, **_):
    o, lse = _chosen.forward(q, k, v, Block(causal, scale=softmax_scale))
    return o, lse, None, None


def _flash_attn_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p=0.0, softmax_scale=None, causal=False,
                         **_):
    found = _chosen.backward(dout, q, k, v, out, softmax_lse, Block(causal, scale=softmax_scale))
    for place, gradient in zip((dq, dk, dv), found):
        place.copy_(gradient)


def _flash_attn_varlen_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                               softmax_scale=None, causal=False, **_):
    packing = Packing(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    o, lse = _chosen.forward(*(x.unsqueeze(0) for x in (q, k, v)), Block(causal, None, packing, softmax_scale))
    return o[0], lse, None, None


def _flash_attn_varlen_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                                max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False, **_):
    packing = Packing(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    found = _chosen.backward(*(x.unsqueeze(0) for x in (dout, q, k, v, out)), softmax_lse,
                             Block(causal, None, packing, softmax_scale))
    for place, gradient in zip((dq, dk, dv), found):
        place.copy_(gradient[0])


def _package():
    """The package, with the functions above. Raises Absent where it is not installed."""
    if "ring_flash_attn" in sys.modules:
        return sys.modules["ring_flash_attn"]
    interface = types.ModuleType("flash_attn.flash_attn_interface")
    for function in (_flash_attn_forward, _flash_attn_backward, _flash_attn_varlen_forward, _flash_attn_varlen_backward):
        setattr(interface, function.__name__, function)
    # What connects it to transformers is not needed, and wants a transformers of its own age.
    adapters = types.ModuleType("ring_flash_attn.adapters")
    adapters.substitute_hf_flash_attn = adapters.update_ring_flash_attn_params = None
    given = {module.__name__: module for module in (interface, adapters)}
    hidden = {name: sys.modules.get(name) for name in given}
    sys.modules.update(given)
    try:
        return importlib.import_module("ring_flash_attn")
    except ImportError as error:
        raise Absent(f"ring-flash-attn is not here ({error}); pip install --no-deps ring-flash-attn") from None
    finally:
        for name, module in hidden.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


def _document_positions(case, world, ring):
    """Each document is dealt out by itself: this rank's part of the first, then of the second, ..."""
    parts = world.size * (2 if ring == "zigzag" else 1)
    own, begin = [], 0
    for length in case.mask.documents:
        if length % parts:
            raise Absent(f"its {ring} ring deals out each document by itself, and {parts} parts of a document of "
                         f"{length} tokens are not equal; choose lengths that {parts} divides, or llama3")
        chunks = torch.arange(begin, begin + length).chunk(parts)
        own += [chunks[world.rank], chunks[parts - 1 - world.rank]] if ring == "zigzag" else [chunks[world.rank]]
        begin += length
    return torch.cat(own)


def _attend(package, ring, case, world):
    """(positions, layout, attend)"""
    causal, documents = case.mask.causal, case.mask.documents
    if ring == "llama3":
        ends = list(itertools.accumulate(documents or (case.tokens,)))
        whole = torch.tensor([0, *ends], dtype=torch.int32, device=world.device)
        *sizes, keys = package.llama3_flash_attn_prepare_cu_seqlens(whole, causal, world.rank, world.size)
        return positions(case, world, "contiguous"), "contiguous", lambda q, k, v: package.llama3_flash_attn_varlen_func(
            q[0], k[0], v[0], *sizes, heads_k_stride=1, local_k_slice=keys, causal=causal,
            group=dist.group.WORLD).unsqueeze(0)
    if documents:
        shares = [length // world.size for length in documents]
        offsets = torch.tensor([0, *itertools.accumulate(shares)], dtype=torch.int32, device=world.device)
        function = {"contiguous": package.ring_flash_attn_varlen_func,
                    "zigzag": package.zigzag_ring_flash_attn_varlen_func}[ring]
        return _document_positions(case, world, ring), f"{ring} each document", lambda q, k, v: function(
            q[0], k[0], v[0], offsets, max(shares), causal=causal).unsqueeze(0)
    function = {"contiguous": package.ring_flash_attn_func, "zigzag": package.zigzag_ring_flash_attn_func,
                "striped": package.stripe_flash_attn_func}[ring]
    layout = "striped:1" if ring == "striped" else ring
    return positions(case, world, layout), layout, lambda q, k, v: function(q, k, v, causal=causal)


def _check(argument):
    ring, name = split(argument, "RING/KERNELS, as zigzag/cudnn")
    choose("ring of ring-flash-attention", ring, RINGS)
    choose("kernels of ring-flash-attention", name, [x for x in kernels.NAMES if x != "sdpa"])


def _make(name, argument, case, world):
    ring, kernels_name = argument.split("/")
    mask = case.mask
    if mask.window:
        raise Absent(f"ring-flash-attn takes no window ({mask.spec})")
    if ring in ("zigzag", "striped") and not mask.causal:
        raise Absent(f"its {ring} ring is for causal masks, not for {mask.spec}; its contiguous ring takes this one")
    if ring == "striped" and mask.documents:
        raise Absent("its striped ring takes no documents; its rings contiguous, zigzag and llama3 do")
    if not case.is_narrow():
        raise Absent(f"ring-flash-attn adds up gradients in place of the blocks' where both are in {case.dtype}, and is "
                     "wrong; --dtype bf16 or fp16")
    found = kernels.find(kernels_name, world.device, case)
    if (mask.documents or ring == "llama3") and not found.takes_packing:
        raise Absent(f"{kernels_name} kernels take no packed documents through PyTorch, which "
                     f"{'its llama3 ring' if ring == 'llama3' else 'this mask'} needs; fa2 and fa4 do")
    own, layout, attend = _attend(_package(), ring, case, world)

    @contextlib.contextmanager
    def around():
        global _chosen
        _chosen = found
        yield

    return System(name, NAME, ring, layout, kernels_name, own, attend, around)


FAMILY = Family("ring-flash-attention[:RING/KERNELS]", "the package ring-flash-attn; rings contiguous, zigzag (if nothing "
                "is said), striped and llama3,\nkernels fa2 (if nothing is said), cudnn and fa4", "zigzag/fa2", _check,
                _make, _package)
