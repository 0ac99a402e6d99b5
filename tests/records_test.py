#!/usr/bin/env python3
"""Checks that every record of experiments/results is used: records_test.py [ROOT] compares them with the table "What uses
them" of experiments/results/README.md. It prints a line for each record without a row, for each row without a record, and
for each file or section that does not use the record of its row. It then exits with status 1.

A row is `NAME.h5` and what uses it: paths from the root, and headings of that README. A file or section uses a record
if it names it, in full or by a pattern such as `faults_*.h5`.
"""
import fnmatch
import pathlib
import re
import sys

RESULTS = "experiments/results"
TABLE = "What uses them"
NAME = re.compile(r"\w[\w.\-*]*[\w\-*]")


def sections(text):
    """Text below each heading, up to the next heading of any level."""
    parts = re.split(r"^#+ +(.+?) *$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def names(text, record):
    """Whether the text names the record, or a pattern ("faults_*") that it matches. "scores" alone is a word."""
    words = (word.removesuffix(".h5") for word in NAME.findall(text) if word.endswith(".h5") or "_" in word)
    return any(word == record or ("*" in word and "_" in word and fnmatch.fnmatch(record, word)) for word in words)


def wrong(root):
    parts = sections((root / RESULTS / "README.md").read_text())
    rows = dict(re.findall(r"^\| `([\w.\-]+)\.h5` \| (.+?) \|$", parts.get(TABLE, ""), re.M))
    records = {path.stem for path in (root / RESULTS).glob("*.h5")}
    for record in sorted(records - rows.keys()):
        yield f"{record}.h5: '{TABLE}' has no row for it"
    for record, uses in sorted(rows.items()):
        if record not in records:
            yield f"{record}.h5: '{TABLE}' has a row for it, but there is no such record"
        for use in uses.split("; "):
            file = root / use.strip("`")
            text = file.read_text() if use.startswith("`") and file.is_file() else parts.get(use)
            if text is None:
                yield f"{record}.h5: '{use}' is neither a file of the tree nor a heading of {RESULTS}/README.md"
            elif not names(text, record):
                yield f"{record}.h5: '{use}' does not name it"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    lines = list(wrong(root))
    print("\n".join(lines) if lines else "every record is used")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
