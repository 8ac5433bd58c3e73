#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the models beside this file for every CUDA target: no kernel may spill registers. Needs NVRTC, no device.

    cuda_compile.py TFCC fp32|fp16 [MODEL...]

Each model is compiled with all passes, and one in three with none, for two targets: those kernels, one for each op, are much
the same in all models and on all targets. Prints a line per compile. Exit status 0 only if all are good; 77, which ctest takes
as skipped, without NVRTC.
"""
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PRECISIONS = {"fp32": [], "fp16": ["--fp16"]}


def compile_model(tfcc, model, arguments, scratch):
    """The kernels of the report, or the message of a failure."""
    report = scratch / "report.json"
    command = [tfcc, "compile", model, "-o", scratch / "model.tfcc", "--quiet", "--report", report, "--cache-dir", scratch / "cache",
               *arguments]
    done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[0]
    return json.loads(report.read_text())["kernels"], done.stderr.strip()


def problem(kernels, text):
    if kernels is None:
        return text
    if not kernels:
        return "the report names no kernel"
    for k in kernels:
        if k["spill_bytes"]:
            return f"{k['name']} spills {k['spill_bytes']} bytes on {k['target']}"
    return text if "C75" in text else ""


def main():
    tfcc, precision, *names = sys.argv[1:]
    models = [p for p in sorted(Path(__file__).parent.glob("*/model.onnx")) if not names or p.parent.name in names]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, model in enumerate(models):
            variants = {"": ["--target", "cuda"]}
            if number % 3 == 0:
                variants["without passes"] = ["--passes=", "--target", "sm_80,sm_90"]
            for variant, arguments in variants.items():
                start = time.monotonic()
                kernels, text = compile_model(tfcc, model, PRECISIONS[precision] + arguments, Path(folder))
                if kernels is None and "NVRTC" in text:
                    print(f"skipped: {text}")
                    sys.exit(77)
                wrong = problem(kernels, text)
                failures += bool(wrong)
                new = sum(not k["cached"] for k in kernels or [])
                print(f"{'FAIL' if wrong else 'ok':5} {model.parent.name:18} {variant:14} "
                      f"{wrong or f'{len(kernels)} kernels, {new} new, {time.monotonic() - start:.1f} s'}", flush=True)
    sys.exit(1 if failures or not models else 0)


if __name__ == "__main__":
    main()
