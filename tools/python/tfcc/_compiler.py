# SPDX-License-Identifier: Apache-2.0
"""compile() over the C API of the compiler (tools/compiler/tfcc_compiler.h)."""
import ctypes
import functools
import html
import json
import os
import tempfile
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

from tfcc import _library
from tfcc._library import Error, open_library

SONAME = "libtfcc_compiler.so.0"
_Progress = ctypes.CFUNCTYPE(None, c_char_p, c_size_t, c_size_t, c_void_p)
_Log = ctypes.CFUNCTYPE(None, c_char_p, c_void_p)


class _Options(Structure):
    _fields_ = [("struct_size", c_size_t),
                *((name, c_char_p) for name in ("targets", "cpu", "precision", "passes", "skip_passes", "min_shapes", "opt_shapes",
                                                "max_shapes", "seq_buckets")),
                ("max_batch", c_int64), ("max_tokens", c_int64),
                *((name, c_char_p) for name in ("tokenizer", "timing_cache", "cache_dir", "dump_ir")),
                *((name, c_int) for name in ("no_cache", "keep_padding", "allow_batch_variance", "literal_only", "strict", "strip",
                                             "threads")),
                ("progress", _Progress), ("log", _Log), ("user", c_void_p), ("roles", c_char_p),
                ("cpu_weights", c_char_p), ("generate_only", c_int), ("ragged", c_int)]


_FUNCTIONS = {
    "tfcc_compile": (c_int, [c_char_p, c_char_p, POINTER(_Options), POINTER(c_void_p)]),
    "tfcc_compile_memory": (c_int, [c_char_p, c_size_t, c_char_p, c_char_p, POINTER(_Options), POINTER(c_void_p)]),
    "tfcc_compile_free": (None, [c_void_p]),
    "tfcc_compile_last_error": (c_char_p, []),
    "tfcc_compile_version": (c_char_p, []),
}


def _candidates():
    if "TFCC_COMPILER" in os.environ:
        return [os.environ["TFCC_COMPILER"]]
    here = Path(__file__).resolve()
    beside = [here.parent / SONAME, here.parents[1] / "tfcc_compiler" / SONAME]  # the second: the package tfcc-compiler
    if len(here.parents) > 3:
        beside += [here.parents[3] / build / "tools" / SONAME for build in ("build", "build-cuda")]
    return [str(p) for p in beside if p.exists()] + [SONAME]


@functools.lru_cache(maxsize=None)
def library():
    """The compiler's library, opened on first use."""
    _library.open_cuda("libnvrtc.so")
    return open_library(_candidates(), _FUNCTIONS, f"{SONAME} was not found; pip install tfcc[compile], or install tfcc (cmake --install) and "
                        "add its lib folder to LD_LIBRARY_PATH, or name the file in TFCC_COMPILER")


def _words(name, value):
    """A list of names as the library takes it."""
    if value is None or isinstance(value, str):
        return value
    words = list(value) if hasattr(value, "__iter__") and not isinstance(value, (bytes, bytearray)) else [None]
    if not all(isinstance(v, (str, int)) for v in words):
        raise Error("invalid_argument", f"{name} is a text with commas or a list of names, not {value!r}")
    return ",".join(str(v) for v in words)


def _shapes(name, value):
    """{"input_ids": (1, 8), "batch_size": 4} as "input_ids:1x8,batch_size=4"."""
    if value is None or isinstance(value, str):
        return value
    if not hasattr(value, "items"):
        raise Error("invalid_argument", f"{name} is a text such as 'input_ids:1x8,batch_size=4' or a dict, not {value!r}")
    if not all(isinstance(v, int) or hasattr(v, "__iter__") for v in value.values()):
        raise Error("invalid_argument", f"{name} holds a size that is no integer: {value!r}")
    return ",".join(f"{k}={v}" if isinstance(v, int) else f"{k}:{'x'.join(str(int(n)) for n in v)}" for k, v in value.items())


def _text(name, value):
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise Error("invalid_argument", f"{name} is {value!r}, must be a text or a path")
    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise Error("invalid_argument", f"{name} is {value!r}, which holds a NUL")
    return encoded


