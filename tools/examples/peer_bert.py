# SPDX-License-Identifier: Apache-2.0
"""A BERT encoder in torch with the weights of its .onnx: the peer of `tfcc bench`.

    tfcc bench bert.tfcc --shapes input_ids:8x128 --peer torch --peer-model tools/examples/peer_bert.py

bench calls load(context) once. The context has inputs (tensors by name, on the device), device, dtype (of the .tfcc's
arithmetic), threads and model (the .onnx, or None). What load returns is called with the inputs by name and gives one
tensor, a tuple, or a mapping by output name; bench compiles it by torch.compile (`--peer-mode eager`: not) and times it.

This one reads exports whose biases kept their names, whatever became of the names of matrices. Needs torch, onnx, numpy.
"""
import math
import re

import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper

PARTS = [  # what a bias is called, and what it belongs to; the first that fits
    (r"query\.bias", "query"), (r"key\.bias", "key"), (r"value\.bias", "value"),
    (r"attention\.output\.dense\.bias|layer\.\d+\.output\.bias", "out"),
    (r"intermediate\.dense\.bias|up\.bias", "up"), (r"output\.dense\.bias|down\.bias", "down"),
    (r"attention\.(output\.LayerNorm|norm)\.bias", "norm1"), (r"output\.(LayerNorm|norm)\.bias", "norm2"),
]


def constants(graph):
    """Initializers and Constant nodes as arrays by name."""
    found = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def parts(graph, arrays):
    """(matrix or scale, bias) by ("query", layer), ("norm1", layer), ("norm", None); and the size of a head."""
    made_by = {o: n for n in graph.node for o in n.output}
    found, head, epsilon = {}, None, 1e-12
    for node in graph.node:
        if node.op_type == "LayerNormalization":
            pair = node.input[1], node.input[2]
            epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
        elif node.op_type == "Add":
            bias = next((i for i in node.input if i in arrays and arrays[i].ndim == 1), None)
            product = next((made_by[i] for i in node.input if i in made_by), None)
            if bias is None or product is None or product.op_type != "MatMul":
                continue
            pair = product.input[1], bias
        else:
            if node.op_type == "Div" and node.input[1] in arrays and arrays[node.input[1]].size == 1:
                square = float(arrays[node.input[1]]) ** 2      # scores are divided by the root of the head's size
                if square > 2.5:
                    head = round(square)
            continue
        layer = re.search(r"layer\.(\d+)\.", pair[1])
        part = next((p for pattern, p in PARTS if re.search(pattern, pair[1])), None) if layer else "norm"
        found[part, int(layer[1]) if layer else None] = arrays[pair[0]], arrays[pair[1]]
    return found, head, epsilon


class Layer(torch.nn.Module):
    def __init__(self, found, layer, head, epsilon):
        super().__init__()
        self.head, self.epsilon = head, epsilon
        for part in ("query", "key", "value", "out", "up", "down", "norm1", "norm2"):
            weight, bias = (torch.from_numpy(a.copy()) for a in found[part, layer])
            self.register_buffer(part, weight.T.contiguous() if weight.ndim == 2 else weight)
            self.register_buffer(part + "_bias", bias)

    def linear(self, part, x):
        return F.linear(x, getattr(self, part), getattr(self, part + "_bias"))

    def norm(self, part, x):
        return F.layer_norm(x, x.shape[-1:], getattr(self, part), getattr(self, part + "_bias"), self.epsilon)

    def forward(self, x, mask):
        heads = (self.linear(p, x).unflatten(-1, (-1, self.head)).transpose(1, 2) for p in ("query", "key", "value"))
        context = F.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(1, 2).flatten(2)
        x = self.norm("norm1", self.linear("out", context) + x)
        return self.norm("norm2", self.linear("down", F.gelu(self.linear("up", x))) + x)


class Bert(torch.nn.Module):
    def __init__(self, path):
        super().__init__()
        graph = onnx.load(path).graph
        arrays = constants(graph)
        found, head, epsilon = parts(graph, arrays)
        layers = sorted({layer for _, layer in found if layer is not None})
        tables = {k: next(n for n in arrays if re.search(p, n)) for k, p in
                  (("word", r"^word$|word_embeddings"), ("types", r"^type$|token_type_emb"), ("position", r"^position$|position_emb"))}
        for name, key in tables.items():
            self.register_buffer(name, torch.from_numpy(arrays[key].copy()))
        for name, array in zip(("scale", "shift"), found["norm", None]):
            self.register_buffer(name, torch.from_numpy(array.copy()))
        self.epsilon = epsilon
        self.layers = torch.nn.ModuleList(Layer(found, n, head, epsilon) for n in layers)

    def forward(self, input_ids, attention_mask, token_type_ids):
        x = self.word[input_ids] + self.types[token_type_ids] + self.position[:input_ids.shape[1]]
        x = F.layer_norm(x, x.shape[-1:], self.scale, self.shift, self.epsilon)
        mask = torch.zeros_like(attention_mask, dtype=x.dtype).masked_fill(attention_mask == 0, -math.inf)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return {"last_hidden_state": x}


def load(context):
    if context.model is None:
        raise ValueError("put the .onnx beside the .tfcc, under the same name")
    return Bert(context.model).to(context.device, context.dtype).eval()
