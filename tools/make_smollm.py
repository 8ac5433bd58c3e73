#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the ONNX graph of a LLaMA with a past, and its tokenizer, from a GGUF file.

    make_smollm.py MODEL.gguf FOLDER      writes FOLDER/model.onnx (weights beside it in f32), tokenizer.json,
                                          generation_config.json and, where jinja2 is installed, chat.json

The graph is spelled as optimum exports one: past_key_values.N.key in, present.N.key out. Made for SmolLM2-135M-Instruct; any
`llama` architecture in F32, F16, Q8_0, Q4_0 or Q4_1 with a byte-level BPE vocabulary will do. Needs numpy and onnx.
"""
import json
import os
import struct
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from chat_pieces import pieces_of
from onnx_graph import Graph

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
CONTROL = 3  # the token type of special tokens
# How llama.cpp calls ways to split text into words -> the part of a tokenizer.json.
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PRE_TOKENIZERS = {
    "gpt-2": BYTE_LEVEL,
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]},
}


class Gguf:
    """Metadata as a dict, tensors by name as float32 arrays."""

    def __init__(self, path):
        self.path, self.data, self.at = path, np.memmap(path, np.uint8, "r"), 0
        if self.take_bytes(4) != b"GGUF":
            raise SystemExit(f"{path}: not a GGUF file")
        version, tensors, entries = self.take("<I"), self.take("<Q"), self.take("<Q")
        if version not in (2, 3):
            raise SystemExit(f"{path}: GGUF version {version}; 2 and 3 are read")
        self.meta = {}
        for _ in range(entries):
            key = self.text()
            self.meta[key] = self.value(self.take("<I"))
        self.tensors = {}
        for _ in range(tensors):
            name = self.text()
            dims = [self.take("<Q") for _ in range(self.take("<I"))]
            self.tensors[name] = (dims[::-1], self.take("<I"), self.take("<Q"))
        alignment = self.meta.get("general.alignment", 32)
        self.start = -(-self.at // alignment) * alignment

    def take_bytes(self, n):
        if self.at + n > len(self.data):
            raise SystemExit(f"{self.path}: ends in the middle of its header")
        self.at += n
        return bytes(self.data[self.at - n:self.at])

    def take(self, form):
        return struct.unpack(form, self.take_bytes(struct.calcsize(form)))[0]

    def text(self):
        return self.take_bytes(self.take("<Q")).decode()

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner, n = self.take("<I"), self.take("<Q")
            return [self.value(inner) for _ in range(n)]
        return self.take(SCALARS[kind])

    def array(self, name):
        shape, kind, offset = self.tensors[name]
        count, begin = int(np.prod(shape)), self.start + offset

        def blocks(size, per=32):
            raw = self.data[begin:begin + count // per * size]
            if len(raw) != count // per * size:
                raise SystemExit(f"{self.path}: ends in the middle of {name}")
            return raw.reshape(-1, size)

        def half(part):
            return np.ascontiguousarray(part).view("<f2").astype(np.float32)

        def nibbles(part):  # the low halves are the first 16 values of a block
            return np.concatenate([part & 15, part >> 4], axis=1).astype(np.float32)

        if kind == 0:
            out = blocks(4, 1).reshape(-1).view("<f4")
        elif kind == 1:
            out = half(blocks(2, 1))
        elif kind == 2:   # Q4_0: 32 x 4 bits with a scale, from -8
            b = blocks(18)
            out = (nibbles(b[:, 2:]) - 8) * half(b[:, :2])
        elif kind == 3:   # Q4_1: 32 x 4 bits with a scale and a least value
            b = blocks(20)
            out = nibbles(b[:, 4:]) * half(b[:, :2]) + half(b[:, 2:4])
        elif kind == 8:   # Q8_0: 32 x 8 bits with a scale
            b = blocks(34)
            out = np.ascontiguousarray(b[:, 2:]).view(np.int8).astype(np.float32) * half(b[:, :2])
        else:
            raise SystemExit(f"{self.path}: {name} is stored as GGML type {kind}; F32, F16, Q4_0, Q4_1 and Q8_0 are read")
        return np.ascontiguousarray(out, np.float32).reshape(shape)


def rotated_halves(weight, heads):
    """llama.cpp stores the rows of a head as pairs that are rotated together; exporters have two halves."""
    n, k = weight.shape
    return weight.reshape(heads, n // heads // 2, 2, k).swapaxes(1, 2).reshape(n, k)


def llama(gguf):
    meta = {k.removeprefix("llama."): v for k, v in gguf.meta.items()}
    layers, width, heads = meta["block_count"], meta["embedding_length"], meta["attention.head_count"]
    kv, eps, theta = meta.get("attention.head_count_kv", heads), meta["attention.layer_norm_rms_epsilon"], meta.get("rope.freq_base", 1e4)
    size = width // heads
    g = Graph(opset=18)
    ids = g.input("input_ids", np.int64, ["batch_size", "sequence_length"])
    mask = g.input("attention_mask", np.int64, ["batch_size", "past_sequence_length + sequence_length"])
    positions = g.input("position_ids", np.int64, ["batch_size", "sequence_length"])

    s = g.at("/model")
    embedding = g.weight("model.embed_tokens.weight", gguf.array("token_embd.weight"))
    x = s("Gather", embedding, ids)
    inverse = (1.0 / theta ** (np.arange(0, size, 2) / size)).astype(np.float32)[None, None]
    angle = s("Mul", s("Cast", s("Unsqueeze", positions, s.const([2])), to=TensorProto.FLOAT), g.weight("rotary.inv_freq", inverse))
    angle = s("Concat", angle, angle, axis=-1)
    cos, sin = (s("Unsqueeze", s(f, angle), s.const([1])) for f in ("Cos", "Sin"))

    def size_of(value, axis):
        return s("Gather", s("Shape", value), s.const(axis), axis=0)

    batch, length, total = size_of(ids, 0), size_of(ids, 1), size_of(mask, 1)
    query = s("Unsqueeze", s("Range", s("Sub", total, length), total, s.const(1)), s.const([1]))
    key = s("Unsqueeze", s("Range", s.const(0), total, s.const(1)), s.const([0]))
    seen = s("And", s("Unsqueeze", s("LessOrEqual", key, query), s.const([0, 1])), s("Unsqueeze", s("Cast", mask, to=TensorProto.BOOL), s.const([1, 2])))
    bias = s("Where", seen, s.const(0, np.float32), s.const(np.finfo(np.float32).min, np.float32))

    def norm(s, x, name):
        mean = s("ReduceMean", s("Pow", x, s.const(2, np.float32)), s.const([-1]), keepdims=1)
        y = s("Mul", x, s("Div", s.const(1, np.float32), s("Sqrt", s("Add", mean, s.const(eps, np.float32)))))
        return s("Mul", g.weight(name, gguf.array(name)), y)

    def rotate(s, x):
        low = s("Slice", x, s.const([0]), s.const([size // 2]), s.const([3]))
        high = s("Slice", x, s.const([size // 2]), s.const([1 << 62]), s.const([3]))
        return s("Add", s("Mul", x, cos), s("Mul", s("Concat", s("Neg", high), low, axis=-1), sin))

    outputs = []
    for i in range(layers):
        layer = s.at(f"layers.{i}")
        a = layer.at("self_attn")

        def product(s, x, name, n=None):
            weight = gguf.array(f"blk.{i}.{name}.weight")
            return s("MatMul", x, g.matrix(rotated_halves(weight, n) if n else weight))

        def by_head(x, n):
            return a("Transpose", a("Reshape", x, a.const([0, 0, n, size])), perm=[0, 2, 1, 3])

        y = norm(layer.at("input_layernorm"), x, f"blk.{i}.attn_norm.weight")
        q = rotate(a, by_head(product(a, y, "attn_q", heads), heads))
        k = rotate(a, by_head(product(a, y, "attn_k", kv), kv))
        v = by_head(product(a, y, "attn_v"), kv)
        past = [g.input(f"past_key_values.{i}.{w}", np.float32, ["batch_size", kv, "past_sequence_length", size]) for w in ("key", "value")]
        k, v = (a("Concat", p, t, axis=2, out=f"present.{i}.{w}") for p, t, w in zip(past, (k, v), ("key", "value")))
        outputs += [k, v]
        if kv != heads:
            wide = a("Concat", a("Unsqueeze", batch, a.const([0])), a.const([kv]), a.const([heads // kv]), a("Unsqueeze", total, a.const([0])), a.const([size]), axis=0)
            flat = a("Concat", a("Unsqueeze", batch, a.const([0])), a.const([heads]), a("Unsqueeze", total, a.const([0])), a.const([size]), axis=0)
            k, v = (a("Reshape", a("Expand", a("Unsqueeze", t, a.const([2])), wide), flat) for t in (k, v))
        score = a("Mul", a("MatMul", q, a("Transpose", k, perm=[0, 1, 3, 2])), a.const(size ** -0.5, np.float32))
        weights = a("Softmax", a("Add", score, bias), axis=-1)
        out = a("Reshape", a("Transpose", a("MatMul", weights, v), perm=[0, 2, 1, 3]), a.const([0, 0, width]))
        x = layer("Add", x, product(a, out, "attn_output"))
        y = norm(layer.at("post_attention_layernorm"), x, f"blk.{i}.ffn_norm.weight")
        m = layer.at("mlp")
        gate = product(m, y, "ffn_gate")
        y = m("Mul", m("Mul", gate, m("Sigmoid", gate)), product(m, y, "ffn_up"))
        x = layer("Add", x, product(m, y, "ffn_down"))
    x = norm(s.at("norm"), x, "output_norm.weight")
    head = g.at("/lm_head")
    weight = g.matrix(gguf.array("output.weight")) if "output.weight" in gguf.tensors else head("Transpose", embedding, perm=[1, 0])
    head("MatMul", x, weight, out="logits")
    vocabulary = gguf.tensors["token_embd.weight"][0][0]
    g.output("logits", np.float32, ["batch_size", "sequence_length", vocabulary])
    for name in outputs:
        g.output(name, np.float32, ["batch_size", kv, "past_sequence_length + sequence_length", size])
    return g


def tokenizer_of(gguf):
    meta = {k.removeprefix("tokenizer.ggml."): v for k, v in gguf.meta.items()}
    if meta.get("model") != "gpt2" or meta.get("pre") not in PRE_TOKENIZERS:
        raise SystemExit(f"{gguf.path}: a vocabulary of kind {meta.get('model')}/{meta.get('pre')}; byte-level BPE (gpt2) of {', '.join(PRE_TOKENIZERS)} is read")
    added = [dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
             for i, (t, kind) in enumerate(zip(meta["tokens"], meta["token_type"])) if kind == CONTROL]
    model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False, byte_fallback=False,
                 vocab={t: i for i, t in enumerate(meta["tokens"])}, merges=meta["merges"])
    return dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=PRE_TOKENIZERS[meta["pre"]],
                post_processor=None, decoder=dict(BYTE_LEVEL), model=model)


def write(path, text):
    temporary = path.with_name(path.name + f".tmp.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__.strip())
    gguf, folder = Gguf(sys.argv[1]), Path(sys.argv[2])
    if gguf.meta.get("general.architecture") != "llama":
        raise SystemExit(f"{sys.argv[1]}: a model of architecture {gguf.meta.get('general.architecture')}; llama is read")
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "tokenizer.json", json.dumps(tokenizer_of(gguf), ensure_ascii=False))
    write(folder / "generation_config.json", json.dumps(dict(eos_token_id=gguf.meta["tokenizer.ggml.eos_token_id"],
                                                             max_length=gguf.meta["llama.context_length"])))
    template = gguf.meta.get("tokenizer.chat_template")
    if template:
        pieces = pieces_of(template)
        if pieces:
            write(folder / "chat.json", json.dumps(pieces, indent=1))
    model = llama(gguf).model()
    parameters = sum(int(np.prod(t.dims)) for t in model.graph.initializer)
    onnx.save(model, str(folder / "model.onnx"), save_as_external_data=True, location="model.onnx.data")
    print(f"{folder}/model.onnx: {len(model.graph.node)} nodes, {parameters / 1e6:.0f} M parameters, vocabulary of {len(gguf.meta['tokenizer.ggml.tokens'])}")


if __name__ == "__main__":
    main()
