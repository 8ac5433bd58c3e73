# SPDX-License-Identifier: Apache-2.0
"""Encoders in the spellings of PyTorch's TorchScript exporter that tools/bert_graph.py does not have: scaled dot
product attention (opset 14 and 18), DistilBERT, SqueezeBERT, ALBERT, the T5 encoder."""
import numpy as np

from bert_graph import (BATCH, LENGTH, LOWEST, additive_mask, embeddings, encoder_inputs, gelu_erf, head_shape,
                        layer_norm, linear, merge_heads, pool)
from onnx_graph import Graph, tensor

INT64_MAX = np.iinfo(np.int64).max


# ---------------------------------------------------------------- scaled dot product attention

def decomposed_norm(g, s, x, weights, name, epsilon, out=None):
    """Before opset 17 there is no LayerNormalization."""
    def mean(v):
        if g.opset < 18:
            return s("ReduceMean", v, axes=[-1])
        return s("ReduceMean", v, s.const([-1]))
    centred = s("Sub", x, mean(x))
    variance = mean(s("Pow", centred, s.const(2.0, np.float32)))
    deviation = s("Sqrt", s("Add", variance, s.const(epsilon, np.float32)))
    y = s("Mul", s("Div", centred, deviation), g.weight("model." + name + ".weight", weights[name + ".weight"]))
    return s("Add", y, g.weight("model." + name + ".bias", weights[name + ".bias"]), out=out)


def expanded_mask(g, ids, mask):
    """[B,1,S,S], with the sizes of Expand passed through the -1 that the caller may have given."""
    s = g.at("/model")
    rows = s("Gather", s("Shape", ids), s.const(1), axis=0)
    batch = s("Gather", s("Shape", mask), s.const(0), axis=0)
    columns = s("Gather", s("Shape", mask), s.const(1), axis=0)
    m = s("Unsqueeze", s("Unsqueeze", mask, s.const([1])), s.const([2]))
    sizes = [s("Unsqueeze", batch, s.const([0])), s.const([1]), s("Unsqueeze", rows, s.const([0])),
             s("Unsqueeze", columns, s.const([0]))]
    shape = s("Reshape", s("Concat", *sizes, axis=0), s.const([-1]), allowzero=0)
    ones = s("ConstantOfShape", s("Shape", shape), value=tensor("", np.array([1])))
    unknown = s("Equal", shape, s("Mul", ones, s.const(-1)))
    m = s("Expand", m, s("Where", unknown, ones, shape))
    m = s("Cast", m, to=1)
    m = s("Sub", s.const(1.0, np.float32), m)
    hidden = s("Cast", s("Cast", m, to=9), to=9)
    return s("Where", hidden, s.const(LOWEST, np.float32), m)


