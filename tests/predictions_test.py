#!/usr/bin/env python3
"""Checks that records of predictions are those of today's model: predictions_test.py PROGRAMS [ROOT] makes the quick ones of
experiments/record_predictions.sh anew and compares the columns of /runs with the records in experiments/results. It
prints a line for each record that differs, and then exits with status 1; with 77 where no Python has h5py.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

QUICK = ("predict", "latent_predicted", "latent_predicted_cluster", "decode_predicted", "suffix_predicted", "published",
         "explain")
# Compilers and processors round differently, and a time is a whole number of picoseconds.
RELATIVE, SECONDS = 1e-4, 1e-9


def with_h5py():
    """Starts this again with a Python that has h5py, if this one has not."""
    for python in (os.environ.get("RINGLAB_PYTHON"), "/usr/bin/python3"):
        if python and subprocess.run([python, "-c", "import numpy, h5py"], capture_output=True).returncode == 0:
            os.execv(python, [python, *sys.argv])
    print("no Python with numpy and h5py was found; set RINGLAB_PYTHON to one")
    sys.exit(77)


def differences(old, new):
    """What differs, a text for each column of /runs."""
    for name in sorted(old.keys() ^ new.keys()):
        yield f"{name} is in one of the two records only"
    for name in sorted(old.keys() & new.keys()):
        before, now = old[name][()], new[name][()]
        if before.shape != now.shape:
            yield f"{name} has {before.shape} values there, {now.shape} today"
        elif before.dtype.kind != "f":
            if name != "session" and (before != now).any():
                yield f"{name} has other values"
        elif not (close := numpy.isclose(before, now, RELATIVE, SECONDS, equal_nan=True)).all():
            worst = numpy.where(close, 0, numpy.nan_to_num(abs(now - before), nan=numpy.inf)).argmax()
            yield f"{name} is {before.flat[worst]:.6g} there, {now.flat[worst]:.6g} today (run {worst})"


def main():
    programs = pathlib.Path(sys.argv[1]).resolve()
    root = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else ".").resolve()
    stale = False
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run([root / "experiments/record_predictions.sh", "--programs", programs, "--output", folder,
                               *QUICK], capture_output=True, text=True)
        if made.returncode:
            sys.exit(f"record_predictions.sh failed: {made.stderr}")
        for record in QUICK:
            with h5py.File(root / f"experiments/results/{record}.h5") as old, h5py.File(f"{folder}/{record}.h5") as new:
                found = list(differences(old["runs"], new["runs"]))
            if found:
                stale = True
                print(f"{record}.h5 is not what today's model predicts, in {len(found)} columns: {'; '.join(found[:3])}")
    print("Make them anew by experiments/record_predictions.sh, and see which texts name their figures." if stale
          else f"{len(QUICK)} records are what today's model predicts")
    return stale


if __name__ == "__main__":
    try:
        import h5py
        import numpy
    except ImportError:
        with_h5py()
    sys.exit(main())
