#!/usr/bin/env python3
"""Checks that every record of experiments/results is listed: records_test.py [ROOT].

A record is listed by a row of docs/reference/records.md, in full or by a pattern such as `faults_*.h5`. Prints for each
record the files of the tree that name it, but for those that only make it anew. Then come a line for each record that is
not listed, and for each row without a record; with such a line the exit status is 1.
"""
import fnmatch
import pathlib
import re
import sys

from tree_files import files_of

RESULTS, LIST = "experiments/results/", "docs/reference/records.md"
TEXTS = (".md", ".py", ".cpp", ".hpp", ".toml", ".sh", ".txt")
MAKERS = ("experiments/record_predictions.sh", "tests/predictions_test.py", LIST)
NAME = re.compile(r"\w[\w.\-*]*[\w\-*]")


def names(text):
    """Names and patterns that may be those of records: "scores" alone is a word."""
    words = set(NAME.findall(text))
    return {word.removesuffix(".h5") for word in words if word.endswith(".h5") or "_" in word}


def wrong(root):
    files = files_of(root)
    records = sorted(pathlib.Path(file).stem for file in files if file.startswith(RESULTS) and file.endswith(".h5"))
    rows = {name for cell in re.findall(r"^\| (`[^|]*\.h5`[^|]*) \|", (root / LIST).read_text(), re.M) for name in names(cell)}
    uses = {record: [] for record in records}
    for file in sorted(files):
        if file.endswith(TEXTS) and not file.startswith(MAKERS):
            for name in names((root / file).read_text()):
                for record in fnmatch.filter(records, name):
                    uses[record].append(file)
    for record in records:
        print(f"{record}.h5: {'; '.join(uses[record])}")
    for record in records:
        if not any(fnmatch.fnmatch(record, row) for row in rows):
            yield f"{record}.h5: {LIST} has no row for it"
    for row in sorted(rows):
        if not fnmatch.filter(records, row):
            yield f"{row}.h5: {LIST} has a row for it, but there is no such record"


def main():
    lines = list(wrong(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
    print("\n".join(lines) if lines else "every record is listed")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
