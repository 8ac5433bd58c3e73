# SPDX-License-Identifier: Apache-2.0
"""verify() and inspect(): what the command `tfcc` finds out, as objects. The command runs in a process of its own."""
import html
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tfcc import _library
from tfcc._compiler import _flag, _model, _shapes, _text, _words
from tfcc._library import Error


def _command():
    if "TFCC_COMMAND" in os.environ:
        return os.environ["TFCC_COMMAND"]
    here = Path(__file__).resolve()
    beside = [here.parents[1] / "tfcc_compiler" / "tfcc"]  # the package tfcc-compiler
    if len(here.parents) > 3:
        beside += [here.parents[3] / build / "tfcc" for build in ("build", "build-cuda")]
    found = next((str(p) for p in beside if p.is_file()), None) or shutil.which("tfcc")
    if not found:
        raise Error("unsupported", "the command tfcc was not found; pip install tfcc[compile], or install tfcc (cmake --install), or name the file in TFCC_COMMAND")
    return found


def _run(arguments, answers=()):
    """Output of the command, and its error with one of these exit codes. Raises Error for any other than 0."""
    folders = [str(f) for f in _library.cuda_folders()]
    known = [os.environ["LD_LIBRARY_PATH"]] if os.environ.get("LD_LIBRARY_PATH") else []
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(known + folders)) if folders else None
    done = subprocess.run([_command(), *arguments], capture_output=True, text=True, errors="replace", env=environment)
    lines = done.stderr.strip().splitlines()
    message = lines[-1].removeprefix("tfcc: ") if lines else f"tfcc ended with status {done.returncode}"
    if done.returncode and (done.returncode not in answers or not done.stdout):
        raise Error("invalid_argument" if done.returncode == 2 else "internal", message.removeprefix("usage: "))
    return done.stdout, message if done.returncode else None


def _path(name, value):
    return os.fsdecode(_text(name, value))


class _Table:
    def __str__(self):
        return "\n".join(f"{k:<22} {v}" for k, v in self._rows())

    def _repr_html_(self):
        rows = "".join(f"<tr><th style='text-align:left'>{html.escape(k)}</th><td style='text-align:left'>{html.escape(v)}</td></tr>" for k, v in self._rows())
        return f"<table>{rows}</table>"


class Verified(_Table):
    """What verify() found; true if everything was right.

    right        whether every output of every case was within the tolerance (or differs by a step of a quantisation alone)
    target       "x86-64-v4", "sm_90"
    tolerance    largest relative L2 error of a right output
    outputs      a dict per output of a case: case, output, state ("ok", "step", "fail"), max_abs, relative, problem, against
    explanation  where an error begins, as lines; None if there is none
    problem      the verdict in a line if something was wrong, else None
    """

    def __init__(self, found, problem):
        self.right, self.target, self.tolerance, self.outputs = found["right"], found["target"], found["tolerance"], found["outputs"]
        self.explanation, self.step, self.model, self.cases, self.problem = found["explanation"], found["step"], found["model"], found["cases"], problem

    def __bool__(self):
        return self.right

    def _rows(self):
        yield self.model, f"{'right' if self.right else 'wrong'} on {self.target} in {self.cases} cases, tolerance {self.tolerance:.0e}"
        for o in sorted(self.outputs, key=lambda o: -float("inf") if o["relative"] is None else -o["relative"])[:12]:
            against = f" (against {o['against']})" if o["against"] else ""
            yield o["state"], f"{o['case']}: {o['output']}{against}: " + (o["problem"] or f"max abs error {o['max_abs']:.1e}, relative L2 {o['relative']:.1e}")
        if len(self.outputs) > 12:
            yield "", f"{len(self.outputs) - 12} more, see .outputs"
        for line in (self.explanation or "").splitlines():
            yield "", line

    def __repr__(self):
        return f"<tfcc.Verified {self.model!r}: {'right' if self.right else 'wrong'} on {self.target} in {self.cases} cases>"


