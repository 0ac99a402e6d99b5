#!/usr/bin/env python3
"""Attention of whole models whose layers differ, predicted: `predict` for each kind of layer, added up over all layers.

    whole_models.py [--programs DIR] [OPTION of predict ...]

All layers have the same layout, because tokens stay where they are between layers. A layout that follows the mask
(balanced, planned) would place them differently in each kind of layer and is refused. Without options:
128Ki tokens over eight H200 (copy engines), by ring, zigzag and contiguous.
"""
import pathlib
import subprocess
import sys
import tempfile

import h5py

# Layers of each kind, by preset: model cards and configurations of the models.
MODELS = {"gemma-2-27b": {"local": 23, "global": 23}, "gemma-3-27b": {"local": 52, "global": 10},
          "gpt-oss-120b": {"local": 18, "global": 18}, "llama-4-scout": {"local": 36, "global": 12}}
DEFAULTS = {"--tokens": ["131072"], "--ranks": ["8"], "--machines": ["h200_nvswitch_copy_engine"],
            "--layouts": ["zigzag", "contiguous"], "--schedules": ["ring"]}


def seconds_of(programs, preset, options, folder):
    """Seconds of both passes of a layer by (layout, schedule), on the one machine."""
    record = pathlib.Path(folder, preset + ".h5")
    run = subprocess.run([programs / "predict", "--preset", preset, *options, "--span-ranks", "0", "-o", record],
                         capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"whole_models.py: {run.stderr.strip()}")
    with h5py.File(record) as file:
        runs = file["runs"]
        passes = [runs[name][:] for name in runs if name.startswith("seconds_predicted_")]
        if len(passes) != 2:
            sys.exit(f"whole_models.py: {len(passes) // 2} machines; name one by --machines")
        names = zip(runs["layout"].asstr()[:], runs["schedule"].asstr()[:])
        return {name: float(forward + backward) for name, forward, backward in zip(names, *passes)}


def main(words):
    programs = pathlib.Path("build/cpu/experiments")
    if words[:1] in (["-h"], ["--help"]):
        return print(__doc__.strip())
    if words[:1] == ["--programs"]:
        programs, words = pathlib.Path(words[1]), words[2:]
    following = [word for word in words if word.startswith(("balanced", "planned"))]
    if following:
        sys.exit(f"whole_models.py: layout '{following[0]}' follows the mask, so layers would not share it")
    options = words + [word for name, values in DEFAULTS.items() if name not in words for word in (name, *values)]
    print(f"{'model':14}  {'layout':12}  {'schedule':14}  {'all layers':>10}  local layers")
    with tempfile.TemporaryDirectory() as folder:
        for model, layers in MODELS.items():
            each = {kind: seconds_of(programs, f"{model}-{kind}", options, folder) for kind in layers}
            for name in each["global"]:
                local, total = layers["local"] * each["local"][name], sum(layers[kind] * each[kind][name] for kind in layers)
                print(f"{model:14}  {name[0]:12}  {name[1]:14}  {total:8.3f} s  {100 * local / total:.0f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
