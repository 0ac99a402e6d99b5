#!/usr/bin/env python3
"""Compiles the portable kernels for every architecture that they are for, and prints what ptxas says of them.

    gpu/check_architectures.py [BUILD]     BUILD is a build folder with the CUDA backend, else build/gpu

It takes half an hour on two cores. Spills cost speed.
"""

import collections
import pathlib
import re
import shutil
import subprocess
import sys

TARGET = "ringlab_portable_everywhere"


def compiled(build):
    """What the compiler prints for all kernels; they are compiled anew, as what is built says nothing."""
    shutil.rmtree(build / "gpu" / "CMakeFiles" / f"{TARGET}.dir", ignore_errors=True)
    command = ["cmake", "--build", str(build), "--target", TARGET]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            lines.append(line.rstrip())
            if not re.match(r"ptxas info|\s+\d+ bytes stack frame", line):
                print(line, end="", flush=True)
    if process.returncode != 0:
        sys.exit(f"check_architectures.py: {' '.join(command)} ended with {process.returncode}")
    return lines


def table(lines):
    """{(file, architecture): [(registers, bytes spilled) of each kernel]}"""
    found, name, architecture, spilled = collections.defaultdict(list), "", "", 0
    for line in lines:
        if match := re.search(r"Building CUDA object .*/(\w+)\.cu\.o", line):
            name = match[1]
        elif match := re.search(r"Compiling entry function '\w+' for '(\w+)'", line):
            architecture = match[1]
        elif match := re.search(r"(\d+) bytes spill stores", line):
            spilled = int(match[1])
        elif match := re.search(r"Used (\d+) registers", line):
            found[name, architecture].append((int(match[1]), spilled))
    return found


def main():
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__.strip())
        return
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/gpu")
    if not (build / "CMakeCache.txt").is_file():
        sys.exit(f"check_architectures.py: {build} is no build folder; make one with cmake --preset gpu")
    kernels = table(compiled(build))
    print(f"{'file':32}{'architecture':14}{'kernels':>8}{'most registers':>16}{'most bytes spilled':>20}")
    for (name, architecture), uses in sorted(kernels.items()):
        print(f"{name:32}{architecture:14}{len(uses):8}{max(u[0] for u in uses):16}{max(u[1] for u in uses):20}")


main()
