"""What was measured, as rows, a table and an HDF5 record."""

import dataclasses
import datetime
import importlib.metadata
import math
import os
import pathlib
import platform
import shlex
import sys

import torch

from ringlab import _library, kineto
from ringlab.peers.case import Case
from ringlab.peers.timing import PASSES, SECONDS

SCHEMA = 4
PREFIX = {"sustained": "rate_", "burst": "burst_rate_"}
SAMPLES = {"sustained": ("calls", "rounds", ("round", "call", "gpu"),
                         "of one call, back to back with others of its turn, on each GPU"),
           "burst": ("bursts", "burst", ("call", "gpu"), "of a single pass over new tensors, behind a cleared cache")}
COLUMNS = {"": "median, per GPU, over visible pairs", "_seconds": "median", "_spread":
           "distance of the quartiles over the median"}
UNITS = {"": "FLOP/s", "_seconds": "s", "_spread": "1"}


@dataclasses.dataclass
class Row:
    """One system in one case: its calls, or why it has none."""

    name: str
    case: Case
    system: object = None  # systems.System; None where it could not be made
    errors: dict = dataclasses.field(default_factory=dict)
    calls: list = dataclasses.field(default_factory=list)
    absent: str = ""

    def seconds(self, protocol, which):
        """timing.Typical, or None where this was not timed."""
        for call in self.calls:
            if call.which == which:
                return SECONDS[protocol](call)
        return None

    def rate(self, protocol, which):
        """FLOP/s per GPU over visible pairs, NaN where this was not timed."""
        typical = self.seconds(protocol, which)
        return self.case.flop(which) / self.case.ranks / typical.median if typical else math.nan

    @property
    def family(self):
        return self.name.partition(":")[0]


# ---- The table ----


def _best(rows, protocol, which):
    timed = [row for row in rows if not math.isnan(row.rate(protocol, which))]
    return max(timed, key=lambda row: row.rate(protocol, which), default=None)


def _cells(row, rows, protocol, which):
    typical = row.seconds(protocol, which)
    if typical is None:
        return ["-"] * 4
    rate = row.rate(protocol, which)
    other = _best([x for x in rows if x.family != row.family], protocol, which)
    return [f"{typical.median * 1e3:.4g}", f"{rate * 1e-12:.4g}",
            "-" if math.isnan(typical.spread) else f"{typical.spread * 100:.1f} %",
            f"{rate / other.rate(protocol, which):.3f}" if other else "-"]


def table(rows, protocol, passes):
    """Text of the rows of one case. "/ other": the rate divided by that of the best system of another family."""
    short = {"forward": "fwd", "backward": "bwd", "both": "fwd+bwd"}
    lines = [["system"] + [cell for which in passes
                           for cell in (f"{short[which]} ms", "TFLOP/s", "spread", "/ other")]]
    lines += [[row.name] + [cell for which in passes for cell in _cells(row, rows, protocol, which)]
              for row in rows if row.calls]
    text = [kineto.aligned(lines)]
    for which in passes:
        ours = _best([row for row in rows if row.family == "ringlab"], protocol, which)
        theirs = _best([row for row in rows if row.family != "ringlab"], protocol, which)
        if ours and theirs:
            ratio = ours.rate(protocol, which) / theirs.rate(protocol, which)
            text.append(f"{PASSES[which]}: {ours.name} has {ratio:.3f} times the rate of the best other, {theirs.name}")
    return "\n".join(text)


# ---- The record ----


def provenance(world):
    """{attribute: text} about the job: command, devices of all ranks, versions of what computes. All ranks call it."""
    def version(package):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return "none"

    on_cuda = world.device.type == "cuda"
    device = torch.cuda.get_device_name(world.device) if on_cuda else platform.processor() or platform.machine()
    devices = world.everyones(device)
    command = ["torchrun", f"--nproc_per_node={os.environ['LOCAL_WORLD_SIZE']}", "-m", "ringlab.peers", *sys.argv[1:]]
    return {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "command_line": shlex.join(command), "commit": _library.commit(), "devices": devices, "torch": str(torch.__version__),
            "cuda_runtime": str(torch.version.cuda), "python": platform.python_version(), "kernel": platform.platform(),
            "cudnn": str(torch.backends.cudnn.version()) if on_cuda else "none",
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_cuda else "none",
            "ringlab": version("ringlab"), "flash_attn_4": version("flash-attn-4"),
            "ring_flash_attn": version("ring-flash-attn"),
            "burst_times": "by CUDA events around a pass that the host has enqueued before the device begins it"
            if on_cuda else "by the host's clock"}


def _of_system(attribute):
    return lambda row: getattr(row.system, attribute) if row.system else ""


