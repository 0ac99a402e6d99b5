#!/usr/bin/env python3
"""Checks the links of the documentation: links_test.py [ROOT] prints a line for each link in a Markdown file that leads
nowhere, and then exits with status 1.

A link is right if its file or folder is one of the tree's, and if its anchor is one of the headings of that file.
Links to other hosts are not followed. Every page of docs/ must be reachable from docs/README.md.
"""
import os
import pathlib
import re
import sys
import urllib.parse

from tree_files import files_of

FENCE = re.compile(r"^ *(```|~~~).*?^ *\1[^\n]*$", re.M | re.S)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+(?:\([^()\s]*\))?)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.M)
DOCS = "docs/README.md"


def anchors(text):
    """Anchors of the headings, as GitHub makes them: lower case, no punctuation, '-' for blanks, '-1' for a second."""
    found = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        name, count = anchor, 0
        while name in found:
            count += 1
            name = f"{anchor}-{count}"
        found.add(name)
    return found


def links(text):
    """(line, target) of every link outside code."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())
    text = CODE.sub(blank, FENCE.sub(blank, text))
    for match in LINK.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match.group(1)


def wrong(root):
    files = files_of(root)
    folders = {"."} | {parent.as_posix() for file in files for parent in pathlib.PurePosixPath(file).parents}
    texts = {file: (root / file).read_text() for file in sorted(files) if file.endswith(".md")}
    leads_to = {}
    for page, text in texts.items():
        leads_to[page] = set()
        for line, target in links(text):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            path, _, anchor = urllib.parse.unquote(target).partition("#")
            file = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            leads_to[page].add(file)
            if file not in files and file not in folders:
                yield f"{page}:{line}: link to '{target}': there is no {file}"
            elif anchor and anchor not in anchors(texts.get(file, "")):
                yield f"{page}:{line}: link to '{target}': {file} has no heading '#{anchor}'"

    reached, ahead = set(), [DOCS] if DOCS in texts else []
    while ahead:
        page = ahead.pop()
        if page not in reached:
            reached.add(page)
            ahead += [next_page for next_page in leads_to.get(page, ()) if next_page.startswith("docs/")]
    for page in texts:
        if page.startswith("docs/") and page not in reached:
            yield f"{page}: no link leads here from {DOCS}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    lines = list(wrong(root))
    print("\n".join(lines) if lines else "all links lead somewhere")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
