"""Where the time of context-parallel attention goes, by profiles of PyTorch (torch.profiler), one file for each rank:

    python -m ringlab.kineto rank0.json rank1.json

Where a profile has GPU activities these alone count, otherwise operators and messages of gloo. Names say what is
attention, forward and backward, and what is a message; everything else is other compute.
"""

import dataclasses
import gzip
import json
import math
import pathlib
import re
import sys

from ringlab._library import Refused

_MESSAGE = re.compile(r"^nccl|^gloo:|nvshmem|memcpy ptop")
_ATTENTION = re.compile(r"attention|attn|fmha|flash_fwd|flash_bwd|sdpa|^bwd_(kernel_|preprocess)|"
                        r"ringlab.*(forward_kernel|split_kv_kernel|backward_kernel|query_gradient)")
_COMPILED = re.compile(r"^triton_(poi|red|per)_")  # elementwise, whatever their names say after that
_BACKWARD = re.compile(r"bwd|backward|bprop|cutlassb|query_gradient")
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
ATTENTION = ("forward", "backward")
COLUMNS = ("compute", *ATTENTION, "communication", "exposed", "idle")


def kind_of(name):
    """forward, backward (both of attention), message or other."""
    name = name.lower()
    if _MESSAGE.search(name):
        return "message"
    if _COMPILED.search(name) or not _ATTENTION.search(name):
        return "other"
    return "backward" if _BACKWARD.search(name) else "forward"


@dataclasses.dataclass
class Profile:
    """One rank's. events: (kind, begin, end), seconds on the clock of the rank's host, by begin."""

    file: str
    rank: int
    world: int
    groups: list  # of the job: the ranks of each process group
    events: list


def _counted(trace):
    """(kind, thread, begin, end) in seconds of the events that count."""
    base, on_gpu, on_cpu = trace.get("baseTimeNanoseconds", 0) * 1e-9, [], []
    for event in trace["traceEvents"]:
        name, begin, length = event.get("name", ""), event.get("ts"), event.get("dur")
        if event.get("ph") != "X" or not isinstance(begin, (int, float)) or not isinstance(length, (int, float)):
            continue
        if length < 0 or not math.isfinite(begin + length):
            continue
        kind, begin = kind_of(name), base + begin * 1e-6
        one = (kind, (event.get("pid"), event.get("tid")), begin, begin + length * 1e-6)
        if event.get("cat") in _ON_GPU:
            on_gpu.append(one)
        elif name.startswith("gloo:") or event.get("cat") == "cpu_op" and kind != "message" and (
                kind != "other" or name.startswith(("aten::", "ringlab::"))):
            on_cpu.append(one)
    return on_gpu or _innermost(on_cpu)


def _innermost(events):
    """Without operators of attention that contain another one: the rest of their time is not attention."""
    kept, last = [], None
    for event in sorted(events, key=lambda event: (str(event[1]), event[2], -event[3])):
        if event[0] in ATTENTION:
            if last is not None and last[1] == event[1] and event[3] <= last[3]:
                kept.remove(last)
            last = event
        kept.append(event)
    return kept


def profile_of(trace, file):
    """The Profile of a trace's JSON."""
    if not isinstance(trace, dict) or "traceEvents" not in trace:
        raise Refused(f"'{file}' has no traceEvents; give what export_chrome_trace() of torch.profiler has written")
    job = trace.get("distributedInfo") or {}
    rank, world = job.get("rank"), job.get("world_size")
    if not isinstance(rank, int) or not isinstance(world, int) or not 0 <= rank < world:
        raise Refused(f"'{file}' does not say which rank it is of (distributedInfo); profile after init_process_group()")
    groups = [sorted(group["ranks"]) for group in job.get("pg_config") or [] if len(group.get("ranks") or []) > 1]
    events = [(kind, begin, end) for kind, _, begin, end in _counted(trace)]
    return profile_of_events(events, str(file), rank, world, groups)


def profile_of_events(events, file, rank, world, groups=()):
    """A Profile without what comes before the first and after the last attention or message."""
    if not any(kind in ATTENTION for kind, *_ in events):
        raise Refused(f"'{file}' has no attention among its {len(events)} events, by their names; profile steps that attend")
    first = min(begin for kind, begin, _ in events if kind != "other")
    last = max(end for kind, _, end in events if kind != "other")
    kept = [event for event in events if event[1] >= first and event[2] <= last]
    return Profile(file, rank, world, groups, sorted(kept, key=lambda event: event[1]))


