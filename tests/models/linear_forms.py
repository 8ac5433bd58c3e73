# SPDX-License-Identifier: Apache-2.0
"""Decoders without a softmax, as modules that keep no state are exported: elu(x) + 1 with a running sum over the tokens and a
normaliser (fast-transformers), a constant decay for each head under a triangle (RetNet), and a decay for each token by differences of a
running sum (gated linear attention). Keys of padding are multiplied by 0."""
import numpy as np

from bert_graph import BATCH, LENGTH, encoder_inputs, head_shape
from decoder_forms import causal_padding_mask, embed, gated_silu, llama_attention, logits, rotary_tables, size
from onnx_graph import Graph
from t5_form import rms_norm


def projections(g, s, x, weights, name, config):
    """q, k and v [B,S,heads,size]."""
    batch = size(s, x, 0)
    return [s("Reshape", s.at(part)("MatMul", x, g.matrix(weights[f"{name}.{part}.weight"])),
              head_shape(g, s, batch, config["heads"], config["size"]), allowzero=0) for part in ("q_proj", "k_proj", "v_proj")]


def back(g, s, y, weights, name, config):
    """y [B,S,heads,size] through the last product."""
    y = s("Reshape", y, s.const([0, -1, config["heads"] * config["size"]]), allowzero=0)
    return s.at("o_proj")("MatMul", y, g.matrix(weights[name + ".o_proj.weight"]))


def of_keys(s, k, mask):
    place = s("Cast", s("Unsqueeze", s("Unsqueeze", mask, s.const([2])), s.const([3])), to=1)
    return s("Mul", k, place)


def features(s, x):
    return s("Add", s("Elu", x, alpha=1.0), s.const(1.0, np.float32))


def by_running_sum(g, s, x, mask, weights, name, config):
    q, k, v = projections(g, s, x, weights, name, config)
    q, k = features(s, q), of_keys(s, features(s, k), mask)
    products = s("Mul", s("Unsqueeze", k, s.const([4])), s("Unsqueeze", v, s.const([3])))
    state = s("CumSum", products, s.const(1))
    y = s("Squeeze", s("MatMul", s("Unsqueeze", q, s.const([3])), state), s.const([3]))
    z = s("ReduceSum", s("Mul", q, s("CumSum", k, s.const(1))), s.const([-1]), keepdims=1)
    y = s("Div", y, s("Add", z, s.const(np.float32(1e-6), np.float32)))
    return back(g, s, y, weights, name, config)


def under_triangle(g, s, q, k, v, faded):
    """[B,S,heads,size]; `faded` [.,heads,S,S] multiplies the products of queries and keys."""
    q, k, v = (s("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, k, v))
    w = s("Mul", s("MatMul", q, s("Transpose", k, perm=[0, 1, 3, 2])), faded)
    return s("Transpose", s("MatMul", w, v), perm=[0, 2, 1, 3])


def distances(s, x):
    """Query minus key as f32 [S,S], and where it is not negative."""
    rows = s("Cast", s("Range", s.const(0), size(s, x, 1), s.const(1)), to=1)
    d = s("Sub", s("Unsqueeze", rows, s.const([1])), s("Unsqueeze", rows, s.const([0])))
    return d, s("Not", s("Less", d, s.const(0.0, np.float32)))


def by_head(g, s, x, mask, weights, name, config):
    q, k, v = projections(g, s, x, weights, name, config)
    rates = np.log(1 - 2.0 ** (-3 - np.arange(config["heads"]))).astype(np.float32).reshape(-1, 1, 1)
    distance, seen = distances(s, x)
    faded = s("Where", seen, s("Exp", s("Mul", distance, s.const(rates, np.float32))), s.const(0.0, np.float32))
    return back(g, s, under_triangle(g, s, q, of_keys(s, k, mask), v, faded), weights, name, config)


def by_token(g, s, x, mask, weights, name, config):
    q, k, v = projections(g, s, x, weights, name, config)
    gate = s.at("gate_proj")("MatMul", x, g.matrix(weights[f"{name}.gate_proj.weight"]))
    decay = s("Div", s("Log", s("Sigmoid", gate)), s.const(4.0, np.float32))
    sums = s("CumSum", s("Transpose", decay, perm=[0, 2, 1]), s.const(2))
    grown = s("Sub", s("Unsqueeze", sums, s.const([3])), s("Unsqueeze", sums, s.const([2])))
    _, seen = distances(s, x)
    faded = s("Exp", s("Where", seen, grown, s.const(-np.inf, np.float32)))
    return back(g, s, under_triangle(g, s, q, of_keys(s, k, mask), v, faded), weights, name, config)


def decoder(weights, layers, config):
    """`layers`: of each "sum", "head", "token" or "softmax"."""
    g = Graph(17, producer="tests/models")
    ids, mask = encoder_inputs(g, "input_ids", "attention_mask")
    s = g.at("/model")
    rows = s("Range", s.const(0), size(s, ids, 1), s.const(1))
    forms = {"sum": by_running_sum, "head": by_head, "token": by_token}
    x = embed(g, ids, weights, "embed_tokens.weight")
    for i, kind in enumerate(layers):
        b, name = g.at(f"/model/layers.{i}"), f"layers.{i}"
        y, x = rms_norm(g, b.at("input_layernorm"), x, weights, name + ".input_layernorm")
        at, part = b.at("self_attn"), name + ".self_attn"
        if kind == "softmax":
            tables = rotary_tables(g.at("/model/rotary_emb"), rows, config["size"])
            y = llama_attention(g, at, y, causal_padding_mask(s, rows, mask), tables, weights, part, config)
        else:
            y = forms[kind](g, at, y, mask, weights, part, config)
        x = b("Add", x, y)
        y, x = rms_norm(g, b.at("post_attention_layernorm"), x, weights, name + ".post_attention_layernorm")
        x = b("Add", x, gated_silu(g, b.at("mlp"), y, weights, name + ".mlp"))
    y, _ = rms_norm(g, g.at("/model/norm"), x, weights, "norm")
    g.later_outputs = []
    return logits(g, y, weights)
