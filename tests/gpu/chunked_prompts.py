#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles decoders of tests/models in fp16 and runs chunked_prompts on them. Needs a GPU.

    chunked_prompts.py TFCC CHUNKED_PROMPTS

Exit status 0 only if all is good; 77, which ctest takes as skipped, without a GPU.
"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODELS = Path(__file__).resolve().parent.parent / "models"


def main():
    tfcc, check = sys.argv[1:]
    if not shutil.which("nvidia-smi") or not subprocess.run(["nvidia-smi", "-L"], capture_output=True).stdout.strip():
        print("skipped: there is no GPU")
        sys.exit(77)
    # On Hopper no product of these models is the library's.
    capability = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True).stdout.split()
    same = ["same"] if capability and capability[0] == "9.0" else []
    with tempfile.TemporaryDirectory() as folder:
        for name, length in ("llama", 700), ("llama-past", 700), ("linear-decoder", 700), ("linear-hybrid", 700):
            file = Path(folder) / "m.tfcc"
            subprocess.run([tfcc, "compile", MODELS / name / "model.onnx", "-o", file, "--fp16", "-q"], check=True)
            subprocess.run([check, file, str(length), *same], check=True)


if __name__ == "__main__":
    main()
