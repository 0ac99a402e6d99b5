"""A ring of CUDA devices: its plans, and what its ranks tell each other while they make one."""

import collections
import ctypes
from ctypes import byref, c_int64, c_void_p

import torch

from ringlab import _cuda, _library

MOST_PLANS = 16  # each has work lists of its own, a megabyte or more


class CudaRing:
    """The CUDA side of a _ring.Ring. All ranks make it, and its plans, in the same order."""

    def __init__(self, ring, device, transport):
        self.device, self._ring = device, ring
        self.plans, self._gathered = collections.OrderedDict(), None  # the latest last, on all ranks in the same order
        # The object must live as long as the library may call it.
        self._exchange = _cuda.Exchange(None, _cuda.ALL_GATHER(self._all_gather))
        self._allocator = _cuda.Allocator(None, _cuda.ALLOCATE(self._allocate), _cuda.RELEASE(self._release))
        self._handle = c_void_p()
        with torch.cuda.device(device):
            _cuda.call("ringlab_cuda_ring_create", byref(self._exchange), byref(self._allocator), ring.rank, ring.size,
                       device.index, _cuda.TRANSPORTS[transport], ring.timeout, byref(self._handle))

    def _all_gather(self, _, data, size, everything, sizes):
        try:
            parts = self._ring.all_gather(ctypes.string_at(data, size))
        except BaseException as error:  # noqa: BLE001, Ctrl-C too; the library says that it failed
            self._ring.note(error)
            return 1
        self._gathered = ctypes.create_string_buffer(b"".join(parts))
        everything[0] = ctypes.addressof(self._gathered)
        for rank, part in enumerate(parts):
            sizes[rank] = len(part)
        return 0

    def _allocate(self, _, size, stream):
        try:
            # PyTorch may see another device than the library, which has its own current one.
            return torch.cuda.caching_allocator_alloc(size, self.device, stream or 0)
        except BaseException as error:  # noqa: BLE001, the library says that there is no memory
            self._ring.note(error)
            return None

    def _release(self, _, memory):
        torch.cuda.caching_allocator_delete(memory)

    def held(self):
        """Bytes of device memory that peers see, and of pinned host memory. The rest is PyTorch's."""
        device, host = c_int64(), c_int64()
        _cuda.library().ringlab_cuda_ring_held(self._handle, byref(device), byref(host))
        return device.value, host.value

    def use(self, key):
        """A plan that is known, on all ranks."""
        self.plans.move_to_end(key)
        return self.plans[key]

    def plan(self, key, *what):
        """A new plan, known by `key` from now on. Raises Refused, on all ranks, if one cannot have it."""
        self._keep_plans(MOST_PLANS - 1)
        before, _ = self.held()
        try:
            plan = _Plan(self._handle, *what)
        except _library.Refused as error:
            # On all ranks: each gives back to the device what PyTorch keeps and does not use.
            if "device memory" not in str(error):
                raise
            self._keep_plans(0)
            torch.cuda.empty_cache()
            plan = _Plan(self._handle, *what)
        # Plans of other memory would allocate again in their next pass, when it is too late to refuse it.
        if self.held()[0] != before:
            self._keep_plans(0)
        self.plans[key] = plan
        return plan

    def _keep_plans(self, most):
        while len(self.plans) > most:
            _cuda.library().ringlab_cuda_plan_destroy(self.plans.popitem(last=False)[1].handle)

    def let_go(self):
        """Whether all of it is freed; if not, other ranks may be using its memory, and it is to be called again."""
        self.plans.clear()
        return bool(_cuda.library().ringlab_cuda_ring_destroy(self._handle))


class _Plan:
    """`scratch`: bytes of device memory that a forward and a backward pass need besides their tensors."""

    def __init__(self, ring, problem, chosen, sinks, deterministic):
        self.handle, scratch = c_void_p(), (c_int64 * 2)()
        _cuda.call("ringlab_cuda_plan_create", ring, byref(_library.Problem(*problem)),
                   byref(_library.choices(*chosen)), sinks, deterministic, byref(self.handle))
        _cuda.library().ringlab_cuda_plan_scratch(self.handle, scratch)
        self.scratch = tuple(scratch)
