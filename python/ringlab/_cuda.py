"""The C functions of python/library/ringlab_cuda.h: the same passes on CUDA tensors. Loaded when the first one comes."""

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p

from ringlab import _library

VERSION = 5
TRANSPORTS = {"automatic": 0, "copy": 1, "nccl": 2}

ALL_GATHER = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t))

ALLOCATE = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_void_p)
RELEASE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)


class Exchange(ctypes.Structure):
    _fields_ = [("context", c_void_p), ("all_gather", ALL_GATHER)]


class Allocator(ctypes.Structure):
    _fields_ = [("context", c_void_p), ("allocate", ALLOCATE), ("release", RELEASE)]


SIGNATURES = {
    "ringlab_cuda_ring_create": [POINTER(Exchange), POINTER(Allocator), c_int, c_int, c_int, c_int, c_double,
                                 POINTER(c_void_p)],
    "ringlab_cuda_plan_create": [c_void_p, POINTER(_library.Problem), POINTER(_library.Choices), c_int, c_int,
                                 POINTER(c_void_p)],
    "ringlab_cuda_forward": [c_void_p, c_char_p] + [c_void_p] * 5,
    "ringlab_cuda_backward": [c_void_p, c_char_p, c_char_p] + [c_void_p] * 8,
    "ringlab_cuda_ring_destroy": [c_void_p],
}
NOTHING = {
    "ringlab_cuda_plan_destroy": [c_void_p],
    "ringlab_cuda_plan_scratch": [c_void_p, POINTER(c_int64)],
    "ringlab_cuda_ring_held": [c_void_p, POINTER(c_int64), POINTER(c_int64)],
}


@functools.cache
def library():
    """Raises Refused where this build has none."""
    return _library.load("ringlab_cuda", VERSION, SIGNATURES, NOTHING, _library.Refused,
                         "this build of ringlab computes on CPU tensors ({}); for CUDA tensors build it with "
                         "RINGLAB_CUDA=ON, or name a built libringlab_cuda.so in RINGLAB_CUDA_LIBRARY")


def call(name, *arguments):
    """Calls a function of the library. Raises Refused or BrokenRing with its message."""
    status = getattr(library(), name)(*arguments)
    if status:
        raise _library.failure(status, library().ringlab_cuda_message)
