#!/usr/bin/env python3
"""Checks that every record of experiments/results says what it is about: records_test.py [ROOT].

A record has the attributes question, headline, machine and caveat, of one line each, from which docs/make_reference.py
makes docs/reference/records.md. Prints a line for each that is missing, and then exits with status 1.
"""
import pathlib
import sys

import with_h5py

try:
    import h5py
except ImportError:
    with_h5py.restart()

ABOUT = ("question", "headline", "machine", "caveat")


def wrong(root):
    records = sorted((root / "experiments/results").glob("*.h5"))
    if not records:
        yield "experiments/results has no records"
    for path in records:
        with h5py.File(path) as record:
            for name in ABOUT:
                text = record.attrs.get(name)
                if not isinstance(text, str) or not text.strip() or "\n" in text or "|" in text:
                    yield f"{path.name}: its attribute {name} is {text!r}; it must be one line of text without '|'"


def main():
    lines = list(wrong(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
    print("\n".join(lines) if lines else "every record says what it is about")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
