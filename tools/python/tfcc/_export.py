# SPDX-License-Identifier: Apache-2.0
"""From torch and from folders of the Hugging Face hub to compiled models. Torch and transformers are imported when they are needed."""
import difflib
import hashlib
import inspect
import json
import os
import re
import tempfile
from pathlib import Path

from tfcc._compiler import compile
from tfcc._library import Error, default_target, version

_LOAD_OPTIONS = ("device", "verify_weights", "graphs", "in_memory", "cache_bytes", "executors", "widen")


def _need(package, what):
    import importlib
    try:
        return importlib.import_module(package)
    except ImportError as e:
        raise Error("io", f"{what} needs the package {package} ({e}); pip install {package}") from None


def _examples(module, inputs):
    """{name: example} by the names of forward()'s parameters."""
    if hasattr(inputs, "items"):
        return dict(inputs)
    inputs = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    names = [n for n in inspect.signature(module.forward).parameters]
    if len(inputs) > len(names):
        raise Error("invalid_argument", f"{len(inputs)} example inputs for {len(names)} parameters of forward()")
    return dict(zip(names, inputs))


def _dynamic_shapes(examples, dynamic):
    """What torch.onnx.export takes, of True, False or {input: {axis: name}}."""
    if dynamic is True:
        usual = {0: "batch_size", 1: "sequence_length"}
        return {n: {k: usual[k] for k in range(min(2, e.dim()))} for n, e in examples.items()}
    dynamic = dynamic or {}
    unknown = sorted(set(dynamic) - set(examples))
    if unknown:
        raise Error("invalid_argument", f"dynamic names '{unknown[0]}', which is no input; the inputs are {', '.join(examples)}")
    return {n: dict(dynamic.get(n) or {}) for n in examples}


def _first_line(e):
    """The reason of an exception of torch or transformers in a line: of what caused it, without colours."""
    while e.__cause__ is not None:
        e = e.__cause__
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", x).strip() for x in str(e).splitlines()]
    return next((x for x in lines if x), type(e).__name__)


def _split(options, where):
    """The options of load(), taken out of `options`; the rest must be of compile(). An export may take long: what is wrong is said before."""
    known = [*inspect.signature(compile).parameters][2:] + list(_LOAD_OPTIONS)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise Error("invalid_argument", f"{where}() has no option '{name}'{f' (did you mean {near[0]}?)' if near else ''}")
    load = {k: options.pop(k) for k in _LOAD_OPTIONS if k in options}
    if "threads" in options:
        load["threads"] = options["threads"]
    return load


def export(module, example_inputs, path, *, dynamic=True, output_names=None, opset=20):
    """Writes a torch module as ONNX. Sizes are named after `dynamic`; the module should be in eval mode."""
    torch = _need("torch", "from_torch()")
    _need("onnxscript", "from_torch()")
    examples = _examples(module, example_inputs)
    shapes = _dynamic_shapes(examples, dynamic)
    named = {}  # one torch.export.Dim a name

    def dim(name):
        return named.setdefault(name, torch.export.Dim(name)) if hasattr(torch.export, "Dim") else name

    shapes = {n: {k: dim(v) for k, v in axes.items()} for n, axes in shapes.items()}
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            program = torch.onnx.export(module, (), kwargs=examples, dynamo=True, dynamic_shapes=shapes if any(shapes.values()) else None,
                                        input_names=list(examples), output_names=output_names, opset_version=opset, verbose=False)
        program.save(os.fspath(path), external_data=False if _small(module) else True)
    except Error:
        raise
    except Exception as e:  # of torch: its text is long, its first line says what
        raise Error("unsupported", f"torch.onnx.export failed: {_first_line(e)}") from e
    finally:
        for m, training in modes:
            m.training = training
    return Path(path)


def _small(module):
    """Whether the weights fit a Protobuf message, which ends at 2 GiB."""
    return sum(p.numel() * p.element_size() for p in [*module.parameters(), *module.buffers()]) < 1_900_000_000


