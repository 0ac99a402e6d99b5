"""The processes of torchrun: each one's device, and how they decide things together."""

import datetime
import os

import torch
import torch.distributed as dist


class Absent(Exception):
    """Why a system is not here or cannot do a case, and how to have it, in one line."""


def words(error):
    """An exception in one line."""
    line = (str(error).strip().splitlines() or [""])[0]
    return line if isinstance(error, Absent) else f"{type(error).__name__}: {line}"


def connect(device_type):
    """Makes the group of all processes of torchrun, which wait for each other five minutes at most."""
    limit = datetime.timedelta(minutes=5)
    if device_type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=limit)
    else:
        dist.init_process_group("gloo", timeout=limit)


class World:
    """All processes of the default group. Tensors travel by NCCL between CUDA devices and by gloo otherwise, decisions
    always by gloo."""

    def __init__(self, device_type):
        self.device = torch.device("cuda", torch.cuda.current_device()) if device_type == "cuda" else torch.device("cpu")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    @property
    def is_root(self):
        return self.rank == 0

    def synchronize(self):
        """All ranks are here, and their devices have done what they were given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        dist.all_reduce(torch.zeros(1))

    def everyones(self, value):
        """The values that the ranks gave, by rank."""
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def greatest(self, number):
        """The greatest of the ranks' numbers."""
        found = torch.tensor([number], dtype=torch.float64)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return found.item()

    def roots(self, value):
        """The value that rank 0 gave."""
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def try_together(self, function):
        """(what `function` returns, ""), or (None, a line) on all ranks if it raised on one."""
        value, mine = None, ""
        try:
            value = function()
        except Exception as error:  # noqa: BLE001, whatever another system raises is why it is not timed
            mine = words(error)
        reasons = self.everyones(mine)
        for rank, reason in enumerate(reasons):
            if reason:
                return None, reason if len(set(reasons)) == 1 else f"rank {rank}: {reason}"
        return value, ""