# Columns of the table of runs: what each is, and of which part of a row.
_COLUMNS = {
    "name": ("name of the run", lambda row: f"{row.name} {row.case.name}".replace("/", "_")),
    "system": ("as --systems names it", lambda row: row.name),
    "kind": ("whether it is Ringlab's", lambda row: "ring" if row.family == "ringlab" else "peer"),
    "shape": ("heads, dims and dtype", lambda row: row.case.shape),
    "mask": ("who sees whom, as given", lambda row: row.case.mask.spec),
    "dtype": ("of q, k, v and do", lambda row: row.case.dtype),
    "layout": ("which rank owns which tokens", _of_system("layout")),
    "absent": ("why it was not timed; empty if it was", lambda row: row.absent),
    "schedule": ("schedule of a ring, or how the system goes about it", _of_system("schedule")),
    "kernels": ("that compute attention", _of_system("kernels")),
    "tokens": ("of the whole sequence", lambda row: row.case.tokens),
    "ranks": ("ring size P", lambda row: row.case.ranks),
    "gpus": ("that took part", lambda row: row.case.ranks),
    "batch": ("sequences at a time", lambda row: 1),
    "query_heads": ("heads of q, o and do", lambda row: row.case.query_heads),
    "kv_heads": ("heads of k and v", lambda row: row.case.kv_heads),
    "head_dim": ("size of a query or key", lambda row: row.case.head_dim),
    "value_dim": ("size of a value", lambda row: row.case.value_dim),
}


def write(path, rows, about, configuration):
    """The record, in place of what was there: columns over runs as those of throughput, and raw samples."""
    import h5py
    import numpy

    temporary = pathlib.Path(f"{path}.part")
    with h5py.File(temporary, "w") as file:
        file.attrs["ringlab_schema"] = SCHEMA
        file.attrs["experiment"] = "peers"
        file.attrs["description"] = "Attention of several systems on the ranks of one job, in turns, on the same tensors"
        file.attrs["configuration"] = "".join(f"{key} = {value}\n" for key, value in configuration.items())
        for key, value in about.items():
            file.require_group("provenance/0").attrs[key] = value
        text = h5py.string_dtype()
        scales = {"run": file.create_dataset("run", data=[_COLUMNS["name"][1](row) for row in rows], dtype=text)}
        scales["run"].make_scale("run")

        def dataset(name, values, dimensions, units, description, kind=None):
            packed = {"compression": "gzip", "shuffle": True} if kind == "f4" else {}
            made = file.create_dataset(name, data=values, dtype=kind, **packed)
            made.attrs["units"], made.attrs["description"] = units, description
            for i, (dimension, size) in enumerate(zip(dimensions, made.shape)):
                if dimension not in scales:
                    scales[dimension] = file.create_dataset(dimension, data=numpy.arange(size, dtype="i4"))
                    scales[dimension].make_scale(dimension)
                made.dims[i].attach_scale(scales[dimension])

        for name, (description, part) in _COLUMNS.items():
            values = [part(row) for row in rows]
            dataset(f"runs/{name}", values, ["run"], "1", description, text if isinstance(values[0], str) else None)
        for which in ("forward", "backward"):
            dataset(f"runs/flop_{which}", [float(row.case.flop(which)) for row in rows], ["run"], "FLOP",
                    "of the visible pairs, all ranks and heads")
        for result in ("o", "dq", "dk", "dv"):
            dataset(f"runs/error_{result}", [row.errors.get(result, math.nan) for row in rows], ["run"], "1",
                    "relative RMS difference from attention in fp64, over all ranks")
        for protocol, prefix in PREFIX.items():
            for which in PASSES:
                timed = [row.seconds(protocol, which) for row in rows]
                if not any(timed):
                    continue
                values = {"": [row.rate(protocol, which) for row in rows],
                          "_seconds": [x.median if x else math.nan for x in timed],
                          "_spread": [x.spread if x else math.nan for x in timed]}
                for suffix, column in values.items():
                    dataset(f"runs/{prefix}{which}{suffix}", column, ["run"], UNITS[suffix], COLUMNS[suffix])
                folder, attribute, dimensions, description = SAMPLES[protocol]
                samples = [next((getattr(call, attribute) for call in row.calls if call.which == which), [])
                           for row in rows]
                group = f"{folder}/{which}"
                dataset(f"{group}/seconds", _padded(samples, len(dimensions) + 1), ["run", *(
                    f"{group}/call" if name == "call" else name for name in dimensions)], "s", description, "f4")
    os.replace(temporary, path)


def _padded(samples, depth):
    """Nested lists of unequal lengths as one array, filled up with NaN."""
    import numpy

    if depth == 0:
        return numpy.float64(samples)
    parts = [_padded(part, depth - 1) for part in samples]
    shape = [max(sizes) for sizes in zip(*(part.shape for part in parts))] or [0] * (depth - 1)
    array = numpy.full((len(parts), *shape), numpy.nan)
    for i, part in enumerate(parts):
        array[(i, *map(slice, part.shape))] = part
    return array
