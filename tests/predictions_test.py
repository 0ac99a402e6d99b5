#!/usr/bin/env python3
"""Checks that predictions are those that pages and figures tell of: predictions_test.py PROGRAMS [ROOT] makes the quick
records of experiments/record_predictions.sh and compares some of their runs with what is written here. It prints a line
for each run that differs, and then exits with status 1; with 77 where no Python has h5py.
"""
import pathlib
import subprocess
import sys
import tempfile

import with_h5py

try:
    import h5py
except ImportError:
    with_h5py.restart()

ON_ONE_HOST, ON_HOSTS = "h200_nvswitch_copy_engine", "h200_cluster"
# Seconds of the forward and the backward pass, by record, machine and run.
SECONDS = {
    ("predict", ON_ONE_HOST): {
        "causal contiguous P=8 S=65536 ring": (0.0139913473, 0.0406123154),
        "causal zigzag P=8 S=65536 ring": (0.00761269821, 0.0222068939),
        "causal striped P=8 S=65536 ring": (0.00806341096, 0.0239773609)},
    ("predict", "h200_nvswitch_nccl"): {"causal zigzag P=8 S=65536 ring": (0.00775784167, 0.0235381985)},
    ("latent_predicted", ON_ONE_HOST): {
        "causal zigzag P=8 S=65536 ring": (0.0407042713, 0.125220590),
        "causal zigzag P=8 S=65536 expanded:ring": (0.0387400411, 0.126894390)},
    ("latent_predicted_cluster", ON_HOSTS): {
        "causal zigzag P=32 S=1048576 ring": (2.15971321, 7.66717543),
        "causal zigzag P=32 S=1048576 ulysses:8": (2.09950131, 7.50172808)},
    ("decode_predicted", ON_ONE_HOST): {
        "causal striped P=8 S=1048576 merge:tree Q=1": (0.000166075897, 0.000175116199)},
    ("suffix_predicted", ON_ONE_HOST): {
        "causal striped P=8 S=262144 merge:tree Q=64": (0.00378474386, 0.0121564464),
        "causal striped P=8 S=262144 all-gather Q=64": (0.00615406264, 0.0134801007),
        "causal striped P=8 S=262144 ring": (0.117425225, 0.341321119)},
}
RELATIVE = 1e-4  # compilers and processors round differently


def differences(folder):
    """What differs, a line for each pass."""
    for (record, machine), runs in SECONDS.items():
        with h5py.File(folder / f"{record}.h5") as file:
            names = list(file["runs/name"].asstr()[:])
            for run, expected in runs.items():
                for which, seconds in zip(("forward", "backward"), expected):
                    now = file[f"runs/seconds_predicted_{which}_{machine}"][names.index(run)]
                    if abs(now / seconds - 1) > RELATIVE:
                        yield f"{record}, {machine}: {run} takes {now:.6g} s {which}, here {seconds:.6g} s is written"


def main():
    programs = pathlib.Path(sys.argv[1]).resolve()
    root = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else ".").resolve()
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run([root / "experiments/record_predictions.sh", "--programs", programs, "--output", folder,
                               *dict.fromkeys(record for record, _ in SECONDS)], capture_output=True, text=True)
        if made.returncode:
            sys.exit(f"record_predictions.sh failed: {made.stderr}")
        found = list(differences(pathlib.Path(folder)))
    print("\n".join(found) if found else "predictions are those that are written here")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
