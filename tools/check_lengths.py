#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a C++ or CUDA function (of what is no test) of over 60 lines, from its first line to its closing brace.

    check_lengths.py [FILE ...]     default: all of them

Relies on the layout that tools/check_format.py holds: a function's body ends with a brace that stands as far in as its first line.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("frontend", "ir", "passes", "codegen", "templates", "runtime", "tools")
LONGEST = 60
# What begins with a brace and is no function.
OTHER = re.compile(r"(?:inline )?namespace\b|(?:template <.*> )?(?:struct|class|enum|union)\b|extern \"C\"|(?:if|for|while|switch|do|else|try|catch|case|default)\b|[}#]|//|R\"")


def statement_of(lines, at):
    """The first line of what opens a brace at the end of lines[at]: behind the last line that ends a statement."""
    first = at
    while first > 0 and lines[first - 1].strip() and not re.search(r"[;{}:]\s*(?://.*)?$|^\s*(?://|#)|^\s*(?:public|private|protected):", lines[first - 1]):
        first -= 1
    return first


def functions_of(lines):
    """(first line, number of lines) of each outermost function, lines counted from 1."""
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.rstrip().endswith("{"):
            first = statement_of(lines, at)
            head = " ".join(s.strip() for s in lines[first:at + 1])
            if "(" in head and not OTHER.match(head):
                indent = len(lines[first]) - len(lines[first].lstrip())
                end = next((i for i in range(at + 1, len(lines)) if lines[i].startswith(" " * indent + "}")), None)
                if end is not None:
                    yield first + 1, end - first + 1, head
                    at = end
        at += 1


def main():
    paths = [Path(w) for w in sys.argv[1:]] or sorted(p for f in FOLDERS for s in ("*.cpp", "*.h", "*.cuh") for p in (ROOT / f).rglob(s))
    count = long = 0
    for path in paths:
        for first, length, head in functions_of(path.read_text().splitlines()):
            count += 1
            if length > LONGEST:
                long += 1
                print(f"{path}:{first}: {length} lines, at most {LONGEST}: {head[:80]}")
    print(f"lengths: {count} functions, {long} too long")
    return 1 if long or (not sys.argv[1:] and count < 1000) else 0


if __name__ == "__main__":
    sys.exit(main())
