"""ringlab.record(): the passes of a training step as they ran, beside how they are predicted.

Each rank notes when it did what in its passes: CPU ranks are asked for their operations, kernels are found in a
profile. Rank 0 puts the passes of all ranks one behind the other, because what a model does between them is not
attention, lays predictions beside them (ringlab.kineto) and writes the record.
"""

import contextlib
import datetime
import importlib.util
import json
import os
import pathlib
import shlex
import sys
import tempfile
import time

import torch

from ringlab import _library, _tables, kineto
from ringlab._library import Refused
from ringlab.torch import _ring

KINDS = {"other compute": "other", "send": "message", "receive": "message"}  # of an operation that is no attention

active = None  # the recording that is going on in this process


class Recording:
    """What ringlab.record() gives: `path` of the record and, once the block has ended, `text`, the tables."""

    def __init__(self, path, machines, group, ranks):
        self.path, self.machines, self.group, self.ranks, self.text = path, machines, group, ranks, ""
        # ("forward" or "backward", events as in kineto.Profile), in order; those of kernels come from the profile.
        self.passes = []
        self.options = []  # of ringlab.predict(), each kind of attention once

    def refusal(self, q, group):
        """Why a call cannot be recorded; empty if it can."""
        if group != self.group:
            return "a step that is recorded calls ring_attention over another group than record(group=...) has"
        if self.machines and q.dtype not in (torch.bfloat16, torch.float16):
            return f"q is {q.dtype}; record(machines=...) predicts bfloat16 and float16: leave out machines"
        return ""

    def begin(self, which, problem, chosen):
        batch, tokens, query_heads, kv_heads, head_dim, value_dim, scale, soft_cap, dropout, dtype = problem
        spec, layout, schedule, _, mask_tokens, _ = chosen
        if mask_tokens < tokens:  # documents with padding behind them
            spec += f",{tokens - mask_tokens}+valid:0-{mask_tokens}"
        options = {"tokens": tokens, "ranks": self.ranks, "batch": batch, "heads": (query_heads, kv_heads),
                   "head_dim": head_dim, "value_dim": value_dim, "masks": spec, "layouts": layout, "schedules": schedule,
                   "scale": scale, "soft_cap": soft_cap, "dropout": dropout,
                   "dtype": next(name for name, number in _library.DTYPES.items() if number == dtype)}
        if options not in self.options:
            self.options.append(options)
        self.passes.append((which, []))

    def end(self, spans):
        """The latest pass has ended on CPU ranks."""
        now, (which, events) = time.time(), self.passes[-1]
        events += [(KINDS.get(_library.ACTIVITIES[span.activity], which), now - span.begin, now - span.end)
                   for span in spans]


