"""Kernels alone: one GPU's attention by other systems' kernels, as `throughput --ranks 1` times Ringlab's."""

import functools

import torch

from ringlab.peers import kernels
from ringlab.peers.systems import Family, System, choose, positions
from ringlab.peers.timing import Call
from ringlab.peers.world import Absent

NAME = "alone"


class Captured(Call):
    """A CUDA graph of the kernels' own forward or backward call, so that no launch from Python is timed."""

    def __init__(self, system, which, tensors, found, block):
        super().__init__(system, which, tensors)
        if which == "both":
            raise Absent("kernels alone are timed pass by pass; --passes forward backward")
        *inputs, dout = (x.detach() for x in tensors)
        self._attend = functools.partial(found.forward, *inputs, block)
        self._o, self._lse = self._attend()
        call = self._attend
        if which == "backward":
            call = functools.partial(found.backward, dout, *inputs, self._o, self._lse, block)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what kernels do when they are first called is no part of a graph
            for _ in range(2):
                call()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._kept = call()

    def prepare(self):
        if self.which == "backward":
            for kept, new in zip((self._o, self._lse), self._attend()):
                kept.copy_(new)

    def __call__(self):
        self._graph.replay()


def _make(name, argument, case, world):
    if world.size > 1:
        raise Absent(f"kernels alone are those of one GPU, and there are {world.size} processes; --nproc_per_node=1")
    found = kernels.find(argument, world.device, case)
    if case.mask.documents and not found.takes_packing:
        raise Absent(f"{argument} kernels take no packed documents through PyTorch; fa2 and fa4 do")
    block = kernels.block_of(case.mask, world.device)
    return System(name, NAME, "alone", "contiguous", argument, positions(case, world, "contiguous"),
                  lambda q, k, v: found.attend(q, k, v, block),
                  call=functools.partial(Captured, found=found, block=block))


FAMILY = Family("alone[:KERNELS]", "these kernels on one GPU, in CUDA graphs, pass by pass; fa4 if nothing is said", "fa4",
                lambda argument: choose("kernels", argument, [name for name in kernels.NAMES if name != "sdpa"]), _make)
