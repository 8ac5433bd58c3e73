# SPDX-License-Identifier: Apache-2.0
"""BERT as PyTorch's TorchScript exporter writes it at opset 17 with eager attention: the operators, their order, and
the shape arithmetic (Shape > Gather > Unsqueeze > Concat > Reshape) that comes along. Needs numpy and onnx."""
import numpy as np

from onnx_graph import Graph

BATCH, LENGTH = "batch_size", "sequence_length"
LOWEST = float(np.finfo(np.float32).min)


def encoder_inputs(g, *names):
    return [g.input(name, np.int64, [BATCH, LENGTH]) for name in names]


def linear(g, scope, x, weights, name):
    """x W^T + b; the exporter puts the bias first."""
    y = scope("MatMul", x, g.matrix(weights[name + ".weight"]))
    return scope("Add", g.weight("model." + name + ".bias", weights[name + ".bias"]), y)


def layer_norm(g, scope, x, weights, name, epsilon, out=None):
    return scope("LayerNormalization", x, g.weight("model." + name + ".weight", weights[name + ".weight"]),
                 g.weight("model." + name + ".bias", weights[name + ".bias"]), out=out, axis=-1, epsilon=epsilon)


def gelu_erf(scope, x, dtype=np.float32):
    y = scope("Div", x, scope.const(np.float32(np.sqrt(2)), dtype))
    y = scope("Erf", y)
    y = scope("Add", y, scope.const(1.0, dtype))
    y = scope("Mul", x, y)
    return scope("Mul", y, scope.const(0.5, dtype))


def embeddings(g, weights, ids, types, epsilon, pooler, norm=layer_norm):
    """Word, type and position embeddings and their norm. Returns the sum normalised, and a constant that the pooler
    shares with the position ids: the exporter merges equal constants."""
    s = g.at("/model/embeddings")

    def table(kind):
        name = f"embeddings.{kind}_embeddings.weight"
        return g.weight("model." + name, weights[name])

    length = s("Gather", s("Shape", ids), s.const(1), axis=0)
    positions = g.anonymous("Slice", np.arange(len(weights["embeddings.position_embeddings.weight"]))[None])
    first = s.const(0) if pooler else None
    step, start = s.const([1]), s.const([0])
    end = s("Unsqueeze", length, s.const([0]))
    positions = s("Slice", positions, start, end, step, s.const([1]))
    x = s.at("word_embeddings")("Gather", table("word"), ids)
    y = s.at("token_type_embeddings")("Gather", table("token_type"), types)
    x = s("Add", x, y)
    y = s.at("position_embeddings")("Gather", table("position"), positions)
    x = s("Add", x, y)
    return norm(g, s.at("LayerNorm"), x, weights, "embeddings.LayerNorm", epsilon), first


def additive_mask(g, mask, dtype=np.float32, lowest=LOWEST):
    """(1 - mask) * lowest, as [B,1,1,S]."""
    s = g.at("/model")
    m = s("Unsqueeze", mask, s.const([1]))
    m = s("Unsqueeze", m, s.const([2]))
    m = s("Cast", m, to=10 if dtype == np.float16 else 1)
    m = s("Sub", s.const(1.0, dtype), m)
    return s("Mul", m, s.const(lowest, dtype))


def head_shape(g, scope, batch, heads, size):
    """[B, -1, heads, size], built anew for each of Q, K and V."""
    b = scope("Unsqueeze", batch, g.anonymous("Unsqueeze", [0]))
    return scope("Concat", b, scope.const([-1]), scope.const([heads]), scope.const([size]), axis=0)


def merge_heads(g, scope, x, hidden):
    """[B,H,S,D] to [B,S,H*D], both sizes read off the transposed tensor."""
    x = scope("Transpose", x, perm=[0, 2, 1, 3])
    b = scope("Gather", scope("Shape", x), scope.const(0), axis=0)
    n = scope("Gather", scope("Shape", x), scope.const(1), axis=0)
    b = scope("Unsqueeze", b, g.anonymous("Unsqueeze", [0]))
    n = scope("Unsqueeze", n, g.anonymous("Unsqueeze", [0]))
    return scope("Reshape", x, scope("Concat", b, n, scope.const([hidden]), axis=0), allowzero=0)


