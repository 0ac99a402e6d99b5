"""Times how long the host takes to make plans for new packings of documents. See --help."""

import argparse
import os
import pathlib
import random
import statistics
import sys
import threading
import time

import torch
import torch.distributed as dist

from ringlab.peers.case import WrongUse, heads_of, whole_number
from ringlab.peers.world import World
from ringlab.torch import _cuda_ring, connect, held_memory, ring_attention

HELP = """Times how long the host takes for a call with a packing of documents that it has not seen, and says what a process
holds after many of them.

  torchrun --nproc_per_node=2 -m ringlab.peers.plans --tokens-per-rank 16384 --documents 64

Each call has documents of other lengths. Times are medians of the calls, on the slowest rank; on a busy device, which has
work from before that a plan must not wait for, too. Several processes may share a GPU."""


class Packings:
    """Documents of random lengths, the same on all ranks, never twice."""

    def __init__(self, tokens, documents):
        self._tokens, self._documents, self._random = tokens, documents, random.Random(1)

    def next(self):
        """cu_seqlens of the next packing, int32."""
        cuts = sorted(self._random.sample(range(1, self._tokens), self._documents - 1))
        return torch.tensor([0, *cuts, self._tokens], dtype=torch.int32)


def held(device):
    """{name: bytes or number} of what this process holds."""
    own = pathlib.Path("/proc/self")
    pages = int((own / "statm").read_text().split()[1])
    found = {"resident bytes": pages * os.sysconf("SC_PAGE_SIZE"), "threads": len(list((own / "task").iterdir())),
             "Python threads": threading.active_count(), "file descriptors": len(list((own / "fd").iterdir()))}
    if device.type == "cuda":
        of_ring, pinned = held_memory()
        free, _ = torch.cuda.mem_get_info(device)
        found |= {"allocated by PyTorch": torch.cuda.memory_allocated(device),
                  "reserved by PyTorch": torch.cuda.memory_reserved(device), "held by the ring": of_ring,
                  "pinned by the ring": pinned, "missing on the device": -free}
    return found


def synchronize(world):
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    dist.barrier()


def seconds_of_call(world, packings, attend, count, busy):
    """Median host time of `count` calls, of the slowest rank."""
    found = []
    for _ in range(count):
        cu_seqlens = packings.next()
        synchronize(world)
        if busy:
            torch.cuda._sleep(100_000_000)  # some 50 ms
        begin = time.perf_counter()
        attend(cu_seqlens)
        found.append(time.perf_counter() - begin)
    synchronize(world)
    return world.greatest(statistics.median(found))


def print_growth(world, before, after, steps):
    """Prints by how much each value has grown, on the rank where it grew most."""
    grown = world.everyones({name: after[name] - before[name] for name in after})
    if world.is_root:
        print(f"after {steps} more steps, each with another packing, the most of any rank:")
        for name in after:
            value = after[name] if not name.startswith("missing") else 0
            print(f"{name:>24} {max(of_rank[name] for of_rank in grown):+15,d}    (rank 0 has {value:,d})", flush=True)


def _parser():
    parser = argparse.ArgumentParser(prog="plans", description=HELP, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--tokens-per-rank", default="16384", metavar="N", help="(16384)")
    add("--documents", default="64", metavar="N", help="of a packing (64)")
    add("--heads", default="32:8", metavar="Q:KV", help="query heads and kv heads (32:8)")
    add("--head-dim", default="128", metavar="N", help="(128)")
    add("--layout", default="zigzag", help="(zigzag)")
    add("--schedule", default="ring", help="(ring)")
    add("--plans", default="100", metavar="N", help="calls that are timed, as often beside a busy device (100)")
    add("--steps", default="1000", metavar="N", help="forward and backward steps after which growth is told (1000)")
    add("--device", choices=("cuda", "cpu"), help="(cuda where there is one)")
    add("--transport", choices=("automatic", "copy", "nccl"), default="automatic", help="of ringlab.torch.connect()")
    add("--timeout", type=float, default=300.0, metavar="SECONDS", help="how long a rank waits for another (300)")
    return parser


def main():
    arguments = _parser().parse_args()
    numbers = {name: whole_number(getattr(arguments, name), f"--{name.replace('_', '-')}")
               for name in ("tokens_per_rank", "documents", "head_dim", "plans", "steps")}
    heads = heads_of(arguments.heads)
    if "LOCAL_RANK" not in os.environ:
        raise WrongUse("start it by torchrun: torchrun --nproc_per_node=2 -m ringlab.peers.plans ...")
    tokens = numbers["tokens_per_rank"] * int(os.environ["WORLD_SIZE"])
    if numbers["documents"] > tokens:
        raise WrongUse(f"--documents is {numbers['documents']}; {tokens} tokens have at most as many documents")
    kind = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("gloo")
    try:
        run(World(kind), arguments, numbers, heads)
    finally:
        dist.destroy_process_group()


def run(world, arguments, numbers, heads):
    connect(timeout=arguments.timeout, transport=arguments.transport)
    shape = 1, numbers["tokens_per_rank"], heads[1], numbers["head_dim"]
    dtype = torch.bfloat16 if world.device.type == "cuda" else torch.float32
    q = torch.randn(*shape[:2], heads[0], shape[3], device=world.device, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(shape, device=world.device, dtype=dtype, requires_grad=True) for _ in range(2))
    packings = Packings(numbers["tokens_per_rank"] * world.size, numbers["documents"])

    def attend(cu_seqlens):
        return ring_attention(q, k, v, cu_seqlens=cu_seqlens, layout=arguments.layout, schedule=arguments.schedule)

    def step():
        attend(packings.next()).sum().backward()
        q.grad = k.grad = v.grad = None

    for _ in range(_cuda_ring.MOST_PLANS + 4):  # until plans are as many as are kept
        step()
    with torch.no_grad():
        for name, busy in (("idle device", False), ("busy device", True)):
            if busy and world.device.type == "cpu":
                continue
            seconds = seconds_of_call(world, packings, attend, numbers["plans"], busy)
            if world.is_root:
                print(f"{name}: {1e6 * seconds:.0f} us a call", flush=True)
    step()
    synchronize(world)
    before = held(world.device)
    for left in reversed(range(numbers["steps"])):
        # Before the last one, too: a plan that is not kept goes with the first call after its passes have ended.
        if left % 100 == 0:
            synchronize(world)
        step()
    synchronize(world)
    print_growth(world, before, held(world.device), numbers["steps"])


if __name__ == "__main__":
    try:
        main()
    except WrongUse as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"plans: {error}", file=sys.stderr)
        sys.exit(2)
