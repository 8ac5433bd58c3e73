#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles a BERT whose weights lie in external data, and samples the memory that the compiler takes for itself
(RssAnon of /proc/PID/status: pages of mapped files are not in it). Needs numpy and onnx (without onnx the exit
status is 77, which ctest takes as skipped); Linux.

    compile_memory.py TFCC [--layers 12] [--hidden 768] [--ffn 3072] [--vocab 30522] [--target cpu] [--limit MB]

Fails if the peak is above the limit: --limit, or by default what a small model takes, twice the largest tensor and
32 MB. Weights are a repeated block of random numbers; files are removed in the end.
"""
import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

try:
    from onnx import TensorProto
except ImportError:
    print("skipped: the Python package onnx, which writes the model, is not installed")
    sys.exit(77)

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tools"))
import bert_graph  # noqa: E402
import onnx_graph  # noqa: E402

SMALLEST_EXTERNAL = 1024
BLOCK = np.random.default_rng(0).normal(0, 0.02, 1 << 20).astype(np.float32).tobytes()


def external_graph(data):
    """A Graph whose large weights go to the open file `data`; arrays carry no more than a shape."""

    class External(onnx_graph.Graph):
        def weight(self, name, value):
            value = np.asarray(value)
            if value.size < SMALLEST_EXTERNAL or name in self.initializers:
                return super().weight(name, value)
            t = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=value.shape, data_location=TensorProto.EXTERNAL)
            bytes_ = value.size * 4
            for key, text in (("location", Path(data.name).name), ("offset", data.tell()), ("length", bytes_)):
                t.external_data.add(key=key, value=str(text))
            for at in range(0, bytes_, len(BLOCK)):
                data.write(BLOCK[:bytes_ - at])
            self.initializers[name] = t
            return name

        def model(self):
            return onnx_graph.helper.make_model(
                onnx_graph.helper.make_graph(self.nodes, "main_graph", self.inputs, self.outputs, list(self.initializers.values())),
                producer_name="tfcc", ir_version=8, opset_imports=[onnx_graph.helper.make_opsetid("", self.opset)])

    return External


def shapes(a):
    h, f = a.hidden, a.ffn
    out = {f"embeddings.{kind}_embeddings.weight": (n, h) for kind, n in (("word", a.vocab), ("token_type", 2), ("position", 512))}
    norms = ["embeddings.LayerNorm"]
    for i in range(a.layers):
        at = f"encoder.layer.{i}."
        linear = {**{f"attention.self.{x}": (h, h) for x in ("query", "key", "value")}, "attention.output.dense": (h, h),
                  "intermediate.dense": (f, h), "output.dense": (h, f)}
        for name, shape in linear.items():
            out[at + name + ".weight"], out[at + name + ".bias"] = shape, shape[:1]
        norms += [at + "attention.output.LayerNorm", at + "output.LayerNorm"]
    for n in norms:
        out[n + ".weight"] = out[n + ".bias"] = (h,)
    return out


def write_model(folder, a):
    """The model's path, and the bytes of all weights and of the largest."""
    weights = {n: np.broadcast_to(np.float32(0), s) for n, s in shapes(a).items()}
    with open(folder / "model.onnx.data", "wb") as data:
        bert_graph.Graph = external_graph(data)
        graph = bert_graph.bert(weights, a.layers, a.hidden // 64)
        (folder / "model.onnx").write_bytes(graph.model().SerializeToString())
        total = data.tell()
    return folder / "model.onnx", total, max(w.size * 4 for w in weights.values())


def peak(command):
    """Seconds, and the most anonymous bytes that were resident."""
    start, most = time.monotonic(), 0
    process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    most = max(most, int(line.split()[1]) * 1024)
        except OSError:
            pass
        time.sleep(0.002)
    if process.returncode:
        sys.exit(process.returncode)
    return time.monotonic() - start, most


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tfcc")
    for name, default in dict(layers=12, hidden=768, ffn=3072, vocab=30522, limit=0).items():
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--target", default="cpu")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        options = ["--target", a.target, "-q", "--cache-dir", folder / "cache"]
        _, small = peak([a.tfcc, "compile", HERE / "bert-eager" / "model.onnx", "-o", folder / "small.tfcc", *options])
        model, total, largest = write_model(folder, a)
        seconds, most = peak([a.tfcc, "compile", model, "-o", folder / "m.tfcc", *options])
        limit = a.limit * 10**6 or small + 2 * largest + 32 * 10**6
        print(f"weights {total / 1e6:.0f} MB, largest {largest / 1e6:.1f} MB: {seconds:.2f} s, peak {most / 1e6:.0f} MB anonymous "
              f"(small model {small / 1e6:.0f}), limit {limit / 1e6:.0f}")
        sys.exit(most > limit)


if __name__ == "__main__":
    main()
