#!/usr/bin/env python3
"""Checks that every record of experiments/results is listed and used: records_test.py [ROOT].

A record is listed by a row of the section "All records" of experiments/results/README.md. It is used by the files of the
tree that name it, but for those that only make it anew, and by the sections of that README behind "What they show" that
name it, in full or by a pattern such as `faults_*.h5`. Prints for each record what uses it. Then come a line for each
record that is not listed or not used, and for each row without a record; with such a line the exit status is 1.
"""
import fnmatch
import pathlib
import re
import sys

from tree_files import files_of

RESULTS = "experiments/results/"
TEXTS = (".md", ".py", ".cpp", ".hpp", ".toml", ".sh", ".txt")
MAKERS = ("experiments/record_predictions.sh", "tests/predictions_test.py")
NAME = re.compile(r"\w[\w.\-*]*[\w\-*]")


def names(text):
    """Names and patterns that may be those of records: "scores" alone is a word."""
    words = set(NAME.findall(text))
    return {word.removesuffix(".h5") for word in words if word.endswith(".h5") or "_" in word}


def wrong(root):
    files = files_of(root)
    records = sorted(pathlib.Path(file).stem for file in files if file.startswith(RESULTS) and file.endswith(".h5"))
    all_records, _, results = (root / RESULTS / "README.md").read_text().partition("\n## What they show\n")
    all_records = all_records.partition("\n## All records\n")[2].partition("\n### What to know")[0]
    rows = {name for cell in re.findall(r"^\| (`[^|]*\.h5`[^|]*) \|", all_records, re.M) for name in names(cell)}
    uses = {record: [] for record in records}
    for file in sorted(files):
        if file.endswith(TEXTS) and not file.startswith((RESULTS, *MAKERS)):
            for record in names((root / file).read_text()) & uses.keys():
                uses[record].append(file)
    headings_and_texts = re.split(r"^#+ +(.+?) *$", results, flags=re.M)[1:]
    for heading, text in zip(headings_and_texts[::2], headings_and_texts[1::2]):
        for name in names(text):
            for record in fnmatch.filter(records, name):
                if heading not in uses[record]:
                    uses[record].append(heading)
    for record in records:
        print(f"{record}.h5: {'; '.join(uses[record])}")
    for record in records:
        if not any(fnmatch.fnmatch(record, row) for row in rows):
            yield f"{record}.h5: 'All records' has no row for it"
        if not uses[record]:
            yield f"{record}.h5: no file of the tree and no section of {RESULTS}README.md uses it"
    for row in sorted(rows):
        if not fnmatch.filter(records, row):
            yield f"{row}.h5: 'All records' has a row for it, but there is no such record"


def main():
    lines = list(wrong(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
    print("\n".join(lines) if lines else "every record is listed and used")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
