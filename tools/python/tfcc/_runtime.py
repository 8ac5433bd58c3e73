# SPDX-License-Identifier: Apache-2.0
"""Model and Executor over the C API."""
import contextlib
import functools
import os
import threading
import weakref
from ctypes import POINTER, byref, c_char_p, c_int64, c_size_t, c_void_p, cast
from typing import NamedTuple, Optional, Tuple

import numpy as np

from tfcc import _library
from tfcc._library import Error, library
from tfcc._tensors import NAMES, TORCH, bind, is_torch, joined, to_numpy, widened


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


# Models whose pools a child of os.fork() has to make anew: calls of other threads do not go on in it.
_models = weakref.WeakSet()


def _after_fork():
    for model in list(_models):
        model._pool = _Pool(model, model._pool.most)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def load(path, device="auto", threads=0, verify_weights=False, graphs=True, log=None, in_memory=False, cache_bytes=None,
         executors=None, widen=False):
    """Loads a .tfcc file.

    path            a path, or the file as bytes
    device          "auto" (a GPU that the file has code for, else the CPU), "cpu", "cuda", "cuda:1"
    threads         CPU threads of each run; 0 is one per physical core
    verify_weights  also check the checksums of all weights
    graphs          CUDA: replay captured launches; False: launch one by one
    log             called with each line that the library has to say, by any thread that uses the model
    in_memory       read the file into memory in place of mapping it: it may be changed afterwards
    cache_bytes     most memory for what executors keep of shapes seen before, all of the model together; None: 64 MiB
    widen           take integers of a narrower type than an input has (int32 ids where int64 is wanted), by a copy
    executors       most executors that Model.run() makes, one for each call at the same time; None: one per CPU, at most 32
    """
    return Model(path, device, threads, verify_weights, graphs, log, in_memory, cache_bytes, executors, widen)


class _Pool:
    """The executors of Model.run(): one for each call at the same time, at most `most`; further calls wait for one."""

    def __init__(self, model, most):
        self.model, self.most = weakref.ref(model), most
        self.free, self.made, self.changed = [], 0, threading.Condition()

    @contextlib.contextmanager
    def executor(self):
        with self.changed:
            while not self.free and self.made >= self.most:
                self.changed.wait()
            executor = self.free.pop() if self.free else None  # the latest used: its memory is warm
            self.made += executor is None
        try:
            if executor is None:
                executor = Executor(self.model())
            yield executor
        finally:
            with self.changed:
                if executor is None:
                    self.made -= 1
                else:
                    self.free.append(executor)
                self.changed.notify()


