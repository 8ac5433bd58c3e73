# SPDX-License-Identifier: Apache-2.0
"""libtfcc.so through its C API (runtime/tfcc_c.h): where it is, its structs and functions, errors as exceptions."""
import ctypes
import ctypes.util
import functools
import os
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path

SONAME = "libtfcc.so.0"


# By number, as tfcc_status of tfcc_c.h.
STATUS_NAMES = ("ok", "invalid_argument", "unsupported", "bad_file", "shape", "device", "memory", "io", "internal")


class Error(RuntimeError):
    """A failure of tfcc. `code` is its kind: "invalid_argument", "shape", "bad_file", "device", "memory", "io", ..."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Tensor(Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int), ("place", c_int), ("rank", c_size_t), ("shape", POINTER(c_int64))]


class DimInfo(Structure):
    _fields_ = [("text", c_char_p), ("min", c_int64), ("max", c_int64)]


class TensorInfo(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_int), ("rank", c_size_t), ("dims", POINTER(DimInfo))]


Log = ctypes.CFUNCTYPE(None, c_char_p, c_void_p)


class LoadOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("device", c_char_p), ("threads", c_int), ("verify_weights", c_int),
                ("graphs", c_int), ("code_dir", c_char_p), ("log", Log), ("log_user", c_void_p), ("in_memory", c_int),
                ("cache_bytes", c_uint64)]


class ExecutorStats(Structure):
    _fields_ = [(name, c_uint64) for name in
                ("graphs_made", "device_allocations", "modules_loaded", "plain_runs", "graph_runs")]


class GeneratorOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("max_context", c_int64), ("max_sequences", c_int64), ("prompt_chunk", c_int64),
                ("cache_bytes", c_uint64), ("prefix_sharing", c_int), ("literal", c_int), ("run_ahead", c_int), ("swap_bytes", c_uint64)]


OnToken = ctypes.CFUNCTYPE(c_int, c_int32, c_void_p)


class GenerateOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("max_tokens", c_int64), ("stop_count", c_size_t), ("stop_ids", POINTER(c_int32)),
                ("repetition_penalty", c_float), ("temperature", c_float), ("top_k", c_int32), ("top_p", c_float), ("min_p", c_float),
                ("seed", c_uint64), ("on_token", OnToken), ("user", c_void_p), ("log_probabilities", c_int)]


class Generated(Structure):
    _fields_ = [("tokens", POINTER(c_int32)), ("count", c_size_t), ("end", c_int), ("error", c_char_p),
                ("first_token_ms", c_double), ("total_ms", c_double), ("log_probabilities", POINTER(c_float))]


class GeneratorStats(Structure):
    _fields_ = [("waiting", c_int64), ("running", c_int64), ("prompt_tokens", c_int64), ("tokens", c_int64), ("cache_bytes", c_uint64),
                ("pages", c_int64), ("pages_held", c_int64), ("shared_tokens", c_int64), ("preempted", c_int64),
                ("steps", c_int64), ("steps_ahead", c_int64), ("swapped", c_int64), ("host_ms", c_double), ("busy_ms", c_double)]


# name -> (result, arguments); a function whose result is a status raises.
_STATUS = object()
_FUNCTIONS = {
    "tfcc_version": (c_char_p, []),
    "tfcc_last_error": (c_char_p, []),
    "tfcc_status_name": (c_char_p, [c_int]),
    "tfcc_load_options_init": (None, [POINTER(LoadOptions)]),
    "tfcc_model_load": (_STATUS, [c_char_p, POINTER(LoadOptions), POINTER(c_void_p)]),
    "tfcc_model_load_memory": (_STATUS, [c_void_p, c_size_t, POINTER(LoadOptions), POINTER(c_void_p)]),
    "tfcc_model_free": (None, [c_void_p]),
    "tfcc_model_input_count": (c_size_t, [c_void_p]),
    "tfcc_model_output_count": (c_size_t, [c_void_p]),
    "tfcc_model_input": (_STATUS, [c_void_p, c_size_t, POINTER(TensorInfo)]),
    "tfcc_model_output": (_STATUS, [c_void_p, c_size_t, POINTER(TensorInfo)]),
    "tfcc_model_target": (c_char_p, [c_void_p]),
    "tfcc_model_device": (c_char_p, [c_void_p]),
    "tfcc_executor_create": (_STATUS, [c_void_p, POINTER(c_void_p)]),
    "tfcc_executor_free": (None, [c_void_p]),
    "tfcc_executor_set": (_STATUS, [c_void_p, c_char_p, POINTER(Tensor)]),
    "tfcc_model_ragged": (_STATUS, [c_void_p, POINTER(c_void_p)]),
    "tfcc_executor_clear": (_STATUS, [c_void_p, c_char_p]),
    "tfcc_executor_prepare": (_STATUS, [c_void_p, c_size_t, POINTER(c_char_p), POINTER(Tensor)]),
    "tfcc_executor_prepare_all": (_STATUS, [c_void_p, c_size_t, POINTER(c_char_p), POINTER(Tensor)]),
    "tfcc_executor_run": (_STATUS, [c_void_p]),
    "tfcc_executor_enqueue": (_STATUS, [c_void_p, c_void_p]),
    "tfcc_executor_output_shape": (_STATUS, [c_void_p, c_char_p, c_size_t, POINTER(c_int64), POINTER(c_size_t)]),
    "tfcc_executor_output": (_STATUS, [c_void_p, c_char_p, POINTER(Tensor)]),
    "tfcc_executor_status": (_STATUS, [c_void_p]),
    "tfcc_executor_get_stats": (_STATUS, [c_void_p, POINTER(ExecutorStats)]),
    "tfcc_executor_arena_bytes": (c_size_t, [c_void_p]),
    "tfcc_generator_options_init": (None, [POINTER(GeneratorOptions)]),
    "tfcc_generate_options_init": (None, [POINTER(GenerateOptions)]),
    "tfcc_generator_create": (_STATUS, [c_void_p, POINTER(GeneratorOptions), POINTER(c_void_p)]),
    "tfcc_generator_free": (None, [c_void_p]),
    "tfcc_generator_submit": (_STATUS, [c_void_p, POINTER(c_int32), c_size_t, POINTER(GenerateOptions), POINTER(c_uint64)]),
    "tfcc_generator_poll": (_STATUS, [c_void_p, c_uint64, POINTER(POINTER(Generated))]),
    "tfcc_generator_wait": (_STATUS, [c_void_p, c_uint64, POINTER(POINTER(Generated))]),
    "tfcc_generator_cancel": (_STATUS, [c_void_p, c_uint64]),
    "tfcc_generated_free": (None, [POINTER(Generated)]),
    "tfcc_generator_get_stats": (_STATUS, [c_void_p, POINTER(GeneratorStats)]),
    "tfcc_generator_max_context": (c_int64, [c_void_p]),
    "tfcc_generator_vocabulary_size": (c_int64, [c_void_p]),
}


def _candidates():
    """Where the library may be, best first."""
    if "TFCC_LIBRARY" in os.environ:
        return [os.environ["TFCC_LIBRARY"]]
    here = Path(__file__).resolve()
    beside = [here.parent / SONAME]
    if len(here.parents) > 3:  # the tree's own build, when the package is used from the tree
        beside += [here.parents[3] / "build" / "runtime" / SONAME, here.parents[3] / "build-cuda" / "runtime" / SONAME]
    return [str(p) for p in beside if p.exists()] + [SONAME] + [p for p in [ctypes.util.find_library("tfcc")] if p]


def cuda_folders():
    """Folders of CUDA libraries among Python's packages: what `pip install tfcc[cuda]` brings, and torch does."""
    import importlib.util
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return []
    roots = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    return sorted({f for r in roots for f in r.glob("*/lib") if any(f.glob("libnvrtc.so.*")) or any(f.glob("libcublasLt.so.*"))})


