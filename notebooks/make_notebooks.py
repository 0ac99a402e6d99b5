#!/usr/bin/env python3
"""Makes a Jupyter notebook beside each script of this folder, NAME.ipynb of NAME.py: its cells, run, with what they show.

    python3 notebooks/make_notebooks.py [NAME...]           all of them, or some
    python3 notebooks/make_notebooks.py --check FOLDER      runs them into FOLDER; 1 if one that lies here is not its script's

Scripts are what is written by hand; nobody edits a notebook here. Needs jupytext, nbclient and ipykernel beside what the
figures need, and all of one age, for instance:

    python3 -m venv out/jupyter && out/jupyter/bin/pip install numpy h5py matplotlib jupytext nbclient ipykernel
"""
import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

HERE = Path(__file__).resolve().parent
NOT_FIGURES = "figures", Path(__file__).stem
SECONDS = 600  # a cell may take


def cells_of(script):
    """The script's cells as a notebook that has not run; the same for the same script."""
    notebook = jupytext.read(script, fmt="py:percent")
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                         "language_info": {"name": "python"}}
    for place, cell in enumerate(notebook.cells):
        cell["id"], cell["metadata"] = f"{script.stem}-{place}", {}
    return notebook


def run(notebook):
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(HERE)}},
                   record_timing=False).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("text/plain", None)  # "<Figure size 511x432 with 4 Axes>" beside the figure


def sources(notebook):
    return [(cell["cell_type"], cell["source"]) for cell in notebook.cells]


def make(name, folder):
    """Runs one script's notebook into the folder; whether the one that lies here has the same cells, and a line of text."""
    begin = time.monotonic()
    notebook = cells_of(HERE / f"{name}.py")
    kept = HERE / f"{name}.ipynb"
    same = kept.exists() and sources(nbformat.read(kept, 4)) == sources(notebook)
    run(notebook)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / kept.name
    nbformat.write(notebook, target)
    return same, (f"{target}: {len(notebook.cells)} cells, {target.stat().st_size / 1000:.0f} kB, "
                  f"{time.monotonic() - begin:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_FIGURES)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="where notebooks go, instead of beside their scripts")
    given = parser.parse_args()
    for name in given.names:
        if name not in names:
            parser.error(f"there is no script '{name}'; known: {', '.join(names)}")
    # A notebook keeps one processor busy, in a kernel process of its own.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        made = [threads.submit(make, name, given.check or HERE) for name in given.names or names]
        stale = []
        for name, one in zip(given.names or names, made):
            try:
                same, line = one.result()
            except CellExecutionError as error:
                threads.shutdown(cancel_futures=True)
                sys.exit(f"{name}.py fails as a notebook:\n{error}")
            print(line, flush=True)
            if given.check and not same:
                stale.append(f"{name}.ipynb")
    if stale:
        sys.exit(f"{', '.join(stale)}: not of today's scripts; run {Path(__file__).name}")


if __name__ == "__main__":
    main()
