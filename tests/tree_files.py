"""The tree's own files, for the tests that check all of them."""
import fnmatch
import os
import pathlib
import shutil
import subprocess


def files_of(root):
    """Files that Git knows or would take. In an unpacked archive, or where Git is not installed: all but build trees and
    what .gitignore names."""
    root = pathlib.Path(root)
    if (root / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"], text=True, capture_output=True)
        if listed.returncode == 0:
            return {file for file in listed.stdout.splitlines() if (root / file).is_file()}
    patterns = [".git", *(line.rstrip("/") for line in (root / ".gitignore").read_text().split())]

    def own(path):
        name = "/" + path.relative_to(root).as_posix()
        return not (any(fnmatch.fnmatchcase(name, form) for pattern in patterns for form in (pattern, "*/" + pattern))
                    or (path / "CMakeCache.txt").exists())

    found = set()
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if own(pathlib.Path(folder, name))]
        found.update(path.relative_to(root).as_posix() for name in names if own(path := pathlib.Path(folder, name)))
    return found