def read(file):
    """The Profile of a file, which may be compressed by gzip. Raises Refused."""
    path = pathlib.Path(file)
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as opened:
            return profile_of(json.load(opened), file)
    except (EOFError, ValueError) as error:
        raise Refused(f"'{file}' is not whole: {error}; export the trace again") from None
    except OSError as error:
        raise Refused(f"'{file}' cannot be read: {error.strerror or error}") from None


def _covered(spans):
    length, reached = 0.0, -math.inf
    for begin, end in sorted(spans):
        length += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return length


def shares(profiles):
    """A row for each rank, seconds during which it computes (`compute`, of which attention `forward` and `backward`),
    a message is under way (`communication`), the same while nothing computes (`exposed`), and neither (`idle`), up to the
    end of the last rank. Raises Refused if files are not of all ranks of a job or of one of its groups."""
    profiles = sorted(profiles, key=lambda profile: profile.rank)
    ranks, first = [profile.rank for profile in profiles], profiles[0]
    for before, profile in zip(profiles, profiles[1:]):
        if profile.world != first.world:
            raise Refused(f"'{first.file}' is of a job of {first.world} ranks and '{profile.file}' of one of {profile.world}")
        if profile.rank == before.rank:
            raise Refused(f"'{before.file}' and '{profile.file}' are both of rank {profile.rank}; give one of each rank")
    if ranks != list(range(first.world)) and ranks not in first.groups:
        missing = min(set(range(first.world)) - set(ranks))
        raise Refused(f"no trace of rank {missing} is given, of a job of {first.world} ranks; give one of each rank of the "
                      "job, or of a process group")
    begins = [min(begin for _, begin, _ in profile.events) for profile in profiles]
    ends = [max(end for *_, end in profile.events) for profile in profiles]
    if max(begins) > min(ends):  # clocks that have nothing in common: each rank begins at 0
        ends, begins = [end - begin for begin, end in zip(begins, ends)], [0.0] * len(ends)
    whole, rows = max(ends) - min(begins), []
    for profile in profiles:
        of = {kind: [event[1:] for event in profile.events if event[0] == kind]
              for kind in (*ATTENTION, "other", "message")}
        compute = _covered(of["forward"] + of["backward"] + of["other"])
        busy = _covered([event[1:] for event in profile.events])
        rows.append({"rank": profile.rank, "compute": compute, "forward": _covered(of["forward"]),
                     "backward": _covered(of["backward"]), "communication": _covered(of["message"]),
                     "exposed": busy - compute, "idle": whole - busy})
    return rows


def summary(rows):
    """Seconds of the rank with most of each; `time` from the first event to the last, `balance` largest over mean."""
    most = {name: max(row[name] for row in rows) for name in COLUMNS}
    computes = [row["compute"] for row in rows]
    row = rows[0]
    return {"time": row["compute"] + row["exposed"] + row["idle"], **most,
            "balance": max(computes) * len(rows) / sum(computes)}


def aligned(lines):
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def text(rows):
    """The table of shares()."""
    lines = [["rank", *(f"{'attention ' * (name in ATTENTION)}{name} ms" for name in COLUMNS)]]
    lines += [[str(row["rank"]), *(f"{row[name] * 1e3:.4g}" for name in COLUMNS)] for row in rows]
    total = summary(rows)
    return (f"{aligned(lines)}\nBalance of compute, slowest rank over mean: {total['balance']:.3f}. "
            f"From the first to the last event: {total['time'] * 1e3:.4g} ms")


def comparison(rows, predicted, passes=1):
    """Measured times over `passes`, the attentions in the profile, beside rows of ringlab.predict() for one attention."""
    measured = {name: value / (1 if name == "balance" else passes) for name, value in summary(rows).items()}
    names = {"time": "seconds", "compute": "compute", "communication": "communication", "exposed": "exposed"}
    expected = {name: sum(row[column] for row in predicted) for name, column in names.items()}
    expected["balance"] = expected["compute"] / sum(row["compute_mean"] for row in predicted)
    lines = [["", "measured", "predicted", "predicted / measured"]]
    for name, value in expected.items():
        unit, scale = ("", 1) if name == "balance" else (" ms", 1e3)
        ratio = f"{value / measured[name]:.3f}" if measured[name] else "-"
        lines.append([name + unit, f"{measured[name] * scale:.4g}", f"{value * scale:.4g}", ratio])
    return aligned(lines)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__.strip())
    try:
        print(text(shares([read(file) for file in sys.argv[1:]])))
    except Refused as refusal:
        sys.exit(f"ringlab.kineto: {refusal}")
