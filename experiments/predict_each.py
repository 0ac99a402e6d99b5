#!/usr/bin/env python3
"""Rings of several shapes or packings in one record: runs `predict` for each of several sets of options.

    predict_each.py RECORD.h5 [--programs DIR] [OPTION of predict ...] --each OPTION ... [--each OPTION ...]

Options before the first --each are those of every set. The record has the columns of all runs and, in the group provenance,
what each set was made by.
"""
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy as np


def sets_of(words):
    """The options of each set, those that all share first."""
    sets = [[]]
    for word in words:
        sets.append([]) if word == "--each" else sets[-1].append(word)
    return [sets[0] + own for own in sets[1:]]


def join(record, parts):
    """Writes the runs of all parts to one record, and the provenance of the first with every command line."""
    files = [h5py.File(part) for part in parts]
    with h5py.File(record, "w") as joined:
        joined.attrs.update(files[0].attrs)
        for i, file in enumerate(files):
            source = file["provenance/0"].attrs
            joined.create_group(f"provenance/{i}").attrs.update(source if i == 0 else {"command_line": source["command_line"]})
        common = set.intersection(*({f"runs/{name}" for name in file["runs"]} for file in files))
        for name in sorted(common | {"predicted/naive_overlapped", "predicted/naive_serial"}):
            columns = [file[name][:] for file in files]
            if name == "runs/session":  # which provenance a run has
                columns = [column + i for i, column in enumerate(columns)]
            rows = np.concatenate(columns)
            joined.create_dataset(name, data=rows, compression="gzip" if rows.nbytes > 4096 else None)
            joined[name].attrs.update({key: text for key, text in files[0][name].attrs.items() if key != "DIMENSION_LIST"})


def main(words):
    if len(words) < 2 or "--each" not in words:
        sys.exit(__doc__.strip())
    record, words, programs = words[0], words[1:], "build/cpu/experiments"
    if words[0] == "--programs":
        programs, words = words[1], words[2:]
    words = [word for word in words if word != "--overwrite"]
    with tempfile.TemporaryDirectory() as folder:
        parts = []
        for i, options in enumerate(sets_of(words)):
            parts.append(pathlib.Path(folder, f"{i}.h5"))
            if subprocess.run([pathlib.Path(programs, "predict"), *options, "--span-ranks", "0", "-o", parts[-1]]).returncode:
                sys.exit(f"predict_each.py: predict {' '.join(options)} failed")
        join(record, parts)


if __name__ == "__main__":
    main(sys.argv[1:])
