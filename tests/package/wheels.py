#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the two wheels, installs them into a new environment, and uses them there: python, the command, both from outside the tree.

    wheels.py [--cc CC --cxx CXX] [--keep DIR]        the compilers, by the names of the build that ccache knows; DIR receives the wheels

Exit status 77 (skipped) where pip cannot fetch scikit-build-core, which builds them.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/models/bert-eager/model.onnx"
PYTHON = ROOT / "tools/python"
# Nothing that every Linux has, nothing of CUDA, which has packages of its own.
NOT_INSIDE = ("libc.so", "libstdc++", "libcuda", "libnvrtc", "libcublas")

USE = """
import sys, numpy as np, tfcc
done = tfcc.compile(sys.argv[1], sys.argv[2], targets="cpu")
model = done.load(device="cpu")
ids = np.ones((2, 16), np.int64)
out = model.run({i.name: ids for i in model.inputs})
assert out["last_hidden_state"].shape == (2, 16, 32), out
assert tfcc.library_path().startswith(sys.prefix), tfcc.library_path()
assert done.fusions["fuse-attention"] == 2, done
print("ran", tfcc.version())
"""


def run(*words, env=None, cwd=None):
    words = [str(w) for w in words]
    done = subprocess.run(words, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=3000)
    if done.returncode != 0:
        sys.exit(f"FAIL {' '.join(words)}: exit status {done.returncode}\n{done.stdout[-6000:]}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--cc")
    parser.add_argument("--cxx")
    options = parser.parse_args()
    keep = options.keep
    compilers = dict(os.environ, **{k: v for k, v in {"CC": options.cc, "CXX": options.cxx}.items() if v})
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary)
        builder = top / "builder"
        venv.create(builder, with_pip=True)
        probe = subprocess.run([builder / "bin/pip", "download", "-q", "--no-deps", "-d", top / "probe", "scikit-build-core>=0.10"],
                               stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300)
        if probe.returncode != 0:
            print("skipped: pip cannot fetch scikit-build-core")
            sys.exit(77)
        wheels = keep or top / "wheels"
        for folder in (PYTHON, PYTHON / "compiler"):
            run(builder / "bin/pip", "wheel", "-q", "--no-deps", "-w", wheels, folder, env=compilers)
        for wheel in wheels.glob("*.whl"):
            inside = zipfile.ZipFile(wheel).namelist()
            bad = [n for n in inside if Path(n).name.startswith(NOT_INSIDE)]
            if bad:
                sys.exit(f"FAIL {wheel.name} holds {bad}")
            print(f"{wheel.name}: {len(inside)} files, {wheel.stat().st_size >> 20} MB")
        user = top / "user"
        venv.create(user, with_pip=True, system_site_packages=True)  # for numpy
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "TFCC_", "PYTHON"))}
        run(user / "bin/pip", "install", "-q", "--no-index", "--no-deps", "--find-links", wheels, "tfcc", "tfcc-compiler", env=clean)
        python = user / "bin/python3"
        print(run(python, "-c", USE, MODEL, top / "m.tfcc", env=clean, cwd=top).strip())
        print(run(python, "-c", "import sys, tfcc; print(tfcc.verify(sys.argv[1], sys.argv[2])); print(tfcc.inspect(sys.argv[2]))", MODEL, top / "m.tfcc", env=clean, cwd=top).strip())
        command = user / "bin/tfcc"
        run(command, "compile", MODEL, "-o", top / "n.tfcc", "--target", "cpu", "-q", env=clean, cwd=top)
        if (top / "m.tfcc").read_bytes() != (top / "n.tfcc").read_bytes():
            sys.exit("FAIL Python and the command of the wheel compile one model to different files")
        print(run(command, "run", top / "n.tfcc", "--random", env=clean, cwd=top).strip())


if __name__ == "__main__":
    main()
