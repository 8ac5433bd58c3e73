#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of tests/frontend/operators, each changed at random in one to three places: sizes, ranks, types, attributes, absent inputs.

    changed_operators.py REPLAY_COMPILER ONNX_FROM_TEXT [--count 4000] [--seed 1]

The compiler's fuzz target takes them up to their kernels: each becomes a program or is refused in a line, no rule of the IR is
broken, and all of them take two minutes at most. Needs onnx. A model that fails is printed. Exit status 0 if none does.
"""
import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/frontend/operators"))
from check import models_of  # noqa: E402

INTEGERS = [0, 1, 2, 3, 4, 5, 7, 8, 12, -1, 1 << 31, 1 << 62, (1 << 63) - 1, -(1 << 63)]
SIZES = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 1 << 20, 1 << 40, 1 << 62]
REALS = [0.0, 1.0, -1.0, 1e38, float("nan"), float("inf")]
TYPES = [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.INT64,
         onnx.TensorProto.INT32, onnx.TensorProto.BOOL]


def change_dims(dims):
    kind = random.random()
    if kind < 0.3 and dims:
        del dims[random.randrange(len(dims))]
    elif kind < 0.5:
        dims.add().dim_value = random.choice(SIZES)
    elif dims:
        random.choice(dims).dim_value = random.choice(SIZES)


def change_attribute(node, names):
    if not node.attribute or random.random() < 0.2:  # one of another operator
        name = random.choice(names)
        if all(a.name != name for a in node.attribute):
            node.attribute.append(onnx.helper.make_attribute(name, random.choice(INTEGERS)))
        return
    a = random.choice(node.attribute)
    if a.type == onnx.AttributeProto.INT:
        a.i = random.choice(INTEGERS)
    elif a.type == onnx.AttributeProto.FLOAT:
        a.f = random.choice(REALS)
    elif a.type == onnx.AttributeProto.INTS and a.ints:
        a.ints[random.randrange(len(a.ints))] = random.choice(INTEGERS)
    elif a.type == onnx.AttributeProto.STRING:
        a.s = random.choice([b"", b"linear", b"gated_delta", b"silu", b"tanh", b"constant", b"edge"])


def change(model, names):
    graph = model.graph
    kind, node = random.random(), random.choice(graph.node)
    if kind < 0.4 and graph.input:
        change_dims(random.choice(graph.input).type.tensor_type.shape.dim)
    elif kind < 0.75:
        change_attribute(node, names)
    elif kind < 0.9 and node.input:
        node.input[random.randrange(len(node.input))] = random.choice(["", *[x.name for x in graph.input]])
    elif graph.input:
        random.choice(graph.input).type.tensor_type.elem_type = random.choice(TYPES)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("replay_compiler")
    p.add_argument("onnx_from_text")
    p.add_argument("--count", type=int, default=4000)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    random.seed(a.seed)
    with tempfile.TemporaryDirectory() as scratch:
        texts = sorted((ROOT / "tests/frontend/operators").glob("*.onnxtxt"))
        models = [onnx.load_from_string(data) for path in texts for _, data in models_of(path, a.onnx_from_text, Path(scratch))]
        names = sorted({x.name for m in models for n in m.graph.node for x in n.attribute if x.type == onnx.AttributeProto.INT})
        folder = Path(scratch) / "changed"
        folder.mkdir()
        for number in range(a.count):
            model = onnx.ModelProto()
            model.CopyFrom(random.choice(models))
            for _ in range(random.randint(1, 3)):
                change(model, names)
            (folder / f"{number}.onnx").write_bytes(model.SerializeToString())
        try:
            done = subprocess.run([a.replay_compiler, folder], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=120)
            lines, status = done.stderr.splitlines(), done.returncode
        except subprocess.TimeoutExpired as e:
            lines, status = (e.stderr or b"").decode(errors="replace").splitlines(), "no end in two minutes"
        if status != 0:
            last = next((l for l in reversed(lines) if l.endswith(".onnx")), None)
            print(onnx.helper.printable_graph(onnx.load(last).graph) if last else "")
            print("\n".join(l for l in lines[-5:] if not l.endswith(".onnx")))
            sys.exit(f"failed: {status}")
    print(f"{a.count} changed models end in a program or a line")


if __name__ == "__main__":
    main()
