# SPDX-License-Identifier: Apache-2.0
"""The encoder of T5 as the TorchScript exporter writes it: RMS norms in nine operators, no biases, unscaled scores,
bucketed relative positions computed in the graph, gated GELU."""
import numpy as np

from bert_graph import BATCH, LENGTH, additive_mask, encoder_inputs, head_shape
from onnx_graph import Graph, tensor
from torchscript_forms import INT64_MAX, gelu_tanh


def rms_norm(g, s, x, weights, name, out=None):
    """Returns the norm and the input as the exporter's Cast to float32 leaves it: the residual starts there."""
    x = s("Cast", x, to=1)
    square = s("ReduceMean", s("Pow", x, s.const(2.0, np.float32)), axes=[-1], keepdims=1)
    deviation = s("Sqrt", s("Add", square, s.const(1e-6, np.float32)))
    y = s("Mul", x, s("Div", s.const(1.0, np.float32), deviation))
    return s("Mul", g.weight("model." + name + ".weight", weights[name + ".weight"]), y, out=out), x


def buckets(s, distance, count, farthest):
    """Bucket numbers of `distance`: half for each sign, the first half of those exact, the rest logarithmic."""
    each = count // 2
    exact = each // 2
    after = s("Mul", s("Cast", s("Greater", distance, s.const(0)), to=7), s.const(each))
    after = s("Add", after, s.const(0))
    n = s("Abs", distance)
    near = s("Less", n, s.const(exact))
    far = s("Log", s("Div", s("Cast", n, to=1), s.const(float(exact), np.float32)))
    far = s("Div", far, s.const(np.float32(np.log(farthest / exact)), np.float32))
    far = s("Mul", far, s.const(float(each - exact), np.float32))
    far = s("Add", s("Cast", far, to=7), s.const(exact))
    cap = s("ConstantOfShape", s("Shape", far), value=tensor("", np.array([each - 1])))
    return s("Add", after, s("Where", near, n, s("Min", far, cap)))


def position_bias(g, s, numbers, length, keys, mask, weights, config):
    """[1 or B, H, S, S]: the table at the bucket of j - i, plus the mask."""
    rows = s("Cast", s("Unsqueeze", numbers, s.const([1])), to=7)
    columns = s("Range", s.const(0), s("Cast", keys, to=7), s.const(1))
    distance = s("Sub", s("Unsqueeze", columns, s.const([0])), rows)
    table = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    bias = s("Gather", g.weight("model." + table, weights[table]),
             buckets(s, distance, config["buckets"], config["farthest"]))
    bias = s("Unsqueeze", s("Transpose", bias, perm=[2, 0, 1]), s.const([0]))
    start = s("Unsqueeze", s("Neg", length), s.const([0]))
    bias = s("Slice", bias, start, s.const([INT64_MAX]), s.const([2]), s.const([1]))
    end = s("Unsqueeze", keys, s.const([0]))
    mask = s("Slice", mask, s.const([0]), end, s.const([3]), s.const([1]))
    return s("Add", bias, mask)


def attention(g, s, x, bias, numbers, mask, weights, name, config):
    """`bias` is None in the first block, which computes it; later blocks add the same."""
    heads, size = config["heads"], config["size"]
    batch = s("Gather", s("Shape", x), s.const(0), axis=0)
    length = s("Gather", s("Shape", x), s.const(1), axis=0) if bias is None else None
    product = lambda part, v: s.at(part)("MatMul", v, g.matrix(weights[f"{name}.{part}.weight"]))
    q = product("q", x)
    shapes = [head_shape(g, s, batch, heads, size) for _ in range(3)]
    q = s("Transpose", s("Reshape", q, shapes[0], allowzero=0), perm=[0, 2, 1, 3])
    k = s("Reshape", product("k", x), shapes[1], allowzero=0)
    v = s("Transpose", s("Reshape", product("v", x), shapes[2], allowzero=0), perm=[0, 2, 1, 3])
    keys = s("Transpose", k, perm=[0, 2, 1, 3]) if bias is None else None
    score = s("MatMul", q, s("Transpose", k, perm=[0, 2, 3, 1]))
    if bias is None:
        keys = s("Gather", s("Shape", keys), s.const(2), axis=0)
        bias = position_bias(g, s, numbers, length, keys, mask, weights, config)
    p = s("Softmax", s("Cast", s("Add", score, bias), to=1), axis=-1)
    y = s("Transpose", s("MatMul", p, v), perm=[0, 2, 1, 3])
    sizes = [s("Unsqueeze", batch, g.anonymous("Unsqueeze", [0])), s.const([-1]), s.const([heads * size])]
    return product("o", s("Reshape", y, s("Concat", *sizes, axis=0), allowzero=0)), bias


def feed_forward(g, s, x, weights, name):
    product = lambda part, v: s.at(part)("MatMul", v, g.matrix(weights[f"{name}.{part}.weight"]))
    gate = gelu_tanh(s.at("act"), product("wi_0", x))
    return product("wo", s("Mul", gate, product("wi_1", x)))


def t5_encoder(weights, layers, config):
    g = Graph(17, producer="tests/models")
    ids, mask = encoder_inputs(g, "input_ids", "attention_mask")
    s = g.at("/model/encoder")
    length = s("Gather", s("Shape", ids), s.const(1), axis=0)
    flat = s("Concat", s.const([-1]), s("Unsqueeze", length, g.anonymous("Unsqueeze", [0])), axis=0)
    x = g.at("/model/shared")("Gather", g.weight("model.shared.weight", weights["shared.weight"]),
                              s("Reshape", ids, flat, allowzero=0))
    numbers = s("Range", s.const(0), s("Cast", length, to=7), s.const(1))
    mask = additive_mask(g, mask)
    bias = None
    for i in range(layers):
        b, name = g.at(f"/model/encoder/block.{i}"), f"encoder.block.{i}"
        y, x = rms_norm(g, b.at("layer.0/layer_norm"), x, weights, name + ".layer.0.layer_norm")
        y, bias = attention(g, b.at("layer.0/SelfAttention"), y, bias, numbers, mask, weights,
                            name + ".layer.0.SelfAttention", config)
        x = b.at("layer.0")("Add", x, y)
        y, x = rms_norm(g, b.at("layer.1/layer_norm"), x, weights, name + ".layer.1.layer_norm")
        y = feed_forward(g, b.at("layer.1/DenseReluDense"), y, weights, name + ".layer.1.DenseReluDense")
        x = b.at("layer.1")("Add", x, y)
    rms_norm(g, g.at("/model/encoder/final_layer_norm"), x, weights, "encoder.final_layer_norm", "last_hidden_state")
    g.output("last_hidden_state", np.float32, [BATCH, LENGTH, weights["shared.weight"].shape[1]])
    return g
