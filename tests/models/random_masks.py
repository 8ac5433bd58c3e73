#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles encoders with and without padding and runs random_masks on each: ten thousand masks on the CPU, a thousand on a GPU.

    random_masks.py TFCC RANDOM_MASKS [cpu|cuda]

Exit status 0 only if all are good; 77, which ctest takes as skipped, without a GPU.
"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Plain, a pooler that reads token 0, positions counted from ids (so that ids of padding matter), and a fused attention.
MODELS = {"bert-eager": 4000, "bert-pooler": 2000, "roberta": 2000, "distilbert": 1000, "bert-attention-23": 1000}
IDS_MATTER = {"roberta"}
LARGEST_ID, LARGEST_LENGTH = 15, 40
TOLERANCE = 5e-5


def main():
    tfcc, check = sys.argv[1:3]
    device = sys.argv[3] if len(sys.argv) > 3 else "cpu"
    if device == "cuda" and (not shutil.which("nvidia-smi") or not subprocess.run(["nvidia-smi", "-L"], capture_output=True).stdout.strip()):
        print("skipped: there is no GPU")
        sys.exit(77)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for name, runs in MODELS.items():
            model = Path(__file__).resolve().parent / name / "model.onnx"
            files = []
            for option in ([], ["--keep-padding"]):
                files.append(Path(folder) / f"{name}{len(files)}.tfcc")
                target = ["--target", "cpu", "--cpu", "native"] if device == "cpu" else ["--target", "cuda"]
                subprocess.run([tfcc, "compile", model, "-o", files[-1], "-q", *target, *option], check=True)
            runs = runs if device == "cpu" else runs // 10
            print(name, end=" ", flush=True)
            good &= subprocess.run([check, *files, str(runs), str(LARGEST_ID), str(LARGEST_LENGTH),
                                    "0" if name in IDS_MATTER else "1", str(TOLERANCE), device]).returncode == 0
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
