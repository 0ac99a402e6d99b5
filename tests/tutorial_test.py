#!/usr/bin/env python3
"""Does what docs/tutorial.md says: tutorial_test.py PROGRAMS [ROOT], in a folder of its own that is removed afterwards.

Scripts are saved under the names that the page gives them. All commands behind the build are run, with the programs of
the folder PROGRAMS. Each row that the page shows has to be in the output, except for what a machine measures. Commands
that need NumPy, h5py and Matplotlib run with RINGLAB_PYTHON or /usr/bin/python3, and are left out where neither has them.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PAGE = "docs/tutorial.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
NAME = re.compile(r"Save\s+this(?:\s+script)?\s+as\s+`([\w.]+)`")
PYTHON = "/usr/bin/python3"
# Columns that differ from machine to machine: processor times, and errors, which depend on the processor's BLAS kernels.
MEASURED = {"fwd bal.", "bwd bal.", "o", "lse", "dq", "dk", "dv", "of tolerance"}


def python_for_figures():
    for python in (os.environ.get("RINGLAB_PYTHON"), PYTHON):
        if python and subprocess.run([python, "-c", "import numpy, h5py, matplotlib"], capture_output=True).returncode == 0:
            return python
    return None


def cells(line):
    return re.split(r" {2,}", line.strip())


def missing_rows(shown, printed):
    """Rows of the page whose cells are in no printed line, in this order."""
    lines = shown.strip().splitlines()
    kept = [place for place, name in enumerate(cells(lines[0])) if name not in MEASURED]
    for line in lines:
        row = cells(line)
        if set(line) <= set("- "):
            continue
        row = [row[place] for place in kept] if len(row) == len(cells(lines[0])) else row
        if not any(all(cell in rest for cell in row) for rest in map(lambda text: iter(cells(text)), printed.splitlines())):
            yield line


def main():
    programs = pathlib.Path(sys.argv[1]).resolve()
    root = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else ".").resolve()
    text = (root / PAGE).read_text()
    python = python_for_figures()
    environment = dict(os.environ, RINGLAB_DATA=str(root / "experiments"))
    printed, commands, rows = "", 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "build/cpu/experiments"
        folder.mkdir(parents=True)
        (pathlib.Path(scratch) / "notebooks").symlink_to(root / "notebooks")
        for program in re.findall(r"^\./(\w+)", text, re.M):
            if not (folder / program).exists():
                (folder / program).symlink_to(programs / program)
        for block in BLOCK.finditer(text):
            language, content = block.groups()
            line = text.count("\n", 0, block.start()) + 1
            if language == "python":
                name = NAME.findall(text, 0, block.start())[-1]
                (folder / name).write_text(content)
            elif language == "sh" and "cmake" not in content:
                printed = ""
                for command in content.replace("\\\n", "").strip().splitlines():
                    if command.startswith(PYTHON):
                        if not python:
                            print(f"skipped, no Python with NumPy, h5py and Matplotlib: {command}")
                            continue
                        command = command.replace(PYTHON, python)
                    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                    if done.returncode:
                        sys.exit(f"{PAGE}:{line}: {command}\nends with {done.returncode}:\n{done.stderr[-2000:]}")
                    printed += done.stdout
                    commands += 1
            elif not language:
                missing = list(missing_rows(content, printed))
                if missing:
                    sys.exit(f"{PAGE}:{line}: not printed today:\n" + "\n".join(missing) + f"\nbut:\n{printed}")
                rows += len(content.strip().splitlines())
    if not commands or not rows:
        sys.exit(f"{PAGE}: {commands} commands and {rows} rows were found; there have to be some")
    print(f"{commands} commands run, {rows} rows compared")


if __name__ == "__main__":
    main()
