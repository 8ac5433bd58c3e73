# SPDX-License-Identifier: Apache-2.0
"""Decoders in the spellings of PyTorch's TorchScript exporter: LLaMA (rotary embedding, key heads repeated, RMS norm, gated SiLU)
and GPT-2 (a constant triangle sliced to the length, one product for q, k and v). Without a cache, and as optimum writes them: keys
and values of the past in, those of past and new tokens out."""
import numpy as np

from bert_graph import BATCH, LENGTH, LOWEST, additive_mask, encoder_inputs, head_shape, layer_norm
from onnx_graph import Graph
from t5_form import rms_norm
from torchscript_forms import INT64_MAX, gelu_tanh


def size(s, x, axis):
    return s("Gather", s("Shape", x), s.const(axis), axis=0)


def embed(g, ids, weights, name):
    return g.at("/model/embed")("Gather", g.weight("model." + name, weights[name]), ids)


PAST, TOTAL = "past_sequence_length", "past_sequence_length + sequence_length"


def with_past(g, s, layer, k, v, heads, head):
    """k and v [B,heads,S,head] behind those of the past; they leave as present."""
    out = []
    for name, x in (("key", k), ("value", v)):
        past = g.input(f"past_key_values.{layer}.{name}", np.float32, [BATCH, heads, PAST, head])
        out.append(s("Concat", past, x, axis=2, out=f"present.{layer}.{name}"))
        g.later_outputs.append((out[-1], np.float32, [BATCH, heads, TOTAL, head]))
    return out


def past_inputs(g):
    g.later_outputs = []
    ids = g.input("input_ids", np.int64, [BATCH, LENGTH])
    return ids, g.input("attention_mask", np.int64, [BATCH, TOTAL]), g.input("position_ids", np.int64, [BATCH, LENGTH])


def logits(g, x, weights):
    """The last product, and all outputs."""
    weight = weights["lm_head.weight"]
    g.at("/lm_head")("MatMul", x, g.matrix(weight), out="logits")
    g.output("logits", np.float32, [BATCH, LENGTH, weight.shape[0]])
    for name, dtype, dims in g.later_outputs:
        g.output(name, dtype, dims)
    return g


# ---------------------------------------------------------------- LLaMA

def causal_padding_mask(s, rows, mask):
    """[B,1,S,S]: 0 where key <= query and the key is a token, else the lowest float."""
    causal = s("LessOrEqual", s("Unsqueeze", rows, s.const([0])), s("Unsqueeze", rows, s.const([1])))
    causal = s("Unsqueeze", s("Unsqueeze", causal, s.const([0])), s.const([1]))
    padding = s("Cast", s("Unsqueeze", s("Unsqueeze", mask, s.const([1])), s.const([2])), to=9)
    return s("Where", s("And", causal, padding), s.const(0.0, np.float32), s.const(LOWEST, np.float32))


