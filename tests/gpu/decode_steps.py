#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles a decoder with a cache in fp32 and runs decode_steps on it. Needs a GPU.

    decode_steps.py TFCC ONNX_FROM_TEXT DECODE_STEPS

Exit status 0 only if all is good; 77, which ctest takes as skipped, without a GPU.
"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

GRAPH = Path(__file__).resolve().parent / "decoder.onnxtxt"


def main():
    tfcc, from_text, check = sys.argv[1:]
    if not shutil.which("nvidia-smi") or not subprocess.run(["nvidia-smi", "-L"], capture_output=True).stdout.strip():
        print("skipped: there is no GPU")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        model, file = Path(folder) / "decoder.onnx", Path(folder) / "decoder.tfcc"
        models = Path(folder) / "models"
        subprocess.run([from_text, GRAPH, models], check=True)
        model.write_bytes(models.read_bytes().split(b"\n", 1)[1][:-1])  # behind its name and size
        subprocess.run([tfcc, "compile", model, "-o", file, "-q"], check=True)
        subprocess.run([check, file], check=True)


if __name__ == "__main__":
    main()
