"""The two protocols: back to back until power bounds the clocks (sustained), and single cold passes (burst)."""

import dataclasses
import math
import statistics
import time

import torch
import torch.distributed as dist

PASSES = {"forward": "forward", "backward": "backward", "both": "forward and backward"}
BURST = 10  # passes, of which the first half is not counted
MOST_CALLS = 300  # of a turn


class Call:
    """One pass of one system: `which` is of PASSES. `tensors` are q, k, v and the gradient of o of this rank's shard."""

    def __init__(self, system, which, tensors):
        self.system, self.which, self.tensors = system, which, tensors
        self._o = None
        self.rounds, self.burst = [], []  # seconds: [round][call][rank], [pass][rank]

    def prepare(self):
        """What comes before the pass that is timed: a backward pass needs its forward pass."""
        if self.which == "backward":
            self._o = self.system.attend(*self.tensors[:3])

    def draw(self):
        with torch.no_grad():
            for x in self.tensors:
                x.normal_()

    def once(self):
        with self.system.around():
            self.prepare()
            self()

    def __call__(self):
        *inputs, dout = self.tensors
        if self.which == "forward":
            with torch.no_grad():
                self.system.attend(*inputs)
        elif self.which == "backward":
            torch.autograd.grad(self._o, inputs, dout, retain_graph=True)
        else:
            torch.autograd.grad(self.system.attend(*inputs), inputs, dout)


class Deadline:
    """The end of the time that all ranks have, by rank 0's clock."""

    def __init__(self, seconds, world):
        self._end, self._world = time.monotonic() + seconds, world

    def is_over(self):
        return self._world.roots(time.monotonic() >= self._end)


class _Clock:
    """Moments on the device, or on the host where attention is computed there."""

    def __init__(self, world):
        self._on_cuda = world.device.type == "cuda"

    def mark(self):
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, marks):
        """Between each mark and the next."""
        if not self._on_cuda:
            return [b - a for a, b in zip(marks, marks[1:])]
        torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e-3 for a, b in zip(marks, marks[1:])]


def _turn(call, count, clock, world):
    """Seconds of `count` calls in a row on this rank."""
    with call.system.around():
        call.prepare()
        world.synchronize()
        marks = [clock.mark()]
        for _ in range(count):
            call()
            marks.append(clock.mark())
        return clock.seconds(marks)


def _of_all_ranks(seconds):
    """[call][rank] from this rank's seconds of each call."""
    own = torch.tensor(seconds, dtype=torch.float64)
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    return torch.stack(everyone, 1).tolist()


def time_sustained(calls, world, rounds, seconds, warm_up, deadline):
    """Rounds in which each call has its turn, back to back; the first third of a turn is not counted. `seconds` are
    those of a call in all rounds, `warm_up` those before the first. Returns whether there was time for all rounds."""
    clock, counts = _Clock(world), []
    for call in calls:
        once = world.greatest(statistics.median(_turn(call, 3, clock, world)))
        counts.append(min(MOST_CALLS, max(6, math.ceil(seconds / rounds / once))))
        if call is calls[0]:
            warming = math.ceil(warm_up / once)
    _turn(calls[0], warming, clock, world)
    for _ in range(rounds):
        if deadline.is_over():
            return False
        for call, count in zip(calls, counts):
            call.rounds.append(_of_all_ranks(_turn(call, count, clock, world)[count // 3:]))
    return True


def time_bursts(calls, world, deadline, rest=0.02):
    """Single passes in turns, each over tensors drawn anew, behind a cleared L2 cache and a rest.

    On CUDA by events: the device is kept busy until the host has enqueued the whole pass, so that no launch is timed,
    and a message of all ranks lets them begin together. Returns whether there was time for all passes.
    """
    clock, on_cuda = _Clock(world), world.device.type == "cuda"
    cache = 8 * torch.cuda.get_device_properties(world.device).L2_cache_size if on_cuda else 1 << 25
    other = torch.empty(cache, dtype=torch.uint8, device=world.device)
    together = torch.zeros(1, device=world.device)
    issue = [_issue_seconds(call, world) for call in calls] if on_cuda else [0.0] * len(calls)
    for i in range(BURST):
        if deadline.is_over():
            return False
        for call, host_seconds in zip(calls, issue):
            with call.system.around():
                call.draw()
                call.prepare()
                world.synchronize()
                time.sleep(rest)
                if on_cuda:
                    torch.cuda._sleep(int(2e9 * (2 * host_seconds + 5e-4)))  # cycles
                other.fill_(i)
                dist.all_reduce(together)
                begin = clock.mark()
                call()
                call.burst += _of_all_ranks(clock.seconds([begin, clock.mark()]))
    return True


def _issue_seconds(call, world):
    """Host time of a call, of the slowest rank."""
    with call.system.around():
        call.prepare()
        times = []
        for _ in range(3):
            world.synchronize()
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        world.synchronize()
    return world.greatest(min(times))


@dataclasses.dataclass(frozen=True)
class Typical:
    """Median, and the distance of the quartiles over it."""

    median: float
    spread: float


def _typical(values):
    if len(values) == 1:
        return Typical(values[0], math.nan)
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Typical(middle, (high - low) / middle)


def sustained_seconds(call):
    """Over the rounds: the mean call of a turn, of the slowest rank. None if there was no round."""
    turns = [max(sum(rank) / len(rank) for rank in zip(*turn)) for turn in call.rounds]
    return _typical(turns) if turns else None


def burst_seconds(call):
    """Over the last half of all passes, of the slowest rank. None if there were fewer than two."""
    passes = [max(ranks) for ranks in call.burst]
    return _typical(passes[len(passes) // 2:]) if len(passes) >= 2 else None


SECONDS = {"sustained": sustained_seconds, "burst": burst_seconds}
