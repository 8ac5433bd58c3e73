# SPDX-License-Identifier: Apache-2.0
"""Encoders in the spellings of torch.onnx.export(dynamo=True): flat names, constants as initializers, K transposed
through rank 3, the standard operators Attention and Gelu where the opset has them."""
import numpy as np

from bert_graph import BATCH, LENGTH, LOWEST, encoder_inputs
from onnx_graph import Graph

INT64 = np.iinfo(np.int64)


class Dynamo:
    """A graph whose nodes are called node_Op_N and whose values are called val_N."""

    def __init__(self, opset, weights):
        self.graph = Graph(opset, ir_version=10, producer="tests/models")
        self.weights = weights
        self.constants = {}

    def __call__(self, op, *inputs, out=None, **attributes):
        k = len(self.graph.nodes)
        return self.graph.node(op, f"node_{op}_{k}", inputs, out or f"val_{k}", **attributes)

    def const(self, value, dtype=np.int64):
        """Equal constants are one initializer."""
        a = np.asarray(value, dtype)
        key = (a.dtype.str, a.shape, a.tobytes())
        if key not in self.constants:
            self.constants[key] = self.graph.weight(f"const_{len(self.constants)}", a)
        return self.constants[key]

    def weight(self, name):
        return self.graph.weight("body.model." + name, self.weights[name])

    def linear(self, x, name):
        matrix = self.graph.weight("body.model." + name + ".weight.T", self.weights[name + ".weight"].T)
        return self("Add", self("MatMul", x, matrix), self.weight(name + ".bias"))

    def norm(self, x, name, epsilon, out=None):
        return self("LayerNormalization", x, self.weight(name + ".weight"), self.weight(name + ".bias"), out=out,
                    stash_type=1, epsilon=epsilon, axis=-1)


def gelu(d, x):
    if d.graph.opset >= 20:
        return d("Gelu", x, approximate="none")
    half = d.const(0.5, np.float32)
    y = d("Erf", d("Div", x, d.const(np.float32(np.sqrt(2)), np.float32)))
    return d("Mul", x, d("Mul", half, d("Add", y, d.const(1.0, np.float32))))


def expanded_mask(d, mask, batch, length):
    m = d("Unsqueeze", mask, d.const([1, 2]))
    m = d("Expand", m, d("Concat", batch, d.const([1]), length, length, axis=0))
    m = d("Cast", m, to=1)
    m = d("Sub", d.const(1.0, np.float32), m)
    return d("Where", d("Cast", m, to=9), d.const(LOWEST, np.float32), m)


def keys_transposed(d, k):
    """[B,H,S,D] to [B,H,D,S] by way of [B*H,S,D], all sizes taken from the shape of K."""
    shape = d("Shape", k, start=0)
    size = d("Slice", shape, d.const([-1]), d.const([INT64.max]))
    length = d("Slice", shape, d.const([-2]), d.const([-1]))
    outer = d("Slice", shape, d.const([INT64.min]), d.const([-2]))
    k = d("Reshape", k, d("Concat", d.const([-1]), length, size, axis=0), allowzero=0)
    k = d("Transpose", k, perm=[0, 2, 1])
    return d("Reshape", k, d("Concat", outer, size, length, axis=0), allowzero=0)


def attention(d, x, mask, name, heads, split, merge):
    q, k, v = (d("Transpose", d("Reshape", d.linear(x, f"{name}.{part}"), split(), allowzero=1), perm=[0, 2, 1, 3])
               for part in ("query", "key", "value"))
    if d.graph.opset >= 23:
        y = d("Attention", q, k, v, mask, qk_matmul_output_mode=0, softcap=0.0, is_causal=0)
    else:
        size = d.weights[name + ".query.bias"].shape[0] // heads
        k = keys_transposed(d, k)
        root = d.const([np.float32(size ** -0.25)], np.float32)
        score = d("MatMul", d("Mul", q, root), d("Mul", k, root))
        y = d("MatMul", d("Softmax", d("Add", score, mask), axis=-1), v)
    return d("Reshape", d("Transpose", y, perm=[0, 2, 1, 3]), merge(), allowzero=1)


def once(make):
    """The node is made at its first use and shared afterwards."""
    made = []
    return lambda: made[0] if made else made.append(make()) or made[0]