class Model:
    """A loaded file: weights and code of one target. Immutable; any number of threads may share it and call run()."""

    def __init__(self, path, device, threads, verify_weights, graphs, log, in_memory, cache_bytes, executors, widen=False):
        self._handle = c_void_p()
        lib = self._library = library()
        options = _library.LoadOptions()
        lib.tfcc_load_options_init(byref(options))
        options.device = _c_name(device)
        options.threads = _library.whole("threads", threads, -2**31, 2**31 - 1)  # the library names its own limits
        options.verify_weights, options.graphs, options.in_memory = bool(verify_weights), bool(graphs), bool(in_memory)
        if cache_bytes is not None:
            options.cache_bytes = _library.whole("cache_bytes", cache_bytes, 0, 2**63 - 1)
        most = _library.whole("executors", executors, 1, 4096) if executors is not None else min(32, os.cpu_count() or 1)
        if log is not None:
            options.log = self._log = _library.Log(lambda line, _: log(line.decode(errors="replace")))
        if isinstance(path, (bytes, bytearray, memoryview)):
            self._file = np.frombuffer(path, np.uint8)
            lib.tfcc_model_load_memory(self._file.ctypes.data, self._file.nbytes, byref(options), byref(self._handle))
        else:
            lib.tfcc_model_load(_c_name(path), byref(options), byref(self._handle))
        self._start(widen, most)

    def _start(self, widen, most):
        lib = self._library
        self.inputs = self._describe(lib.tfcc_model_input_count, lib.tfcc_model_input)
        self.outputs = self._describe(lib.tfcc_model_output_count, lib.tfcc_model_output)
        self._widen = {i.name: i.dtype for i in self.inputs} if widen else {}
        self._pool = _Pool(self, most)
        self._ends = None  # the input that says where sequences end, if tokens come without padding
        _models.add(self)

    def ragged(self):
        """The program that takes tokens without padding (compile(ragged=True), docs/ragged.md), on the same device and with the
        same weights. Its inputs and outputs that are [batch, length, ..] here are [tokens, ..], sequence after sequence. Its
        run() takes an input over tokens as a list with an array for each sequence, or as one array beside "cu_seqlens",
        which is 0 and then where each sequence ends:

            ragged = tfcc.load("bert.tfcc").ragged()
            rows = ragged.run({"input_ids": [[101, 7592, 102], [101, 2088, 999, 102]]})["last_hidden_state"]   # [7, 768]
        """
        other = Model.__new__(Model)
        other._handle, other._library = c_void_p(), self._library
        self._library.tfcc_model_ragged(self._handle, byref(other._handle))
        other._base = self  # with the memory that its file may be in
        other._start(bool(self._widen), self._pool.most)
        other._ends = other.inputs[-1].name  # cu_seqlens, behind the inputs of the padded program
        return other

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

    def generator(self, **options):
        """A `tfcc.Generator` of this decoder: max_context, max_sequences (16), prompt_chunk (512), cache_bytes (0: what is free),
        swap_bytes (None: as much as the cache has), prefix_sharing (True), literal (False)."""
        from tfcc._generator import Generator
        return Generator(self, **options)

    def executor(self):
        """A new Executor with its own workspace: one per thread and stream."""
        return Executor(self)

    def run(self, inputs, outputs=None):
        """Executor.run() on an executor of the model's own. May be called by many threads at the same time: each call has
        an executor to itself, and Python's lock is released while it computes. Where all of load()'s `executors` are at
        work, a call waits for one."""
        with self._pool.executor() as executor:
            return executor.run(inputs, outputs)

    __call__ = run

    def __repr__(self):
        def shown(infos):
            return ", ".join(f"{i.name}: {i.dtype}[{','.join(d.text for d in i.dims)}]" for i in infos)
        return f"<tfcc.Model on {self.device} ({self.target}): {shown(self.inputs)} -> {shown(self.outputs)}>"


def _one_at_a_time(method):
    """A call while another one to the same executor is under way is an error, as in the library; here also between the
    steps of one run()."""
    @functools.wraps(method)
    def call(self, *arguments, **named):
        if not self._in_use.acquire(blocking=False):
            raise Error("invalid_argument", "the executor is in use by another call; make one per thread with Model.executor(), "
                                            "or call Model.run()")
        try:
            return method(self, *arguments, **named)
        finally:
            self._in_use.release()
    return call