def _flag(name, value):
    if not isinstance(value, bool):
        raise Error("invalid_argument", f"{name} is {value!r}, must be True or False")
    return value


def _model(model):
    """(path, None) or (name, bytes) of what was given for a model."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return "model.onnx", bytes(model)
    if hasattr(model, "SerializeToString"):  # onnx.ModelProto
        return "model.onnx", model.SerializeToString()
    if not isinstance(model, (str, os.PathLike)):
        raise Error("invalid_argument", f"the model is a path, bytes or an onnx.ModelProto, not {model!r}")
    return os.fspath(model), None


class Compiled(os.PathLike):
    """What compile() made: a path (load() and open() take it as one), and a report of what was fused and what was not.

    path      the .tfcc file
    report    what `tfcc compile --report` writes (docs/report.md), as a dict
    fusions   {pass: how many times it rewrote something}
    missed    [(pass, node, reason)]: what a pass looked at and left alone
    notes     lines that the compiler had to say
    """

    def __init__(self, path, report, notes):
        self.path, self.report, self.notes = Path(path), report, notes

    def __fspath__(self):
        return str(self.path)

    @property
    def fusions(self):
        counts = {}
        for p in self.report["passes"]:
            if p["rewrites"] and p["name"].startswith(("raise-", "fuse-", "classify-", "remove-", "lift-")):
                counts[p["name"]] = counts.get(p["name"], 0) + p["rewrites"]
        return counts

    @property
    def missed(self):
        return [(p["name"], m["node"], m["reason"]) for p in self.report["passes"] for m in p["misses"]]

    def load(self, **options):
        """The model, loaded: tfcc.load(path, **options)."""
        from tfcc._runtime import load
        return load(self.path, **options)

    def _rows(self):
        plans = self.report["plans"]
        yield "file", str(self.path)
        for note in self.notes:
            yield "note", note
        yield "ops", f"{self.report['import']['nodes']} ONNX nodes, {self.report['passes'][-1]['ops'] if self.report['passes'] else self.report['import']['ops']} ops after all passes"
        for plan in plans:
            yield f"plan {plan['name']}", f"{len(plan['launches'])} launches, {plan['precision']}"
        for name, count in self.fusions.items():
            yield name, str(count)
        for name, node, reason in self.missed[:8]:
            yield f"not {name}", f"{node}: {reason}"
        if len(self.missed) > 8:
            yield "not fused", f"{len(self.missed) - 8} more, see .missed"

    def __repr__(self):
        return f"<tfcc.Compiled {str(self.path)!r}: {', '.join(p['name'] for p in self.report['plans'])}>"

    def __str__(self):
        return "\n".join(f"{k:<22} {v}" for k, v in self._rows())

    def _repr_html_(self):
        rows = "".join(f"<tr><th style='text-align:left'>{html.escape(k)}</th><td style='text-align:left'>{html.escape(v)}</td></tr>"
                       for k, v in self._rows())
        return f"<table>{rows}</table>"


def compile(model, output=None, *, targets=None, cpu=None, fp16=False, bf16=False, min_shapes=None, opt_shapes=None, max_shapes=None,
            seq_buckets=None, max_batch=None, max_tokens=None, tokenizer=None, timing_cache=None, passes=None, skip_passes=None,
            keep_padding=False, allow_batch_variance=False, literal_only=False, strict=False, strip=False, cache_dir=None,
            no_cache=False, dump_ir=None, threads=0, progress=None, log=None, cpu_weights=None,
            roles=None, generate_only=False, tf32=False, tf32x3=False, ragged=False):
    """Compiles an ONNX model to a .tfcc file, in this process; returns a Compiled.

    model        a path (.onnx or .tfir), the bytes of an ONNX file, or an onnx.ModelProto
    output       the file to write; default: the model's name with .tfcc (of bytes: a temporary file that stays)
    targets      "cpu,sm_90" or a list; default: the GPU that is there, else cpu
    fp16, bf16   what GPUs store and multiply in; statistics and accumulation stay f32
    tf32         GPUs multiply matrices of f32 with 10 bits of their fractions
    tf32x3       GPUs multiply them on tensor cores with nearly the accuracy of f32, by three products in TF32 for each
    cpu_weights  "bf16": what the CPU stores weights of products in; it multiplies in f32
    roles        what inputs of a decoder are for, if their names do not tell: {"tokens_in": "ids"}
    ragged       also make a program for tokens without padding, which Model.ragged() gives
    min_shapes, opt_shapes, max_shapes
                 {"input_ids": (1, 8)} or {"batch_size": 1}, or a text as the command takes it
    seq_buckets  lengths, such as [64, 128, 512]
    passes       these passes in place of the default ones; [] runs none
    progress     called with (stage, done, total), by whichever thread is done with something
    log          called with each line that there is to say

    The others are the options of `tfcc compile` of their name. Any number of threads may compile; Python's lock is released meanwhile.
    Raises tfcc.Error, whose text is one line; a failure leaves no file behind.
    """
    if sum([_flag("fp16", fp16), _flag("bf16", bf16), _flag("tf32", tf32), _flag("tf32x3", tf32x3)]) > 1:
        raise Error("invalid_argument", "fp16, bf16, tf32 and tf32x3 exclude each other")
    name, data = _model(model)
    lib = library()
    options = _Options()
    options.struct_size = ctypes.sizeof(options)
    texts = {"targets": _words("targets", targets), "cpu": _words("cpu", cpu), "precision": "f16" if fp16 else "bf16" if bf16 else "tf32" if tf32 else "tf32x3" if tf32x3 else None,
             "passes": _words("passes", passes), "skip_passes": _words("skip_passes", skip_passes),
             "min_shapes": _shapes("min_shapes", min_shapes), "opt_shapes": _shapes("opt_shapes", opt_shapes),
             "max_shapes": _shapes("max_shapes", max_shapes), "seq_buckets": _words("seq_buckets", seq_buckets),
             "tokenizer": tokenizer, "timing_cache": timing_cache, "cache_dir": cache_dir, "dump_ir": dump_ir,
             "cpu_weights": cpu_weights,
             "roles": None if roles is None else ",".join(f"{name}={role}" for name, role in roles.items())}
    for key, value in texts.items():
        setattr(options, key, _text(key, value))
    for key, value in {"max_batch": max_batch, "max_tokens": max_tokens}.items():
        setattr(options, key, 0 if value is None else _library.whole(key, value, 1, 2**31))
    options.threads = _library.whole("threads", threads, 0, 4096)
    for key, value in {"no_cache": no_cache, "keep_padding": keep_padding, "allow_batch_variance": allow_batch_variance,
                       "literal_only": literal_only, "generate_only": generate_only, "ragged": ragged, "strict": strict, "strip": strip}.items():
        setattr(options, key, _flag(key, value))
    notes = []

    def say(line, _):
        notes.append(line.decode(errors="replace"))
        if log is not None:
            log(notes[-1])

    options.log = _Log(say)
    if progress is not None:
        options.progress = _Progress(lambda stage, done, total, _: progress(stage.decode(), done, total))
    temporary = output is None and data is not None
    if temporary:
        handle, output = tempfile.mkstemp(suffix=".tfcc", prefix="model-")
        os.close(handle)
    elif output is None:
        output = Path(name).with_suffix(".tfcc")
    text = c_void_p()
    try:
        if data is None:
            status = lib.tfcc_compile(_text("the model", name), _text("output", output), byref(options), byref(text))
        else:
            status = lib.tfcc_compile_memory(data, len(data), _text("the model", name), _text("output", output), byref(options), byref(text))
        if status != 0:
            raise Error(_library.STATUS_NAMES[status], lib.tfcc_compile_last_error().decode(errors="replace"))
    except BaseException:
        if temporary:
            os.unlink(output)
        raise
    try:
        report = json.loads(ctypes.string_at(text.value))
    finally:
        lib.tfcc_compile_free(text)
    return Compiled(output, report, notes)
