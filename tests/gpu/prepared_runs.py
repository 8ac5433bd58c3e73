#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles a model in fp32 and fp16, with and without named lengths, and runs prepared_runs on each. Needs a GPU.

    prepared_runs.py TFCC PREPARED_RUNS

Exit status 0 only if all are good; 77, which ctest takes as skipped, without a GPU.
"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = Path(__file__).resolve().parent.parent / "models" / "bert-eager" / "model.onnx"
VARIANTS = [[], ["--fp16"], ["--fp16", "--seq-buckets", "24,48", "--max-batch", "16"]]


def main():
    tfcc, check = sys.argv[1:]
    if not shutil.which("nvidia-smi") or not subprocess.run(["nvidia-smi", "-L"], capture_output=True).stdout.strip():
        print("skipped: there is no GPU")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        file, timings = Path(folder) / "m.tfcc", Path(folder) / "timings.txt"
        for options in VARIANTS:
            subprocess.run([tfcc, "compile", MODEL, "-o", file, "-q", *options], check=True)
            subprocess.run([check, file, "16", "48"], check=True)
        subprocess.run([tfcc, "tune", file, "--timing-cache", timings], check=True)
        if len(timings.read_text().splitlines()) < 2:
            sys.exit("tune measured nothing")
        subprocess.run([tfcc, "compile", MODEL, "-o", file, "-q", *VARIANTS[-1], "--timing-cache", timings], check=True)
        subprocess.run([check, file, "16", "48"], check=True)


if __name__ == "__main__":
    main()