def self_attention(g, scope, x, mask, weights, name, heads, dtype):
    hidden = weights[name + ".query.bias"].shape[0]
    size = hidden // heads
    batch = scope("Gather", scope("Shape", x), scope.const(0), axis=0)
    q = linear(g, scope.at("query"), x, weights, name + ".query")
    shapes = [head_shape(g, scope, batch, heads, size) for _ in range(3)]
    q = scope("Reshape", q, shapes[0], allowzero=0)
    q = scope("Transpose", q, perm=[0, 2, 1, 3])
    k = scope("Reshape", linear(g, scope.at("key"), x, weights, name + ".key"), shapes[1], allowzero=0)
    v = scope("Reshape", linear(g, scope.at("value"), x, weights, name + ".value"), shapes[2], allowzero=0)
    v = scope("Transpose", v, perm=[0, 2, 1, 3])
    k = scope("Transpose", k, perm=[0, 2, 3, 1])
    score = scope("MatMul", q, k)
    score = scope("Div", score, scope.const(np.float32(np.sqrt(size)), dtype))
    score = scope("Add", score, mask)
    p = scope("Softmax", score, axis=-1)
    return merge_heads(g, scope, scope("MatMul", p, v), hidden)


def layer(g, x, mask, weights, i, heads, epsilon, dtype, out=None):
    s, name = g.at(f"/model/encoder/layer.{i}"), f"encoder.layer.{i}"
    a = self_attention(g, s.at("attention/self"), x, mask, weights, name + ".attention.self", heads, dtype)
    a = linear(g, s.at("attention/output/dense"), a, weights, name + ".attention.output.dense")
    a = s.at("attention/output")("Add", a, x)
    a = layer_norm(g, s.at("attention/output/LayerNorm"), a, weights, name + ".attention.output.LayerNorm", epsilon)
    f = linear(g, s.at("intermediate/dense"), a, weights, name + ".intermediate.dense")
    f = gelu_erf(s.at("intermediate/intermediate_act_fn"), f, dtype)
    f = linear(g, s.at("output/dense"), f, weights, name + ".output.dense")
    f = s.at("output")("Add", f, a)
    return layer_norm(g, s.at("output/LayerNorm"), f, weights, name + ".output.LayerNorm", epsilon, out)


def pool(g, x, first, weights, out="pooler_output"):
    """tanh of a Linear on token 0."""
    s = g.at("/model/pooler")
    y = s("Gather", x, first, axis=1)
    y = s.at("dense")("Gemm", y, g.weight("model.pooler.dense.weight", weights["pooler.dense.weight"]),
                      g.weight("model.pooler.dense.bias", weights["pooler.dense.bias"]), alpha=1.0, beta=1.0, transB=1)
    return s.at("activation")("Tanh", y, out=out)


def bert(weights, layers, heads, epsilon=1e-12, pooler=False, dtype=np.float32, lowest=LOWEST, producer="tfcc"):
    """The graph of BertModel: weights by their Hugging Face names. With float16 weights and dtype the inner graph is
    float16 and last_hidden_state is cast to float32 at the end."""
    g = Graph(17, producer=producer)
    ids, mask, types = encoder_inputs(g, "input_ids", "attention_mask", "token_type_ids")
    x, first = embeddings(g, weights, ids, types, epsilon, pooler)
    hidden = weights["embeddings.LayerNorm.bias"].shape[0]
    mask = additive_mask(g, mask, dtype, lowest)
    half = dtype == np.float16
    for i in range(layers):
        last = i + 1 == layers and not half
        x = layer(g, x, mask, weights, i, heads, epsilon, dtype, "last_hidden_state" if last else None)
    if half:
        x = g.node("Cast", "graph_output_cast0", [x], "last_hidden_state", to=1)
    g.output("last_hidden_state", np.float32, [BATCH, LENGTH, hidden])
    if pooler:
        pool(g, x, first, weights)
        g.output("pooler_output", np.float32, [BATCH, hidden])
    return g
