#!/usr/bin/env python3
"""Checks the structure of the tree: folders_test.py [ROOT] prints a line for each thing that is wrong, and then exits
with status 1. It checks these rules:

  - No circle among folders, by what C++ and CUDA files include: neither among the folders that lie in the same folder,
    each with all that is in it, nor between a folder's own files and the folders in it.
  - Each folder at the top includes only from those that LAYERS names; nobody includes from tests/.
  - There are no other folders at the top than TOP.
  - The map in CONTRIBUTING.md has one row with a purpose for every folder, and none for a folder that is not there.
  - A folder has at most MOST_FILES source files, not counting those that are many by nature (FAMILIES).
"""
import collections
import os
import pathlib
import re
import sys

from tree_files import files_of

LAYERS = {
    "layouts": set(),
    "processes": {"layouts"},
    "reference": {"layouts", "processes"},
    "sim": {"layouts"},
    "gpu": {"layouts", "processes"},
    "experiments": {"layouts", "processes", "reference", "sim", "gpu"},
    "python": {"layouts", "processes", "reference", "sim", "gpu"},
}
TOP = {".ci", ".github", "cmake", "docs", "experiments", "gpu", "layouts", "notebooks", "processes", "python",
       "reference", "sim", "tests"}
MOST_FILES = 14
# One file for each mask, layout or schedule.
FAMILIES = re.compile(r"(mask|layout|schedule)_\w+\.cpp")
SOURCES = (".hpp", ".h", ".cpp", ".cu", ".cuh")
MAP = "CONTRIBUTING.md"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"\n]+)"', re.M)
ROW = re.compile(r"^\| `([\w./-]+)/` \|([^|]*)\|", re.M)


def includes(root, files):
    """Pairs (including file, included file) of files of the tree, without headers of libraries and generated ones."""
    known = set(files)
    for file in files:
        if not file.endswith(SOURCES):
            continue
        for target in INCLUDE.findall((root / file).read_text(errors="replace")):
            for path in (target, os.path.normpath(os.path.join(os.path.dirname(file), target))):
                if path in known:
                    yield file, path
                    break


def strongly_connected(arrows):
    """Tarjan's components of more than one node."""
    index, low, stack, circles = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(arrows[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = set()
            while node not in component:
                component.add(stack.pop())
            if len(component) > 1:
                circles.append(component)

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return circles


def circles_at_every_depth(pairs):
    """Circles in pairs (including folder, included folder). Each folder is searched by itself. There a node is an inner
    folder with everything in it, or the folder's own files. This finds every circle, at the depth where its paths part."""
    levels = collections.defaultdict(lambda: collections.defaultdict(set))
    for a, b in pairs:
        above, parts_a, parts_b = [], a.split("/"), b.split("/")
        while len(above) < min(len(parts_a), len(parts_b)) and parts_a[len(above)] == parts_b[len(above)]:
            above.append(parts_a[len(above)])
        if a != b:
            node = lambda parts: "/".join(parts[:len(above) + 1])
            level = levels["/".join(above)]
            level[node(parts_a)].add(node(parts_b))
            level[node(parts_b)]
    return [circle for _, level in sorted(levels.items()) for circle in strongly_connected(level)]


def wrong(root):
    files = sorted(files_of(root))
    folder_of = os.path.dirname

    product = [(a, b) for a, b in includes(root, files) if not a.startswith("tests/")]
    examples = collections.defaultdict(list)
    for a, b in product:
        examples[folder_of(a), folder_of(b)].append(f"{a} includes {b}")
    for circle in circles_at_every_depth(examples):
        def node(folder):
            return max((c for c in circle if folder == c or folder.startswith(c + "/")), key=len, default=None)
        arrows = {}
        for (a, b), lines in sorted(examples.items()):
            if node(a) and node(b) and node(a) != node(b):
                arrows.setdefault((node(a), node(b)), lines[0])
        yield f"circle among {', '.join(sorted(circle))}: {'; '.join(arrows.values())}"

    for a, b in product:
        mine, other = a.split("/")[0], b.split("/")[0]
        if other == "tests":
            yield f"{a} includes {b}: nobody but tests includes from tests/"
        elif mine in LAYERS and mine != other and other not in LAYERS[mine]:
            allowed = ", ".join(sorted(LAYERS[mine])) or "nothing"
            yield f"{a} includes {b}: {mine}/ includes from {allowed}"

    for top in sorted({f.split("/")[0] for f in files if "/" in f} - TOP):
        yield f"folder {top}/ at the top: there are {', '.join(sorted(TOP))}"

    folders = set()
    for file in files:
        folder = folder_of(file)
        while folder:
            folders.add(folder)
            folder = folder_of(folder)
    rows = ROW.findall((root / MAP).read_text())
    for name, purpose in rows:
        if name not in folders:
            yield f"{MAP} describes {name}/, which is not there"
        if not purpose.strip():
            yield f"{MAP} says of {name}/ nothing"
    for name, count in collections.Counter(name for name, _ in rows).items():
        if count > 1:
            yield f"{MAP} describes {name}/ {count} times; once is right"
    for folder in sorted(folders - {name for name, _ in rows}):
        yield f"{MAP} does not describe {folder}/: add a row to its map, '| `{folder}/` | purpose |'"

    counts = collections.Counter(folder_of(f) for f in files if f.endswith(SOURCES) and not f.startswith("tests/")
                                 and not FAMILIES.fullmatch(os.path.basename(f)))
    del counts["experiments"]  # programs
    for folder, count in sorted(counts.items()):
        if count > MOST_FILES:
            yield f"{folder}/ has {count} source files; with more than {MOST_FILES} it is two folders"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    lines = list(wrong(root))
    print("\n".join(lines) if lines else "the tree is as it should be")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
