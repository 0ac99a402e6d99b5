"""A small all-gather among ranks of one host, through shared memory: microseconds, where gloo takes hundreds."""

import ctypes
import struct
from ctypes import byref, c_int, c_int64, c_void_p

from ringlab import _library

ADDRESS = struct.Struct("<qqq")  # process, its container, descriptor
LONGEST_WAIT = 0.05  # seconds within the library; between two waits Python notices Ctrl-C


class HostAllGather:
    """Blocks of `size` bytes of all ranks, in rounds. See made_by_all()."""

    def __init__(self, handle, ranks, size, timeout):
        self._handle, self._timeout, self._complete = handle, timeout, c_int()
        self._size, self._blocks = size, ctypes.create_string_buffer(ranks * size)
        self._complete_at = byref(self._complete)

    def __del__(self):
        if _library.library is not None:
            _library.library.ringlab_all_gather_destroy(self._handle)

    def __call__(self, block):
        """The blocks of all ranks, in order, one behind the other. Raises BrokenRing if a rank does not come."""
        if len(block) != self._size:
            raise ValueError(f"a block has {len(block)} bytes; it must have {self._size}")
        while True:
            _library.call("ringlab_all_gather_round", self._handle, block, LONGEST_WAIT, self._timeout, self._blocks,
                          self._complete_at)
            if self._complete:
                return self._blocks.raw
            block = None  # it has begun

    def leave(self):
        """The others hear that this rank does not come any more."""
        _library.library.ringlab_all_gather_leave(self._handle)


def made_by_all(rank, ranks, size, timeout, all_gather):
    """The HostAllGather of a ring, made by all its ranks together; None, on all of them, where one cannot open the
    memory of rank 0, as on another host. `all_gather` takes a rank's bytes and returns those of all."""
    handle, own, opened = c_void_p(), (c_int64 * 3)(), False
    if rank == 0:
        opened = _succeeds("ringlab_all_gather_create", ranks, size, own, byref(handle))
    address = ADDRESS.unpack(all_gather(ADDRESS.pack(*own))[0])
    if rank > 0:
        opened = _succeeds("ringlab_all_gather_open", (c_int64 * 3)(*address), rank, ranks, size, byref(handle))
    gather = HostAllGather(handle, ranks, size, timeout) if opened else None
    if b"\0" in all_gather(bytes([opened])):
        return None
    _library.library.ringlab_all_gather_ready(handle)
    return gather


def _succeeds(name, *arguments):
    try:
        _library.call(name, *arguments)
        return True
    except _library.Refused:
        return False
