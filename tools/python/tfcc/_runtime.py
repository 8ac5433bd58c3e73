# SPDX-License-Identifier: Apache-2.0
"""Model and Executor over the C API."""
import os
from ctypes import POINTER, byref, c_char_p, c_int64, c_size_t, c_void_p, cast
from typing import NamedTuple, Optional, Tuple

import numpy as np

from tfcc import _library
from tfcc._library import library
from tfcc._tensors import NAMES, TORCH, bind, is_torch, to_numpy


class Dim(NamedTuple):
    """One dim of an input or output: its expression ("768", "batch_size"), least and largest size (None: no limit)."""
    text: str
    min: int
    max: Optional[int]


class TensorInfo(NamedTuple):
    """Name, element type ("f32", "i64", ...) and dims of an input or output."""
    name: str
    dtype: str
    dims: Tuple[Dim, ...]


def load(path, device="auto", threads=0, verify_weights=False, graphs=True, log=None):
    """Loads a .tfcc file.

    path            a path, or the file as bytes
    device          "auto" (a GPU that the file has code for, else the CPU), "cpu", "cuda", "cuda:1"
    threads         CPU threads; 0 is one per physical core
    verify_weights  also check the checksums of all weights
    graphs          CUDA: replay captured launches; False: launch one by one
    log             called with each line that the library has to say
    """
    return Model(path, device, threads, verify_weights, graphs, log)


class Model:
    """A loaded file: weights and code of one target. Immutable; threads may share it, each with its own executor()."""

    def __init__(self, path, device, threads, verify_weights, graphs, log):
        self._handle = c_void_p()
        lib = self._library = library()
        options = _library.LoadOptions()
        lib.tfcc_load_options_init(byref(options))
        options.device = _c_name(device)
        options.threads, options.verify_weights, options.graphs = threads, verify_weights, graphs
        if log is not None:
            options.log = self._log = _library.Log(lambda line, _: log(line.decode(errors="replace")))
        if isinstance(path, (bytes, bytearray, memoryview)):
            self._file = np.frombuffer(path, np.uint8)
            lib.tfcc_model_load_memory(self._file.ctypes.data, self._file.nbytes, byref(options), byref(self._handle))
        else:
            lib.tfcc_model_load(_c_name(path), byref(options), byref(self._handle))
        self.inputs = self._describe(lib.tfcc_model_input_count, lib.tfcc_model_input)
        self.outputs = self._describe(lib.tfcc_model_output_count, lib.tfcc_model_output)
        self._default = None

    def __del__(self):
        if getattr(self, "_handle", None):
            self._library.tfcc_model_free(self._handle)

    def _describe(self, count, describe):
        infos = []
        for k in range(count(self._handle)):
            i = _library.TensorInfo()
            describe(self._handle, k, byref(i))
            dims = tuple(Dim(i.dims[d].text.decode(), i.dims[d].min, i.dims[d].max or None) for d in range(i.rank))
            infos.append(TensorInfo(i.name.decode(), NAMES[i.dtype], dims))
        return infos

    @property
    def target(self):
        """Name of the target that runs: "sm_90", "x86-64-v3"."""
        return self._library.tfcc_model_target(self._handle).decode()

    @property
    def device(self):
        """What it runs on: "NVIDIA H200", "cpu"."""
        return self._library.tfcc_model_device(self._handle).decode()

    def executor(self):
        """A new Executor with its own workspace: one per thread and stream."""
        return Executor(self)

    def run(self, inputs, outputs=None):
        """Executor.run() on an executor of the model's own, made at the first call. One thread at a time."""
        if self._default is None:
            self._default = self.executor()
        return self._default.run(inputs, outputs)

    __call__ = run

    def __repr__(self):
        def shown(infos):
            return ", ".join(f"{i.name}: {i.dtype}[{','.join(d.text for d in i.dims)}]" for i in infos)
        return f"<tfcc.Model on {self.device} ({self.target}): {shown(self.inputs)} -> {shown(self.outputs)}>"


