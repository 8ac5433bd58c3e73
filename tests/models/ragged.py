#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles models with a program for tokens without padding and runs `ragged` on each: on the CPU, where bits must be the same, and on a
GPU in fp32 and fp16. Models that can have no such program must say why.

    ragged.py TFCC RAGGED ONNX_FROM_TEXT [cpu|cuda]

Exit status 0 only if all are good; 77, which ctest takes as skipped, without a GPU.
"""
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

from random_masks import LARGEST_ID, LARGEST_LENGTH, LONGEST, arguments, write_long, write_packed

HERE = Path(__file__).resolve().parent
# Encoders with and without a pooler, positions counted from ids, heads of 64, decoders without a past, one of long sequences, and one whose
# padding is removed by an op of its own.
MODELS = ["bert-eager", "bert-pooler", "bert-head64", "bert-fp16", "bert-attention-23", "bert-dynamo-18", "roberta", "distilbert", "albert",
          "gpt2", "llama", "long", "packed"]
WRITTEN = {"long": write_long, "packed": write_packed}
REFUSED = {"bert-quantised": "no attention hides padding", "gpt2-past": "queries and keys are different tokens",
           "llama-past": "queries and keys are different tokens"}
# On a GPU a library computes products of f32, by other algorithms for other rows, and those of 16 bits where they are not by warpgroups.
TOLERANCES = {"cpu": {"f32": 0}, "cuda": {"f32": 5e-5, "f16": 2e-2}}


def by_warpgroups(tfcc, file):
    """Is every product of 16 bits ours, with one order of sums?"""
    return "sm_90a" in subprocess.run([tfcc, "inspect", file], capture_output=True, text=True, check=True).stdout


def main():
    tfcc, check, from_text, device, target = arguments()
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "model.tfcc"
        for name, (precision, tolerance) in itertools.product(MODELS, TOLERANCES[device].items()):
            model = WRITTEN[name](from_text, folder) if name in WRITTEN else HERE / name / "model.onnx"
            subprocess.run([tfcc, "compile", model, "-o", file, "-q", "--ragged", *target, *(["--fp16"] if precision == "f16" else [])], check=True)
            if precision == "f16" and by_warpgroups(tfcc, file):
                tolerance = 0
            print(f"{name:18} {precision}", end="  ", flush=True)
            good &= subprocess.run([check, file, "300" if device == "cpu" else "50", str(LARGEST_ID), str(LONGEST if name in WRITTEN else LARGEST_LENGTH),
                                    str(tolerance), device]).returncode == 0
        file.unlink()
        for name, reason in REFUSED.items():
            done = subprocess.run([tfcc, "compile", HERE / name / "model.onnx", "-o", file, "-q", "--ragged", "--target", "cpu"], capture_output=True, text=True)
            right = done.returncode == 1 and reason in done.stderr and done.stderr.count("\n") == 1 and not file.exists()
            print(f"{name:18} {'ok    refused' if right else f'FAIL  exit status {done.returncode}'}: {done.stderr.strip()}")
            good &= right
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
