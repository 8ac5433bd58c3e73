#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a C++ file that is not laid out as .clang-format says; exit status 77 (skipped) without clang-format 14.

    check_format.py [--fix] [FILE ...]     default: all of them
"""
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("frontend", "ir", "passes", "codegen", "templates", "runtime", "tools", "tests")
VERSION = "14"  # of Debian 12; others differ in details


def formatter():
    """clang-format of that version, or None."""
    for name in (f"clang-format-{VERSION}", "clang-format"):
        path = shutil.which(name)
        if path and re.search(rf"version {VERSION}\.", subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout):
            return path
    return None


def main():
    words = [w for w in sys.argv[1:] if w != "--fix"]
    program = formatter()
    if not program:
        print(f"skipped: no clang-format {VERSION}")
        return 77
    files = [w for w in words if w.endswith((".cpp", ".h", ".cuh"))] if words else sorted(str(p) for folder in FOLDERS for s in ("*.cpp", "*.h", "*.cuh") for p in (ROOT / folder).rglob(s))
    mode = ["-i"] if "--fix" in sys.argv else ["--dry-run", "-Werror"]
    done = subprocess.run([program, *mode, *files], capture_output=True, text=True, check=False)
    wrong = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", done.stderr, re.M)))
    for path in wrong:
        print(f"{path}: not as .clang-format says; tools/check_format.py --fix {path}")
    print(f"format: {len(files)} files, {len(wrong)} to lay out again")
    return 1 if wrong or done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