class Executor:
    """Runs a model. One per thread (and stream): a second call at the same time is an error. Keeps its model alive."""

    def __init__(self, model):
        self._handle = c_void_p()
        self._library, self.model = model._library, model
        self._library.tfcc_executor_create(model._handle, byref(self._handle))
        self._in_use = threading.Lock()
        self._bound = {}     # by set(), until the next set() of that name
        self._last = []      # the inputs of the last run(), until the next

    def __del__(self):
        if getattr(self, "_handle", None):
            self._library.tfcc_executor_free(self._handle)

    def _set(self, bound):
        self._library.tfcc_executor_set(self._handle, _c_name(bound.name), byref(bound.tensor))

    @_one_at_a_time
    def set(self, name, value):
        """Gives an input, or the memory of an output, to every run() and enqueue() that is not given its own. Keeps a
        reference, copies nothing (a strided numpy array is copied)."""
        is_output = any(o.name == name for o in self.model.outputs)
        bound = bind(name, value, writable=is_output)
        self._set(bound)
        self._bound[name] = bound

    @_one_at_a_time
    def run(self, inputs=None, outputs=None):
        """Runs and returns {output name: array}.

        inputs   {name: numpy array, torch tensor or any other with __dlpack__, of the input's own type}. They are those of
                 this run alone: an input that is left out is an error, unless set() gave it.
        outputs  {name: array to write to}, optional; or a list of names, which are all that is returned. The others are new: torch tensors on the inputs' device if an input is
                 a torch tensor, else numpy arrays (bf16 as uint16, the bits).

        With torch tensors on the GPU nothing is copied and nothing waits: the launches go to torch's current stream.
        """
        if inputs is not None and not hasattr(inputs, "items"):
            raise Error("invalid_argument", f"inputs are a dict of arrays by name, not {type(inputs).__name__}")
        wanted = None
        if outputs is not None and not hasattr(outputs, "items"):
            wanted, outputs = list(outputs), None
            unknown = [n for n in wanted if n not in [o.name for o in self.model.outputs]]
            if unknown:
                raise Error("invalid_argument", f"the model has no output {unknown[0]!r}; its outputs are {', '.join(o.name for o in self.model.outputs)}")
        inputs = joined(inputs or {}, self.model.inputs, self.model._ends) if self.model._ends else inputs or {}
        inputs = {n: widened(v, self.model._widen.get(n)) for n, v in inputs.items()}
        self._forget(b.name for b in self._last)
        self._last = []
        stream = _torch_stream(inputs.values())
        bound = [bind(n, v, stream or 0) for n, v in inputs.items()]
        given = {n: bind(n, v, stream or 0, writable=True) for n, v in (outputs or {}).items()}
        results = dict(outputs or {})
        like = next((v for v in inputs.values() if is_torch(v)), None)
        self._last = bound  # their memory lives as long: launches on a stream may read it after this call
        try:
            for b in bound:
                self._set(b)
            if like is not None:
                device = next((v.device for v in inputs.values() if is_torch(v) and v.is_cuda), like.device)
                for o in self.model.outputs:
                    if o.name not in results:
                        results[o.name] = self._new_torch(o, device)
                        given[o.name] = bind(o.name, results[o.name], stream or 0, writable=True)
            for b in given.values():
                self._set(b)
            if stream is not None and all(b.on_device or b.name == self.model._ends for b in [*bound, *given.values()]):
                self._library.tfcc_executor_enqueue(self._handle, c_void_p(stream))
            else:
                self._library.tfcc_executor_run(self._handle)
            for o in self.model.outputs:
                if o.name not in results:
                    results[o.name] = self._output(o.name)
        finally:
            self._forget(given)
        return {name: results[name] for name in (wanted if wanted is not None else [o.name for o in self.model.outputs])}

    __call__ = run

    def _forget(self, names):
        """What one run() was given, the next has not; what set() gave is there again."""
        names = list(names)
        for name in names:
            try:
                self._library.tfcc_executor_clear(self._handle, _c_name(name))
            except Error:
                continue  # there is no such name: its set() has told
        for name in names:
            if name in self._bound:
                self._set(self._bound[name])

    def _new_torch(self, info, device):
        import torch
        dtype = getattr(torch, TORCH[NAMES.index(info.dtype)])
        return torch.empty(self._output_shape(info.name), dtype=dtype, device=device)

    @_one_at_a_time
    def enqueue(self, stream=0):
        """Launches on a CUDA stream (its address) with device memory set for every input and output; does not wait."""
        self._forget(b.name for b in self._last)
        self._last = []
        self._library.tfcc_executor_enqueue(self._handle, c_void_p(stream))

    @_one_at_a_time
    def prepare(self, shapes, smaller=False):
        """Makes {input: shape} ready, so that a run with it allocates nothing; `smaller`: and all smaller shapes."""
        names = (c_char_p * len(shapes))(*(_c_name(n) for n in shapes))
        sizes = [(c_int64 * max(1, len(s)))(*s) for s in shapes.values()]
        tensors = (_library.Tensor * len(shapes))(*(_library.Tensor(None, 0, 0, len(s), z) for s, z in zip(shapes.values(), sizes)))
        prepare = self._library.tfcc_executor_prepare_all if smaller else self._library.tfcc_executor_prepare
        prepare(self._handle, len(shapes), cast(names, POINTER(c_char_p)), cast(tensors, POINTER(_library.Tensor)))

    @_one_at_a_time
    def output_shape(self, name):
        """Shape of an output for the inputs set so far."""
        return self._output_shape(name)

    def _output_shape(self, name):
        sizes, rank = (c_int64 * 16)(), c_size_t()
        self._library.tfcc_executor_output_shape(self._handle, _c_name(name), 16, sizes, byref(rank))
        return tuple(sizes[:rank.value])

    @_one_at_a_time
    def output(self, name):
        """An output of the last run, copied to a numpy array."""
        return self._output(name)

    def _output(self, name):
        tensor = _library.Tensor()
        self._library.tfcc_executor_output(self._handle, _c_name(name), byref(tensor))
        return to_numpy(tensor)

    @_one_at_a_time
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
