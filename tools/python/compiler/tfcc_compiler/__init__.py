# SPDX-License-Identifier: Apache-2.0
"""The compiler's library for tfcc.compile(), and the command `tfcc`."""
import os
import sys
from pathlib import Path


def command():
    """The command `tfcc`, in place of this process; it finds CUDA's libraries of the Python environment."""
    from tfcc import _library
    folders = [str(f) for f in _library.cuda_folders()]
    known = os.environ.get("LD_LIBRARY_PATH")
    if folders:
        os.environ["LD_LIBRARY_PATH"] = ":".join(([known] if known else []) + folders)
    program = Path(__file__).resolve().parent / "tfcc"
    os.execv(program, ["tfcc", *sys.argv[1:]])
