#!/usr/bin/env python3
"""Writes the pages of docs/reference/ from what the programs print: make_reference.py PROGRAMS [ROOT] [--check].

PROGRAMS is the folder of a build that holds the programs, as in build/ci/experiments. Each program has a page with its
`--help`. The page `lists.md` has every section of `--list`, `machine-files.md` is `--list-machine-keys`, `scores.md` is
what `validate --measured all` prints, `records.md` has what the records of experiments/results say of themselves, and
`README.md` is the index. With --check nothing is written: the first line in
which each page differs is printed, and the exit status is then 1. The test `validation` checks `scores.md`.
"""
import argparse
import collections
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests"))
import with_h5py

try:
    import h5py
except ImportError:
    with_h5py.restart()

PAGES = "docs/reference"
SCORES = "scores.md"
NOTE = "<!-- Written by docs/make_reference.py from what the programs print. Do not edit. -->\n\n"


def printed(program, options, root):
    environment = dict(os.environ, RINGLAB_DATA=str(root / "experiments"))
    run = subprocess.run([program, *options], cwd=root, env=environment, text=True, capture_output=True, timeout=600)
    if run.returncode != 0:
        sys.exit(f"{program} {' '.join(options)} ended with status {run.returncode}, 0 is right: {run.stderr.strip()}")
    return run.stdout.replace(str(root) + "/", "")


def scores_page(programs, root):
    """Predicts all measured rings, which takes some seconds."""
    with tempfile.TemporaryDirectory() as folder:
        text = printed(programs / "validate", ["--measured", "all", "-o", f"{folder}/scores.h5"], root)
    text = text.partition("\nRecord: ")[0]
    return NOTE + "# How far off predictions are\n\nThis is `validate --measured all`.\n\n" + block(text)


def names_of_programs(root):
    """Programs are what the user's build puts into the folder: the names are those of experiments/NAME.cpp."""
    return sorted(path.stem for path in (root / "experiments").glob("*.cpp"))


def sections(text):
    """(heading, lines) of each section of --list: a heading begins at the margin, its entries are indented."""
    heading, lines = None, []
    for line in text.splitlines():
        if line and not line[0].isspace():
            if heading:
                yield heading, lines
            heading, lines = line.strip(), []
        else:
            lines.append(line)
    if heading:
        yield heading, lines


def block(text):
    return "```\n" + text.strip("\n") + "\n```\n"


def records_page(root):
    """What each record says of itself, a row each; caveats of several records are said once, below."""
    about = ("question", "headline", "machine", "caveat")
    rows = {}
    for path in sorted((root / "experiments/results").glob("*.h5")):
        with h5py.File(path) as record:
            rows[path.name] = [record.attrs[name] for name in about[:-1]], re.split(r"(?<=[.]) (?=[A-Z])", record.attrs["caveat"])
    counts = collections.Counter(itertools.chain(*(caveats for _, caveats in rows.values())))
    shared = [caveat for caveat, count in counts.most_common() if count > 2 and caveat != "none known"]
    page = (NOTE.replace("programs print", "records say") + "# Records\n\n"
            "What each record of experiments/results says of itself; `/provenance` in it has the command, the build and the machine. Records "
            "from before 2026-11-28 were packed again: measured values in single precision, without what nobody reads (predictions of "
            "their day, spans of these, issue times of single passes). They can be read, but `--resume` cannot continue them. Rates are TFLOP/s per GPU, forward / both passes.\n\n"
            f"| record | {' | '.join(about)} |\n|---|{'---|' * len(about)}\n")
    for name, (cells, caveats) in rows.items():
        caveats = [f"({shared.index(caveat) + 1})" if caveat in shared else caveat for caveat in caveats]
        page += f"| `{name}` | {' | '.join(cells)} | {' '.join(caveats)} |\n"
    return page + "\n" + "".join(f"({number}) {caveat}\n\n" for number, caveat in enumerate(shared, 1))


def pages(programs, root):
    found, lists, purposes = {}, {}, []
    for name in names_of_programs(root):
        program = programs / name
        if not program.is_file():
            sys.exit(f"{program} is missing: build all programs, and give the folder in which they lie")
        text = printed(program, ["--help"], root)
        found[f"{name}.md"] = NOTE + f"# Options of `{name}`\n\nThis is `{name} --help`.\n\n" + block(text)
        purpose = re.sub(r"\s+", " ", text.strip().split("\n\n")[1])
        purposes.append(f"| [{name}]({name}.md) | {re.split(r'(?<=[.]) ', purpose)[0].replace('|', '/')} |\n")
        for heading, lines in sections(printed(program, ["--list"], root)):
            lists.setdefault(heading, {}).setdefault("\n".join(lines).rstrip(), []).append(name)
    page = NOTE + "# What `--list` shows\n\nEvery program shows a section in the same way, unless the section names its programs.\n"
    for heading, texts in lists.items():
        page += f"\n## {heading}\n"
        for text, names in texts.items():
            shown_by = "" if len(names) == len(purposes) else f"Shown by {', '.join(f'`{name}`' for name in names)}.\n\n"
            page += f"\n{shown_by}" + block(text)
    found["lists.md"] = page
    keys = printed(programs / "calibrate", ["--list-machine-keys"], root)
    found["machine-files.md"] = NOTE + "# Every key of a machine file\n\nThis is `calibrate --list-machine-keys`. " + re.sub(
        r"(?m)^(\[.*\]|Before all sections)$", r"## \1", keys)
    found["records.md"] = records_page(root)
    index = "# What the programs print\n\n" + "| program | what it does |\n|---|---|\n" + "".join(purposes)
    found["README.md"] = NOTE + index + "\n[Layouts, masks, schedules, inputs and the rest of `--list`](lists.md).\n\n[Every key of a machine file](machine-files.md).\n\n[How far off predictions are](scores.md).\n\n[All records](records.md).\n"
    return found


def first_difference(page, right):
    for number, (old, new) in enumerate(itertools.zip_longest(page.splitlines(), right.splitlines()), 1):
        if old != new:
            end = "the end of the page"
            return f"{number}: the page has {end if old is None else repr(old)}, the programs print {end if new is None else repr(new)}"
    return "the ends of lines differ"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("root", type=pathlib.Path, nargs="?", default=pathlib.Path(__file__).parents[1])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    folder = root / PAGES
    right = pages(arguments.programs.resolve(), root)
    present = {path.name: path.read_text() for path in folder.glob("*.md")}
    if not arguments.check:
        right[SCORES] = scores_page(arguments.programs.resolve(), root)
    elif SCORES in present:
        right[SCORES] = present[SCORES]
    wrong = 0
    for name in sorted(right.keys() | present.keys()):
        if present.get(name) == right.get(name):
            continue
        wrong += 1
        if not arguments.check:
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(right[name]) if name in right else (folder / name).unlink()
        elif name not in right:
            print(f"{PAGES}/{name}: no program has this page")
        elif name not in present:
            print(f"{PAGES}/{name}: the page is missing")
        else:
            print(f"{PAGES}/{name}:{first_difference(present[name], right[name])}")
    if arguments.check and wrong:
        sys.exit(f"{wrong} pages of {PAGES} are not what the programs print: run docs/make_reference.py {arguments.programs}")


main()