def events_of_passes(trace):
    """For each pass of a profile, in order: the events on the GPU that calls within the pass's range caused."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    base = trace.get("baseTimeNanoseconds", 0) * 1e-9
    ranges = sorted((event["ts"], event["ts"] + event["dur"]) for event in events
                    if event.get("cat") == "user_annotation"
                    and event["name"].startswith(("ringlab forward: ", "ringlab backward: ")))
    pass_of_call, found = {}, [[] for _ in ranges]
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            within = [i for i, (begin, end) in enumerate(ranges) if begin <= event["ts"] <= end]
            if within:
                pass_of_call[event["args"].get("correlation")] = within[0]
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            which = pass_of_call.get(event.get("args", {}).get("correlation"))
            if which is not None:
                begin = base + event["ts"] * 1e-6
                found[which].append((kineto.kind_of(event["name"]), begin, begin + event["dur"] * 1e-6))
    return found


def one_behind_the_other(ranks):
    """ranks: of each rank the events of its passes. Each pass of all ranks begins where the one before ends on the last
    of them."""
    laid, now = [[] for _ in ranks], 0.0
    for passes in zip(*ranks):
        everything = [event for events in passes for event in events]
        if not everything:
            continue
        first = min(begin for _, begin, _ in everything)
        for rank, events in zip(laid, passes):
            rank += [(kind, begin - first + now, end - first + now) for kind, begin, end in events]
        now += max(end for *_, end in everything) - first
    return laid


def _write(recording, ranks):
    """Writes the record, on rank 0. Returns the tables."""
    passes, options = recording.passes, recording.options
    forward, backward = (sum(which == name for which, _ in passes) for name in ("forward", "backward"))
    if not passes:
        raise Refused("the step that is recorded calls no ring_attention over this group")
    if recording.machines:
        if len(options) > 1:
            differ = [name for name in options[0].keys() | options[1].keys()
                      if options[0].get(name) != options[1].get(name)]
            raise Refused(f"the step calls {len(options)} kinds of attention, which differ in "
                          f"{', '.join(sorted(differ))}; predictions are of one kind: leave out machines, or record a "
                          "step with one")
        if backward not in (0, forward):
            raise Refused(f"the step has {forward} forward and {backward} backward passes; predictions are of as many "
                          "of each: leave out machines, or record a step without checkpointing")
    profiles = [kineto.profile_of_events(events, f"rank {rank}", rank, len(ranks))
                for rank, events in enumerate(one_behind_the_other(ranks))]
    rows = kineto.shares(profiles)
    texts, predictions = [kineto.text(rows)], {}
    for machine in recording.machines:
        which = ("forward", "backward")[:2 if backward else 1]
        found = [row for row in _tables.predict(**options[0], machines=machine) if row["pass"] in which]
        one, predictions[machine] = found[0], found
        name = f"{one['mask']} {one['layout']} P={one['ranks']} S={one['tokens']} {one['schedule']} on {machine}"
        texts.append(f"{name}\n{kineto.comparison(rows, found, forward)}")
    _save(recording.path, profiles, rows, predictions)
    return "\n\n".join(texts) + f"\nRecord: {recording.path}\n"


def _save(path, profiles, rows, predictions):
    """HDF5: /ranks (kineto.shares), /spans (all events) and /predicted/MACHINE (rows of ringlab.predict)."""
    import h5py

    temporary = pathlib.Path(f"{path}.part")
    with h5py.File(temporary, "w") as file:
        file.attrs["description"] = "What attention did in a training step, all times in seconds"
        file.attrs["torch"] = str(torch.__version__)
        file.attrs["date"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        file.attrs["command_line"] = shlex.join(sys.argv)
        spans = [{"rank": profile.rank, "kind": kind, "begin": begin, "end": end}
                 for profile in profiles for kind, begin, end in profile.events]
        tables = {"ranks": rows, "spans": spans, **{f"predicted/{pathlib.Path(machine).stem}": found
                                                    for machine, found in predictions.items()}}
        for name, table in tables.items():
            for column in table[0]:
                file[f"{name}/{column}"] = [row[column] for row in table]
    os.replace(temporary, path)


def _refused_before(path, machines, overwrite):
    """Why rank 0 cannot write the record; empty if it can."""
    if not path.parent.is_dir():
        return f"the folder {path.parent} of the record is not there; make it first"
    if path.exists() and not overwrite:
        return f"{path} is there already; give another path, or overwrite=True"
    if importlib.util.find_spec("h5py") is None:
        return "the record is written by h5py, which is not here; pip install h5py"
    try:
        for machine in machines:
            _tables.machine_file(machine)
    except Refused as error:
        return str(error)
    return ""


@contextlib.contextmanager
def record(path, machines, group, overwrite):
    """See ringlab.record()."""
    global active
    if active is not None:
        raise Refused("ringlab.record() is going on already; end one before the next begins")
    path, name, machines = pathlib.Path(path).absolute(), _ring.group_name(group), _tables.as_list(machines)
    ring = _ring.ring_of(name)

    def tell(text):
        """Returns, on all ranks, the text of rank 0's (refused, text). Raises Refused with it if rank 0 cannot go on."""
        refused, text = json.loads(ring.tell_all(json.dumps(text).encode())[0])
        if refused:
            raise Refused(text)
        return text

    # 1. Whatever would make the step useless is said before it.
    why = _refused_before(path, machines, overwrite) if ring.rank == 0 else ""
    tell((bool(why), why))

    # 2. The step.
    recording = Recording(path, machines, name, ring.size)
    profile = torch.profiler.profile() if torch.cuda.is_available() else contextlib.nullcontext()
    try:
        active = recording
        with profile:
            yield recording
            if torch.cuda.is_available():
                torch.cuda.synchronize()
    finally:
        active = None

    # 3. The passes of all ranks, and the record.
    mine = [events for _, events in recording.passes]
    if torch.cuda.is_available() and not any(mine):
        with tempfile.TemporaryDirectory() as folder:
            profile.export_chrome_trace(f"{folder}/trace.json")
            mine = events_of_passes(json.loads(pathlib.Path(folder, "trace.json").read_text()))
    ranks = [json.loads(passes) for passes in ring.tell_all(json.dumps(mine).encode())]
    outcome = (False, "")
    if ring.rank == 0:
        try:
            outcome = (False, _write(recording, ranks))
        except Refused as error:
            outcome = (True, str(error))
    recording.text = tell(outcome)
