#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Leaves each default pass out in turn: every model must stay right. Needs numpy.

    skip_passes.py TFCC [--folder DIR] [--every N] [--first I] [-- options of check.py]

Kernels are compiled for the CPU at hand alone. Of all pairs of a pass and a model those numbered I, I + N, I + 2 N ... are checked; by default all. One line per
pass; exit status 0 only if all pairs are right.
"""
import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import check


def default_passes(tfcc, model):
    """The names of the default passes, each once, in order: from the report of a compilation."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "r.json"
        subprocess.run([tfcc, "compile", model, "-o", Path(scratch) / "m.tfcc", "--target", "cpu", "--cpu", "native", "-q", "--report", report], check=True)
        return list(dict.fromkeys(p["name"] for p in json.loads(report.read_text())["passes"]))


def main():
    words, extra = sys.argv[1:], []
    if "--" in words:
        words, extra = words[:words.index("--")], words[words.index("--") + 1:]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tfcc")
    p.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent)
    p.add_argument("--every", type=int, default=1)
    p.add_argument("--first", type=int, default=0)
    a = p.parse_args(words)
    models = sorted(f.parent.name for f in a.folder.glob("*/model.onnx"))
    names = default_passes(a.tfcc, a.folder / models[0] / "model.onnx")
    bad = 0
    for i, name in enumerate(names):
        # The number of a pair is i + j, so that every pass and every model has its turn.
        chosen = [m for j, m in enumerate(models) if (i + j) % a.every == a.first % a.every]
        sys.argv = ["check.py", a.tfcc, "--folder", str(a.folder), *extra, "--only", *chosen, "--", "--cpu", "native", "--skip-passes=" + name]
        lines = io.StringIO()
        try:
            with contextlib.redirect_stdout(lines):
                check.main()
            status = 0
        except SystemExit as e:
            status = e.code
        if status == 77:
            print(lines.getvalue().strip())
            sys.exit(77)
        bad += status != 0
        *wrong, summary = lines.getvalue().splitlines() or ["", "nothing was checked"]
        print(f"without {name}: {summary}", *(line for line in wrong if not line.startswith("ok")), sep="\n    ", flush=True)
    print(f"{len(names) - bad} of {len(names)} passes can be left out")
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
