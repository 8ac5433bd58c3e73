#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the models of a folder through the `tfcc` command and compares with their expected outputs. Needs numpy.

    check.py TFCC [--target cpu] [--fp16 | --bf16] [--only NAME ...] [--folder DIR] [-- extra arguments of `tfcc compile`]

For each model it compiles model.onnx, runs every case and prints one line: "ok" with the largest relative L2 error,
or "FAIL" with what went wrong first. Exit status 0 only if all are ok and there was at least one.
`--target gpu` is the NVIDIA GPU of this machine; without one the exit status is 77, which ctest takes as skipped.
"""
import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


BF16 = 4  # times the error of f16: three bits fewer, of which softmax and norms, in f32, keep some


class Failure(Exception):
    pass


def run(*command):
    """Runs a command; its failure is reported by the first line it wrote to stderr."""
    try:
        done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=600)
    except OSError as e:
        raise SystemExit(f"{command[0]}: {e.strerror}")
    except subprocess.TimeoutExpired:
        raise Failure(f"`{command[1]}` took longer than 10 minutes")
    if done.returncode < 0:
        raise Failure(f"`{command[1]}` crashed: {signal.Signals(-done.returncode).name}")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Failure(f"`{command[1]}`: {lines[0] if lines else f'exit status {done.returncode}'}")


def gpu_target():
    """The target of the first GPU, such as sm_90."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True,
                              text=True)
    except OSError:
        done = None
    if done is None or done.returncode or not done.stdout.strip():
        print("skipped: no NVIDIA GPU on this machine")
        sys.exit(77)
    return "sm_" + done.stdout.split()[0].replace(".", "")


def arrays(folder):
    return {p.stem: np.load(p) for p in sorted(folder.glob("*.npy"))}


def defined(x, valid, cached):
    """What of an output is defined: real tokens of [B,S,...], real keys of a cache [B,H,T,D] (`cached` is [B,T]),
    rows with a real token of [B,...]."""
    if x.ndim >= 2 and x.shape[:2] == valid.shape:
        return x[valid]
    if cached is not None and x.ndim == 4 and (x.shape[0], x.shape[2]) == cached.shape:
        return x.swapaxes(1, 2)[cached]
    return x[valid.any(1)] if x.ndim >= 1 and x.shape[0] == valid.shape[0] else x


def cached_keys(case, name):
    """Which keys of the output `name` are real, if it is a cache."""
    mask = case / "in" / "attention_mask.npy"
    return np.load(mask).astype(bool) if name.startswith("present") and mask.exists() else None


def relative_error(got, want, valid, cached):
    """L2 error over what is defined."""
    if got.shape != want.shape:
        raise Failure(f"shape {list(got.shape)}, expected {list(want.shape)}")
    got, want = (defined(x, valid, cached).astype(np.float64) for x in (got, want))
    if not np.isfinite(got).all():
        raise Failure("not finite at a real token")
    return float(np.linalg.norm(got - want) / (np.linalg.norm(want) or 1.0))


def check_case(tfcc, compiled, case, names, scratch):
    """Largest error of one case, with the output it is in."""
    result = scratch / "out.npz"
    result.unlink(missing_ok=True)
    inputs = [f"{p.stem}={p}" for p in sorted((case / "in").glob("*.npy"))]
    run(tfcc, "run", compiled, *(word for i in inputs for word in ("--input", i)), "--output", result)
    valid, worst = np.load(case / "valid.npy"), (0.0, "")
    with np.load(result) as got:
        for name, want in arrays(case / "out").items():
            if name not in names:
                continue
            if name not in got.files:
                raise Failure(f"case {case.name}: no output '{name}', only {', '.join(got.files)}")
            try:
                worst = max(worst, (relative_error(got[name], want, valid, cached_keys(case, name)), name))
            except Failure as e:
                raise Failure(f"case {case.name}, {name}: {e}")
    return worst


def check_model(a, folder, extra):
    """One line of report; raises Failure."""
    about = json.loads((folder / "about.json").read_text())
    names = {o["name"] for o in about["outputs"]}
    limit = about["tolerance"]["fp16" if a.fp16 or a.bf16 else "fp32"] * (BF16 if a.bf16 else 1)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        compiled = scratch / "model.tfcc"
        start = time.monotonic()
        run(a.tfcc, "compile", folder / "model.onnx", "-o", compiled, "--target", a.target,
            *(["--fp16"] if a.fp16 else ["--bf16"] if a.bf16 else []), *extra)
        seconds = time.monotonic() - start
        cases = sorted((folder / "cases").iterdir(), key=lambda p: int(p.name))
        worst = max((*check_case(a.tfcc, compiled, case, names, scratch), case.name) for case in cases)
    error, name, case = worst
    if error > limit:
        raise Failure(f"error {error:.1e} above {limit:.0e} in case {case}, {name}")
    return f"error {error:.1e} over {len(cases)} cases, compiled in {seconds:.1f} s"


def main():
    words, extra = sys.argv[1:], []
    if "--" in words:
        at = words.index("--")
        words, extra = words[:at], words[at + 1:]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tfcc", help="the command to test")
    p.add_argument("--target", default="cpu")
    p.add_argument("--fp16", action="store_true")
    p.add_argument("--bf16", action="store_true")
    p.add_argument("--only", nargs="+", default=[], metavar="NAME")
    p.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent)
    a = p.parse_args(words)
    if a.target == "gpu":
        a.target = gpu_target()
    folders = [f.parent for f in sorted(a.folder.glob("*/model.onnx")) if not a.only or f.parent.name in a.only]
    missing = set(a.only) - {f.name for f in folders}
    if missing or not folders:
        p.error(f"{a.folder}: no model called {', '.join(sorted(missing)) or 'anything'}")
    good = 0
    for folder in folders:
        try:
            line = "ok    " + f"{folder.name:20} " + check_model(a, folder, extra)
            good += 1
        except Failure as e:
            line = "FAIL  " + f"{folder.name:20} {e}"
        print(line, flush=True)
    print(f"{good} of {len(folders)} models right on {a.target}" + (" in fp16" if a.fp16 else " in bf16" if a.bf16 else ""))
    sys.exit(0 if good == len(folders) else 1)


if __name__ == "__main__":
    main()
