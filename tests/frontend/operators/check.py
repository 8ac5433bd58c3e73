#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the models of this folder with the `tfcc` command, runs them and compares: the operators in real kernels. Needs numpy.

    check.py TFCC ONNX_FROM_TEXT [--target cpu] [--only NAME ...] [FILE ...] [-- more arguments of `tfcc compile`]

A line per model that is wrong, then a count. Exit status 0 if all are right, 77 if the target is `gpu` and there is none.
"""
import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
TYPES = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "u8": np.uint8, "bool": np.bool_}
TOLERANCE = 1e-4


def values(line):
    """(name, array, which elements count) of a line "#in NAME TYPE DIMS VALUES"."""
    _, name, dtype, dims, *words = line.split()
    shape = [] if dims == "scalar" else [int(d) for d in dims.split(",")]
    counts = np.array([w != "_" for w in words], bool).reshape(shape)
    numbers = [0 if w == "_" else float(w) if dtype.startswith("f") else int(w) for w in words]
    return name, np.array(numbers).astype(TYPES[dtype]).reshape(shape), counts


def runs_of(path):
    """For each model of the file, its runs: (inputs, outputs)."""
    models = []
    for line in path.read_text().splitlines():
        if line.startswith("<ir_version"):
            models.append([])
        elif line.startswith("#in "):
            if not models[-1] or models[-1][-1][1]:
                models[-1].append(([], []))
            models[-1][-1][0].append(values(line))
        elif line.startswith("#out "):
            if not models[-1]:  # a model without inputs
                models[-1].append(([], []))
            models[-1][-1][1].append(values(line))
    return models


def models_of(path, converter, scratch):
    """(name, bytes) of each model of the file."""
    binary = scratch / "models.bin"
    subprocess.run([converter, path, binary], check=True)
    data, at = binary.read_bytes(), 0
    while at < len(data):
        end = data.index(b"\n", at)
        name, size = data[at:end].decode().split()
        yield name, data[end + 1:end + 1 + int(size)]
        at = end + 2 + int(size)


def call(*argv):
    done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=300)
    if done.returncode == 0:
        return None
    return next((l for l in done.stderr.splitlines() if l.strip()), f"exit status {done.returncode}")


def wrong_with(a, extra, model, runs, scratch):
    """What is wrong with a model, or None."""
    (scratch / "m.onnx").write_bytes(model)
    problem = call(a.tfcc, "compile", scratch / "m.onnx", "-o", scratch / "m.tfcc", "--target", a.target, "-q", "--keep-padding", *extra)
    if problem:
        return problem
    for number, (inputs, outputs) in enumerate(runs):
        words = []
        for i, (name, array, _) in enumerate(inputs):
            np.save(scratch / f"{i}.npy", array)
            words += ["--input", f"{name}={scratch / f'{i}.npy'}"]
        problem = call(a.tfcc, "run", scratch / "m.tfcc", *words, "--output", scratch / "out.npz")
        if problem:
            return f"run {number}: {problem}"
        with np.load(scratch / "out.npz") as got:
            for name, want, counts in outputs:
                if name not in got.files or got[name].shape != want.shape:
                    return f"run {number}: {name} is {got[name].shape if name in got.files else 'absent'}, not {want.shape}"
                x, y = got[name][counts].astype(np.float64), want[counts].astype(np.float64)
                with np.errstate(invalid="ignore"):  # an infinity less another
                    near = np.abs(x - y) <= TOLERANCE * (1 + np.abs(y))
                bad = ~((x == y) | (np.isnan(x) & np.isnan(y)) | near)
                if bad.any():
                    return f"run {number}: {name}: {x[bad][0]} instead of {y[bad][0]}, {bad.sum()} of {bad.size} elements"
    return None


def main():
    argv, extra = sys.argv[1:], []
    if "--" in argv:
        argv, extra = argv[:argv.index("--")], argv[argv.index("--") + 1:]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tfcc")
    p.add_argument("onnx_from_text")
    p.add_argument("files", nargs="*", type=Path)
    p.add_argument("--target", default="cpu")
    p.add_argument("--only", nargs="+", default=[])
    a = p.parse_intermixed_args(argv)
    if a.target == "gpu":
        try:
            found = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True)
        except OSError:
            found = None
        if not found or found.returncode or not found.stdout.strip():
            print("skipped: no NVIDIA GPU on this machine")
            return 77
        a.target = "sm_" + found.stdout.split()[0].replace(".", "")
    count = good = 0
    for path in a.files or sorted(HERE.glob("*.onnxtxt")):
        with tempfile.TemporaryDirectory() as scratch:
            for (name, model), runs in zip(models_of(path, a.onnx_from_text, Path(scratch)), runs_of(path)):
                if a.only and name not in a.only:
                    continue
                problem = wrong_with(a, extra, model, runs, Path(scratch))
                count, good = count + 1, good + (problem is None)
                if problem:
                    print(f"{path.stem}:{name}: {problem}", flush=True)
    print(f"{good} of {count} models right on {a.target}")
    return 0 if count and good == count else 1


if __name__ == "__main__":
    sys.exit(main())
