# SPDX-License-Identifier: Apache-2.0
"""Compiles transformers ahead of time and runs them.

    import tfcc
    tfcc.compile("model.onnx", "model.tfcc", targets="cpu,sm_90", fp16=True)
    model = tfcc.load("model.tfcc")                      # immutable, may be shared between threads
    out = model.run({"input_ids": ids, "attention_mask": mask})
    out["last_hidden_state"]                             # a numpy array; a torch tensor if the inputs are torch tensors

    encoder = tfcc.SentenceEncoder("all-MiniLM-L6-v2")   # a folder of sentence-transformers: encoder.encode(["A sentence."])
    model = tfcc.from_pretrained("bert-base-uncased")    # a folder of the Hugging Face hub
    model = tfcc.from_torch(module, {"x": example})      # a torch module

    assert tfcc.verify("model.onnx", "model.tfcc")       # against float64; what it found is an object, a table in a notebook
    tfcc.inspect("model.tfcc").plans                     # what the file holds

    generator = tfcc.load("llama.tfcc").generator()      # a decoder: answers many prompts at once
    for token in generator.stream([1, 2, 3]): ...

Inputs are numpy arrays or anything with `__dlpack__` (torch, cupy, jax): dense memory of the right type is read in
place, on the CPU and on the GPU. Every failure is a `tfcc.Error` whose text names the thing, the place and the way out.
Needs numpy and tfcc's shared library.
"""
from tfcc._command import Inspected, Verified, inspect, verify
from tfcc._compiler import Compiled, compile
from tfcc._export import from_pretrained, from_torch
from tfcc._generator import Generated, Generator
from tfcc._library import Error, library_path, version
from tfcc._runtime import Dim, Executor, Model, TensorInfo, load
from tfcc._sentences import SentenceEncoder

__all__ = ["Compiled", "Dim", "Error", "Executor", "Generated", "Generator", "Inspected", "Model", "SentenceEncoder", "TensorInfo",
           "Verified", "compile", "from_pretrained", "from_torch", "inspect", "library_path", "load", "verify", "version"]
__version__ = "0.1.0"
