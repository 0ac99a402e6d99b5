"""Attention of one device by other systems' kernels, as rings and Ulysses call it.

Tensors are (1, tokens, heads, head_dim), any strides. `lse` is (1, heads, tokens), or (heads, tokens) of packed documents.
"""

import dataclasses
import itertools

import torch
import torch.nn.functional as F

from ringlab.peers.world import Absent

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Packing:
    """Packed documents: offsets are int32 on the device, 0 and the ends."""

    offsets: torch.Tensor
    longest: int

    @staticmethod
    def of(lengths, device):
        return Packing(torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device), max(lengths))


@dataclasses.dataclass(frozen=True)
class Block:
    """Which keys the rows of one call see."""

    causal: bool
    window: tuple | None = None  # (keys before the own one, keys after it)
    packing: Packing | None = None
    scale: float | None = None  # 1/sqrt(head_dim) if None


class Sdpa:
    """torch.nn.functional.scaled_dot_product_attention with the kernels that PyTorch chooses."""

    takes_packing, takes_window = False, False

    def attend(self, q, k, v, block):
        o = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=block.causal,
                                           scale=block.scale, enable_gqa=q.shape[2] != k.shape[2])
        return o.transpose(1, 2)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, kernels, block):
        o, lse = kernels.forward(q, k, v, block)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.kernels, ctx.block = kernels, block
        return o

    @staticmethod
    def backward(ctx, dout):
        return *ctx.kernels.backward(dout, *ctx.saved_tensors, ctx.block), None, None


class WithBackward:
    """Kernels whose two passes are called by themselves: forward() -> o, lse and backward() -> dq, dk, dv."""

    def attend(self, q, k, v, block):
        return _Attention.apply(q, k, v, self, block)


class Cudnn(WithBackward):
    """cuDNN's, as PyTorch calls them."""

    takes_packing, takes_window = False, False

    def forward(self, q, k, v, block):
        o, lse, *_ = aten._scaled_dot_product_cudnn_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), None, True, 0.0, block.causal, False, scale=block.scale)
        return o.transpose(1, 2), lse.reshape(lse.shape[:3])

    def backward(self, dout, q, k, v, o, lse, block):
        none = torch.zeros((), dtype=torch.int64, device=q.device)
        gradients = aten._scaled_dot_product_cudnn_attention_backward(
            *(x.transpose(1, 2) for x in (dout, q, k, v, o)), lse.unsqueeze(-1), none, none, None, None, None,
            q.shape[1], k.shape[1], 0.0, block.causal, scale=block.scale)
        return [x.transpose(1, 2) for x in gradients]


class Flash2(WithBackward):
    """FlashAttention-2's for CUDA, as PyTorch has them."""

    takes_packing, takes_window = True, True

    def _mask(self, q, k, block):
        packing, window = block.packing, {}
        sizes = (None, None, q.shape[1], k.shape[1]) if packing is None else (
            packing.offsets, packing.offsets, packing.longest, packing.longest)
        if block.window:
            window = {"window_size_left": block.window[0], "window_size_right": 0 if block.causal else block.window[1]}
        return sizes, block.causal and not window, {"scale": block.scale, **window}

    def forward(self, q, k, v, block):
        sizes, causal, options = self._mask(q, k, block)
        if block.packing is not None:
            q, k, v = q[0], k[0], v[0]
        o, lse, *_ = aten._flash_attention_forward(q, k, v, *sizes, 0.0, causal, False, **options)
        return (o if block.packing is None else o.unsqueeze(0)), lse

    def backward(self, dout, q, k, v, o, lse, block):
        sizes, causal, options = self._mask(q, k, block)
        tensors = dout, q, k, v, o
        if block.packing is not None:
            tensors = [x[0] for x in tensors]
        no_dropout = torch.zeros(2, dtype=torch.uint64, device=q.device), torch.empty(0, device=q.device)
        found = aten._flash_attention_backward(*tensors, lse, *sizes, 0.0, causal, *no_dropout, **options)
        return found if block.packing is None else [x.unsqueeze(0) for x in found]


class Flash4(WithBackward):
    """FlashAttention-4's CuTe kernels, which are compiled when a size is first asked for."""

    takes_packing, takes_window = True, True

    def __init__(self):
        from flash_attn.cute import interface
        self._forward, self._backward = interface._flash_attn_fwd, interface._flash_attn_bwd

    def _mask(self, block):
        mask = {"causal": block.causal and not block.window, "softmax_scale": block.scale}
        if block.window:
            mask.update(window_size_left=block.window[0], window_size_right=0 if block.causal else block.window[1])
        if block.packing is not None:
            p = block.packing
            mask.update(cu_seqlens_q=p.offsets, cu_seqlens_k=p.offsets, max_seqlen_q=p.longest, max_seqlen_k=p.longest)
        return mask

    def forward(self, q, k, v, block):
        if block.packing is None:
            return self._forward(q, k, v, return_lse=True, **self._mask(block))[:2]
        o, lse, *_ = self._forward(q[0], k[0], v[0], return_lse=True, **self._mask(block))
        return o.unsqueeze(0), lse

    def backward(self, dout, q, k, v, o, lse, block):
        tensors = q, k, v, o, dout
        if block.packing is None:
            return self._backward(*tensors, lse.contiguous(), **self._mask(block))[:3]
        found = self._backward(*(x[0] for x in tensors), lse.contiguous(), **self._mask(block))[:3]
        return [x.unsqueeze(0) for x in found]


NAMES = {"sdpa": "what scaled_dot_product_attention chooses", "cudnn": "cuDNN's, as PyTorch calls them (CUDA)",
         "fa2": "FlashAttention-2's, as PyTorch has them (CUDA)",
         "fa4": "FlashAttention-4's (CUDA; Python package flash-attn-4)"}


def find(name, device, case):
    """Raises Absent where these kernels are not here or cannot compute the case."""
    on_cuda = device.type == "cuda"
    if name == "sdpa":
        kernels = Sdpa()
    elif not on_cuda:
        raise Absent(f"{name} kernels are for CUDA devices; start it on a machine that has one")
    elif name == "fa2":
        kernels = Flash2()
    elif name == "cudnn":
        if not torch.backends.cudnn.is_available():
            raise Absent("this PyTorch has no cuDNN; install a build for CUDA")
        kernels = Cudnn()
    else:
        try:
            kernels = Flash4()
        except ImportError as error:
            raise Absent(f"FlashAttention-4 is not here ({error}); pip install --pre flash-attn-4") from None
    if on_cuda and not case.is_narrow():
        raise Absent(f"{name} kernels do not compute in {case.dtype}; --dtype bf16 or fp16")
    if case.mask.window and not kernels.takes_window:
        raise Absent(f"{name} kernels take no window ({case.mask.spec}) through PyTorch; fa2 and fa4 do")
    return kernels


def block_of(mask, device):
    """The Block of a whole sequence."""
    return Block(mask.causal, mask.window, Packing.of(mask.documents, device) if mask.documents else None)


def attend_to_case(kernels, case, device):
    """The function (q, k, v) -> o of the case's whole sequence; documents one by one where kernels take no packing."""
    mask = case.mask
    if mask.documents and not kernels.takes_packing:
        block = Block(mask.causal)

        def by_document(q, k, v):
            parts = zip(*(x.split(mask.documents, 1) for x in (q, k, v)))
            return torch.cat([kernels.attend(*part, block) for part in parts], 1)
        return by_document
    block = block_of(mask, device)
    return lambda q, k, v: kernels.attend(q, k, v, block)
