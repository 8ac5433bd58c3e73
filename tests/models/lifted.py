#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what programs for generation launch and read, of every decoder of a folder, in fp16 for sm_90.

    lifted.py TFCC [--folder DIR] [NAME...]

A decoder of attentions has at most eight launches a layer up to 128 tokens and nine beyond, four products a layer (q, k and
v are one) and one for the logits, whose rows are those that are wanted. A file that also has the graph as it was exported
has no larger weights for it. A step reads the keys and values of its context once
and writes one row of each layer: bytes grow by a page with each page of the context, and not with the cache.
Exit status 0 only if all is so.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DECODERS = ("gpt2", "gpt2-past", "llama", "llama-past")
PAGE = 64
MORE_WEIGHTS = 0.04  # vectors and tables that one of the two programs has: of norms in products, of angles, of masks
SIZES = {"step_tokens": 1, "sequences": 1, "context_pages": 2, "wanted_rows": 1, "cache_pages": 16, "seen_words": 1}
SIZE_OF = {"f16": 2, "bf16": 2, "f32": 4}


def plan_at(tfcc, file, **changed):
    sizes = ",".join(f"{name}={n}" for name, n in {**SIZES, **changed}.items())
    said = subprocess.run([tfcc, "inspect", file, "--generation", "--json", "--shapes", sizes], capture_output=True, text=True, check=True)
    all_ = json.loads(said.stdout)
    return all_, all_["plans"][0]


def traffic(plan, bucket, ops):
    return sum(launch["bytes"]["value"] for launch in plan["buckets"][bucket]["launches"] if launch["ops"][0] in ops)


def problems(tfcc, file):
    found = []
    whole, plan = plan_at(tfcc, file)
    attentions = {launch["name"] for launch in plan["buckets"][0]["launches"] if launch["ops"][0] == "attention"}
    layers = len(attentions)
    for bucket in plan["buckets"]:
        ops = [launch["ops"][0] for launch in bucket["launches"]]
        most = 9 if bucket["name"] == "any" else 8
        if bucket["layers"]["launches"] > most:
            found.append(f"bucket {bucket['name']}: {bucket['layers']['launches']} launches a layer")
        if ops.count("matmul") not in (4 * layers, 4 * layers + 1):  # a head that shares a launch
            found.append(f"bucket {bucket['name']}: {ops.count('matmul')} products in {layers} layers")
    logits = next(o for o in whole["outputs"] if "logits" in o["name"])
    if logits["dims"][:2] != ["1", "wanted_rows"]:
        found.append(f"logits are {logits['dims']}")
    caches = [i for i in whole["inputs"] if i["name"].startswith("cache.")]
    row = sum(int(c["dims"][1]) * int(c["dims"][3]) * SIZE_OF[c["dtype"]] for c in caches)
    more = plan_at(tfcc, file, context_pages=3)[1]
    grown = traffic(more, 0, ("attention",)) - traffic(plan, 0, ("attention",))
    if not 0 <= grown - PAGE * row <= 16 * layers:  # a place of the table beside it
        found.append(f"a page of {PAGE * row} bytes makes attention read {grown} more")
    append = ("kv_append", "rope_append")
    two = plan_at(tfcc, file, step_tokens=2)[1]
    written = traffic(two, 0, append) - traffic(plan, 0, append)
    if not row <= written <= 8 * row + 64 * layers:
        found.append(f"a token of {row} bytes makes {written} of its appending")
    larger = plan_at(tfcc, file, cache_pages=100000)[1]
    every = {launch["ops"][0] for launch in plan["buckets"][0]["launches"]}
    if traffic(larger, 0, every) != traffic(plan, 0, every):
        found.append("a larger cache is read or written more")
    return layers, found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tfcc")
    parser.add_argument("names", nargs="*", default=DECODERS)
    parser.add_argument("--folder", type=Path, default=HERE)
    options = parser.parse_intermixed_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names:
            file = Path(folder) / "m.tfcc"
            made = subprocess.run([options.tfcc, "compile", options.folder / name / "model.onnx", "-o", file, "--target", "sm_90", "--fp16",
                                   "--generate-only", "-q"], capture_output=True, text=True)
            layers, found = problems(options.tfcc, file) if made.returncode == 0 else (0, [made.stderr.strip().splitlines()[-1]])
            if made.returncode == 0:
                alone = plan_at(options.tfcc, file)[0]["weights"]["bytes"]
                both = subprocess.run([a for a in made.args if a != "--generate-only"], capture_output=True).returncode == 0
                more = plan_at(options.tfcc, file)[0]["weights"]["bytes"] - alone if both else "?"
                if not both or more > alone * MORE_WEIGHTS:
                    found.append(f"both programs have {more} bytes more of weights than one of {alone}")
            wrong += bool(found)
            print(f"{'FAIL' if found else 'ok  '}  {name:26} {layers} layers{': ' if found else ''}{'; '.join(found)}", flush=True)
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