def sdpa(g, s, x, mask, weights, name, heads):
    """The scale is computed from the head size at run time; its square root goes to Q and to K."""
    hidden = weights[name + ".query.bias"].shape[0]
    batch = s("Gather", s("Shape", x), s.const(0), axis=0)
    length = s("Gather", s("Shape", x), s.const(1), axis=0)
    q = linear(g, s.at("query"), x, weights, name + ".query")
    shapes = [head_shape(g, s, batch, heads, hidden // heads) for _ in range(3)]
    q = s("Transpose", s("Reshape", q, shapes[0], allowzero=0), perm=[0, 2, 1, 3])
    k = s("Reshape", linear(g, s.at("key"), x, weights, name + ".key"), shapes[1], allowzero=0)
    v = s("Reshape", linear(g, s.at("value"), x, weights, name + ".value"), shapes[2], allowzero=0)
    v = s("Transpose", v, perm=[0, 2, 1, 3])
    size = s("Cast", s("Slice", s("Shape", q), s.const([-1]), s.const([INT64_MAX])), to=1)
    scale = s("Cast", s("Div", s.const([1.0], np.float32), s("Sqrt", size)), to=1)
    k = s("Transpose", k, perm=[0, 2, 3, 1])
    q = s("Mul", q, s("Sqrt", scale))
    k = s("Mul", k, s("Sqrt", scale))
    p = s("Softmax", s("Add", s("MatMul", q, k), mask), axis=-1)
    y = s("Transpose", s("MatMul", p, v), perm=[0, 2, 1, 3])
    sizes = [s("Unsqueeze", n, g.anonymous("Unsqueeze", [0])) for n in (batch, length)]
    return s("Reshape", y, s("Concat", *sizes, s.const([hidden]), axis=0), allowzero=0)


def bert_sdpa(opset, weights, layers, heads, epsilon=1e-12, pooler=False):
    """Opset 14: every norm in its nine operators. Opset 18: as optimum exports."""
    g = Graph(opset, ir_version=7 if opset < 15 else 8, producer="tests/models")
    norm = decomposed_norm if opset < 17 else layer_norm
    ids, mask, types = encoder_inputs(g, "input_ids", "attention_mask", "token_type_ids")
    x, first = embeddings(g, weights, ids, types, epsilon, pooler, norm)
    mask = expanded_mask(g, ids, mask)
    for i in range(layers):
        s, name = g.at(f"/model/encoder/layer.{i}"), f"encoder.layer.{i}"
        a = sdpa(g, s.at("attention/self"), x, mask, weights, name + ".attention.self", heads)
        a = linear(g, s.at("attention/output/dense"), a, weights, name + ".attention.output.dense")
        a = s.at("attention/output")("Add", a, x)
        a = norm(g, s.at("attention/output/LayerNorm"), a, weights, name + ".attention.output.LayerNorm", epsilon)
        f = linear(g, s.at("intermediate/dense"), a, weights, name + ".intermediate.dense")
        f = gelu_erf(s.at("intermediate/intermediate_act_fn"), f)
        f = linear(g, s.at("output/dense"), f, weights, name + ".output.dense")
        f = s.at("output")("Add", f, a)
        x = norm(g, s.at("output/LayerNorm"), f, weights, name + ".output.LayerNorm", epsilon,
                 "last_hidden_state" if i + 1 == layers else None)
    hidden = weights["embeddings.LayerNorm.bias"].shape[0]
    g.output("last_hidden_state", np.float32, [BATCH, LENGTH, hidden])
    if pooler:
        pool(g, x, first, weights)
        g.output("pooler_output", np.float32, [BATCH, hidden])
    return g


# ---------------------------------------------------------------- DistilBERT

def distil_attention(g, s, x, mask, weights, name, heads):
    """Q is scaled before the product; masked scores are replaced, not shifted; the mask chain is in every layer."""
    hidden = weights[name + ".q_lin.bias"].shape[0]
    batch = s("Gather", s("Shape", x), s.const(0), axis=0)
    length = s("Gather", s("Shape", x), s.const(1), axis=0)
    q = linear(g, s.at("q_lin"), x, weights, name + ".q_lin")
    shapes = [head_shape(g, s, batch, heads, hidden // heads) for _ in range(3)]
    q = s("Transpose", s("Reshape", q, shapes[0], allowzero=0), perm=[0, 2, 1, 3])
    k = s("Reshape", linear(g, s.at("k_lin"), x, weights, name + ".k_lin"), shapes[1], allowzero=0)
    v = s("Reshape", linear(g, s.at("v_lin"), x, weights, name + ".v_lin"), shapes[2], allowzero=0)
    v = s("Transpose", v, perm=[0, 2, 1, 3])
    q = s("Div", q, s.const(np.float32(np.sqrt(hidden // heads)), np.float32))
    score = s("MatMul", q, s("Transpose", k, perm=[0, 2, 3, 1]))
    hide = s("Equal", mask, s.const(0))
    sizes = [s("Unsqueeze", batch, g.anonymous("Unsqueeze", [0])), s.const([1]), s.const([1]),
             s("Unsqueeze", length, g.anonymous("Unsqueeze", [0]))]
    hide = s("Reshape", hide, s("Concat", *sizes, axis=0), allowzero=0)
    hide = s("Cast", s("Expand", hide, s("Shape", score)), to=9)
    p = s("Softmax", s("Where", hide, s.const(LOWEST, np.float32), score), axis=-1)
    y = s("Transpose", s("MatMul", p, v), perm=[0, 2, 1, 3])
    sizes = [s("Unsqueeze", batch, g.anonymous("Unsqueeze", [0])), s.const([-1]), s.const([hidden])]
    return s("Reshape", y, s("Concat", *sizes, axis=0), allowzero=0)


def distilbert(weights, layers, heads, epsilon=1e-12):
    g = Graph(17, producer="tests/models")
    ids, mask = encoder_inputs(g, "input_ids", "attention_mask")
    s = g.at("/model/embeddings")
    table = weights["embeddings.position_embeddings.weight"]
    x = s.at("word_embeddings")("Gather", g.weight("model.embeddings.word_embeddings.weight",
                                                   weights["embeddings.word_embeddings.weight"]), ids)
    length = s("Gather", s("Shape", x), s.const(1), axis=0)
    numbers = g.anonymous("Slice", np.arange(len(table))[None])
    axis, start = s.const([1]), s.const([0])
    positions = s("Slice", numbers, start, s("Unsqueeze", length, s.const([0])), axis, s.const([1]))
    y = s.at("position_embeddings")("Gather", g.weight("model.embeddings.position_embeddings.weight", table), positions)
    x = layer_norm(g, s.at("LayerNorm"), s("Add", x, y), weights, "embeddings.LayerNorm", epsilon)
    for i in range(layers):
        s, name = g.at(f"/model/transformer/layer.{i}"), f"transformer.layer.{i}"
        a = distil_attention(g, s.at("attention"), x, mask, weights, name + ".attention", heads)
        a = s("Add", linear(g, s.at("attention/out_lin"), a, weights, name + ".attention.out_lin"), x)
        a = layer_norm(g, s.at("sa_layer_norm"), a, weights, name + ".sa_layer_norm", epsilon)
        f = gelu_erf(s.at("ffn/activation"), linear(g, s.at("ffn/lin1"), a, weights, name + ".ffn.lin1"))
        f = s("Add", linear(g, s.at("ffn/lin2"), f, weights, name + ".ffn.lin2"), a)
        x = layer_norm(g, s.at("output_layer_norm"), f, weights, name + ".output_layer_norm", epsilon,
                       "last_hidden_state" if i + 1 == layers else None)
    g.output("last_hidden_state", np.float32, [BATCH, LENGTH, weights["embeddings.LayerNorm.bias"].shape[0]])
    return g


# ---------------------------------------------------------------- SqueezeBERT

def squeeze_conv(g, s, x, weights, name):
    """A linear layer of groups of channels, which stand before tokens."""
    w = weights[name + ".weight"]
    return s("Conv", x, g.weight(f"model.{name}.weight", w), g.weight(f"model.{name}.bias", weights[name + ".bias"]),
             dilations=[1], group=weights.groups[name], kernel_shape=[1], pads=[0, 0], strides=[1])


def squeeze_norm(g, s, x, weights, name, epsilon):
    y = layer_norm(g, s, s("Transpose", x, perm=[0, 2, 1]), weights, name, epsilon)
    return s("Transpose", y, perm=[0, 2, 1])


def squeeze_attention(g, s, x, mask, weights, name, heads):
    hidden = weights[name + ".query.bias"].size

    def split(t):
        sizes = [s("Unsqueeze", s("Gather", s("Shape", t), s.const(k), axis=0), s.const([0])) for k in (0, 2)]
        shape = s("Concat", sizes[0], s.const([heads]), s.const([hidden // heads]), sizes[1], axis=0)
        return s("Reshape", t, shape, allowzero=0)
    q, k, v = (split(squeeze_conv(g, s.at(part), x, weights, f"{name}.{part}")) for part in ("query", "key", "value"))
    q, v = (s("Transpose", t, perm=[0, 1, 3, 2]) for t in (q, v))
    scores = s("Div", s("MatMul", q, k), s.const(np.float32(np.sqrt(hidden // heads)), np.float32))
    p = s.at("softmax")("Softmax", s("Add", scores, mask), axis=-1)
    y = s("Transpose", s("MatMul", p, v), perm=[0, 1, 3, 2])
    sizes = [s("Unsqueeze", s("Gather", s("Shape", y), s.const(k), axis=0), s.const([0])) for k in (0, 3)]
    return s("Reshape", y, s("Concat", sizes[0], s.const([hidden]), sizes[1], axis=0), allowzero=0)


def squeezebert(weights, layers, heads, epsilon=1e-12):
    """Linear layers as convolutions over one token, most of them in groups."""
    g = Graph(17, producer="tests/models")
    ids, mask, types = encoder_inputs(g, "input_ids", "attention_mask", "token_type_ids")
    x, _ = embeddings(g, weights, ids, types, epsilon, False)
    mask = additive_mask(g, mask)
    x = g.at("/model/encoder")("Transpose", x, perm=[0, 2, 1])
    for i in range(layers):
        s, name = g.at(f"/model/encoder/layers.{i}"), f"encoder.layers.{i}"
        a = squeeze_attention(g, s.at("attention"), x, mask, weights, name + ".attention", heads)
        a = s("Add", squeeze_conv(g, s.at("post_attention/conv1d"), a, weights, name + ".post_attention.conv1d"), x)
        a = squeeze_norm(g, s.at("post_attention/layernorm"), a, weights, name + ".post_attention.layernorm", epsilon)
        f = squeeze_conv(g, s.at("intermediate/conv1d"), a, weights, name + ".intermediate.conv1d")
        f = gelu_erf(s.at("intermediate/act"), f)
        f = s("Add", squeeze_conv(g, s.at("output/conv1d"), f, weights, name + ".output.conv1d"), a)
        x = squeeze_norm(g, s.at("output/layernorm"), f, weights, name + ".output.layernorm", epsilon)
    g.at("/model/encoder")("Transpose", x, perm=[0, 2, 1], out="last_hidden_state")
    g.output("last_hidden_state", np.float32, [BATCH, LENGTH, weights["embeddings.LayerNorm.bias"].size])
    return g


# ---------------------------------------------------------------- ALBERT

def gelu_tanh(s, x):
    half = s("Mul", x, s.const(0.5, np.float32))
    cube = s("Mul", s("Pow", x, s.const(3.0, np.float32)), s.const(np.float32(0.044715), np.float32))
    inner = s("Mul", s("Add", x, cube), s.const(np.float32(np.sqrt(2 / np.pi)), np.float32))
    return s("Mul", half, s("Add", s("Tanh", inner), s.const(1.0, np.float32)))


ALBERT_MATRICES = ("attention.query", "attention.key", "attention.value", "attention.dense", "ffn", "ffn_output")


def albert_layer(g, i, x, mask, weights, name, matrices, heads, epsilon, out):
    """One pass through the shared layer; `matrices` are the names under which this pass sees the weights."""
    s = g.at(f"/model/encoder/albert_layers.0" + (f"_{i}" if i else ""))
    hidden = weights[name + ".ffn_output.bias"].shape[0]

    def dense(part, v):
        scope = s.at(part.replace(".", "/"))
        bias = g.weight(f"model.{name}.{part}.bias", weights[f"{name}.{part}.bias"])
        return scope("Add", bias, scope("MatMul", v, matrices[part]))

    a = s.at("attention")
    batch = a("Gather", a("Shape", x), a.const(0), axis=0)
    q, k, v = (dense("attention." + part, x) for part in ("query", "key", "value"))
    q, k, v = (a("Reshape", t, head_shape(g, a, batch, heads, hidden // heads), allowzero=0) for t in (q, k, v))
    q, v, k = (a("Transpose", t, perm=p) for t, p in ((q, [0, 2, 1, 3]), (v, [0, 2, 1, 3]), (k, [0, 2, 3, 1])))
    score = a("Div", a("MatMul", q, k), a.const(np.float32(np.sqrt(hidden // heads)), np.float32))
    p = a("Softmax", a("Add", score, mask), axis=-1)
    y = a("Transpose", a("MatMul", p, v), perm=[0, 2, 1, 3])
    sizes = a("Slice", a("Shape", y), a.const([0]), a.const([2]), a.const([0]))
    y = a("Reshape", y, a("Concat", sizes, a.const([-1]), axis=0), allowzero=0)
    y = a("Add", x, dense("attention.dense", y))
    y = layer_norm(g, a.at("LayerNorm"), y, weights, name + ".attention.LayerNorm", epsilon)
    f = dense("ffn_output", gelu_tanh(s.at("activation"), dense("ffn", y)))
    return layer_norm(g, s.at("full_layer_layer_norm"), s("Add", f, y), weights, name + ".full_layer_layer_norm",
                      epsilon, out)


def albert(weights, passes, heads, epsilon=1e-12):
    """One layer run `passes` times; later passes reach its matrices through Identity nodes at the top."""
    g = Graph(17, producer="tests/models")
    name = "encoder.albert_layer_groups.0.albert_layers.0"
    ids, mask, types = encoder_inputs(g, "input_ids", "attention_mask", "token_type_ids")
    first = {part: g.matrix(weights[f"{name}.{part}.weight"]) for part in ALBERT_MATRICES}
    seen = [first] + [{part: g.node("Identity", f"Identity_{k}_{part}", [first[part]], f"onnx::MatMul_{k}_{part}")
                       for part in reversed(ALBERT_MATRICES)} for k in range(1, passes)]
    x, _ = embeddings(g, weights, ids, types, epsilon, False)
    mask = additive_mask(g, mask)
    x = linear(g, g.at("/model/encoder/embedding_hidden_mapping_in"), x, weights, "encoder.embedding_hidden_mapping_in")
    for i in range(passes):
        x = albert_layer(g, i, x, mask, weights, name, seen[i], heads, epsilon,
                         "last_hidden_state" if i + 1 == passes else None)
    g.output("last_hidden_state", np.float32, [BATCH, LENGTH, weights[name + ".ffn_output.bias"].shape[0]])
    return g