def from_torch(module, example_inputs, output=None, *, dynamic=True, output_names=None, opset=20, **options):
    """Exports a torch module, compiles it and loads it; returns a tfcc.Model.

    example_inputs  tensors as forward() takes them: a tuple, or {parameter: tensor}
    output          the .tfcc file; without, a temporary one that goes when the model is loaded
    dynamic         True: axis 0 of each input is batch_size and axis 1 sequence_length; {input: {axis: name}}; False: all sizes are fixed
    output_names    names of the outputs
    options         of tfcc.compile() and tfcc.load(): targets, fp16, max_shapes, device, threads, ...
    """
    load = _split(options, "from_torch")
    with tempfile.TemporaryDirectory(prefix="tfcc-") as folder:
        onnx = export(module, example_inputs, Path(folder) / "model.onnx", dynamic=dynamic, output_names=output_names, opset=opset)
        if output is None:
            load["in_memory"] = True  # the file goes with the folder
        return compile(onnx, output or Path(folder) / "model.tfcc", **options).load(**load)


def need_folder(folder):
    """Errors: a folder that is not there, or without a model's configuration."""
    if not folder.is_dir():
        raise Error("io", f"{folder}: there is no such folder; download the model first, for example with `hf download NAME --local-dir {folder.name}`")
    if not (folder / "config.json").is_file():
        raise Error("io", f"{folder}: there is no config.json; give the folder that a model of the hub was downloaded to")


def read_json(path, missing=None):
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return missing
    except ValueError as e:
        raise Error("bad_file", f"{path}: is no JSON ({e})") from None


def pooling_of(folder):
    """(mode, normalize) of a sentence-transformers folder: "mean", "cls", "max" or "last"; (None, False) of any other."""
    folder = Path(folder)
    modules = read_json(folder / "modules.json")
    if modules is None:
        return None, False
    kinds = [m["type"].rsplit(".", 1)[-1] for m in modules]
    others = [k for k in kinds if k not in ("Transformer", "Pooling", "Normalize")]
    if others or kinds[:2] != ["Transformer", "Pooling"]:
        raise Error("unsupported", f"{folder / 'modules.json'}: modules {', '.join(kinds)}; Transformer, Pooling and Normalize are supported")
    config = read_json(folder / modules[1]["path"] / "config.json", {})
    modes = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens",
             "last": "pooling_mode_lasttoken"}
    names = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
    on = [k for k, v in modes.items() if config.get(v)] or [names[m] for m in [config.get("pooling_mode")] if m in names]
    if len(on) != 1 or config.get("pooling_mode_mean_sqrt_len_tokens") or config.get("pooling_mode_weightedmean_tokens"):
        raise Error("unsupported", f"{folder / modules[1]['path'] / 'config.json'}: the pooling is none of {', '.join(modes)}")
    return on[0], "Normalize" in kinds


def _call(model, input_ids, attention_mask, token_type_ids):
    types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
    return model(input_ids=input_ids, attention_mask=attention_mask, **types)


def _pooled(torch, model, mode, normalize):
    """The model with its pooling inside, so that the graph ends in one vector a sentence."""
    class Sentence(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask, token_type_ids=None):
            hidden = _call(self.model, input_ids, attention_mask, token_type_ids)[0]
            mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
            if mode == "mean":
                out = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            elif mode == "cls":
                out = hidden[:, 0]
            elif mode == "max":
                out = hidden.masked_fill(mask == 0, torch.finfo(hidden.dtype).min).max(1).values
            else:
                last = (attention_mask.sum(1) - 1).clamp(min=0)
                out = hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[-1]))[:, 0]
            return torch.nn.functional.normalize(out, dim=-1) if normalize else out

    return Sentence()


def _onnx_of(folder):
    for name in ("onnx/model.onnx", "model.onnx"):
        if (folder / name).is_file():
            return folder / name
    return None


