#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what was fused in whole models, and compares with what they consist of.

    fusions.py TFCC [--folder DIR] [--only NAME...] [--print]

fusions.txt holds, by name of the folder, how many attentions (with a softmax and without), norms, GELUs, gated blocks and rotary embeddings a model has and
what its masks are. Counted is what the passes found; a part that is not found must have its reason there, and that reason must
be a miss of the report. Softmax ops and buffers of S*S elements are what is left of attentions. --print shows the counts alone.
Exit status 0 only if all models are as the table says.
"""
import argparse
import fnmatch
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
COLUMNS = ("attention", "norm", "gelu", "gated", "rope", "softmax", "squares", "packed")


def ops(text, *names):
    return len(re.findall(rf" = (?:{'|'.join(names)})\(", text))


def gelus(text):
    """Elementwise ops that are a GELU, as ir/gelu.h spells it."""
    return len(re.findall(r" = pointwise\([^\n]*=> (?:let t0 = [^\n]* in )?\(1\.0 \+ (?:erf|tanh)\(", text))


def gated_blocks(text):
    """Ops that read two halves of one product: activation * up."""
    count = 0
    for line in text.splitlines():
        if " = pointwise(" not in line or not re.search(r"exp|erf|tanh|max\(", line):
            continue
        shifted = set(re.findall(r'(%(?:"[^"]*"|[^\s\[(]+))\[[^\]]*,[kj] \+ \d+\]', line))
        plain = set(re.findall(r'(%(?:"[^"]*"|[^\s\[(]+))\[[^\]]*,[kj]\]', line))
        count += bool(shifted & plain)
    return count


def mask_of(line):
    """What an attention lets kernels skip, in short."""
    found = [word for word, fact in (("causal", "causal = true"), ("keys", "key_padding = true")) if fact in line]
    found += [f"{side}{size}" for side, size in re.findall(r"window_(left|right) = (\d+)", line)]
    return "+".join(found) or ("condition" if "visible = (" in line else "none")


def count(tfcc, model):
    """Counts by column, the masks, and all misses."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        command = [tfcc, "compile", model, "-o", scratch / "m.tfcc", "--target", "cpu", "--cpu=x86-64-v2", "-q"]
        subprocess.run(command + ["--report", scratch / "r.json", f"--dump-ir={scratch / 'ir'}"], check=True)
        found = json.loads((scratch / "r.json").read_text())
        dumps = {p.name.split("-", 1)[1]: p.read_text() for p in sorted((scratch / "ir").glob("*.tfir"))}
        file = json.loads(subprocess.run([tfcc, "inspect", scratch / "m.tfcc", "--json"], check=True, capture_output=True).stdout)
    # Later passes take GELUs and norms into larger ops.
    raised, final = dumps["classify-mask.tfir"], dumps["fuse-qkv.tfir"]
    attentions = [line for line in dumps["raise-linear-attention.tfir"].splitlines() if re.search(r" = (linear_)?attention\(", line)]
    plan = file["plans"][0]
    counts = {
        "attention": len(attentions), "norm": ops(raised, "norm"), "gelu": gelus(raised), "gated": gated_blocks(final),
        "rope": ops(raised, "rope"), "softmax": ops(raised, "softmax"), "squares": len(plan["quadratic_buffers"]),
        "packed": sum("attention(" in line and "packed = [" in line for line in dumps["remove-padding.tfir"].splitlines()),
    }
    masks = "/".join(dict.fromkeys(mask_of(line) for line in attentions)) or "none"
    layers = plan["buckets"][0].get("layers") or {}
    return counts, masks, layers.get("launches"), [m["reason"] for p in found["passes"] for m in p["misses"]]


def table():
    """(pattern, expected counts, masks, reasons) of every line of fusions.txt."""
    rows = []
    for line in (HERE / "fusions.txt").read_text().splitlines():
        words, _, reasons = line.partition("|")
        words = words.split()
        if not words or words[0].startswith("#"):
            continue
        rows.append((words[0], {c: int(n) for c, n in zip(COLUMNS, words[1:-1]) if n != "-"}, words[-1], [r.strip() for r in reasons.split("|") if r.strip()]))
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tfcc")
    p.add_argument("--folder", type=Path, default=HERE)
    p.add_argument("--only", nargs="+")
    p.add_argument("--print", action="store_true")
    a = p.parse_args()
    rows, wrong, seen = table(), 0, 0
    for model in sorted(a.folder.glob("*/model.onnx")):
        name = model.parent.name
        if a.only and not any(fnmatch.fnmatch(name, only) for only in a.only):
            continue
        row = next((r for r in rows if fnmatch.fnmatch(name, r[0])), None)
        if row is None and not a.print:
            print(f"absent   {name:28} no line of fusions.txt is for it")
            wrong += 1
            continue
        try:
            counts, masks, launches, misses = count(a.tfcc, model)
        except subprocess.CalledProcessError:
            print(f"refused  {name}")
            wrong += not a.print
            continue
        seen += 1
        shown = ", ".join(f"{counts[c]} {c}" for c in COLUMNS if counts[c]) + f", masks {masks}, {launches} launches a layer"
        if a.print:
            print(f"{name:28} {' '.join(str(counts[c]) for c in COLUMNS)} {masks}   {launches} launches a layer", flush=True)
            continue
        bad = [f"{c} {counts[c]} instead of {n}" for c, n in row[1].items() if counts[c] != n]
        bad += [f"masks {masks} instead of {row[2]}"] if masks != row[2] else []
        bad += [f'no miss says "{r}"' for r in row[3] if not any(r in m for m in misses)]
        wrong += bool(bad)
        print(f"{'wrong' if bad else 'ok':8} {name:28} {'; '.join(bad) or shown}", flush=True)
    print(f"{seen - wrong if seen > wrong else 0} of {seen} models are fused as fusions.txt says" if not a.print else f"{seen} models")
    sys.exit(0 if a.print or (seen and not wrong) else 1)


if __name__ == "__main__":
    main()