def rotary_tables(s, rows, head):
    """cos and sin [1,1,S,head]: one angle for each pair, written twice."""
    inverse = (1 / 100 ** (np.arange(head // 2) * 2 / head)).astype(np.float32)
    place = s("Cast", s("Unsqueeze", s("Unsqueeze", rows, s.const([0])), s.const([1])), to=1)
    angle = s("Transpose", s("MatMul", s.const(inverse.reshape(1, -1, 1), np.float32), place), perm=[0, 2, 1])
    angle = s("Concat", angle, angle, axis=-1)
    one = s.const(1.0, np.float32)
    return [s("Unsqueeze", s("Mul", s(op, angle), one), s.const([1])) for op in ("Cos", "Sin")]


def rotary_tables_at(s, positions, head):
    """cos and sin [B,1,S,head] at positions [B,S]."""
    inverse = (1 / 100 ** (np.arange(head // 2) * 2 / head)).astype(np.float32)
    place = s("Cast", s("Unsqueeze", positions, s.const([1])), to=1)
    angle = s("Transpose", s("MatMul", s.const(inverse.reshape(1, -1, 1), np.float32), place), perm=[0, 2, 1])
    angle = s("Concat", angle, angle, axis=-1)
    return [s("Unsqueeze", s(op, angle), s.const([1])) for op in ("Cos", "Sin")]


def rotate(s, x, cos, sin, head):
    half = s.const([head // 2])
    low = s("Slice", x, s.const([0]), half, s.const([3]), s.const([1]))
    high = s("Slice", x, half, s.const([INT64_MAX]), s.const([3]), s.const([1]))
    turned = s("Concat", s("Neg", high), low, axis=-1)
    return s("Add", s("Mul", x, cos), s("Mul", turned, sin))


def repeat_heads(s, x, batch, length, kv_heads, group, head):
    def shape(*sizes):
        parts = [s.const([v]) if isinstance(v, int) else s("Unsqueeze", v, s.const([0])) for v in sizes]
        return s("Concat", *parts, axis=0)
    x = s("Unsqueeze", x, s.const([2]))
    x = s("Expand", x, shape(batch, kv_heads, group, length, head))
    return s("Reshape", x, shape(batch, kv_heads * group, length, head), allowzero=0)


def llama_attention(g, s, x, mask, tables, weights, name, config, layer=None):
    heads, kv_heads, head = config["heads"], config["kv_heads"], config["size"]
    batch, length = size(s, x, 0), size(s, x, 1)

    def project(part, count):
        y = s.at(part)("MatMul", x, g.matrix(weights[f"{name}.{part}.weight"]))
        return s("Transpose", s("Reshape", y, head_shape(g, s, batch, count, head), allowzero=0), perm=[0, 2, 1, 3])
    q, k, v = project("q_proj", heads), project("k_proj", kv_heads), project("v_proj", kv_heads)
    q, k = rotate(s, q, *tables, head), rotate(s, k, *tables, head)
    if layer is not None:
        k, v = with_past(g, s, layer, k, v, kv_heads, head)
        length = size(s, k, 2)
    k, v = (repeat_heads(s, t, batch, length, kv_heads, heads // kv_heads, head) for t in (k, v))
    score = s("MatMul", q, s("Transpose", k, perm=[0, 1, 3, 2]))
    score = s("Add", s("Mul", score, s.const(np.float32(head ** -0.5), np.float32)), mask)
    y = s("Transpose", s("MatMul", s("Softmax", score, axis=-1), v), perm=[0, 2, 1, 3])
    y = s("Reshape", y, s("Concat", s("Unsqueeze", batch, s.const([0])), s.const([-1]), s.const([heads * head]), axis=0),
          allowzero=0)
    return s.at("o_proj")("MatMul", y, g.matrix(weights[name + ".o_proj.weight"]))


def gated_silu(g, s, x, weights, name):
    product = lambda part, v: s.at(part)("MatMul", v, g.matrix(weights[f"{name}.{part}.weight"]))
    gate = product("gate_proj", x)
    gate = s("Mul", gate, s.at("act_fn")("Sigmoid", gate))
    return product("down_proj", s("Mul", gate, product("up_proj", x)))


def llama(weights, layers, config):
    g = Graph(17, producer="tests/models")
    ids, mask = encoder_inputs(g, "input_ids", "attention_mask")
    s = g.at("/model")
    rows = s("Range", s.const(0), size(s, ids, 1), s.const(1))
    mask = causal_padding_mask(s, rows, mask)
    tables = rotary_tables(g.at("/model/rotary_emb"), rows, config["size"])
    x = embed(g, ids, weights, "embed_tokens.weight")
    for i in range(layers):
        b, name = g.at(f"/model/layers.{i}"), f"layers.{i}"
        y, x = rms_norm(g, b.at("input_layernorm"), x, weights, name + ".input_layernorm")
        x = b("Add", x, llama_attention(g, b.at("self_attn"), y, mask, tables, weights, name + ".self_attn", config))
        y, x = rms_norm(g, b.at("post_attention_layernorm"), x, weights, name + ".post_attention_layernorm")
        x = b("Add", x, gated_silu(g, b.at("mlp"), y, weights, name + ".mlp"))
    rms_norm(g, g.at("/model/norm"), x, weights, "norm", "last_hidden_state")
    g.output("last_hidden_state", np.float32, [BATCH, LENGTH, weights["embed_tokens.weight"].shape[1]])
    return g


def llama_past(weights, layers, config):
    g = Graph(17, producer="tests/models")
    ids, mask, positions = past_inputs(g)
    s = g.at("/model")
    total = size(s, mask, 1)
    rows = s("Range", s("Sub", total, size(s, ids, 1)), total, s.const(1))
    keys = s("Range", s.const(0), total, s.const(1))
    causal = s("LessOrEqual", s("Unsqueeze", keys, s.const([0])), s("Unsqueeze", rows, s.const([1])))
    causal = s("Unsqueeze", s("Unsqueeze", causal, s.const([0])), s.const([1]))
    padding = s("Cast", s("Unsqueeze", s("Unsqueeze", mask, s.const([1])), s.const([2])), to=9)
    mask = s("Where", s("And", causal, padding), s.const(0.0, np.float32), s.const(LOWEST, np.float32))
    tables = rotary_tables_at(g.at("/model/rotary_emb"), positions, config["size"])
    x = embed(g, ids, weights, "embed_tokens.weight")
    for i in range(layers):
        b, name = g.at(f"/model/layers.{i}"), f"layers.{i}"
        y, x = rms_norm(g, b.at("input_layernorm"), x, weights, name + ".input_layernorm")
        x = b("Add", x, llama_attention(g, b.at("self_attn"), y, mask, tables, weights, name + ".self_attn", config, i))
        y, x = rms_norm(g, b.at("post_attention_layernorm"), x, weights, name + ".post_attention_layernorm")
        x = b("Add", x, gated_silu(g, b.at("mlp"), y, weights, name + ".mlp"))
    y, _ = rms_norm(g, g.at("/model/norm"), x, weights, "norm")
    return logits(g, y, weights)


# ---------------------------------------------------------------- GPT-2

def flat_product(g, s, x, weights, name):
    """Rows of all tokens through one Gemm, as Conv1D does; weights are [in, out]."""
    w = weights[name + ".weight"].T
    shape = [s("Unsqueeze", size(s, x, k), s.const([0])) for k in (0, 1)]
    rows = s("Reshape", x, s.const([-1, w.shape[0]]), allowzero=0)
    y = s("Gemm", rows, g.weight(f"model.{name}.weight", w), g.weight(f"model.{name}.bias", weights[name + ".bias"]),
          alpha=1.0, beta=1.0)
    return s("Reshape", y, s("Concat", *shape, s.const([w.shape[1]]), axis=0), allowzero=0)


def gpt2_attention(g, s, x, mask, weights, name, heads, triangle, layer=None):
    hidden = weights[name + ".c_proj.weight"].shape[0]
    batch = size(s, x, 0)
    qkv = flat_product(g, s.at("c_attn"), x, weights, name + ".c_attn")

    def part(k):
        y = s("Slice", qkv, s.const([k * hidden]), s.const([(k + 1) * hidden]), s.const([2]), s.const([1]))
        return s("Transpose", s("Reshape", y, head_shape(g, s, batch, heads, hidden // heads), allowzero=0), perm=[0, 2, 1, 3])
    q, k, v = part(0), part(1), part(2)
    if layer is not None:
        k, v = with_past(g, s, layer, k, v, heads, hidden // heads)
    score = s("Div", s("MatMul", q, s("Transpose", k, perm=[0, 1, 3, 2])), s.const(np.float32(np.sqrt(hidden / heads)), np.float32))
    keys = s("Unsqueeze", size(s, k, 2), s.const([0]))
    first = s.const([0]) if layer is None else s("Sub", keys, s("Unsqueeze", size(s, q, 2), s.const([0])))
    seen = s("Slice", triangle, first, keys, s.const([2]), s.const([1]))
    seen = s("Slice", seen, s.const([0]), keys, s.const([3]), s.const([1]))
    score = s("Add", s("Where", seen, score, s.const(LOWEST, np.float32)), mask)
    y = s("Transpose", s("MatMul", s("Softmax", score, axis=-1), v), perm=[0, 2, 1, 3])
    y = s("Reshape", y, s("Concat", s("Unsqueeze", batch, s.const([0])), s.const([-1]), s.const([hidden]), axis=0), allowzero=0)
    return flat_product(g, s.at("c_proj"), y, weights, name + ".c_proj")


def gpt2_triangle(g, weights):
    positions = weights["wpe.weight"].shape[0]
    return g.weight("model.bias", np.tril(np.ones((1, 1, positions, positions), np.bool_)))


def gpt2_layers(g, x, mask, triangle, weights, layers, heads, past=False):
    for i in range(layers):
        b, name = g.at(f"/transformer/h.{i}"), f"h.{i}"
        y = layer_norm(g, b.at("ln_1"), x, weights, name + ".ln_1", 1e-5)
        x = b("Add", gpt2_attention(g, b.at("attn"), y, mask, weights, name + ".attn", heads, triangle, i if past else None), x)
        y = layer_norm(g, b.at("ln_2"), x, weights, name + ".ln_2", 1e-5)
        y = gelu_tanh(b.at("mlp/act"), flat_product(g, b.at("mlp/c_fc"), y, weights, name + ".mlp.c_fc"))
        x = b("Add", x, flat_product(g, b.at("mlp/c_proj"), y, weights, name + ".mlp.c_proj"))
    return x


def gpt2(weights, layers, heads):
    g = Graph(17, producer="tests/models")
    ids, mask = encoder_inputs(g, "input_ids", "attention_mask")
    s = g.at("/transformer")
    rows = s("Range", s.const(0), size(s, ids, 1), s.const(1))
    mask = additive_mask(g, mask)
    triangle = gpt2_triangle(g, weights)
    place = s("Gather", g.weight("model.wpe.weight", weights["wpe.weight"]), s("Unsqueeze", rows, s.const([0])))
    x = s("Add", embed(g, ids, weights, "wte.weight"), place)
    x = gpt2_layers(g, x, mask, triangle, weights, layers, heads)
    layer_norm(g, g.at("/transformer/ln_f"), x, weights, "ln_f", 1e-5, "last_hidden_state")
    g.output("last_hidden_state", np.float32, [BATCH, LENGTH, weights["wte.weight"].shape[1]])
    return g


def gpt2_past(weights, layers, heads):
    g = Graph(17, producer="tests/models")
    ids, mask, positions = past_inputs(g)
    s = g.at("/transformer")
    mask = additive_mask(g, mask)
    x = s("Add", embed(g, ids, weights, "wte.weight"), s("Gather", g.weight("model.wpe.weight", weights["wpe.weight"]), positions))
    x = gpt2_layers(g, x, mask, gpt2_triangle(g, weights), weights, layers, heads, past=True)
    x = layer_norm(g, g.at("/transformer/ln_f"), x, weights, "ln_f", 1e-5)
    return logits(g, x, weights)
