# SPDX-License-Identifier: Apache-2.0
"""The other side of `tfcc bench --peer` and `tfcc verify --against`: a process that loads a peer once and times runs on request.

tfcc embeds this text and starts it as `python3 worker.py`. Both sides speak in lines of JSON, here on the standard input
and on the descriptor that was the standard output (whatever a package prints goes to the standard error):

    {"kind": "onnxruntime" or "torch", "model": ..., "mode": "compile" or "eager", "inputs": {name: file.npy}, "folder": ...,
     "threads": 2, "device": "cpu" or "cuda:0", "dtype": "f32" or "f16" or "bf16"}     -> {"name": ..., "clock": "wall" or "events"}
    {"run": 5, "warm": 1}                                                              -> {"ms": [5 times]}
    {"outputs": true}                                                                  -> {"outputs": [[name or null, file.npy], ...]}
    {"feed": {name: file.npy}}                                                         -> {}, other inputs from here on
    {"keep": [name, ...]}                                                              -> {}, onnxruntime: these values are its outputs from here on

Every answer may be {"error": "one line"} instead. The end of the input ends the process.
"""
import json
import os
import runpy
import sys
import time


class Problem(Exception):
    """What the user is told, in one line."""


def import_or_tell(module, package):
    try:
        return __import__(module)
    except ImportError as e:
        raise Problem(f"{sys.executable} has no {module} ({e}); install it with `{sys.executable} -m pip install {package}`, "
                      "or name a python that has it with --python") from None


def more_outputs(names):
    """What a ModelProto needs behind it to give these values as outputs: parts of a message merge with what was there."""
    def field(number, data):
        head, size = bytearray([number << 3 | 2]), len(data)
        while size > 127:
            head.append(size & 127 | 128)
            size >>= 7
        return bytes(head + bytes([size])) + data
    return field(7, b"".join(field(12, field(1, n.encode())) for n in names))  # graph, output, name


class OnnxRuntime:
    """The model's own .onnx under ONNX Runtime, inputs and outputs bound on the device where that is a GPU."""

    clock = "wall"

    def __init__(self, request, arrays):
        ort = import_or_tell("onnxruntime", "onnxruntime")
        cuda = request["device"].startswith("cuda")
        provider = "CUDAExecutionProvider" if cuda else "CPUExecutionProvider"
        if provider not in ort.get_available_providers():
            raise Problem(f"onnxruntime {ort.__version__} of {sys.executable} has no {provider}; install onnxruntime-gpu, "
                          "or compare on the cpu with --device cpu")
        self.ort, self.model, self.threads = ort, request["model"], request["threads"]
        self.index = int(request["device"].partition(":")[2] or 0) if cuda else None
        options = {"device_id": self.index} if cuda else {}
        if cuda and tuple(int(n) for n in ort.__version__.split(".")[:2]) >= (1, 18):  # which knows the option; it is 1 by default
            options["use_tf32"] = int(request["dtype"] == "tf32")
        self.provider = (provider, options)
        self.open(self.model)
        self.set_inputs(arrays)
        self.name = f"onnxruntime {ort.__version__} {self.session.get_providers()[0]}"

    def open(self, model):
        """Loads a file, or bytes in its place."""
        options = self.ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        if isinstance(model, bytes):  # weights beside the file are looked for where it lies
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.path.dirname(os.path.abspath(self.model)))
        self.session = self.ort.InferenceSession(model, options, providers=[self.provider])
        self.names = [o.name for o in self.session.get_outputs()]

    def set_inputs(self, arrays):
        wanted = [i.name for i in self.session.get_inputs()]
        missing = [n for n in wanted if n not in arrays]
        if missing:
            raise Problem(f"{self.model} has an input '{missing[0]}' that the .tfcc has not; name the model it was compiled "
                          "from with --peer-model")
        self.feed = {n: arrays[n] for n in wanted}
        self.binding = None if self.index is None else self.bound(self.ort, self.index)

    def keep(self, names):
        with open(self.model, "rb") as f:
            self.open(f.read() + more_outputs(names))
        self.names = names
        self.set_inputs(self.feed)

    def bound(self, ort, index):
        binding = self.session.io_binding()
        for name, array in self.feed.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", index))
        for name in self.names:
            binding.bind_output(name, "cuda", index)
        return binding

    def once(self):
        begin = time.perf_counter()
        if self.binding is None:
            self.results = self.session.run(self.names, self.feed)
        else:
            self.session.run_with_iobinding(self.binding)
            self.binding.synchronize_outputs()
        return (time.perf_counter() - begin) * 1000

    def outputs(self):
        self.once()
        return list(zip(self.names, self.results if self.binding is None else self.binding.copy_outputs_to_cpu()))


class Context:
    """What a user's load(context) is given; inputs are tensors on the device."""

    def __init__(self, request, inputs, device, dtype):
        self.inputs, self.device, self.dtype = inputs, device, dtype
        self.threads, self.model = request["threads"], request.get("onnx")