def verify(model, compiled=None, *, target=None, fp16=False, bf16=False, tf32=False, tf32x3=False, shapes=None, inputs=None, tolerance=None, passes=None, skip_passes=None,
           against=None, seed=None, threads=0):
    """Compares a compiled model with its graph in float64 (docs/verify.md); returns a Verified.

    model      a path (.onnx or .tfir), the bytes of an ONNX file, or an onnx.ModelProto
    compiled   a .tfcc file of that model, which is run as it is; None: the model is compiled for `target`
    shapes     sizes of made-up inputs: {"input_ids": (4, 32)} or {"batch_size": 4}
    inputs     {name: array} to use in place of made-up ones
    against    "onnxruntime": compare with it too, in this Python
    """
    name, data = _model(model)
    with tempfile.TemporaryDirectory() as folder:
        if data is not None:
            name = os.path.join(folder, name)
            Path(name).write_bytes(data)
        words = ["verify", "--json", *(["--model", _path("the model", name), _path("compiled", compiled)] if compiled is not None else [_path("the model", name)])]
        if inputs:
            import numpy as np
            np.savez(os.path.join(folder, "inputs.npz"), **{k: np.asarray(v) for k, v in inputs.items()})
            words += ["--inputs", os.path.join(folder, "inputs.npz")]
        for key, value in {"target": target, "shapes": _shapes("shapes", shapes), "passes": _words("passes", passes),
                           "skip-passes": _words("skip_passes", skip_passes), "tolerance": tolerance, "seed": seed, "against": against}.items():
            if value is not None:
                words.append(f"--{key}={value}")
        words += [f"--python={sys.executable}"] if against else []
        words += [flag for flag, on in {"--fp16": _flag("fp16", fp16), "--bf16": _flag("bf16", bf16), "--tf32": _flag("tf32", tf32), "--tf32x3": _flag("tf32x3", tf32x3)}.items() if on]
        words += [f"--threads={_library.whole('threads', threads, 0, 4096)}"] if threads else []
        out, problem = _run(words, answers=(1,))
    return Verified(json.loads(out), problem)


class Inspected(_Table):
    """What a .tfcc file holds: `data` is what `tfcc inspect --json` says (docs/inspect-json.md), whose keys are attributes too."""

    def __init__(self, path, arguments, data):
        self.path, self._arguments, self.data = Path(path), arguments, data

    def __getattr__(self, name):
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(f"no {name!r} in what tfcc inspect says of a file") from None

    def __dir__(self):
        return [*super().__dir__(), *self.data]

    def text(self, name):
        """A text that the file keeps, by its name in .texts: "ir/cpu.tfir", "kernels/cpu/..."."""
        return _run(["inspect", str(self.path), f"--text={name}"])[0]

    def page(self, path):
        """Writes the page of `tfcc inspect --html` to this path."""
        _run(["inspect", str(self.path), *self._arguments, f"--html={_path('the page', path)}"])
        return Path(path)

    def onnx(self, path):
        """Writes the compiled graph as ONNX for viewers such as Netron to this path."""
        _run(["inspect", str(self.path), *self._arguments, f"--onnx={_path('the graph', path)}"])
        return Path(path)

    def _rows(self):
        yield "file", f"{self.path}, {self.data['file_bytes'] / 1e6:.1f} MB, of {self.data['model'] or 'a model without a name'}"
        for side in ("inputs", "outputs"):
            for t in self.data[side][:8]:
                yield side[:-1], f"{t['name']} {t['dtype']}[{','.join(t['dims'])}]"
            if len(self.data[side]) > 8:
                yield side[:-1], f"{len(self.data[side]) - 8} more, see .{side}"
        yield "targets", ", ".join(t["name"] for t in self.data["targets"])
        yield "weights", f"{self.data['weights']['count']}, {self.data['weights']['bytes'] / 1e6:.1f} MB"
        for plan in self.data["plans"]:
            yield f"plan {plan['name']}", f"{plan['precision']}, {len(plan['buckets'][-1]['launches'])} launches, {len(plan['kernels'])} kernels"

    def __repr__(self):
        return f"<tfcc.Inspected {str(self.path)!r}: {', '.join(t['name'] for t in self.data['targets'])}>"


def inspect(file, *, shapes=None, generation=False, ragged=False):
    """What a .tfcc file holds, without executing anything of it; returns an Inspected.

    shapes      sizes at which bytes and FLOP are given: {"input_ids": (4, 32)} or {"batch_size": 4}
    generation  the program for generation in place of the graph as it was exported
    ragged      the program for tokens without padding in its place
    """
    path = _path("the file", file)
    shapes = _shapes("shapes", shapes)
    arguments = ([f"--shapes={shapes}"] if shapes else []) + (["--generation"] if _flag("generation", generation) else []) + (
        ["--ragged"] if _flag("ragged", ragged) else [])
    out, _ = _run(["inspect", path, "--json", *arguments])
    return Inspected(path, arguments, json.loads(out))
