#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a sentence of more than 25 words in README.md, docs or the README of a folder.

    check_prose.py [FILE ...]     default: all of them

Code blocks, tables, headings and HTML are not prose. A list item or a paragraph is read as sentences that end with . ! ? or : and a
space. Code between backticks counts as one word, a link as the words of its text.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("docs", "frontend", "ir", "passes", "codegen", "templates", "runtime", "tools", "tests")
LONGEST = 25
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|approx|no|Fig|Sec)\.", re.I)


def paragraphs(text):
    """(line, text) of each paragraph and list item."""
    block, start, fenced = [], 0, False
    for number, line in enumerate(text.split("\n") + [""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            line = ""
        item = re.match(r"\s*([-*]|\d+\.) ", line)
        skip = fenced or not line.strip() or re.match(r"#|\||<|    ", line) and not (block and line.startswith("    ") and not item)
        if block and (skip or item):
            yield start, " ".join(block)
            block = []
        if not skip:
            if not block:
                start = number
            block.append(line[item.end():] if item else line.strip())


def sentences(paragraph):
    text = re.sub(r"`+[^`]*`+", "CODE", paragraph)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = ABBREVIATIONS.sub(lambda m: m[0].replace(".", ""), text)
    return [s for s in re.split(r"(?<=[.!?:])[)\"*_]*\s+(?=\S)", text) if s]


def words(sentence):
    return [w for w in sentence.split() if re.search(r"\w", w)]


def main():
    found = [*ROOT.glob("*.md"), *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.md"))]
    files = [Path(f) for f in sys.argv[1:]] or sorted(found)
    broken = 0
    for path in files:
        for line, paragraph in paragraphs(path.read_text()):
            for sentence in sentences(paragraph):
                count = len(words(sentence))
                if count > LONGEST:
                    broken += 1
                    print(f"{path}:{line}: {count} words: {sentence[:110]}")
    print(f"prose: {len(files)} files, {broken} sentences of more than {LONGEST} words")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
