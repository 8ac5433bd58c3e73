# SPDX-License-Identifier: Apache-2.0
"""`tfcc compile` from Python."""
import os
import shutil
import subprocess
from pathlib import Path

from tfcc._library import Error


def _command():
    """The `tfcc` program: $TFCC_COMMAND, the tree's build, or the one in PATH."""
    if "TFCC_COMMAND" in os.environ:
        return os.environ["TFCC_COMMAND"]
    here = Path(__file__).resolve()
    if len(here.parents) > 3 and (here.parents[3] / "build" / "tfcc").is_file():
        return str(here.parents[3] / "build" / "tfcc")
    found = shutil.which("tfcc")
    if found is None:
        raise Error("io", "the command tfcc was not found; install tfcc, add it to PATH, or name it in TFCC_COMMAND")
    return found


def compile(model, output=None, *options):
    """Compiles an ONNX file with `tfcc compile MODEL -o OUTPUT OPTIONS...` and returns the path of the .tfcc file.

    `output` defaults to the model's name with the suffix .tfcc. Options are those of the command, one string each:
    compile("m.onnx", "m.tfcc", "--target", "cpu,sm_90", "--fp16"). Raises Error with what the command wrote.
    """
    output = Path(output) if output is not None else Path(model).with_suffix(".tfcc")
    words = [_command(), "compile", os.fspath(model), "-o", str(output), "--quiet", *map(str, options)]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    except OSError as e:
        raise Error("io", f"{words[0]}: {e.strerror}") from None
    if done.returncode != 0:
        raise Error("invalid_argument" if done.returncode == 2 else "unsupported",
                    done.stderr.strip() or f"tfcc compile ended with status {done.returncode}")
    return output