def module_of(torch, request, context):
    """A callable that takes the inputs by name."""
    model = request["model"]
    if model.endswith(".py"):
        load = runpy.run_path(model).get("load")
        if not callable(load):
            raise Problem(f"{model}: has no function load(context)")
        return load(context)
    if model.startswith("hf:"):
        transformers = import_or_tell("transformers", "transformers")
        transformers.logging.set_verbosity_error()
        return transformers.AutoModel.from_pretrained(model[3:], attn_implementation="sdpa").to(context.device, context.dtype).eval()
    if model.endswith(".onnx"):
        import_or_tell("onnx2torch", "onnx2torch")
        import onnx2torch
        module = onnx2torch.convert(model).to(context.device).eval()
        import onnx
        order = [i.name for i in onnx.load(model, load_external_data=False).graph.input]
        return lambda **inputs: module(*(inputs[n] for n in order))
    raise Problem(f"'{model}' is neither FILE.py, hf:NAME nor FILE.onnx")


def tensors_in(result):
    """(name or None, tensor) of what a module returns: a tensor, a sequence, or a mapping such as a ModelOutput."""
    if hasattr(result, "items"):
        return [(n, t) for n, t in result.items() if hasattr(t, "detach")]
    if isinstance(result, (tuple, list)):
        return [(None, t) for t in result if hasattr(t, "detach")]
    return [(None, result)]


class Torch:
    """A torch module, compiled by torch.compile unless the mode is eager."""

    def __init__(self, request, arrays):
        torch = self.torch = import_or_tell("torch", "torch")
        device = torch.device(request["device"])
        if device.type == "cuda" and not torch.cuda.is_available():
            raise Problem(f"torch {torch.__version__} of {sys.executable} finds no GPU; install a build for CUDA, or use --device cpu")
        torch.set_num_threads(request["threads"])
        self.cuda = device.type == "cuda"
        self.clock = "events" if self.cuda else "wall"
        dtype = {"f16": torch.float16, "bf16": torch.bfloat16}.get(request["dtype"], torch.float32)
        torch.backends.cuda.matmul.allow_tf32 = request["dtype"] == "tf32"
        self.device = device
        self.set_inputs(arrays)
        with torch.inference_mode():
            module = module_of(torch, request, Context(request, self.inputs, device, dtype))
        compiled = request["mode"] == "compile"
        if compiled:
            module = torch.compile(module, mode="reduce-overhead" if self.cuda else "default", dynamic=False)
        self.module = module
        self.name = f"torch {torch.__version__} {'compile' if compiled else 'eager'} {request['device']}"
        for _ in range(3):          # compiles, and captures the graph of reduce-overhead
            self.once()

    def set_inputs(self, arrays):
        self.inputs = {n: self.torch.from_numpy(a).to(self.device) for n, a in arrays.items()}

    def call(self):
        with self.torch.inference_mode():
            self.result = self.module(**self.inputs)

    def once(self):
        if not self.cuda:
            begin = time.perf_counter()
            self.call()
            return (time.perf_counter() - begin) * 1000
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def outputs(self):
        self.once()
        return [(n, t.detach().float().cpu().numpy() if t.is_floating_point() else t.detach().cpu().numpy())
                for n, t in tensors_in(self.result)]


def load(files, numpy):
    # ascontiguousarray would make a scalar of rank 1
    return {n: numpy.load(f) for n, f in files.items()}


def start(request, numpy):
    arrays = load(request["inputs"], numpy)
    return {"onnxruntime": OnnxRuntime, "torch": Torch}[request["kind"]](request, arrays)


def write_outputs(peer, folder, numpy):
    files = []
    for i, (name, array) in enumerate(peer.outputs()):
        path = os.path.join(folder, f"peer_{i}.npy")
        numpy.save(path, numpy.asarray(array, order="C"))
        files.append([name, path])
    return files


def answer(request, state):
    numpy = import_or_tell("numpy", "numpy")
    if "kind" in request:
        state["folder"] = request["folder"]
        state["peer"] = start(request, numpy)
        return {"name": state["peer"].name, "clock": state["peer"].clock}
    if "outputs" in request:
        return {"outputs": write_outputs(state["peer"], state["folder"], numpy)}
    if "feed" in request:
        state["peer"].set_inputs(load(request["feed"], numpy))
        return {}
    if "keep" in request:
        state["peer"].keep(request["keep"])
        return {}
    for _ in range(request["warm"]):
        state["peer"].once()
    return {"ms": [state["peer"].once() for _ in range(request["run"])]}


def main():
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    state = {}
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line), state)
        except Problem as e:
            reply = {"error": str(e)}
        except Exception as e:  # noqa: BLE001: whatever a package throws is told in one line
            reply = {"error": f"{type(e).__name__}: {' '.join(str(e).split())[:400]}"}
        print(json.dumps(reply), file=replies, flush=True)


main()
