#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranges that a profiler sees of runs of the command: one around each run, in it one for each launch.

    nvtx_test.py TFCC INJECTION MODEL
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def ranges(command, folder, environment):
    path = Path(folder) / "ranges.txt"
    path.unlink(missing_ok=True)
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, env=dict(os.environ, TFCC_RANGES=str(path), **environment))
    return path.read_text().splitlines() if path.exists() else None


def main():
    tfcc, injection, model = (str(Path(p).resolve()) for p in sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([tfcc, "compile", model, "-o", "m.tfcc", "--target", "cpu", "--cpu", "native", "-q"], check=True, cwd=folder)
        profiled = {"NVTX_INJECTION64_PATH": injection}
        once = ranges([tfcc, "run", "m.tfcc", "--random"], folder, profiled)
        assert once[0] == "model.onnx" and len(once) > 4, once
        assert all(line.startswith("  ") and not line.startswith("   ") for line in once[1:]), once
        assert any("attention" in line for line in once), once
        runs = ranges([tfcc, "bench", "m.tfcc", "--iterations", "3", "--duration", "0", "--warmUp", "0"], folder, profiled)
        assert runs == once * (runs.count("model.onnx")) and runs.count("model.onnx") >= 4, runs  # one of them to warm up
        assert ranges([tfcc, "run", "m.tfcc", "--random"], folder, {}) is None
    print(f"{len(once) - 1} launches in a range of their run")


if __name__ == "__main__":
    main()
