#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decoders of many kinds, which must have a program for generation and answer as ONNX Runtime does. Needs onnx and numpy.

    decoder_variants.py TFCC             builds each, compiles it for the CPU and compares 20 ids, lifted and as exported
    decoder_variants.py --make           writes decoder_variants.json anew, by ONNX Runtime

Positions by rotary embeddings (halves, pairs, a part of the head) and by ALiBi in three spellings; heads that share keys (MQA,
GQA of 3) or do not; a window, a soft cap, norms of queries and keys; with a past and without, with positions as an input and
without, without a mask. Weights are multiples of 2^-12 (make_models.py). Exit status 77, which ctest takes as skipped, without onnx.
"""
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

HEAD, INNER, LAYERS, VOCABULARY = 8, 48, 2, 200
PROMPT, COUNT = [23, 185, 12, 15, 23, 56, 47, 139], 20
USUAL = {"past": True, "positions": True, "mask": True, "heads": 4, "kv_heads": 2, "rotary": "halves", "turned": HEAD, "alibi": None,
         "window": None, "cap": None, "norms": False}
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
    "norms_of_heads": {"norms": True},
    "no_position_input": {"positions": False},
    "window_without_position_input": {"window": 5, "positions": False},
    "all": {"window": 6, "cap": 3.0, "turned": 4, "rotary": "pairs", "norms": True, "heads": 6},
    "no_past": {"past": False},
    "no_past_nor_positions": {"past": False, "positions": False},
    "no_past_nor_mask": {"past": False, "mask": False},
    "no_past_alibi_of_the_mask": NO_ROTARY | {"past": False, "positions": False, "alibi": "mask"},
    "no_past_window": {"past": False, "window": 5},
    "no_past_cap": {"past": False, "cap": 2.0},
}


def weights_of(v):
    hidden = v["heads"] * HEAD
    w = Weights(77, hidden, INNER)
    w.add("embed_tokens.weight", (VOCABULARY, hidden), 1.0)
    for i in range(LAYERS):
        attention = f"layers.{i}.self_attn"
        for part, rows, gain in (("q_proj", v["heads"] * HEAD, 1.6), ("k_proj", v["kv_heads"] * HEAD, 1.6), ("v_proj", v["kv_heads"] * HEAD, 1),
                                 ("o_proj", hidden, 1)):
            w.add(f"{attention}.{part}.weight", (rows, hidden), gain / np.sqrt(hidden))
        for part in ("gate_proj", "up_proj"):
            w.add(f"layers.{i}.mlp.{part}.weight", (INNER, hidden), 1 / np.sqrt(hidden))
        w.add(f"layers.{i}.mlp.down_proj.weight", (hidden, INNER), 1 / np.sqrt(INNER))
        for norm in ("input_layernorm", "post_attention_layernorm"):
            w.add(f"layers.{i}.{norm}.weight", (hidden,), 0.1, 1.0)
        for norm in ("q_norm", "k_norm"):
            w.add(f"{attention}.{norm}.weight", (HEAD,), 0.1, 1.0)
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
    sees = outer(s, sees)
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
    head = columns(x, 0, turned) if turned < HEAD else x
    if v["rotary"] == "halves":
        other = s("Concat", s("Neg", columns(head, turned // 2, turned)), columns(head, 0, turned // 2), axis=-1)
        y = s("Add", s("Mul", head, cos), s("Mul", other, sin))
    else:
        even, odd = columns(head, 0, INT64_MAX, 2), columns(head, 1, INT64_MAX, 2)
        parts = [s("Sub", s("Mul", even, cos), s("Mul", odd, sin)), s("Add", s("Mul", odd, cos), s("Mul", even, sin))]
        pairs = s("Concat", *(s("Unsqueeze", p, s.const([-1])) for p in parts), axis=-1)
        y = s("Reshape", pairs, s("Shape", head), allowzero=0)
    return s("Concat", y, columns(x, turned, HEAD), axis=-1) if turned < HEAD else y


def attention(g, s, v, x, mask, angles, weights, name, layer):
    batch = size(s, x, 0)

    def project(part, count):
        y = s.at(part)("MatMul", x, g.matrix(weights[f"{name}.{part}.weight"]))
        return s("Reshape", y, head_shape(g, s, batch, count, HEAD), allowzero=0)
    q, k, values = project("q_proj", v["heads"]), project("k_proj", v["kv_heads"]), project("v_proj", v["kv_heads"])
    if v["norms"]:
        q, k = (rms_norm(g, s.at(part), y, weights, f"{name}.{part}")[0] for part, y in (("q_norm", q), ("k_norm", k)))
    q, k, values = (s("Transpose", y, perm=[0, 2, 1, 3]) for y in (q, k, values))
    if angles:
        q, k = turn(s, v, q, *angles), turn(s, v, k, *angles)
    if v["past"]:
        k, values = with_past(g, s, layer, k, values, v["kv_heads"], HEAD)
    if v["kv_heads"] != v["heads"]:
        k, values = (repeat_heads(s, y, batch, size(s, k, 2), v["kv_heads"], v["heads"] // v["kv_heads"], HEAD) for y in (k, values))
    score = s("Mul", s("MatMul", q, s("Transpose", k, perm=[0, 1, 3, 2])), s.const(np.float32(HEAD ** -0.5), np.float32))
    if v["cap"]:
        score = s("Mul", s("Tanh", s("Div", score, s.const(v["cap"], np.float32))), s.const(v["cap"], np.float32))
    y = s("Transpose", s("MatMul", s("Softmax", s("Add", score, mask), axis=-1), values), perm=[0, 2, 1, 3])
    width = s.const([v["heads"] * HEAD])
    y = s("Reshape", y, s("Concat", s("Unsqueeze", batch, s.const([0])), s.const([-1]), width, axis=0), allowzero=0)
    return s.at("o_proj")("MatMul", y, g.matrix(weights[name + ".o_proj.weight"]))


def build(v):
    weights = weights_of(v)
    g = Graph(17, producer="tests/models")
    g.later_outputs = []
    ids = g.input("input_ids", np.int64, [BATCH, LENGTH])
    mask = g.input("attention_mask", np.int64, [BATCH, TOTAL if v["past"] else LENGTH]) if v["mask"] else None
    positions = g.input("position_ids", np.int64, [BATCH, LENGTH]) if v["positions"] else None
    s = g.at("/model")
    total = size(s, mask, 1) if v["past"] else size(s, ids, 1)
    start = s("Sub", total, size(s, ids, 1)) if v["past"] else s.const(0)
    rows, keys = s("Range", start, total, s.const(1)), s("Range", s.const(0), total, s.const(1))
    seen = additive_mask(s, v, mask, s("Unsqueeze", rows, s.const([1])), s("Unsqueeze", keys, s.const([0])))
    angles = tables(s, v, positions or s("Unsqueeze", rows, s.const([0]))) if v["rotary"] else None
    x = embed(g, ids, weights, "embed_tokens.weight")
    for i in range(LAYERS):
        b, name = g.at(f"/model/layers.{i}"), f"layers.{i}"
        y, x = rms_norm(g, b.at("input_layernorm"), x, weights, name + ".input_layernorm")
        x = b("Add", x, attention(g, b.at("self_attn"), v, y, seen, angles, weights, name + ".self_attn", i))
        y, x = rms_norm(g, b.at("post_attention_layernorm"), x, weights, name + ".post_attention_layernorm")
        x = b("Add", x, gated_silu(g, b.at("mlp"), y, weights, name + ".mlp"))
    y, _ = rms_norm(g, g.at("/model/norm"), x, weights, "norm")
    return logits(g, y, weights).model()


def answer(file):
    """By ONNX Runtime, without using the past; and by how much the likeliest token is ahead at least."""
    import onnxruntime
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    inputs, ids, margin = {i.name: i for i in session.get_inputs()}, [], np.inf
    for _ in range(COUNT):
        tokens = np.array([PROMPT + ids], np.int64)
        given = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "position_ids": np.arange(tokens.size)[None]}
        feed = {name: given[name] if name in given else np.zeros((1, i.shape[1], 0, i.shape[3]), np.float32) for name, i in inputs.items()}
        row = session.run(["logits"], feed)[0][0, -1]
        margin = min(margin, np.diff(np.sort(row)[-2:])[0])
        ids.append(int(row.argmax()))
    return ids, margin


def problem(tfcc, file, want):
    """What is wrong, or nothing."""
    compiled = file.with_suffix(".tfcc")
    made = subprocess.run([tfcc, "compile", file, "-o", compiled, "--target", "cpu", "--cpu", "x86-64-v2"], capture_output=True, text=True)
    if made.returncode:
        return made.stderr.strip().splitlines()[-1]
    if "generate plan" not in made.stderr + made.stdout:
        said = subprocess.run([tfcc, "inspect", compiled], capture_output=True, text=True).stdout
        return " ".join(line for line in said.splitlines() if line.startswith("generation"))
    for how in [], ["--literal"]:
        said = subprocess.run([tfcc, "generate", compiled, "--prompt-ids", ",".join(map(str, PROMPT)), "-n", str(COUNT), "--print-ids", "-q", *how],
                              capture_output=True, text=True)
        if said.stdout.strip() != ",".join(map(str, want)):
            return f"{' '.join(how) or 'lifted'}: {said.stdout.strip()} {said.stderr.strip()}"
    return ""


def main():
    table, wrong, known = HERE / "decoder_variants.json", 0, {}
    making = sys.argv[1] == "--make"
    with tempfile.TemporaryDirectory() as folder:
        for name, changes in VARIANTS.items():
            file = Path(folder) / f"{name}.onnx"
            file.write_bytes(build(USUAL | changes).SerializeToString())
            if making:
                known[name], margin = answer(file)
                print(f"{name:32} margin {margin:.4f}", flush=True)
                continue
            found = problem(sys.argv[1], file, json.loads(table.read_text())[name])
            wrong += bool(found)
            print(f"{'FAIL' if found else 'ok  '}  {name:32} {found}", flush=True)
    if making:
        table.write_text("{\n" + ",\n".join(f"  {json.dumps(n)}: {json.dumps(ids)}" for n, ids in known.items()) + "\n}\n")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
