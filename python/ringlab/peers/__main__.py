"""The command: arguments, then case by case make, judge, time and report. See --help."""

import argparse
import importlib.util
import math
import os
import pathlib
import sys

import torch
import torch.distributed as dist

from ringlab.peers import judge, report, systems
from ringlab.peers.case import DTYPES, Case, Mask, WrongUse, heads_of, whole_number
from ringlab.peers.timing import PASSES, Deadline, time_bursts, time_sustained
from ringlab.peers.world import World, connect
from ringlab.torch._cuda_ring import MOST_PLANS

HELP = """Times attention of Ringlab and of other systems in turns, in one job, on the same tensors.

  torchrun --nproc_per_node=2 -m ringlab.peers --tokens-per-rank 2048 8192 --systems ringlab ulysses:cudnn
  python -m ringlab.peers --list

Each system's output and gradients are first compared with attention in fp64. One that is wrong, is not here or cannot do
the case is named with a line that says why, and the others are timed.
  sustained   rounds in which each system has its turn, back to back, so that power bounds the clocks
  burst       ten single passes in turns over tensors drawn anew, L2 cleared before each; the first five are not counted.
              On CUDA, times are those between two events, without the launch.
Rates are TFLOP/s per GPU over visible pairs, of the slowest rank."""


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise WrongUse(message)


def _parser():
    parser = _Parser(prog="peers", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter,
                     allow_abbrev=False)
    add = parser.add_argument
    add("--systems", nargs="+", metavar="NAME", default=["ringlab", "ulysses"],
        help="as --list names them (ringlab ulysses)")
    add("--tokens-per-rank", nargs="+", metavar="N", default=["2048"], help="(2048)")
    add("--heads", default="32:8", metavar="Q:KV", help="query heads and kv heads (32:8)")
    add("--head-dim", default="128", metavar="N", help="of q and k, or N-V where v has another, as 192-128 (128)")
    add("--mask", default="causal", help="by Ringlab's name: full, causal, window:4095,0, causal+documents:100,28x2 (causal)")
    add("--dtype", choices=DTYPES, help="(bf16 on CUDA, fp32 on CPU)")
    add("--device", choices=("cuda", "cpu"), help="(cuda where there is one)")
    add("--passes", nargs="+", choices=PASSES, default=["forward", "both"],
        help="both: forward and backward in one (forward both)")
    add("--protocol", choices=("sustained", "burst", "both"), default="sustained", help="(sustained)")
    add("--repeats", default="5", metavar="N", help="rounds of the sustained protocol (5)")
    add("--seconds", type=float, default=0.75, help="of device time for each pass of each system, sustained (0.75)")
    add("--warm-up", type=float, default=0.5, metavar="SECONDS", help="before each case, sustained (0.5)")
    add("--time-limit", type=float, default=math.inf, metavar="SECONDS",
        help="stop after the round that is under way then, and keep what was measured")
    add("--output", type=pathlib.Path, metavar="FILE.h5", help="a record of all samples; needs h5py")
    add("--list", action="store_true", help="the systems, then end")
    return parser


def _checked(arguments):
    """Device type, dtype and the cases. Raises WrongUse: everything that can be known before ranks meet."""
    heads = heads_of(arguments.heads)
    if len(set(arguments.systems)) < len(arguments.systems):
        raise WrongUse(f"--systems names one twice: {' '.join(arguments.systems)}")
    for name in arguments.systems:
        systems.check(name)
    arguments.repeats = whole_number(arguments.repeats, "--repeats")
    for name in ("seconds", "warm_up", "time_limit"):
        if not getattr(arguments, name) >= 0:
            raise WrongUse(f"--{name.replace('_', '-')} is {getattr(arguments, name)}; it must be 0 or more")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise WrongUse("--device cuda, but PyTorch finds no CUDA device; --device cpu computes without one")
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    ranks, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if device == "cuda" and here > torch.cuda.device_count():
        raise WrongUse(f"{here} processes on a host with {torch.cuda.device_count()} GPUs; start one for each GPU "
                       "(--nproc_per_node), or give --device cpu")
    ours = [name for name in arguments.systems if name.partition(":")[0] == "ringlab"]
    if device == "cuda" and len(ours) > MOST_PLANS:
        raise WrongUse(f"--systems has {len(ours)} of ringlab's; on CUDA it keeps plans of {MOST_PLANS} schedules and "
                       f"layouts at a time, so time {MOST_PLANS} at most in one job")
    if arguments.output is not None:
        if importlib.util.find_spec("h5py") is None:
            raise WrongUse("--output needs the Python package h5py, which is not here; install it (pip install h5py), or "
                           "leave --output out and read the table")
        if arguments.output.exists():
            raise WrongUse(f"--output {arguments.output}: it is there already; give another path")
        if not arguments.output.absolute().parent.is_dir():
            raise WrongUse(f"--output {arguments.output}: there is no folder {arguments.output.absolute().parent}")
    dtype = arguments.dtype or ("bf16" if device == "cuda" else "fp32")
    head_dim, _, value_dim = arguments.head_dim.partition("-")
    dims = [whole_number(text, "--head-dim") for text in (head_dim, value_dim or head_dim)]
    mask = Mask.of(arguments.mask)
    cases = [Case(mask, ranks * whole_number(text, "--tokens-per-rank"), ranks, *heads, *dims, dtype)
             for text in arguments.tokens_per_rank]
    for case in cases:
        if mask.documents and sum(mask.documents) != case.tokens:
            raise WrongUse(f"--mask {mask.spec}: its documents have {sum(mask.documents)} tokens, the sequence has "
                           f"{case.tokens} ({ranks} ranks of {case.tokens // ranks}); they must be equal")
    return device, cases


