"""PyTorch's own context_parallel, which replaces scaled_dot_product_attention by a ring or an all-gather."""

import contextlib

import torch
import torch.nn.functional as F

from ringlab.peers.systems import Family, System, choose, positions, split
from ringlab.peers.world import Absent

NAME = "context-parallel"
ROTATIONS = ("allgather", "alltoall")
BACKENDS = {"cudnn": "CUDNN_ATTENTION", "fa2": "FLASH_ATTENTION"}


def _check(argument):
    rotation, kernels = split(argument, "ROTATION/KERNELS, as allgather/cudnn")
    choose("rotation", rotation, ROTATIONS)
    choose("kernels of context-parallel", kernels, BACKENDS)


def _module(on_cuda):
    """PyTorch's module. Raises Absent."""
    if not on_cuda:
        raise Absent("PyTorch's context_parallel has kernels for CUDA devices alone; start it on a machine that has one")
    try:
        from torch.distributed.tensor.experimental import _attention
        _attention._cp_options, _attention.set_rotate_method, _attention.context_parallel  # what is used below
    except (ImportError, AttributeError) as error:
        raise Absent(f"this PyTorch ({torch.__version__}) has no context_parallel as it is called here: {error}") from None
    return _attention


def _make(name, argument, case, world):
    rotation, kernels = argument.split("/")
    attention = _module(world.device.type == "cuda")
    if case.mask.window or case.mask.documents:
        raise Absent(f"PyTorch's context_parallel takes no mask {case.mask.spec} but full and causal")
    if not case.is_narrow():
        raise Absent(f"{kernels} kernels do not compute in {case.dtype}; --dtype bf16 or fp16")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    mesh = torch.distributed.init_device_mesh("cuda", (world.size,))
    # Balanced, it gives each rank a first and a last chunk, and refuses a mask that is not causal.
    layout = "zigzag" if case.mask.causal else "contiguous"
    own = positions(case, world, layout)
    group = case.query_heads // case.kv_heads
    dummy = torch.empty(1, 1, case.tokens, 1, device=world.device)  # it must be given something to shard

    @contextlib.contextmanager
    def around():
        attention._cp_options.enable_load_balance = case.mask.causal
        attention.set_rotate_method(rotation)
        with sdpa_kernel(getattr(SDPBackend, BACKENDS[kernels])), attention.context_parallel(
                mesh, buffers=[dummy.clone()], buffer_seq_dims=[2]):
            yield

    def attend(q, k, v):
        # By name, as the context replaces the function. It takes no fewer kv heads than query heads.
        wide = [x.transpose(1, 2).repeat_interleave(group, 1) for x in (k, v)]
        return F.scaled_dot_product_attention(q.transpose(1, 2), *wide, is_causal=case.mask.causal).transpose(1, 2)

    return System(name, NAME, rotation, layout, kernels, own, attend, around)


FAMILY = Family("context-parallel[:ROTATION/KERNELS]", "torch.distributed.tensor.experimental.context_parallel "
                "(CUDA); rotations allgather (if nothing is said)\nand alltoall, kernels cudnn (if nothing is said) and "
                "fa2; k and v are repeated for the query heads", "allgather/cudnn", _check, _make)
