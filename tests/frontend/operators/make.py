#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the files of this folder: models in ONNX's text form with inputs and the outputs that onnxruntime gives for them.

    make.py [NAME...]        make these files (without .onnxtxt), or all; needs onnx, onnxruntime and numpy

A case is a model, runs of random inputs (its sizes, its integers) and, where an output has places that the operator leaves
undefined, which ones. `reference` of a case replaces onnxruntime where that has no kernel or another meaning; it says why.
"""
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime

HERE = Path(__file__).resolve().parent
NAMES = {"float32": "f32", "float16": "f16", "int32": "i32", "int64": "i64", "bool": "bool", "float64": "f64", "int8": "i8", "uint8": "u8"}


def line(kind, name, a, ignore=None):
    a = np.asarray(a)
    if a.dtype.kind == "f":
        words = [f"{x:.6g}" for x in a.ravel().astype(np.float64)]
    else:
        words = [str(int(x)) for x in a.ravel()]
    if ignore is not None:
        words = ["_" if skip else w for w, skip in zip(words, np.broadcast_to(ignore, a.shape).ravel())]
    dims = ",".join(map(str, a.shape)) or "scalar"
    return f"#{kind} {name} {NAMES[str(a.dtype)]} {dims} {' '.join(words)}".rstrip()


def expected(text, feeds):
    model = onnx.parser.parse_model(text)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds)))


class Random:
    """Inputs of one run, from a seed of the model's text: short decimals, so that the file stays small."""

    def __init__(self, seed):
        self.random = np.random.RandomState(seed)

    def real(self, *dims, scale=1.0):
        return np.round(self.random.uniform(-scale, scale, dims), 2).astype(np.float32)

    def below(self, n, *dims, dtype=np.int64):
        return self.random.randint(0, n, dims).astype(dtype)


def block(text, runs):
    text = text.strip() + "\n"
    seed = sum(ord(c) * (i + 1) for i, c in enumerate(text)) % (1 << 31)
    lines = [text]
    for number, run in enumerate(runs):
        made = run(Random(seed + number))
        feeds, ignore, reference = (*made, None, None)[:3] if isinstance(made, tuple) else (made, None, None)
        want = reference(feeds) if reference else expected(text, feeds)
        lines += [line("in", k, v) + "\n" for k, v in feeds.items()]
        lines += [line("out", k, v, (ignore or {}).get(k)) + "\n" for k, v in want.items()]
    return "".join(lines)


def main():
    import cases
    import hybrid_cases
    import recent_cases
    files = {**cases.FILES, **recent_cases.FILES, **hybrid_cases.FILES}
    for name in sys.argv[1:] or sorted(files):
        comment, blocks = files[name]
        (HERE / f"{name}.onnxtxt").write_text(f"# {comment} Made by make.py.\n" + "\n".join(block(*b) for b in blocks))


if __name__ == "__main__":
    main()
