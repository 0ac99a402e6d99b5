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

from ringlab.peers.mask import WrongUse, whole_number
from ringlab.peers.world import World
from ringlab.torch import _cuda_ring, _ring, connect, held_memory, ring_attention

HELP = """Times how long the host takes for a call with a packing of documents that it has not seen, and what a process
holds after many of them.

  torchrun --nproc_per_node=2 -m ringlab.peers.plans --tokens-per-rank 16384 --documents 64

Each call has documents of other lengths. Times are medians of the calls, on the slowest rank:
  agree       the ranks tell each other what they call with
  exchange    they tell each other that the plan is made
  allocate    device memory from PyTorch, for the plan
  make        the rest of making a plan
  enqueue     the rest of the call
  busy        the device has work from before, which a plan must not wait for
Several processes may share a GPU."""

PARTS = ("agree", "exchange", "allocate", "make", "enqueue")


class Stopwatch:
    """Host time by part. A part that runs inside another one is not counted in the outer one, too."""

    def __init__(self):
        self.seconds, self._inner = dict.fromkeys(PARTS, 0.0), [0.0]

    def timed(self, part, function):
        def call(*arguments, **options):
            self._inner.append(0.0)
            begin = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                whole = time.perf_counter() - begin
                self.seconds[part] += whole - self._inner.pop()
                self._inner[-1] += whole
        return call

    def read(self):
        seconds, self.seconds = self.seconds, dict.fromkeys(PARTS, 0.0)
        return seconds


def watched():
    """A Stopwatch of everything that calls do from now on. It must begin before the ring is made."""
    watch = Stopwatch()
    for part, owner, name in (("agree", _ring.Ring, "agree"), ("exchange", _ring.Ring, "all_gather"),
                              ("allocate", torch.cuda, "caching_allocator_alloc"), ("make", _cuda_ring.CudaRing, "plan"),
                              ("make", _ring.Ring, "plan")):
        setattr(owner, name, watch.timed(part, getattr(owner, name)))
    return watch


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


def time_plans(world, watch, packings, attend, count, busy):
    """Seconds by part, of each call."""
    found = []
    for _ in range(count):
        cu_seqlens = packings.next()
        synchronize(world)
        if busy:
            torch.cuda._sleep(100_000_000)  # some 50 ms
        watch.read()
        begin = time.perf_counter()
        attend(cu_seqlens)
        whole = time.perf_counter() - begin
        parts = watch.read()
        parts["enqueue"] = whole - sum(parts.values())
        found.append(parts)
    synchronize(world)
    return found


def print_times(world, name, found):
    medians = world.everyones({part: statistics.median(one[part] for one in found) for part in PARTS}
                              | {"whole": statistics.median(sum(one.values()) for one in found)})
    if world.is_root:
        columns = {part: max(of_rank[part] for of_rank in medians) * 1e6 for part in (*PARTS, "whole")}
        print(f"{name:>12}" + "".join(f"{part:>10} {value:7.0f}" for part, value in columns.items()) + "  us", flush=True)


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
    query_heads, _, kv_heads = arguments.heads.partition(":")
    heads = whole_number(query_heads, "--heads"), whole_number(kv_heads or query_heads, "--heads")
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
    watch = watched()
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
            print_times(world, name, time_plans(world, watch, packings, attend, numbers["plans"], busy))
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