def _judged(name, case, whole, expected, shards, world):
    """The Row of a system that was made and compared; its shard lies in `shards` then."""
    row = report.Row(name, case)
    row.system, row.absent = world.try_together(lambda: systems.make(name, case, world))
    if row.absent:
        return row
    if row.system.layout not in shards:
        own = row.system.positions.to(world.device)
        shards[row.system.layout] = [x[:, own].requires_grad_(i < 3) for i, x in enumerate(whole)]
    *inputs, dout = shards[row.system.layout]

    def results():
        with row.system.around():
            o = row.system.attend(*inputs)
            return [o.detach(), *torch.autograd.grad(o, inputs, dout)]

    found, row.absent = world.try_together(results)
    if not row.absent:
        row.errors = judge.errors(found, expected, row.system.positions, world)
        row.absent = judge.complaint(row.errors, case)
    return row


def _rehearsed(row, shards, passes, world):
    """The passes of a system that was judged; one that fails is left out, and `row` says why."""
    calls = []
    for which in passes:
        call, why_not = world.try_together(lambda: row.system.call(row.system, which, shards[row.system.layout]))
        if not why_not:
            _, why_not = world.try_together(call.once)
        if why_not:
            row.absent = f"{PASSES[which]}: {why_not}"
        else:
            calls.append(call)
    return calls


def _time_case(case, arguments, protocols, deadline, world):
    """Rows of all systems; the last value says whether the time sufficed."""
    whole, shards = case.draw(world.device), {}
    expected = judge.reference(case, *whole, world)
    rows = [_judged(name, case, whole, expected, shards, world) for name in arguments.systems]
    del whole, expected
    for row in rows:
        if not row.absent:
            row.calls = _rehearsed(row, shards, arguments.passes, world)
    # The systems' passes of one kind follow each other, so that those that are compared are close in time.
    calls = [call for which in arguments.passes for row in rows for call in row.calls if call.which == which]
    enough = True
    if calls and "burst" in protocols:
        enough = time_bursts(calls, world, deadline)
    if calls and "sustained" in protocols and enough:
        enough = time_sustained(calls, world, arguments.repeats, arguments.seconds, arguments.warm_up, deadline)
    return rows, enough


def _say(world, text):
    if world.is_root:
        print(text, flush=True)


def run(arguments, cases, world):
    protocols = ("burst", "sustained") if arguments.protocol == "both" else (arguments.protocol,)
    deadline, about, rows = Deadline(arguments.time_limit, world), report.provenance(world), []
    configuration = {name.replace("_", "-"): " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
                     for name, value in vars(arguments).items() if name not in ("list", "output")}
    for i, case in enumerate(cases):
        if deadline.is_over():
            _say(world, f"time is up: {', '.join(str(x.tokens // x.ranks) for x in cases[i:])} tokens per rank not timed")
            break
        of_case, enough = _time_case(case, arguments, protocols, deadline, world)
        rows += of_case
        _say(world, f"\n{case.mask.spec}, {case.shape}, {case.tokens // case.ranks} tokens per rank, ranks: {case.ranks} "
             f"({about['devices'][0]})" + ("" if enough else "; time was up before all rounds were done"))
        for protocol in protocols:
            if any(row.calls for row in of_case):
                _say(world, f"{protocol}\n{report.table(of_case, protocol, arguments.passes)}")
        for row in of_case:
            if row.absent:
                _say(world, f"not timed: {row.name}: {row.absent}")
        if arguments.output is not None and world.is_root:
            report.write(arguments.output, rows, about, configuration)
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
    if arguments.output is not None and rows:
        _say(world, f"record: {arguments.output}")
    return 0 if any(row.calls for row in rows) else 1 if world.is_root else 0


def checked(words):
    """(arguments, device type, cases). Raises WrongUse."""
    arguments = _parser().parse_args(words)
    if arguments.list:
        return arguments, None, []
    if "RANK" not in os.environ:
        raise WrongUse("start it by torchrun: torchrun --nproc_per_node=2 -m ringlab.peers ...")
    device, cases = _checked(arguments)
    arguments.device, arguments.dtype = device, cases[0].dtype
    return arguments, device, cases


def main():
    """Exit status: 0 if something was timed, 1 if nothing was, 2 if the command line is wrong. Only rank 0 says so: torchrun
    ends all ranks when the first fails, perhaps before rank 0 has printed why."""
    speaks = int(os.environ.get("RANK", 0)) == 0
    try:
        arguments, device, cases = checked(sys.argv[1:])
    except WrongUse as error:
        if not speaks:
            return 0
        print(f"peers: {error}", file=sys.stderr)
        return 2
    if arguments.list:
        if speaks:
            print(systems.listing())
        return 0
    connect(device)
    try:
        return run(arguments, cases, World(device))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
