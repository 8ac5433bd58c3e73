# SPDX-License-Identifier: Apache-2.0
"""Asks what a graph computes: the compiler (a process of judge.cpp, in float64 and in kernels) and ONNX Runtime.

A Case is a model with runs. Every run says what must come of it: `want` where the generator knows (integers, from Python's own),
`defined` which elements are compared, `may_fail` that an error is right as well.
"""
import os
import select
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

try:
    import onnxruntime
except ImportError:
    onnxruntime = None

SECONDS = 120  # the longest that one answer may take


@dataclass
class Run:
    inputs: dict
    want: dict = field(default_factory=dict)      # exact, by output
    defined: dict = field(default_factory=dict)   # arrays of bool by output, of its shape; absent: every element
    must_fail: str = ""                           # what the error is about, where only an error is right
    may_fail: str = ""                            # what an error may be about
    same_in_f32: bool = True                      # no element depends on how f32 rounds; else float64 is no judge of f32
    ask_peer: bool = True                         # ONNX says what comes out; else the oracle decides
    title: str = ""


@dataclass
class Case:
    title: str
    model: bytes
    runs: list
    passes: list = field(default_factory=list)    # further sets of passes beside the default ones
    tolerance: float = 1e-4
    graphs: int = 1                               # how many independent ones the model is
    parts: list = field(default_factory=list)     # for each a function of sets of passes that lists cases, the simplest first and it itself last
    simpler: object = None                        # a function that lists cases one step simpler
    expect: tuple = ()                            # kinds of ops that the optimised graph holds if the pattern was found


class Died(Exception):
    """The process crashed, or took too long."""


class Judge:
    """One process; started again after a crash."""

    def __init__(self, program, cache=""):
        self.program, self.cache, self.process = program, cache, None
        self.folder = tempfile.TemporaryDirectory(prefix="tfcc-differential-")
        self.path = Path(self.folder.name)

    def ask(self, *words):
        """The answer: (True, text) or (False, message). Raises Died."""
        if self.process is None:
            self.errors = open(self.path / "stderr", "w+")
            self.process = subprocess.Popen([self.program, self.cache], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                            env={**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            self.process.stdin.write((" ".join(words) + "\n").encode())
            self.process.stdin.flush()
            late = not select.select([self.process.stdout], [], [], SECONDS)[0]
            line = b"" if late else self.process.stdout.readline()
        except BrokenPipeError:
            late, line = False, b""
        if not line:
            raise Died(f"{words[0]} {words[1] if words[0] != 'load' else ''}: {self.end(late)}")
        word, _, rest = line.decode(errors="replace").rstrip("\n").partition(" ")
        return word == "ok", rest

    def end(self, late):
        """How the process ended, in words."""
        if late:
            self.process.kill()
        self.process.stdout.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # what was not sent is not needed
        code = self.process.wait()
        self.process = None
        self.errors.seek(0)
        lines = [s for s in self.errors.read().splitlines() if s.strip()]
        self.errors.close()
        if late:
            return f"takes longer than {SECONDS} s"
        told = next((s for s in lines if "ERROR: " in s or "internal error" in s), lines[0] if lines else "")
        return f"{signal.Signals(-code).name if code < 0 else f'exit status {code}'} {told}"[:300]

    def close(self):
        if self.process:
            self.end(False)
        self.folder.cleanup()

    def load(self, model):
        (self.path / "model.onnx").write_bytes(model)
        return self.ask("load", str(self.path / "model.onnx"))

    def outputs(self, command, name, inputs):
        """What `eval` or `run` gives: (arrays, "") or (None, message)."""
        np.savez(self.path / "in.npz", **inputs)
        good, text = self.ask(command, name, str(self.path / "in.npz"), str(self.path / "out.npz"))
        if not good:
            return None, text
        try:
            with np.load(self.path / "out.npz") as f:
                return {k: f[k] for k in f.files}, ""
        except ValueError as e:
            return None, f"outputs that are no arrays: {e}"


class Peer:
    """ONNX Runtime with a model, all optimisations off."""

    def __init__(self, model):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def outputs(self, inputs):
        names = [o.name for o in self.session.get_outputs()]
        used = {i.name for i in self.session.get_inputs()}
        return dict(zip(names, self.session.run(None, {k: v for k, v in inputs.items() if k in used})))


def difference(got, want, defined, tolerance):
    """What is wrong with one output, or ""."""
    if got.shape != want.shape and got.size == 0 and want.size == 0 and len(got.shape) == len(want.shape):
        return ""  # where a size is 0, the others of an output without elements may be those of a size of 1 (docs/numerics.md)
    if got.shape != want.shape:
        return f"shape {list(got.shape)}, expected {list(want.shape)}"
    if got.dtype != want.dtype:
        return f"type {got.dtype}, expected {want.dtype}"
    if want.dtype.kind != "f":
        wrong = np.argwhere(got != want)
        if not len(wrong):
            return ""
        at = tuple(int(i) for i in wrong[0])
        return f"element {list(at)} is {got[at]}, expected {want[at]} ({len(wrong)} of {want.size} wrong)"
    got, want = got.astype(np.float64), want.astype(np.float64)
    part = np.ones(want.shape, bool) if defined is None else np.broadcast_to(defined, want.shape)
    if not part.any():
        return ""
    finite = np.isfinite(want)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    bad = part & ~same & ~(finite & np.isfinite(got))
    if not bad.any():
        compared = part & finite
        apart = np.where(compared, np.abs(got - np.where(finite, want, 0)), 0)
        scale = np.sqrt(np.mean(want[compared] ** 2)) if compared.any() else 0
        # no element may be off by more than the tolerance on the scale of the tensor and its own
        bad = compared & (apart > tolerance * (1e-3 + scale + np.abs(np.where(finite, want, 0))))
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"element {list(at)} is {got[at]:.7g}, expected {want[at]:.7g} ({int(bad.sum())} of {int(part.sum())} wrong)"
