#!/usr/bin/env python3
"""Checks that tree_files.py finds the same files with Git, without it, and in an archive that was unpacked in another
checkout."""
import os
import pathlib
import shutil
import subprocess
import tempfile

from tree_files import files_of

OWN = {".gitignore", "page.md", "kernels/out/kernel.cu"}
IGNORED = {"build/page.md", "kernels/build/kernel.o", "out/page.md", "tests/__pycache__/page.pyc"}
BUILD_TREE = {"elsewhere/CMakeCache.txt", "elsewhere/page.md"}


def make_tree(root, files):
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("")
    (root / ".gitignore").write_text("build/\n/out/\n__pycache__/\n")


def check(root):
    found = files_of(root)
    assert found == OWN, f"files of the tree: {sorted(found)}; expected {sorted(OWN)}"


with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder, "checkout", "tree")
    make_tree(root, OWN | IGNORED | BUILD_TREE)
    path = os.environ["PATH"]
    if shutil.which("git"):
        subprocess.run(["git", "init", "--quiet", root.parent], check=True)
        (root.parent / ".gitignore").write_text("*.md\n")
        check(root)
    os.environ["PATH"] = ""
    check(root)
    (root / ".git").mkdir()
    check(root)
    os.environ["PATH"] = path
    if shutil.which("git"):
        (root / ".git").rmdir()
        shutil.rmtree(root / "elsewhere")  # Git does not know a build tree that no .gitignore names
        subprocess.run(["git", "init", "--quiet", root], check=True)
        check(root)
print("files of the tree: as expected")
