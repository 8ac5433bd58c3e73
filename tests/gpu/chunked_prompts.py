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
    with tempfile.TemporaryDirectory() as folder:
        for name, length in ("llama", 700), ("llama-past", 700):
            file = Path(folder) / "m.tfcc"
            subprocess.run([tfcc, "compile", MODELS / name / "model.onnx", "-o", file, "--fp16", "-q"], check=True)
            subprocess.run([check, file, str(length)], check=True)


if __name__ == "__main__":
    main()
