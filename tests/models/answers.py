#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What decoders answer, in every way that a generator has, and the logits of their programs for generation.

    answers.py TFCC ANSWERS [--target cpu|gpu] [--fp16 | --bf16] [--folder DIR]

Each model of the folder that has a generate.json (made by a float64 reference) is compiled, and tests/models/answers.cpp
runs it. In fp32 ids must be the same, and logits within 1e-4; in 16 bits logits within 1e-2, of bf16 within 4e-2.
Exit status 0 only if all is good; 77, which ctest takes as skipped, without a GPU.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from check import gpu_target


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
    tolerance = "1e-2" if options.fp16 else "4e-2" if options.bf16 else "1e-4"
    right = preempted = 0
    known = sorted(options.folder.glob("*/generate.json"))
    with tempfile.TemporaryDirectory() as folder:
        for path in known:
            model, want = path.parent, json.loads(path.read_text())
            file, reference = Path(folder) / "m.tfcc", Path(folder) / "f32.tfcc"
            status, said = run(options.tfcc, "compile", model / "model.onnx", "-o", file, "-q", *target, *narrow)
            if status == 0 and narrow:
                status, said = run(options.tfcc, "compile", model / "model.onnx", "-o", reference, "-q", *target)
            if status == 0:
                status, said = run(options.answers, file, reference if narrow else file, "cuda" if options.target == "gpu" else "cpu",
                                   ",".join(map(str, want["prompt"])), ",".join(map(str, want["tokens"])), tolerance,
                                   *([] if narrow else ["ids"]))
            right += status == 0
            preempted += "pre-empted" in said
            print(f"{'ok  ' if status == 0 else 'FAIL'}  {model.name:26} {said}", flush=True)
    print(f"{right} of {len(known)} decoders answer as they should on {options.target}")
    if not narrow and not preempted:
        sys.exit("no sequence was pre-empted")
    sys.exit(0 if known and right == len(known) else 1)


if __name__ == "__main__":
    main()