def _export_pretrained(folder, path, opset):
    torch, transformers = _need("torch", "from_pretrained()"), _need("transformers", "from_pretrained()")
    mode, normalize = pooling_of(folder)
    config = read_json(folder / "config.json", {})
    architecture = (config.get("architectures") or [""])[0]
    if config.get("is_encoder_decoder") or architecture.endswith("ForCausalLM") or architecture.endswith("LMHeadModel"):
        raise Error("unsupported", f"{folder}: {architecture or 'its model'} generates text; export it with a past "
                                   "(optimum-cli export onnx --task text-generation-with-past) and compile that (docs/generate.md)")
    # What is trained on the side has a head that nobody asks for: the tokens are wanted.
    head = "For" in architecture and not architecture.endswith(("ForMaskedLM", "ForPreTraining"))
    kind = getattr(transformers, architecture, None) if mode is None and head else None
    try:
        model = (kind or transformers.AutoModel).from_pretrained(str(folder), local_files_only=True, dtype=torch.float32)
    except Exception as e:  # of transformers: missing files, unknown architectures
        raise Error("bad_file", f"{folder}: transformers does not load it: {_first_line(e)}") from e
    model.config.use_cache = False
    model.config.return_dict = False
    names = ["last_hidden_state"] if kind is None else ["start_logits", "end_logits"] if architecture.endswith("ForQuestionAnswering") else ["logits"]
    if mode is not None:
        model, names = _pooled(torch, model, mode, normalize), ["sentence_embedding"]
    parameters = inspect.signature((model.model if mode is not None else model).forward).parameters
    types = config.get("type_vocab_size", 0) > 1 and "token_type_ids" in parameters
    ids = torch.ones(2, 12, dtype=torch.int64)
    examples = {n: ids.clone() for n in ("input_ids", "attention_mask")}
    if types:
        examples["token_type_ids"] = torch.zeros(2, 12, dtype=torch.int64)
    return export(model if mode is not None else _first_outputs(torch, model, len(names)), examples, path, output_names=names, opset=opset)


def _first_outputs(torch, model, count):
    """A model of which the first outputs are wanted; parameters by name, as the exporter needs them."""
    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask, token_type_ids=None):
            out = _call(self.model, input_ids, attention_mask, token_type_ids)
            return out[0] if count == 1 else tuple(out[:count])

    return First()


def _kept(folder, options, opset):
    """Where the compiled form of a folder is kept: a name that changes with its files, the options, the GPU of the machine if no target is named, and tfcc's version."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix in (".json", ".onnx", ".data", ".bin", ".safetensors"))
    state = [(str(p.relative_to(folder)), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    options = {**options, "targets": options.get("targets") or default_target()}
    key = hashlib.sha256(repr((str(folder.resolve()), state, sorted((k, repr(v)) for k, v in options.items()), opset, version())).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tfcc" / "models"
    return cache / f"{folder.resolve().name}-{key.hexdigest()[:16]}.tfcc"


def from_pretrained(folder, output=None, *, opset=20, log=None, **options):
    """Compiles an encoder from a folder of the Hugging Face hub and loads it; returns a tfcc.Model.

    folder   on this machine: config.json with weights (needs torch, transformers and onnxscript), or with onnx/model.onnx or model.onnx,
             which is taken as it is. Where the folder names a pooling (sentence-transformers' modules.json), it is part of the model.
    output   the .tfcc file; without, one under $XDG_CACHE_HOME/tfcc/models, used again until the folder or an option changes
    options  of tfcc.compile() and tfcc.load(): targets, fp16, max_shapes, device, threads, ...

    Decoders are exported with a past by optimum; docs/generate.md goes on from there.
    """
    from tfcc._runtime import load as load_file
    folder = Path(folder)
    need_folder(folder)
    load = _split(options, "from_pretrained")
    progress = {k: options.pop(k) for k in ("progress",) if k in options}
    path = Path(output) if output is not None else _kept(folder, options, opset)
    if output is None and path.is_file():
        return load_file(path, **load)
    path.parent.mkdir(parents=True, exist_ok=True)
    if "tokenizer" not in options and (folder / "tokenizer.json").is_file():
        options["tokenizer"] = folder
    onnx = _onnx_of(folder)
    with tempfile.TemporaryDirectory(prefix="tfcc-") as temporary:
        onnx = onnx or _export_pretrained(folder, Path(temporary) / "model.onnx", opset)
        return compile(onnx, path, log=log, **progress, **options).load(**load)
