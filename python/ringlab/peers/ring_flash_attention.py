"""The rings of the package ring-flash-attn, over any kernels here.

The package calls functions of flash_attn.flash_attn_interface. It gets those below instead, which call the kernels that
are asked for: one installation serves all of them, and flash-attn need not be compiled.
"""

import contextlib
import importlib
import sys
import types

from ringlab.peers import kernels
from ringlab.peers.kernels import Block
from ringlab.peers.systems import Family, System, choose, positions, split
from ringlab.peers.world import Absent

NAME = "ring-flash-attention"
RINGS = {"contiguous": "ring_flash_attn_func", "zigzag": "zigzag_ring_flash_attn_func"}

# What the two functions call. Autograd calls them on threads of its own, so this is no variable of one thread.
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


def _package():
    """The package, with the functions above. Raises Absent where it is not installed."""
    if "ring_flash_attn" in sys.modules:
        return sys.modules["ring_flash_attn"]
    interface = types.ModuleType("flash_attn.flash_attn_interface")
    for name in ("_flash_attn_forward", "_flash_attn_backward", "_flash_attn_varlen_forward", "_flash_attn_varlen_backward"):
        setattr(interface, name, globals().get(name))  # of packed documents none, as no ring here is asked for them
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


def _check(argument):
    ring, name = split(argument, "RING/KERNELS, as zigzag/cudnn")
    choose("ring of ring-flash-attention", ring, RINGS)
    choose("kernels of ring-flash-attention", name, [x for x in kernels.NAMES if x != "sdpa"])


def _make(name, argument, case, world):
    ring, kernels_name = argument.split("/")
    mask = case.mask
    if mask.window or mask.documents:
        raise Absent(f"the rings of ring-flash-attn that are timed here take no mask {mask.spec} but full and causal")
    if ring == "zigzag" and not mask.causal:
        raise Absent(f"its zigzag ring is for causal masks, not for {mask.spec}; its contiguous ring takes this one")
    found = kernels.find(kernels_name, world.device, case)
    own, function = positions(case, world, ring), getattr(_package(), RINGS[ring])

    @contextlib.contextmanager
    def around():
        global _chosen
        _chosen = found
        yield

    return System(name, NAME, ring, ring, kernels_name, own, lambda q, k, v: function(q, k, v, causal=mask.causal),
                  around)


FAMILY = Family("ring-flash-attention[:RING/KERNELS]", "the package ring-flash-attn (CUDA); rings contiguous and "
                "zigzag (if nothing is said),\nkernels fa2 (if nothing is said), cudnn and fa4", "zigzag/fa2", _check,
                _make)
