#!/usr/bin/env python3
"""How evenly do layouts share packed documents? Draws packings of documents with real lengths and predicts each of them in
several layouts, by the program `predict`, or executes them on CPU ranks, by `compare_layouts`.

    packings.py RECORD.h5 --packings 20 --tokens 524288 --ranks 64 --layouts planned zigzag ... [OPTION of the program]

  --packings N     how many are drawn [20]
  --seed N         of the draw [1]
  --lengths FILE   document lengths [document_lengths, which comes with Ringlab]
  --mask NAME      joined with the documents of each packing [causal]
  --program NAME   predict or compare_layouts [predict]
  --programs DIR   where it is [build/cpu/experiments]

All other options are the program's. Balance is the busiest rank's visible pairs divided by the mean.
"""
import argparse
import pathlib
import subprocess
import sys

import h5py
import numpy as np


def drawn(lengths, tokens, random):
    """Lengths of the documents of a packing; the last one is cut where the packing has its tokens."""
    packing = []
    while tokens > 0:
        packing.append(int(min(random.choice(lengths), tokens)))
        tokens -= packing[-1]
    return packing


def table(record):
    with h5py.File(record) as file:
        runs = file["runs"]
        layouts, balance = runs["layout"].asstr()[:], runs["balance_pairs"][:]
        columns = {name: runs[name][:] for name in runs
                   if name.startswith(("seconds_predicted_", "share_of_bound_", "seconds_measured_"))}
    print(f"{'layout':16}  balance: mean   95 %   worst  mean of " + ", ".join(columns))
    for layout in dict.fromkeys(layouts):
        of = layouts == layout
        print(f"{layout:16}  {balance[of].mean():13.3f}  {np.percentile(balance[of], 95):.3f}  {balance[of].max():.3f}  "
              + "  ".join(f"{np.nanmean(values[of]):.4g}" for values in columns.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    data = pathlib.Path(__file__).parent / "data"
    parser.add_argument("record", type=pathlib.Path)
    parser.add_argument("--packings", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lengths", default="document_lengths")
    parser.add_argument("--mask", default="causal")
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--program", default="predict", choices=("predict", "compare_layouts"))
    parser.add_argument("--programs", type=pathlib.Path, default=pathlib.Path("build/cpu/experiments"))
    asked, options = parser.parse_known_args()
    file = next((path for path in (pathlib.Path(asked.lengths), data / f"{asked.lengths}.txt") if path.is_file()), None)
    if file is None:
        sys.exit(f"packings.py: --lengths '{asked.lengths}' is neither a file nor one of experiments/data")
    lengths = [int(word) for line in file.read_text().splitlines() for word in line.split("#")[0].replace(",", " ").split()]
    random = np.random.default_rng(asked.seed)
    masks = [f"{asked.mask}+documents:" + ",".join(map(str, drawn(lengths, asked.tokens, random)))
             for _ in range(asked.packings)]
    done = subprocess.run([asked.programs / asked.program, "--tokens", str(asked.tokens), "--masks", *masks, *options,
                           "--output", asked.record], stdout=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(done.returncode)
    table(asked.record)


if __name__ == "__main__":
    main()
