#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles BERTs of about 200, 2,000 and 20,000 ONNX nodes and shows how the time grows. Needs numpy and onnx (without
onnx the exit status is 77, which ctest takes as skipped).

    compile_time.py TFCC [--target cpu] [--rounds 3] [-- more options of `tfcc compile`]

A row per size: nodes, CPU seconds (the least of all rounds, kernels cached), microseconds a node. Fails if from 200 or
2,000 nodes to 20,000 the time grows faster than n log n, with a half more allowed for noise.
"""
import argparse
import math
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

try:
    import onnx
except ImportError:
    print("skipped: the Python package onnx, which writes the models, is not installed")
    sys.exit(77)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))
import bert_graph  # noqa: E402

HIDDEN, HEADS, VOCAB = 32, 2, 50
NODES = (200, 2000, 20000)


def weights_of(layers):
    rng = np.random.default_rng(0)
    shapes = {f"embeddings.{kind}_embeddings.weight": (n, HIDDEN) for kind, n in (("word", VOCAB), ("token_type", 2), ("position", 64))}
    norms = ["embeddings.LayerNorm"]
    for i in range(layers):
        at = f"encoder.layer.{i}."
        for name, (m, n) in {**{f"attention.self.{x}": (HIDDEN, HIDDEN) for x in ("query", "key", "value")},
                             "attention.output.dense": (HIDDEN, HIDDEN), "intermediate.dense": (2 * HIDDEN, HIDDEN),
                             "output.dense": (HIDDEN, 2 * HIDDEN)}.items():
            shapes[at + name + ".weight"], shapes[at + name + ".bias"] = (m, n), (m,)
        norms += [at + "attention.output.LayerNorm", at + "output.LayerNorm"]
    for n in norms:
        shapes[n + ".weight"] = shapes[n + ".bias"] = (HIDDEN,)
    return {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()}


def write_model(path, nodes):
    """Writes a BERT of at least `nodes` nodes; returns how many it has."""
    def graph(layers):
        return bert_graph.bert(weights_of(layers), layers, HEADS).model()

    one, two = (len(graph(n).graph.node) for n in (1, 2))
    model = graph(max(1, math.ceil((nodes - one) / (two - one)) + 1))
    onnx.save(model, path)
    return len(model.graph.node)


def cpu_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    words, extra = sys.argv[1:], []
    if "--" in words:
        words, extra = words[:words.index("--")], words[words.index("--") + 1:]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tfcc")
    p.add_argument("--target", default="cpu")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--nodes", type=int, nargs="+", default=NODES)
    a = p.parse_args(words)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        print(f"{'nodes':>8} {'CPU s':>8} {'us/node':>8}")
        for wanted in a.nodes:
            nodes = write_model(folder / "m.onnx", wanted)
            command = [a.tfcc, "compile", folder / "m.onnx", "-o", folder / "m.tfcc", "--target", a.target, "-q",
                       "--cache-dir", folder / "cache", *extra]
            cpu_seconds(command)  # fills the cache of kernels
            rows.append((nodes, min(cpu_seconds(command) for _ in range(a.rounds))))
            print(f"{nodes:>8} {rows[-1][1]:>8.2f} {rows[-1][1] / nodes * 1e6:>8.0f}", flush=True)
    failed = False
    (large, longest) = rows[-1]
    for nodes, seconds in rows[:-1]:
        allowed = 1.5 * (large * math.log(large)) / (nodes * math.log(nodes))
        failed |= longest / seconds > allowed
        print(f"{large / nodes:.0f} times the nodes: {longest / seconds:.0f} times the time, {allowed:.0f} allowed")
    sys.exit(failed)


if __name__ == "__main__":
    main()
