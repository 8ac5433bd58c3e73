#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decoders of many kinds, which must have a program for generation and answer as ONNX Runtime does. Needs onnx and numpy.

    decoder_variants.py TFCC [ANSWERS]   builds each, compiles it for the CPU and compares 20 ids, lifted and as exported; those with
                                         convolutions or sums in every way that a generator has too, by tests/models/answers.cpp
    decoder_variants.py --make           writes decoder_variants.json anew, by ONNX Runtime

Positions by rotary embeddings (halves, pairs, a part of the head) and by ALiBi in three spellings; heads that share keys (MQA,
GQA of 3) or do not; a window, a soft cap, norms of queries and keys before and behind the transposition, and of each head alone; keys and
values as products of a latent that is the past; attention sinks; short convolutions; linear attention with a state, by sums and by delta rules; with a past and without, with positions as an input and without, without a mask, with a cache that is written in place. Weights are multiples of 2^-12 (make_models.py). Exit status 77, which ctest takes as skipped, without onnx.
"""
import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

try:
    import onnx  # noqa: F401
except ImportError:
    print("skipped: python3 has no onnx")
    sys.exit(77)

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tools"))
from bert_graph import BATCH, LENGTH, LOWEST, head_shape  # noqa: E402
from decoder_forms import PAST, TOTAL, embed, gated_silu, logits, repeat_heads, size, with_past  # noqa: E402,F401
from make_models import Weights  # noqa: E402
from onnx_graph import Graph  # noqa: E402
from t5_form import rms_norm  # noqa: E402
from torchscript_forms import INT64_MAX  # noqa: E402

HEAD, INNER, LAYERS, VOCABULARY, TAPS = 8, 48, 2, 200, 3
PROMPT, COUNT = [23, 185, 12, 15, 23, 56, 47, 139], 20
USUAL = {"past": True, "positions": True, "mask": True, "heads": 4, "kv_heads": 2, "rotary": "halves", "turned": HEAD, "alibi": None,
         "window": None, "cap": None, "norms": None, "in_place": None, "latent": None, "experts": None, "node": False, "sinks": None,
         "convolution": None, "sums": None}
NO_ROTARY = {"rotary": None, "kv_heads": 4}
VARIANTS = {
    "usual": {},
    "groups_of_3": {"heads": 6},
    "one_key_head": {"kv_heads": 1},
    "a_key_head_each": {"kv_heads": 4},
    "alibi_of_keys": NO_ROTARY | {"alibi": "keys"},
    "alibi_of_distances": NO_ROTARY | {"alibi": "distances"},
    "alibi_of_the_mask": NO_ROTARY | {"alibi": "mask"},
    "window": {"window": 5},
    "cap": {"cap": 2.0},
    "a_part_turns": {"turned": 4},
    "pairs_turn": {"rotary": "pairs"},
    "pairs_of_a_part_turn": {"rotary": "pairs", "turned": 4},
    "norms_of_heads": {"norms": "before"},
    "norms_behind_the_transposition": {"norms": "behind"},
    "norms_of_each_head": {"norms": "apart"},
    "latent": {"kv_heads": 4, "latent": 12, "turned": 4},
    "latent_of_pairs": {"kv_heads": 4, "latent": 12, "turned": 4, "rotary": "pairs", "positions": False},
    "experts": {"experts": 5},
    "experts_in_one_node": {"experts": 4, "node": True},
    "experts_of_a_list": {"experts": 4, "node": "list"},
    "experts_in_codes": {"experts": 4, "node": "codes"},
    "experts_without_past": {"experts": 3, "past": False, "mask": False},
    "sinks": {"sinks": "column"},
    "sinks_and_window": {"sinks": "column", "window": 5, "positions": False},
    "sinks_and_alibi": NO_ROTARY | {"sinks": "column", "alibi": "keys"},
    "sinks_without_past": {"sinks": "column", "past": False},
    "sinks_behind_the_product": {"sinks": "share", "window": 5},
    "sinks_in_one_node": {"sinks": "node"},
    "sinks_and_window_in_one_node": {"sinks": "node", "window": 5},
    "convolution": {"convolution": "joined"},
    "convolution_of_another_layout": {"convolution": "rows", "positions": False},
    "convolution_without_past": {"convolution": "both ends", "past": False, "mask": False},
    "convolution_with_zeros_in_front": {"convolution": "front", "past": False},
    "sums_that_fade": {"sums": "gated"},
    "sums_by_a_delta_rule": {"sums": "delta", "positions": False},
    "sums_by_a_delta_rule_that_fade": {"sums": "gated_delta"},
    "sums_of_another_layout": {"sums": "gated_delta", "turned_sums": True, "convolution": "joined"},
    "sums_without_attention": NO_ROTARY | {"sums": "gated_delta", "convolution": "joined", "alone": True, "past": False, "mask": False, "positions": False},
    "norms_of_parts_that_turn": {"norms": "behind", "turned": 4, "kv_heads": 1},
    "no_position_input": {"positions": False},
    "window_without_position_input": {"window": 5, "positions": False},
    "all": {"window": 6, "cap": 3.0, "turned": 4, "rotary": "pairs", "norms": "before", "heads": 6},
    "no_past": {"past": False},
    "no_past_nor_positions": {"past": False, "positions": False},
    "no_past_nor_mask": {"past": False, "mask": False},
    "no_past_alibi_of_the_mask": NO_ROTARY | {"past": False, "positions": False, "alibi": "mask"},
    "no_past_window": {"past": False, "window": 5},
    "no_past_cap": {"past": False, "cap": 2.0},
}
# The same decoders with a cache of CAPACITY, or of any number of tokens, that is written in place (TensorScatter of opset 24).
CAPACITY = "max_sequence_length"
IN_PLACE = {
    "in_place": ("usual", {"in_place": "mask"}),
    "in_place_of_64": ("usual", {"in_place": "mask", "capacity": 64, "positions": False}),
    "in_place_attention_24": ("usual", {"in_place": "op", "lengths": "nonpad_kv_seqlen"}),
    "in_place_attention_24_of_groups": ("groups_of_3", {"in_place": "op", "capacity": 64}),
    "in_place_strange_names": ("usual", {"in_place": "op", "lengths": "m", "writes": "n", "names": {"input_ids": "x", "position_ids": "p"}}),
    "in_place_last_token": ("usual", {"in_place": "mask", "writes": None, "lengths": "seqlens_k", "less": 1}),
    "in_place_window": ("window", {"in_place": "mask"}),
}
VARIANTS |= {name: VARIANTS[like] | changes for name, (like, changes) in IN_PLACE.items()}


def weights_of(v):
    hidden = v["heads"] * HEAD
    w = Weights(77, hidden, INNER)
    w.add("embed_tokens.weight", (VOCABULARY, hidden), 1.0)
    for i in range(LAYERS):
        attention = f"layers.{i}.self_attn"
        parts = (("q_proj", v["heads"] * HEAD, 1.6), ("k_proj", v["kv_heads"] * HEAD, 1.6), ("v_proj", v["kv_heads"] * HEAD, 1), ("o_proj", hidden, 1))
        if v["latent"]:
            wider = HEAD + v["turned"]
            parts = (("q_proj", v["heads"] * wider, 1.6), ("down_proj", v["latent"] + v["turned"], 1.6), ("o_proj", hidden, 1))
            w.add(f"{attention}.latent_norm.weight", (v["latent"],), 0.1, 1.0)
            w.add(f"{attention}.up_proj.weight", (v["heads"] * 2 * HEAD, v["latent"]), 1.6 / np.sqrt(v["latent"]))
        for part, rows, gain in parts:
            w.add(f"{attention}.{part}.weight", (rows, hidden), gain / np.sqrt(hidden))
        if v["experts"]:
            w.add(f"layers.{i}.mlp.router.weight", (v["experts"], hidden), 3 / np.sqrt(hidden))
            w.add(f"layers.{i}.mlp.gate_up_proj.weight", (v["experts"], 2 * INNER, hidden), 1 / np.sqrt(hidden))
            w.add(f"layers.{i}.mlp.down_proj.weight", (v["experts"], hidden, INNER), 1 / np.sqrt(INNER))
        else:
            for part in ("gate_proj", "up_proj"):
                w.add(f"layers.{i}.mlp.{part}.weight", (INNER, hidden), 1 / np.sqrt(hidden))
            w.add(f"layers.{i}.mlp.down_proj.weight", (hidden, INNER), 1 / np.sqrt(INNER))
        if v["convolution"]:
            w.add(f"layers.{i}.conv.in_proj.weight", (3 * hidden, hidden), 1 / np.sqrt(hidden))
            w.add(f"layers.{i}.conv.conv.weight", (hidden, 1, TAPS), 1)
            w.add(f"layers.{i}.conv.out_proj.weight", (hidden, hidden), 1 / np.sqrt(hidden))
        if v["sums"]:
            w.add(f"layers.{i}.sums.in_proj.weight", (3 * hidden, hidden), 1 / np.sqrt(hidden))
            w.add(f"layers.{i}.sums.gates.weight", (2 * v["heads"], hidden), 1 / np.sqrt(hidden))
            w.add(f"layers.{i}.sums.out_proj.weight", (hidden, hidden), 1 / np.sqrt(hidden))
        if v["sinks"]:
            w.add(f"{attention}.sinks", (v["heads"],), 1.0)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            w.add(f"layers.{i}.{norm}.weight", (hidden,), 0.1, 1.0)
        for norm in ("q_norm", "k_norm"):
            for head in [""] if v["norms"] != "apart" else [f".{i}" for i in range(v["heads"])]:
                w.add(f"{attention}.{norm}{head}.weight", (HEAD,), 0.1, 1.0)
    w.add("norm.weight", (hidden,), 0.1, 1.0)
    w.add("lm_head.weight", (VOCABULARY, hidden), 1 / np.sqrt(hidden))
    return w


def outer(s, x):
    """[..] as [1,1,..]."""
    return s("Unsqueeze", s("Unsqueeze", x, s.const([0])), s.const([1]))


def additive_mask(s, v, mask, queries, keys):
    """[B,H or 1,S,T]: 0 or an ALiBi term where a query sees a key, else the lowest float. queries [S,1], keys [1,T]."""
    sees = s("LessOrEqual", keys, queries)
    if v["window"]:
        sees = s("And", sees, s("Greater", keys, s("Sub", queries, s.const(v["window"]))))
    sees = s("Unsqueeze", sees, s.const([1])) if v["in_place"] else outer(s, sees)
    if mask:
        sees = s("And", sees, s("Cast", s("Unsqueeze", s("Unsqueeze", mask, s.const([1])), s.const([2])), to=9))
    out = s("Where", sees, s.const(0.0, np.float32), s.const(LOWEST, np.float32))
    if not v["alibi"]:
        return out
    if v["alibi"] == "mask":  # BLOOM's: the number of tokens before it
        place = s("Mul", s("Sub", s("CumSum", mask, s.const(1)), s.const(1)), mask)
        place = s("Unsqueeze", s("Unsqueeze", place, s.const([1])), s.const([2]))
    else:
        place = outer(s, keys if v["alibi"] == "keys" else s("Sub", keys, queries))
    slopes = (2.0 ** -np.arange(1, v["heads"] + 1)).astype(np.float32).reshape(1, -1, 1, 1)
    return s("Add", out, s("Mul", s("Cast", place, to=1), s.const(slopes, np.float32)))


def tables(s, v, positions):
    """cos and sin [B,1,S,turned], of pairs half as many."""
    inverse = (1 / 100 ** (np.arange(v["turned"] // 2) * 2 / v["turned"])).astype(np.float32).reshape(1, -1, 1)
    place = s("Cast", s("Unsqueeze", positions, s.const([1])), to=1)
    angle = s("Transpose", s("MatMul", s.const(inverse, np.float32), place), perm=[0, 2, 1])
    if v["rotary"] == "halves":
        angle = s("Concat", angle, angle, axis=-1)
    return [s("Unsqueeze", s(op, angle), s.const([1])) for op in ("Cos", "Sin")]


def turn(s, v, x, cos, sin):
    def columns(y, first, last, step=1):
        return s("Slice", y, s.const([first]), s.const([last]), s.const([3]), s.const([step]))
    turned = v["turned"]
    head = columns(x, 0, turned) if turned < HEAD and not v["latent"] else x
    if v["rotary"] == "halves":
        other = s("Concat", s("Neg", columns(head, turned // 2, turned)), columns(head, 0, turned // 2), axis=-1)
        y = s("Add", s("Mul", head, cos), s("Mul", other, sin))
    else:
        even, odd = columns(head, 0, INT64_MAX, 2), columns(head, 1, INT64_MAX, 2)
        parts = [s("Sub", s("Mul", even, cos), s("Mul", odd, sin)), s("Add", s("Mul", odd, cos), s("Mul", even, sin))]
        pairs = s("Concat", *(s("Unsqueeze", p, s.const([-1])) for p in parts), axis=-1)
        y = s("Reshape", pairs, s("Shape", head), allowzero=0)
    return s("Concat", y, columns(x, turned, HEAD), axis=-1) if turned < HEAD and not v["latent"] else y


def attention(g, s, v, x, mask, angles, weights, name, layer):
    batch = size(s, x, 0)

    def project(part, count):
        y = s.at(part)("MatMul", x, g.matrix(weights[f"{name}.{part}.weight"]))
        return s("Reshape", y, head_shape(g, s, batch, count, HEAD), allowzero=0)
    q, k, values = project("q_proj", v["heads"]), project("k_proj", v["kv_heads"]), project("v_proj", v["kv_heads"])
    if v["norms"] == "apart":
        q, k = (norms_apart(g, s.at(part), y, count, weights, f"{name}.{part}") for part, y, count in (("q_norm", q, v["heads"]), ("k_norm", k, v["kv_heads"])))
    def normalised(q, k):
        return (rms_norm(g, s.at(part), y, weights, f"{name}.{part}")[0] for part, y in (("q_norm", q), ("k_norm", k)))
    if v["norms"] == "before":
        q, k = normalised(q, k)
    q, k, values = (s("Transpose", y, perm=[0, 2, 1, 3]) for y in (q, k, values))
    if v["norms"] == "behind":
        q, k = normalised(q, k)
    if angles:
        q, k = turn(s, v, q, *angles), turn(s, v, k, *angles)
    if v["sinks"] == "node":
        return o_proj(g, s, v, attention_in_one_node(g, s, v, layer, q, k, values, weights[name + ".sinks"]), batch, weights, name)
    if v["in_place"]:
        k, values = in_place(g, s, v, layer, k, values)
    elif v["past"]:
        k, values = with_past(g, s, layer, k, values, v["kv_heads"], HEAD)
    if v["in_place"] == "op":
        y = s("Attention", q, k, values, "", "", "", g.lengths, is_causal=1)
        return o_proj(g, s, v, y, batch, weights, name)
    if v["kv_heads"] != v["heads"]:
        k, values = (repeat_heads(s, y, batch, size(s, k, 2), v["kv_heads"], v["heads"] // v["kv_heads"], HEAD) for y in (k, values))
    score = s("Mul", s("MatMul", q, s("Transpose", k, perm=[0, 1, 3, 2])), s.const(np.float32(HEAD ** -0.5), np.float32))
    if v["cap"]:
        score = s("Mul", s("Tanh", s("Div", score, s.const(v["cap"], np.float32))), s.const(v["cap"], np.float32))
    score = s("Add", score, mask)
    if v["sinks"] == "share":  # as Granite has it: of the sum with a sink, what the keys have
        column = s("Reshape", g.weight(name + ".sinks", weights[name + ".sinks"]), s.const([1, -1, 1, 1]), allowzero=0)
        share = s("Sigmoid", s("Sub", s("ReduceLogSumExp", score, axes=[-1], keepdims=1), column))
        return o_proj(g, s, v, s("Mul", s("MatMul", s("Softmax", score, axis=-1), values), share), batch, weights, name)
    if v["sinks"]:
        return o_proj(g, s, v, s("MatMul", beside_sinks(g, s, v, score, name + ".sinks", weights), values), batch, weights, name)
    return o_proj(g, s, v, s("MatMul", s("Softmax", score, axis=-1), values), batch, weights, name)


def beside_sinks(g, s, v, score, name, weights):
    """As gpt-oss has it: one more column, a number of each head, in a softmax of distances to the maximum."""
    column = s("Reshape", g.weight(name, weights[name]), s.const([1, -1, 1, 1]), allowzero=0)
    rows = s("Concat", s("Slice", s("Shape", score), s.const([0]), s.const([1])), s.const([v["heads"]]), s("Slice", s("Shape", score), s.const([2]), s.const([3])), s.const([1]), axis=0)
    all_ = s("Concat", score, s("Expand", column, rows), axis=-1)
    all_ = s("Sub", all_, s("ReduceMax", all_, axes=[-1], keepdims=1))
    return s("Slice", s("Softmax", all_, axis=-1), s.const([0]), s.const([-1]), s.const([3]))


def attention_in_one_node(g, s, v, layer, q, k, values, sinks):
    """com.microsoft.GroupQueryAttention, whose queries and keys have turned already. [B,heads,S,HEAD]"""
    def tokens(y, count):
        return s("Reshape", s("Transpose", y, perm=[0, 2, 1, 3]), s.const([0, 0, count * HEAD]), allowzero=0)
    lengths = s("Cast", s("Sub", s("ReduceSum", "attention_mask", s.const([1]), keepdims=0), s.const([1])), to=6)
    total = s("Cast", s("Gather", s("Shape", "attention_mask"), s.const(1), axis=0), to=6)
    past = [g.input(f"past_key_values.{layer}.{half}", np.float32, [BATCH, v["kv_heads"], PAST, HEAD]) for half in ("key", "value")]
    node = g.unique(s.path, "GroupQueryAttention")
    present = [f"present.{layer}.{half}" for half in ("key", "value")]
    g.nodes.append(onnx.helper.make_node(
        "GroupQueryAttention", [tokens(q, v["heads"]), tokens(k, v["kv_heads"]), tokens(values, v["kv_heads"]), *past, lengths, total, "", "", "", "", g.weight(node + ".sinks", sinks)],
        [node + "_output_0", *present], name=node, domain="com.microsoft", num_heads=v["heads"], kv_num_heads=v["kv_heads"],
        local_window_size=v["window"] or -1))
    g.later_outputs += [(p, np.float32, [BATCH, v["kv_heads"], TOTAL, HEAD]) for p in present]
    return s("Transpose", s("Reshape", node + "_output_0", s.const([0, 0, v["heads"], HEAD]), allowzero=0), perm=[0, 2, 1, 3])


def norms_apart(g, s, x, heads, weights, name):
    """As StableLM 2 has it: a norm with weights of its own for each head of x [B,S,heads,HEAD]."""
    each = []
    for i in range(heads):
        one = s("Slice", x, s.const([i]), s.const([i + 1]), s.const([2]))
        each.append(s("LayerNormalization", s("Transpose", one, perm=[0, 2, 1, 3]), g.weight(f"{name}.{i}.weight", weights[f"{name}.{i}.weight"]), axis=-1, epsilon=1e-5))
    return s("Transpose", s("Concat", *each, axis=1), perm=[0, 2, 1, 3])


def latent_attention(g, s, v, x, mask, angles, weights, name, layer):
    """Keys and values are products of a latent [B,1,P + S,latent]. It is the past, with the part of all keys that turns: [B,1,P + S,turned]."""
    batch, latent, turned = size(s, x, 0), v["latent"], v["turned"]
    def columns(y, first, last):
        return s("Slice", y, s.const([first]), s.const([last]), s.const([3]))
    q = s.at("q_proj")("MatMul", x, g.matrix(weights[name + ".q_proj.weight"]))
    q = s("Transpose", s("Reshape", q, head_shape(g, s, batch, v["heads"], HEAD + turned), allowzero=0), perm=[0, 2, 1, 3])
    down = s("Unsqueeze", s.at("down_proj")("MatMul", x, g.matrix(weights[name + ".down_proj.weight"])), s.const([1]))
    kept, _ = rms_norm(g, s.at("latent_norm"), columns(down, 0, latent), weights, name + ".latent_norm")
    k = turn(s, v, columns(down, latent, latent + turned), *angles)
    dims = {"key": (kept, latent), "value": (k, turned)}
    whole = {}
    for half, (y, width) in dims.items():
        past = g.input(f"past_key_values.{layer}.{half}", np.float32, [BATCH, 1, PAST, width])
        whole[half] = s("Concat", past, y, axis=2, out=f"present.{layer}.{half}")
        g.later_outputs.append((whole[half], np.float32, [BATCH, 1, TOTAL, width]))
    up = s.at("up_proj")("MatMul", whole["key"], g.matrix(weights[name + ".up_proj.weight"]))
    up = s("Transpose", s("Reshape", up, head_shape(g, s, batch, v["heads"], 2 * HEAD), allowzero=0), perm=[0, 2, 1, 3])
    wide = s("Expand", whole["value"], s("Concat", s.const([1, v["heads"]]), s.const([1, 1]), axis=0))
    k = s("Concat", columns(up, 0, HEAD), wide, axis=-1)
    q = s("Concat", columns(q, 0, HEAD), turn(s, v, columns(q, HEAD, HEAD + turned), *angles), axis=-1)
    score = s("Mul", s("MatMul", q, s("Transpose", k, perm=[0, 1, 3, 2])), s.const(np.float32((HEAD + turned) ** -0.5), np.float32))
    y = s("MatMul", s("Softmax", s("Add", score, mask), axis=-1), columns(up, HEAD, 2 * HEAD))
    return o_proj(g, s, v, y, batch, weights, name)


def in_place(g, s, v, layer, k, values):
    out, dims = [], [BATCH, v["kv_heads"], v.get("capacity", CAPACITY), HEAD]
    for part, x in (("key", k), ("value", values)):
        past = g.input(f"past_key_values.{layer}.{part}", np.float32, dims)
        out.append(s("TensorScatter", past, x, g.writes, out=f"present.{layer}.{part}"))
        g.later_outputs.append((out[-1], np.float32, dims))
    return out


def o_proj(g, s, v, y, batch, weights, name):
    y = s("Transpose", y, perm=[0, 2, 1, 3])
    width = s.const([v["heads"] * HEAD])
    y = s("Reshape", y, s("Concat", s("Unsqueeze", batch, s.const([0])), s.const([-1]), width, axis=0), allowzero=0)
    return s.at("o_proj")("MatMul", y, g.matrix(weights[name + ".o_proj.weight"]))


def convolution(g, s, v, x, weights, name, layer):
    """As LFM2 has it: a short causal convolution of each channel between two gates. Its past is the last rows that it read."""
    hidden, kept = v["heads"] * HEAD, TAPS - 1
    parts = s.at("in_proj")("MatMul", x, g.matrix(weights[name + ".in_proj.weight"]))
    before, behind, rows = (s("Slice", parts, s.const([k * hidden]), s.const([(k + 1) * hidden]), s.const([2])) for k in range(3))
    rows = s("Mul", before, rows)
    if v["convolution"] == "rows":
        past = g.input(f"past_conv.{layer}", np.float32, [BATCH, kept, hidden])
        rows = s("Concat", past, rows, axis=1)
        last = s("Slice", rows, s.const([-kept]), s.const([INT64_MAX]), s.const([1]), out=f"present_conv.{layer}")
        g.later_outputs.append((last, np.float32, [BATCH, kept, hidden]))
    rows, pads = s("Transpose", rows, perm=[0, 2, 1]), [0, 0]
    if v["convolution"] == "joined":
        past = g.input(f"past.{layer}.conv", np.float32, [BATCH, hidden, kept])
        rows = s("Concat", past, rows, axis=2)
        last = s("Slice", rows, s.const([-kept]), s.const([INT64_MAX]), s.const([2]), out=f"present.{layer}.conv")
        g.later_outputs.append((last, np.float32, [BATCH, hidden, kept]))
    elif not v["past"]:
        pads = [kept, kept] if v["convolution"] == "both ends" else [kept, 0]
    weight = g.weight(name + ".conv.weight", weights[name + ".conv.weight"])
    y = s("Conv", rows, weight, group=hidden, kernel_shape=[TAPS], pads=pads)
    if v["convolution"] == "both ends":
        y = s("Slice", y, s.const([0]), s("Unsqueeze", size(s, x, 1), s.const([0])), s.const([2]))
    return s.at("out_proj")("MatMul", s("Mul", behind, s("Transpose", y, perm=[0, 2, 1])), g.matrix(weights[name + ".out_proj.weight"]))


def running_sums(g, s, v, x, weights, name, layer):
    """Linear attention of com.microsoft, whose past is its sums [batch,heads,width of keys,width of values]; turned in the other layout."""
    hidden, heads = v["heads"] * HEAD, v["heads"]
    parts = s.at("in_proj")("MatMul", x, g.matrix(weights[name + ".in_proj.weight"]))
    q, k, values = (s("Slice", parts, s.const([i * hidden]), s.const([(i + 1) * hidden]), s.const([2])) for i in range(3))
    gates = s.at("gates")("MatMul", x, g.matrix(weights[name + ".gates.weight"]))
    a, b = (s("Slice", gates, s.const([i * heads]), s.const([(i + 1) * heads]), s.const([2])) for i in range(2))
    past = g.input(f"past.{layer}.recurrent", np.float32, [BATCH, heads, HEAD, HEAD])
    before = s("Transpose", past, perm=[0, 1, 3, 2]) if v.get("turned_sums") else past
    node = g.unique(s.path, "LinearAttention")
    present = f"present.{layer}.recurrent"
    after = node + "_output_1" if v.get("turned_sums") else present
    gate = [s("Neg", s("Softplus", a)) if "gated" in v["sums"] else "", s("Sigmoid", b)]
    g.nodes.append(onnx.helper.make_node("LinearAttention", [q, k, values, before, *(gate if "delta" in v["sums"] else gate[:1])],
                                         [node + "_output_0", after], name=node, domain="com.microsoft", q_num_heads=heads, kv_num_heads=heads,
                                         update_rule=v["sums"]))
    if v.get("turned_sums"):
        s("Transpose", after, perm=[0, 1, 3, 2], out=present)
    g.later_outputs.append((present, np.float32, [BATCH, heads, HEAD, HEAD]))
    return s.at("out_proj")("MatMul", node + "_output_0", g.matrix(weights[name + ".out_proj.weight"]))


def mixture(g, s, x, weights, name):
    """Two experts of each token, whose weights are gathered for it: the batched form of transformers 5."""
    up_weight, down_weight = ((n, weights[n]) for n in (f"{name}.gate_up_proj.weight", f"{name}.down_proj.weight"))
    hidden = up_weight[1].shape[2]
    rows = s("Reshape", x, s.const([-1, hidden]), allowzero=0)
    scores = s("Softmax", s("MatMul", rows, g.matrix(weights[name + ".router.weight"])), axis=-1)
    top = g.unique(s.path, "TopK")
    best, chosen = top + "_output_0", top + "_output_1"
    g.nodes.append(onnx.helper.make_node("TopK", [scores, s.const([2])], [best, chosen], name=top, axis=-1))
    share = s("Div", best, s("ReduceSum", best, s.const([-1]), keepdims=1))
    chosen = s("Reshape", chosen, s.const([-1]), allowzero=0)
    each = s("Reshape", s("Expand", s("Unsqueeze", rows, s.const([1])), s.const([1, 2, 1])), s.const([-1, hidden]), allowzero=0)

    def product(weight, of):
        return s("Squeeze", s("MatMul", s("Gather", g.weight(weight[0], weight[1]), chosen, axis=0), s("Unsqueeze", of, s.const([2]))), s.const([2]))

    both = product(up_weight, each)
    gate, up = (s("Slice", both, s.const([i * INNER]), s.const([(i + 1) * INNER]), s.const([1])) for i in range(2))
    down = product(down_weight, s("Mul", s("Mul", gate, s("Sigmoid", gate)), up))
    down = s("Mul", down, s("Unsqueeze", s("Reshape", share, s.const([-1]), allowzero=0), s.const([1])))
    y = s("ReduceSum", s("Reshape", down, s.const([-1, 2, hidden]), allowzero=0), s.const([1]), keepdims=0)
    return s("Reshape", y, s("Shape", x), allowzero=0)


def in_codes(w, block=16):
    """Codes of four bits of matrices [E,N,K], two in a byte, and the scales of blocks."""
    parts = w.reshape(*w.shape[:-1], -1, block)
    scales = (np.abs(parts).max(-1) / 7).astype(np.float32)
    codes = np.clip(np.rint(parts / scales[..., None]) + 8, 0, 15).astype(np.uint8).reshape(w.shape)
    return codes[..., ::2] | codes[..., 1::2] << 4, scales


def mixture_in_one_node(g, s, x, weights, name, how=True):
    """The same by com.microsoft.MoE, with gate and up as neighbours; its tokens may be in a list, its matrices in codes."""
    up, down, router = (weights[f"{name}.{part}.weight"] for part in ("gate_up_proj", "down_proj", "router"))
    up = up.reshape(up.shape[0], 2, INNER, -1).swapaxes(1, 2).reshape(up.shape)
    listed = how == "list"
    probabilities = s("Reshape", s("MatMul", x, g.matrix(router)), s.const([-1, router.shape[0]]), allowzero=0)
    rows = s("Reshape", x, s.const([-1, up.shape[2]]), allowzero=0) if listed else x
    if how == "codes":
        coded = [g.weight(f"{name}.{part}.{what}", a) for part, w in (("up", up), ("down", down)) for what, a in zip(("codes", "scales"), in_codes(w))]
        return s("QMoE", rows, probabilities, *coded[:2], "", *coded[2:], domain="com.microsoft", k=2, activation_type="swiglu", swiglu_fusion=1,
                 expert_weight_bits=4, block_size=16, weights_prepacked=0)
    y = s("MoE", rows, probabilities, g.weight(name + ".gate_up_proj.pairs", up), "", g.weight(name + ".down_proj.weight", down), domain="com.microsoft",
          k=2, activation_type="swiglu", swiglu_fusion=1, normalize_routing_weights=1)
    return s("Reshape", y, s("Shape", x), allowzero=0) if listed else y


def build(v):
    weights = weights_of(v)
    g = Graph(24 if v["in_place"] else 17, producer="tests/models")
    g.later_outputs = []
    called = v.get("names", {})
    positions = None
    if called:  # in another order, too
        positions = g.input(called["position_ids"], np.int64, [BATCH, LENGTH])
    ids = g.input(called.get("input_ids", "input_ids"), np.int64, [BATCH, LENGTH])
    s = g.at("/model")
    if v["in_place"]:
        rows, keys, mask = rows_in_place(g, s, v, ids)
    else:
        mask = g.input("attention_mask", np.int64, [BATCH, TOTAL if v["past"] else LENGTH]) if v["mask"] else None
        total = size(s, mask, 1) if v["past"] else size(s, ids, 1)
        start = s("Sub", total, size(s, ids, 1)) if v["past"] else s.const(0)
        rows, keys = s("Range", start, total, s.const(1)), s("Range", s.const(0), total, s.const(1))
    if v["positions"] and not called:
        positions = g.input("position_ids", np.int64, [BATCH, LENGTH])
    rows_of_batch = rows if v["in_place"] else s("Unsqueeze", rows, s.const([0]))
    seen = None
    if v["in_place"] != "op":
        seen = additive_mask(s, v, mask, s("Unsqueeze", rows, s.const([2 if v["in_place"] else 1])), s("Unsqueeze", keys, s.const([0])))
    angles = tables(s, v, positions or rows_of_batch) if v["rotary"] else None
    x = embed(g, ids, weights, "embed_tokens.weight")
    for i in range(LAYERS):
        b, name = g.at(f"/model/layers.{i}"), f"layers.{i}"
        y, x = rms_norm(g, b.at("input_layernorm"), x, weights, name + ".input_layernorm")
        if v["convolution"]:
            x = b("Add", x, convolution(g, b.at("conv"), v, y, weights, name + ".conv", i))
            y, x = rms_norm(g, b.at("input_layernorm_2"), x, weights, name + ".input_layernorm")
        if v["sums"]:
            x = b("Add", x, running_sums(g, b.at("sums"), v, y, weights, name + ".sums", i))
            y, x = rms_norm(g, b.at("input_layernorm_3"), x, weights, name + ".input_layernorm")
        if v.get("alone"):
            x = b("Add", x, gated_silu(g, b.at("mlp"), y, weights, name + ".mlp"))
            continue
        attend = latent_attention if v["latent"] else attention
        x = b("Add", x, attend(g, b.at("self_attn"), v, y, seen, angles, weights, name + ".self_attn", i))
        y, x = rms_norm(g, b.at("post_attention_layernorm"), x, weights, name + ".post_attention_layernorm")
        feed_forward = gated_silu if not v["experts"] else functools.partial(mixture_in_one_node, how=v["node"]) if v["node"] else mixture
        x = b("Add", x, feed_forward(g, b.at("mlp"), y, weights, name + ".mlp"))
    y, _ = rms_norm(g, g.at("/model/norm"), x, weights, "norm")
    return as_later(logits(g, y, weights).model())


def rows_in_place(g, s, v, ids):
    """Places of the new tokens [B,S], of all that a cache holds [C], and a mask [B,C] as a caller has it."""
    length = size(s, ids, 1)
    writes, lengths = v.get("writes", "write_indices"), v.get("lengths")
    g.writes = g.input(writes, np.int64, [BATCH]) if writes else None
    g.lengths = g.input(lengths, np.int64, [BATCH]) if lengths else None
    if not lengths:
        g.lengths = s("Add", g.writes, length)
    if not writes:
        g.writes = s("Sub", s("Add", g.lengths, s.const(v.get("less", 0))), length)
    each = s("Range", s.const(0), length, s.const(1))
    rows = s("Add", s("Unsqueeze", g.writes, s.const([1])), s("Unsqueeze", each, s.const([0])))
    capacity = v.get("capacity", CAPACITY)
    mask = g.input("attention_mask", np.int64, [BATCH, capacity]) if v["in_place"] == "mask" else None
    keys = s("Range", s.const(0), size(s, mask, 1), s.const(1)) if mask else None
    return rows, keys, mask


def as_later(model):
    """As opset 18 and later have it: axes of a mean are an input."""
    if model.opset_import[0].version < 18:
        return model
    for node in model.graph.node:
        for attribute in [a for a in node.attribute if node.op_type == "ReduceMean" and a.name == "axes"]:
            name = node.name + ".axes"
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(attribute.ints, np.int64), name))
            node.input.append(name)
            node.attribute.remove(attribute)
    return model


def answer(file):
    """By ONNX Runtime, without using the past; and by how much the likeliest token is ahead at least."""
    import onnxruntime
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    inputs, ids, margin = {i.name: i for i in session.get_inputs()}, [], np.inf
    for _ in range(COUNT):
        tokens = np.array([PROMPT + ids], np.int64)
        given = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "position_ids": np.arange(tokens.size)[None]}
        feed = {name: given[name] if name in given else np.zeros((1, *(d if isinstance(d, int) else 0 for d in i.shape[1:])), np.float32)
                for name, i in inputs.items()}
        row = session.run(["logits"], feed)[0][0, -1]
        margin = min(margin, np.diff(np.sort(row)[-2:])[0])
        ids.append(int(row.argmax()))
    return ids, margin


def problem(tfcc, file, want, answers=None):
    """What is wrong, or nothing."""
    compiled = file.with_suffix(".tfcc")
    made = subprocess.run([tfcc, "compile", file, "-o", compiled, "--target", "cpu", "--cpu", "x86-64-v2"], capture_output=True, text=True)
    if made.returncode:
        return made.stderr.strip().splitlines()[-1]
    if "generate plan" not in made.stderr + made.stdout:
        said = subprocess.run([tfcc, "inspect", compiled], capture_output=True, text=True).stdout
        return " ".join(line for line in said.splitlines() if line.startswith("generation"))
    for how in [[]] if "in_place" in file.stem else [[], ["--literal"]]:  # as exported, vectors have no role
        said = subprocess.run([tfcc, "generate", compiled, "--prompt-ids", ",".join(map(str, PROMPT)), "-n", str(COUNT), "--print-ids", "-q", *how],
                              capture_output=True, text=True)
        if said.stdout.strip() != ",".join(map(str, want)):
            return f"{' '.join(how) or 'lifted'}: {said.stdout.strip()} {said.stderr.strip()}"
    if answers is None or not ("convolution" in file.stem or "sums" in file.stem):
        return ""
    said = subprocess.run([answers, compiled, compiled, "cpu", *(",".join(map(str, ids)) for ids in (PROMPT, want)), "1e-4,1e-4", "ids"],
                          capture_output=True, text=True)
    paged = "without_attention" not in file.stem  # pages alone run out
    return "" if said.returncode == 0 and ("pre-empted" in said.stdout) == paged else said.stdout.strip() + said.stderr.strip()


def main():
    table, wrong, known = HERE / "decoder_variants.json", 0, {}
    making = sys.argv[1] == "--make"
    with tempfile.TemporaryDirectory() as folder:
        for name, changes in VARIANTS.items():
            if making and name in IN_PLACE:
                continue
            file = Path(folder) / f"{name}.onnx"
            file.write_bytes(build(USUAL | changes).SerializeToString())
            if making:
                known[name], margin = answer(file)
                print(f"{name:32} margin {margin:.4f}", flush=True)
                continue
            found = problem(sys.argv[1], file, json.loads(table.read_text())[IN_PLACE.get(name, (name,))[0]], *sys.argv[2:])
            wrong += bool(found)
            print(f"{'FAIL' if found else 'ok  '}  {name:32} {found}", flush=True)
    if making:
        table.write_text("{\n" + ",\n".join(f"  {json.dumps(n)}: {json.dumps(ids)}" for n, ids in known.items()) + "\n}\n")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
