"""Predictions and advice as lists of rows, each a dict: pandas.DataFrame(rows) makes a table of them."""

import itertools
import json
import numbers
import os
import pathlib
import shutil
import subprocess
import tempfile

from ringlab import _library
from ringlab._library import Refused

# Beside an installed package; in the tree that this file lies in otherwise.
_MACHINES = next((folder for folder in (pathlib.Path(__file__).parent / "machines",
                                        pathlib.Path(__file__).parents[2] / "experiments" / "machines")
                  if folder.is_dir()), pathlib.Path("machines"))


def machines():
    """Names of the machine files that came with the package."""
    return sorted(path.stem for path in _MACHINES.glob("*.toml"))


def machine_file(name):
    for path in (pathlib.Path(name), _MACHINES / f"{name}.toml"):
        if path.is_file():
            return path
    raise Refused(f"machine '{name}' is neither a file nor one of {', '.join(machines())}")


def as_list(value):
    return [value] if isinstance(value, (str, os.PathLike, numbers.Real)) else list(value)


def predict(*, tokens, ranks, machines, layouts="zigzag", schedules="ring", masks="causal", batch=1, heads=(32, 8),
            head_dim=128, value_dim=None, dtype="bf16", scale=0.0, soft_cap=0.0, dropout=0.0):
    """Predicts what schedules cost on described machines, by the simulator of the program `predict` with its defaults.
    Returns a row for each machine, mask, layout, schedule, ring size, length and pass.

    tokens: of the whole sequence. machines: names (ringlab.machines()) or paths of machine files. tokens, ranks,
    machines, layouts, schedules and masks may be lists. heads: of queries, of keys and values.

    Columns in seconds: `seconds` (end of the pass), `compute` and `communication` (rank with most), `exposed` (longest
    time without computing), `naive_overlapped`, `naive_serial` (guesses without a simulator). `balance` is largest over
    mean compute time, `tflops_per_gpu` counts visible pairs, `scratch_bytes` are a rank's buffers beside its tensors.
    Raises Refused.
    """
    if dtype not in _library.DTYPES:
        raise Refused(f"dtype is {dtype!r}; it must be one of {', '.join(_library.DTYPES)}")
    if isinstance(heads, str) or len(as_list(heads)) != 2:
        raise Refused(f"heads is {heads!r}; it must be (query heads, kv heads), as (32, 8)")
    rows = []
    for mask, length, ring, schedule, layout in itertools.product(
            *map(as_list, (masks, tokens, ranks, schedules, layouts))):
        problem = _library.Problem(batch, length, *heads, head_dim, value_dim or head_dim, scale, soft_cap, dropout,
                                   _library.DTYPES[dtype])
        plan = _library.Plan(problem, _library.choices(mask, layout, schedule, length, length, ring))
        for machine, which in itertools.product(as_list(machines), ("forward", "backward")):
            found = plan.predict(machine_file(machine), which == "backward")
            rows.append({"machine": machine, "mask": mask, "layout": layout, "schedule": schedule, "ranks": ring,
                         "tokens": length, "pass": which,
                         "balance": found["compute"] / found["compute_mean"] if found["compute"] else 1.0,
                         "tflops_per_gpu": found["flop"] / ring / found["seconds"] / 1e12, **found})
    return rows


def program(name, folder):
    for place in filter(None, (folder, os.environ.get("RINGLAB_PROGRAMS"))):
        if (path := pathlib.Path(place) / name).is_file():
            return path
    if path := shutil.which(name):
        return path
    raise Refused(f"the program {name} was not found; build it (cmake --build build/cpu --target {name}) and name its "
                  "folder, build/cpu/experiments, in RINGLAB_PROGRAMS or as programs=")


def run_program(name, folder, arguments):
    """Runs a program and returns what it prints. Raises Refused with the last line of its errors."""
    ran = subprocess.run([str(program(name, folder)), *arguments], capture_output=True, text=True)
    if ran.returncode != 0:
        raise Refused((ran.stderr.strip().splitlines() or [f"{name} ended with {ran.returncode}"])[-1])
    return ran.stdout


def advise(*, tokens, gpus, machines, programs=None, **options):
    """Runs the program `advise`, which says what to choose, and returns its candidates as rows, the best first.

    Other options are those of the program, with _ for -: preset="llama-3.1-70b", heads="32:8", masks="causal",
    budget=60. `verdict` of a row says whether it was ranked, and if not, why. Raises Refused with the program's line.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--output", f"{folder}/advice.h5", "--json", f"{folder}/advice.json"]
        for name, value in {"tokens": tokens, "gpus": gpus, "machines": machines, **options}.items():
            arguments += [f"--{name.replace('_', '-')}", *map(str, as_list(value))]
        run_program("advise", programs, arguments)
        advice = json.loads(pathlib.Path(folder, "advice.json").read_text())
    return [{"verdict": verdict, **row} for verdict, rows in advice.items()
            if isinstance(rows, list) and verdict != "machines" for row in rows]
