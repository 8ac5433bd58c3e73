#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What decoders answer, in every way that a generator has, and the logits of their programs for generation.

    answers.py TFCC ANSWERS [--target cpu|gpu] [--fp16 | --bf16] [--folder DIR]

Each model of the folder that has a generate.json (made by a float64 reference) is compiled, and tests/models/answers.cpp
runs it. In fp32 ids must be the same, and each row of logits within 1e-4; in fp16 within 1e-2. bf16 keeps eight bits, and
its products alone may cost more than that. What they cost at least is computed here (see `floor_of_bf16`). All logits
together may differ by 1.75 times as much, a row by 2.5 times, for what stands between products is rounded too.
Exit status 0 only if all is good; 77, which ctest takes as skipped, without a GPU.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_numpy
from check import gpu_target

ABOVE_THE_FLOOR = {"row": 2.5, "all": 1.75}


def rounded(x):
    """Reals with the eight bits of a bf16, to nearest even; other types as they are."""
    if x.dtype.kind != "f":
        return x
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def floor_of_bf16(path, tokens):
    """The error of the row of logits that is furthest off, and of all, where nothing is rounded but the two operands of
    each product: no program whose products multiply bf16 can promise less. None where onnx_numpy.py lacks an operator."""
    model, ids = onnx.load(str(path)), np.array([tokens])
    feeds = {}
    for value in model.graph.input:
        dims = [d.dim_value if d.HasField("dim_value") else 0 for d in value.type.tensor_type.shape.dim]
        real = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        feeds[value.name] = (np.zeros([1, *dims[1:]]) if real else np.ones_like(ids) if "mask" in value.name
                             else np.arange(ids.size)[None] if "position" in value.name else ids)
    exact = dict(onnx_numpy.OPERATORS)
    try:
        want = onnx_numpy.evaluate(model, feeds, path.parent)["logits"][0]
        for name in ("MatMul", "Gemm"):
            onnx_numpy.OPERATORS[name] = lambda a, x, y, *c, of=exact[name]: of(a, rounded(x), rounded(y), *c)
        got = onnx_numpy.evaluate(model, feeds, path.parent)["logits"][0]
    except (KeyError, AssertionError):
        return None
    finally:
        onnx_numpy.OPERATORS.update(exact)
    rows = np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)
    return {"row": float(rows.max()), "all": float(np.linalg.norm(got - want) / np.linalg.norm(want))}


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300)
    return done.returncode, (done.stdout if done.returncode == 0 else done.stderr).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tfcc")
    parser.add_argument("answers")
    parser.add_argument("--target", choices=["cpu", "gpu"], default="cpu")
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument("--fp16", action="store_true")
    precision.add_argument("--bf16", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent)
    options = parser.parse_args()
    target = ["--target", gpu_target()] if options.target == "gpu" else ["--target", "cpu", "--cpu", "native"]
    narrow = ["--fp16"] if options.fp16 else ["--bf16"] if options.bf16 else []
    right = preempted = 0
    known = sorted(options.folder.glob("*/generate.json"))
    with tempfile.TemporaryDirectory() as folder:
        for path in known:
            model, want = path.parent, json.loads(path.read_text())
            most, beside = {of: 1e-2 if narrow else 1e-4 for of in ABOVE_THE_FLOOR}, ""
            if options.bf16:
                floor = floor_of_bf16(model / "model.onnx", want["prompt"] + want["tokens"])
                most = {of: max(1e-2, n * floor[of]) if floor else 4e-2 for of, n in ABOVE_THE_FLOOR.items()}
                beside = f"; operands in bf16 cost {floor['all']:.1e}, a row {floor['row']:.1e}" if floor else ""
            file, reference = Path(folder) / "m.tfcc", Path(folder) / "f32.tfcc"
            status, said = run(options.tfcc, "compile", model / "model.onnx", "-o", file, "-q", *target, *narrow)
            if status == 0 and narrow:
                status, said = run(options.tfcc, "compile", model / "model.onnx", "-o", reference, "-q", *target)
            if status == 0:
                status, said = run(options.answers, file, reference if narrow else file, "cuda" if options.target == "gpu" else "cpu",
                                   ",".join(map(str, want["prompt"])), ",".join(map(str, want["tokens"])), f"{most['row']:g},{most['all']:g}",
                                   *([] if narrow else ["ids"]))
            right += status == 0
            preempted += "pre-empted" in said
            print(f"{'ok  ' if status == 0 else 'FAIL'}  {model.name:26} {said}{beside}", flush=True)
    print(f"{right} of {len(known)} decoders answer as they should on {options.target}")
    if not narrow and not preempted:
        sys.exit("no sequence was pre-empted")
    sys.exit(0 if known and right == len(known) else 1)


if __name__ == "__main__":
    main()