@functools.lru_cache(maxsize=None)
def open_cuda(name):
    """Opens "libnvrtc.so" or "libcublasLt.so" of those folders, once: a library that asks for it by name then finds it."""
    for folder in cuda_folders():
        for version in ("13", "12"):
            if (folder / f"{name}.{version}").exists():
                try:
                    return ctypes.CDLL(str(folder / f"{name}.{version}"))
                except OSError:
                    continue  # who needs it says so
    return None


def default_target():
    """What is compiled for when no target is named, as `tfcc compile` has it: the first GPU, else "cpu"."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "cpu"
    count, major, minor = c_int(), c_int(), c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value < 1:
        return "cpu"
    for value, attribute in ((major, 75), (minor, 76)):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0):
            return "cpu"
    return f"sm_{major.value * 10 + minor.value}"


def have_driver():
    """Whether there is a driver for NVIDIA's GPUs: without one nothing of CUDA is worth its loading."""
    try:
        return bool(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return False


def open_library(candidates, functions, missing):
    """The first of the candidates that can be opened, its functions declared; where none can, an Error that says `missing`."""
    failures = []
    for candidate in candidates:
        try:
            lib = ctypes.CDLL(candidate)
        except OSError as e:
            failures.append(str(e))
            continue
        lib.path = candidate
        for name, (result, arguments) in functions.items():
            function = getattr(lib, name)
            function.argtypes = arguments
            function.restype = c_int if result is _STATUS else result
            if result is _STATUS:
                function.errcheck = lambda status, f, _: _check(lib, f, status)
        return lib
    raise Error("io", f"{missing} ({'; '.join(failures)})")


def _check(library, function, status):
    if status != 0:
        raise Error(library.tfcc_status_name(status).decode(), library.tfcc_last_error().decode(errors="replace"))


@functools.lru_cache(maxsize=None)
def library():
    """The library, opened on first use."""
    if have_driver():
        open_cuda("libcublasLt.so")
    return open_library(_candidates(), _FUNCTIONS, f"{SONAME} was not found; install tfcc (cmake --install), add its lib folder to "
                        "LD_LIBRARY_PATH, or name the file in TFCC_LIBRARY")


def whole(name, value, least, most):
    """An integer option within its range; ctypes would cut off what is too large."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not least <= value.__index__() <= most:
        shown = repr(value) if len(repr(value)) <= 24 else repr(value)[:20] + "..."
        raise Error("invalid_argument", f"{name} is {shown}, must be an integer from {least} to {most}")
    return value.__index__()


def library_path():
    """The libtfcc that this process uses: $TFCC_LIBRARY, else beside this package, the tree's build, the loader's."""
    return library().path


def version():
    """The version of libtfcc, "0.1.0"."""
    return library().tfcc_version().decode()
