#!/usr/bin/env python3
"""Checks that the tree stays small: budgets_test.py [ROOT] prints a line for each budget that is exceeded, and then
exits with status 1. Whoever needs more raises a budget in a commit that says why; whoever removes much lowers it."""
import collections
import pathlib
import re
import sys

from tree_files import files_of

CODE = {".cpp", ".hpp", ".cu", ".cuh", ".h", ".py", ".sh"}
BUDGETS = {
    "lines of code in experiments/": 18850,
    "lines of code in gpu/": 17450,
    "lines of code in layouts/": 9900,
    "lines of code in notebooks/": 2150,
    "lines of code in processes/": 1650,
    "lines of code in python/": 5800,
    "lines of code in reference/": 5500,
    "lines of code in sim/": 7400,
    "lines of code in all tests": 31500,
    "folders with code": 75,
    "programs": 10,
    "options": 75,
    "options of one program": 39,
    "words of pages that are written by hand": 30000,
    "words of pages that programs print": 19300,
    "records": 74,
    "kilobytes of records": 10200,
}


def sizes(root, files):
    """What each of BUDGETS is held against."""
    counts = collections.Counter()
    folders, options = set(), {}
    for file in map(pathlib.PurePosixPath, files):
        path, parts = root / file, file.parts
        if file.suffix in CODE:
            test = parts[0] == "tests" or parts[:2] == ("python", "tests")
            counts["lines of code in " + ("all tests" if test else f"{parts[0]}/")] += path.read_bytes().count(b"\n")
            folders.add(file.parent)
            counts["programs"] += file.suffix == ".cpp" and parts[:-1] == ("experiments",)
        elif file.suffix == ".md":
            text, printed = path.read_text(), parts[:2] == ("docs", "reference")
            counts["words of pages that " + ("programs print" if printed else "are written by hand")] += len(text.split())
            if printed:
                options[file.stem] = set(re.findall(r"^\s+(--[a-z][a-z-]+)", text, re.M))
        elif file.suffix == ".h5" and parts[:2] == ("experiments", "results"):
            counts["records"] += 1
            counts["kilobytes of records"] += path.stat().st_size / 1e3
    counts["folders with code"] = len(folders)
    counts["options"] = len(set().union(*options.values()))
    counts["options of one program"] = max(map(len, options.values()), default=0)
    return counts


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    counts = sizes(root, files_of(root))
    exceeded = [f"{name}: {counts[name]:.0f}, where tests/budgets_test.py allows {budget}"
                for name, budget in BUDGETS.items() if counts[name] > budget]
    print("\n".join(exceeded or ["within all budgets"]))
    return bool(exceeded)


if __name__ == "__main__":
    sys.exit(main())