class Executor:
    """Runs a model. Not thread-safe: one per thread (and stream). Keeps its model alive."""

    def __init__(self, model):
        self._handle = c_void_p()
        self._library, self.model = model._library, model
        self._library.tfcc_executor_create(model._handle, byref(self._handle))
        self._bound = {}

    def __del__(self):
        if getattr(self, "_handle", None):
            self._library.tfcc_executor_free(self._handle)

    def _set(self, bound):
        self._library.tfcc_executor_set(self._handle, _c_name(bound.name), byref(bound.tensor))
        self._bound[bound.name] = bound  # its memory lives until the next set of that name

    def set(self, name, value):
        """Gives an input, or the memory of an output. Keeps a reference, copies nothing (a strided numpy array is copied)."""
        is_output = any(o.name == name for o in self.model.outputs)
        self._set(bind(name, value, writable=is_output))

    def run(self, inputs, outputs=None):
        """Runs and returns {output name: array}.

        inputs   {name: numpy array, torch tensor or any other with __dlpack__, of the input's own type}
        outputs  {name: array to write to}, optional. The others are new: torch tensors on the inputs' device if an input is
                 a torch tensor, else numpy arrays (bf16 as uint16, the bits).

        With torch tensors on the GPU nothing is copied and nothing waits: the launches go to torch's current stream.
        """
        stream = _torch_stream(inputs.values())
        bound = [bind(n, v, stream or 0) for n, v in inputs.items()]
        for b in bound:
            self._set(b)
        given = {n: bind(n, v, stream or 0, writable=True) for n, v in (outputs or {}).items()}
        results = dict(outputs or {})
        like = next((v for v in inputs.values() if is_torch(v)), None)
        if like is not None:
            device = next((v.device for v in inputs.values() if is_torch(v) and v.is_cuda), like.device)
            for o in self.model.outputs:
                if o.name not in results:
                    results[o.name] = self._new_torch(o, device)
                    given[o.name] = bind(o.name, results[o.name], stream or 0, writable=True)
        for b in given.values():
            self._set(b)
        try:
            if stream is not None and all(b.on_device for b in [*bound, *given.values()]):
                self._library.tfcc_executor_enqueue(self._handle, c_void_p(stream))
            else:
                self._library.tfcc_executor_run(self._handle)
            for o in self.model.outputs:
                if o.name not in results:
                    results[o.name] = self.output(o.name)
        finally:
            self._forget(given)
        return {o.name: results[o.name] for o in self.model.outputs}

    __call__ = run

    def _forget(self, given):
        """What one run() wrote to, the next does not."""
        for name in given:
            if self._bound.pop(name, None) is not None:
                self._library.tfcc_executor_clear(self._handle, name.encode())

    def _new_torch(self, info, device):
        import torch
        dtype = getattr(torch, TORCH[NAMES.index(info.dtype)])
        return torch.empty(self.output_shape(info.name), dtype=dtype, device=device)

    def enqueue(self, stream=0):
        """Launches on a CUDA stream (its address) with device memory set for every input and output; does not wait."""
        self._library.tfcc_executor_enqueue(self._handle, c_void_p(stream))

    def prepare(self, shapes, smaller=False):
        """Makes {input: shape} ready, so that a run with it allocates nothing; `smaller`: and all smaller shapes."""
        names = (c_char_p * len(shapes))(*(_c_name(n) for n in shapes))
        sizes = [(c_int64 * max(1, len(s)))(*s) for s in shapes.values()]
        tensors = (_library.Tensor * len(shapes))(*(_library.Tensor(None, 0, 0, len(s), z) for s, z in zip(shapes.values(), sizes)))
        prepare = self._library.tfcc_executor_prepare_all if smaller else self._library.tfcc_executor_prepare
        prepare(self._handle, len(shapes), cast(names, POINTER(c_char_p)), cast(tensors, POINTER(_library.Tensor)))

    def output_shape(self, name):
        """Shape of an output for the inputs set so far."""
        sizes, rank = (c_int64 * 16)(), c_size_t()
        self._library.tfcc_executor_output_shape(self._handle, _c_name(name), 16, sizes, byref(rank))
        return tuple(sizes[:rank.value])

    def output(self, name):
        """An output of the last run, copied to a numpy array."""
        tensor = _library.Tensor()
        self._library.tfcc_executor_output(self._handle, _c_name(name), byref(tensor))
        return to_numpy(tensor)

    def status(self):
        """Raises what the kernels flagged since the last call, e.g. token ids out of range; waits for the device."""
        self._library.tfcc_executor_status(self._handle)

    def stats(self):
        """Counters since the executor was made: graphs_made, device_allocations, modules_loaded, plain_runs, graph_runs."""
        s = _library.ExecutorStats()
        self._library.tfcc_executor_get_stats(self._handle, byref(s))
        return {name: getattr(s, name) for name, _ in s._fields_}

    def arena_bytes(self):
        """Bytes of the workspace held now."""
        return self._library.tfcc_executor_arena_bytes(self._handle)


def _c_name(name):
    """A name or path as C takes it, which ends at the first NUL: a name that holds one is nobody's."""
    encoded = os.fsencode(name)
    if b"\0" in encoded:
        raise _library.Error("invalid_argument", f"{name!r} holds a NUL; no input, output, device or file has such a name")
    return encoded


def _torch_stream(values):
    """Torch's current stream if an input is a torch tensor on the GPU, else None."""
    for v in values:
        if is_torch(v) and v.is_cuda:
            import torch
            return torch.cuda.current_stream(v.device).cuda_stream
    return None