def encoder(d, x, mask, batch, length, layers, heads, epsilon):
    hidden = d.weights["embeddings.LayerNorm.bias"].shape[0]
    split = once(lambda: d("Concat", batch, d.const([-1]), d.const([heads]), d.const([hidden // heads]), axis=0))
    merge = once(lambda: d("Concat", batch, length, d.const([hidden]), axis=0))
    for i in range(layers):
        name = f"encoder.layer.{i}"
        a = attention(d, x, mask, name + ".attention.self", heads, split, merge)
        a = d("Add", d.linear(a, name + ".attention.output.dense"), x)
        a = d.norm(a, name + ".attention.output.LayerNorm", epsilon)
        f = d.linear(gelu(d, d.linear(a, name + ".intermediate.dense")), name + ".output.dense")
        x = d.norm(d("Add", f, a), name + ".output.LayerNorm", epsilon,
                   "last_hidden_state" if i + 1 == layers else None)
    d.graph.output("last_hidden_state", np.float32, [BATCH, LENGTH, hidden])
    return x


def pool(d, x, hidden):
    y = d("Gather", x, d.const(0), axis=1)
    y = d("Gemm", y, d.weight("pooler.dense.weight"), d.weight("pooler.dense.bias"), alpha=1.0, beta=1.0, transA=0,
          transB=1)
    d("Tanh", y, out="pooler_output")
    d.graph.output("pooler_output", np.float32, [BATCH, hidden])


def bert(opset, weights, layers, heads, epsilon=1e-12, pooler=False):
    """Opset 18: attention in parts. Opset 23: the operators Attention and Gelu. All sizes come from token_type_ids."""
    d = Dynamo(opset, weights)
    ids, mask, types = encoder_inputs(d.graph, "input_ids", "attention_mask", "token_type_ids")
    rows = weights["embeddings.position_embeddings.weight"].shape[0]
    numbers = d.graph.weight("body.model.embeddings.position_ids", np.arange(rows)[None])
    batch = d("Shape", types, start=0, end=1)
    length = d("Shape", types, start=1, end=2)
    positions = d("Slice", numbers, d.const([0]), length, d.const([1]), d.const([1]))
    x = d("Gather", d.weight("embeddings.word_embeddings.weight"), ids, axis=0)
    x = d("Add", x, d("Gather", d.weight("embeddings.token_type_embeddings.weight"), types, axis=0))
    x = d("Add", x, d("Gather", d.weight("embeddings.position_embeddings.weight"), positions, axis=0))
    x = d.norm(x, "embeddings.LayerNorm", epsilon)
    mask = expanded_mask(d, mask, batch, length)
    x = encoder(d, x, mask, batch, length, layers, heads, epsilon)
    if pooler:
        pool(d, x, weights["pooler.dense.bias"].shape[0])
    return d.graph


def roberta(opset, weights, layers, heads, epsilon=1e-12, padding=1):
    """Positions count the ids that are not padding: cumsum(ids != 1) * (ids != 1) + 1."""
    d = Dynamo(opset, weights)
    ids, mask = encoder_inputs(d.graph, "input_ids", "attention_mask")
    rows = weights["embeddings.position_embeddings.weight"].shape[0]
    types = d.graph.weight("body.model.embeddings.token_type_ids", np.zeros((1, rows), np.int64))
    batch = d("Shape", mask, start=0, end=1)
    length = d("Shape", mask, start=1, end=2)
    types = d("Slice", types, d.const([0]), length, d.const([1]), d.const([1]))
    types = d("Expand", types, d("Concat", batch, length, axis=0))
    real = d("Cast", d("Not", d("Equal", ids, d.const(padding))), to=6)
    count = d("CumSum", d("Cast", real, to=7), d.const(1), reverse=0, exclusive=0)
    count = d("Mul", d("Cast", count, to=6), real)
    positions = d("Add", d("Cast", count, to=7), d.const(padding))
    x = d("Gather", d.weight("embeddings.word_embeddings.weight"), ids, axis=0)
    x = d("Add", x, d("Gather", d.weight("embeddings.token_type_embeddings.weight"), types, axis=0))
    x = d("Add", x, d("Gather", d.weight("embeddings.position_embeddings.weight"), positions, axis=0))
    x = d.norm(x, "embeddings.LayerNorm", epsilon)
    mask = expanded_mask(d, mask, batch, length)
    encoder(d, x, mask, batch, length, layers, heads, epsilon)
    return d.graph
