#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the models of this folder: small encoders and decoders with random weights, their inputs and expected outputs.

    make_models.py [NAME...]             write them (byte for byte the same each time)
    make_models.py --check [NAME...]     also run every case with onnxruntime and compare

Needs numpy and onnx; --check needs onnxruntime. README.md describes the folders.
"""
import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tools"))

import bert_graph  # noqa: E402
import decoder_forms  # noqa: E402
import dynamo_forms  # noqa: E402
import linear_forms  # noqa: E402
import torchscript_forms  # noqa: E402
from onnx_numpy import evaluate  # noqa: E402
from quantised_form import Quantised  # noqa: E402
from t5_form import t5_encoder  # noqa: E402

VOCABULARY, POSITIONS = 200, 48
TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2}


class Weights(dict):
    """Random weights by name. Multiples of 2^-12, from a generator whose stream is frozen: the same everywhere."""

    def __init__(self, seed, hidden, inner):
        self.random, self.hidden, self.inner = np.random.RandomState(seed), hidden, inner

    def add(self, name, shape, deviation, mean=0.0):
        # a sum of two uniforms: near enough to a bell, and exact
        u = self.random.randint(-4096, 4097, shape).astype(np.float64) + self.random.randint(-4096, 4097, shape)
        self[name] = (mean + np.round(u * (deviation * 1.2247)) / 4096).astype(np.float32)

    def linear(self, name, n_out, n_in, gain=1.0):
        self.add(name + ".weight", (n_out, n_in), gain / np.sqrt(n_in))
        self.add(name + ".bias", (n_out,), 0.1)

    def norm(self, name, size=None):
        self.add(name + ".weight", (size or self.hidden,), 0.1, 1.0)
        self.add(name + ".bias", (size or self.hidden,), 0.1)

    def embeddings(self, types=2, size=None, positions=POSITIONS):
        size = size or self.hidden
        self.add("embeddings.word_embeddings.weight", (VOCABULARY, size), 1.0)
        self.add("embeddings.position_embeddings.weight", (positions, size), 0.5)
        if types:
            self.add("embeddings.token_type_embeddings.weight", (types, size), 0.5)
        self.norm("embeddings.LayerNorm", size)

    def attention(self, name, query="query", key="key", value="value"):
        """Q and K so large that softmax decides: a wrong mask must show."""
        self.linear(f"{name}.{query}", self.hidden, self.hidden, 1.6)
        self.linear(f"{name}.{key}", self.hidden, self.hidden, 1.6)
        self.linear(f"{name}.{value}", self.hidden, self.hidden)


def bert_weights(seed, layers=2, hidden=32, inner=64, types=2, positions=POSITIONS):
    w = Weights(seed, hidden, inner)
    w.embeddings(types, positions=positions)
    for i in range(layers):
        name = f"encoder.layer.{i}"
        w.attention(name + ".attention.self")
        w.linear(name + ".attention.output.dense", hidden, hidden)
        w.norm(name + ".attention.output.LayerNorm")
        w.linear(name + ".intermediate.dense", inner, hidden)
        w.linear(name + ".output.dense", hidden, inner)
        w.norm(name + ".output.LayerNorm")
    w.linear("pooler.dense", hidden, hidden)
    return w


def distil_weights(seed, layers=2, hidden=32, inner=64):
    w = Weights(seed, hidden, inner)
    w.embeddings(types=0)
    for i in range(layers):
        name = f"transformer.layer.{i}"
        w.attention(name + ".attention", "q_lin", "k_lin", "v_lin")
        w.linear(name + ".attention.out_lin", hidden, hidden)
        w.norm(name + ".sa_layer_norm")
        w.linear(name + ".ffn.lin1", inner, hidden)
        w.linear(name + ".ffn.lin2", hidden, inner)
        w.norm(name + ".output_layer_norm")
    return w


def squeeze_weights(seed, layers=2, hidden=64, inner=128, groups=4):
    w = Weights(seed, hidden, inner)
    w.embeddings()
    w.groups = {}

    def conv(name, n_out, n_in, groups, gain=1.0):
        w.groups[name] = groups
        w.add(name + ".weight", (n_out, n_in // groups, 1), gain / np.sqrt(n_in // groups))
        w.add(name + ".bias", (n_out,), 0.1)
    for i in range(layers):
        name = f"encoder.layers.{i}"
        for part, gain in (("query", 1.6), ("key", 1.6), ("value", 1.0)):
            conv(f"{name}.attention.{part}", hidden, hidden, groups, gain)
        conv(name + ".post_attention.conv1d", hidden, hidden, 1)
        w.norm(name + ".post_attention.layernorm")
        conv(name + ".intermediate.conv1d", inner, hidden, groups)
        conv(name + ".output.conv1d", hidden, inner, groups)
        w.norm(name + ".output.layernorm")
    return w


def albert_weights(seed, hidden=32, inner=64, embedding=16):
    w = Weights(seed, hidden, inner)
    w.embeddings(size=embedding)
    w.linear("encoder.embedding_hidden_mapping_in", hidden, embedding)
    name = "encoder.albert_layer_groups.0.albert_layers.0"
    w.attention(name + ".attention")
    w.linear(name + ".attention.dense", hidden, hidden)
    w.norm(name + ".attention.LayerNorm")
    w.linear(name + ".ffn", inner, hidden)
    w.linear(name + ".ffn_output", hidden, inner)
    w.norm(name + ".full_layer_layer_norm")
    return w


T5 = {"heads": 4, "size": 8, "buckets": 16, "farthest": 21}


def t5_weights(seed, layers=2, hidden=32, inner=48):
    w = Weights(seed, hidden, inner)
    w.add("shared.weight", (VOCABULARY, hidden), 1.0)
    w.add("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", (T5["buckets"], T5["heads"]), 1.0)
    for i in range(layers):
        name = f"encoder.block.{i}"
        # scores are not scaled by 1/sqrt(size): q carries that factor, as T5's initialisation does
        for part, gain in (("q", 0.6), ("k", 1.6), ("v", 1.0), ("o", 1.0)):
            w.add(f"{name}.layer.0.SelfAttention.{part}.weight", (hidden, hidden), gain / np.sqrt(hidden))
        for part, shape in (("wi_0", (inner, hidden)), ("wi_1", (inner, hidden)), ("wo", (hidden, inner))):
            w.add(f"{name}.layer.1.DenseReluDense.{part}.weight", shape, 1 / np.sqrt(shape[1]))
        for k in (0, 1):
            w.add(f"{name}.layer.{k}.layer_norm.weight", (hidden,), 0.1, 1.0)
    w.add("encoder.final_layer_norm.weight", (hidden,), 0.1, 1.0)
    return w


LLAMA = {"heads": 4, "kv_heads": 2, "size": 8}


LINEAR = {"heads": 4, "kv_heads": 4, "size": 8}


def llama_weights(seed, layers=2, hidden=32, inner=48, config=LLAMA):
    w = Weights(seed, hidden, inner)
    w.add("embed_tokens.weight", (VOCABULARY, hidden), 1.0)
    kv = config["kv_heads"] * config["size"]
    for i in range(layers):
        name = f"layers.{i}"
        for part, n, gain in (("q_proj", hidden, 1.6), ("k_proj", kv, 1.6), ("v_proj", kv, 1.0), ("o_proj", hidden, 1.0)):
            w.add(f"{name}.self_attn.{part}.weight", (n, hidden), gain / np.sqrt(hidden))
        for part, shape in (("gate_proj", (inner, hidden)), ("up_proj", (inner, hidden)), ("down_proj", (hidden, inner))):
            w.add(f"{name}.mlp.{part}.weight", shape, 1 / np.sqrt(shape[1]))
        for part in ("input_layernorm", "post_attention_layernorm"):
            w.add(f"{name}.{part}.weight", (hidden,), 0.1, 1.0)
    w.add("norm.weight", (hidden,), 0.1, 1.0)
    return w


def gpt2_weights(seed, layers=2, hidden=32, inner=64):
    w = Weights(seed, hidden, inner)
    w.add("wte.weight", (VOCABULARY, hidden), 1.0)
    w.add("wpe.weight", (POSITIONS, hidden), 0.5)
    for i in range(layers):
        name = f"h.{i}"
        w.linear(name + ".attn.c_attn", 3 * hidden, hidden, 1.4)
        w.linear(name + ".attn.c_proj", hidden, hidden)
        w.linear(name + ".mlp.c_fc", inner, hidden)
        w.linear(name + ".mlp.c_proj", hidden, inner)
        w.norm(name + ".ln_1")
        w.norm(name + ".ln_2")
    w.norm("ln_f")
    return w


def linear_weights(seed, layers):
    w = with_head(llama_weights(seed, layers, config=LINEAR))
    for i in range(layers):
        w.add(f"layers.{i}.self_attn.gate_proj.weight", (LINEAR["heads"], w.hidden), 1 / np.sqrt(w.hidden))
    return w


def with_head(weights):
    weights.add("lm_head.weight", (VOCABULARY, weights.hidden), 1.0)
    return weights


def half(weights):
    return {n: v.astype(np.float16) for n, v in weights.items()}


EAGER = "Unsqueeze > Unsqueeze > Cast > Sub(1,.) > Mul(lowest) = [B,1,1,S], added to the scaled scores"
SDPA = "Unsqueeze > Expand [B,1,S,S] > Cast > Sub(1,.) > Where(., lowest, .), added to the scores"
EAGER_EXPORT, DYNAMO = "TorchScript, eager attention", "dynamo, scaled dot product attention"

# name: (graph, spelling, mask, what is special)
MODELS = {
    "bert-eager": (lambda: bert_graph.bert(bert_weights(1), 2, 4), EAGER_EXPORT, EAGER, "the plain form"),
    "bert-pooler": (lambda: bert_graph.bert(bert_weights(2), 2, 2, pooler=True), EAGER_EXPORT, EAGER,
                    "pooler_output: Gather of token 0, Gemm with transB, Tanh"),
    "bert-fp16": (lambda: bert_graph.bert(half(bert_weights(3)), 2, 4, dtype=np.float16, lowest=-65504.0),
                  EAGER_EXPORT + ", converted to float16", EAGER,
                  "float16 weights and arithmetic, Cast to float32 at the end; mask constant -65504"),
    "bert-quantised": (lambda: Quantised(bert_graph.bert(bert_weights(13), 2, 4)), EAGER_EXPORT + ", quantised by onnxruntime's tools",
                       EAGER, "weights of 8 and 4 bits: dynamic, static per channel, MatMulNBits with zero points"),
    "bert-sdpa-14": (lambda: torchscript_forms.bert_sdpa(14, bert_weights(4), 2, 4, pooler=True),
                     "TorchScript, scaled dot product attention", SDPA,
                     "LayerNorm decomposed; scale computed from Shape, its root on Q and on K"),
    "bert-external": (lambda: torchscript_forms.bert_sdpa(18, bert_weights(5), 2, 4),
                      "TorchScript, scaled dot product attention, as optimum writes it", SDPA,
                      "weights in model.onnx.data"),
    "bert-dynamo-18": (lambda: dynamo_forms.bert(18, bert_weights(6), 2, 4, pooler=True), DYNAMO, SDPA,
                       "K transposed as Reshape[-1,S,D] > Transpose > Reshape; sizes from token_type_ids"),
    "bert-head64": (lambda: dynamo_forms.bert(18, bert_weights(7, layers=1, hidden=128, inner=96), 1, 2), DYNAMO, SDPA,
                    "head size 64; feed-forward narrower than hidden"),
    "bert-attention-23": (lambda: dynamo_forms.bert(23, bert_weights(8), 2, 4, pooler=True), DYNAMO, SDPA,
                          "operators Attention (float mask, default scale) and Gelu"),
    "distilbert": (lambda: torchscript_forms.distilbert(distil_weights(9), 2, 4), EAGER_EXPORT,
                   "Equal(mask,0) > Reshape > Expand > Where(., lowest, scores), in every layer",
                   "Q divided before the product; no token types"),
    "roberta": (lambda: dynamo_forms.roberta(18, bert_weights(10, types=1, positions=POSITIONS + 2), 2, 4), DYNAMO,
                SDPA, "positions are cumsum(ids != 1) * (ids != 1) + 1"),
    "squeezebert": (lambda: torchscript_forms.squeezebert(squeeze_weights(19), 2, 4), EAGER_EXPORT, EAGER,
                    "linear layers as Conv over one token, channels before tokens, most of them in groups"),
    "albert": (lambda: torchscript_forms.albert(albert_weights(11), 3, 4), EAGER_EXPORT, EAGER,
               "three passes through one layer, weights shared by Identity; embedding size 16; tanh GELU"),
    "t5-encoder": (lambda: t5_encoder(t5_weights(12), 2, T5), EAGER_EXPORT, EAGER + " with the position bias",
                   "RMS norm, bucketed relative positions, unscaled scores, gated tanh GELU, no biases"),
    "llama": (lambda: decoder_forms.llama(llama_weights(13), 2, LLAMA), EAGER_EXPORT,
              "LessOrEqual of ranges And mask > Where(., 0, lowest), added to the scaled scores",
              "rotary embedding, two key heads repeated by Unsqueeze > Expand > Reshape, RMS norm, gated SiLU, no cache"),
    "gpt2": (lambda: decoder_forms.gpt2(gpt2_weights(14), 2, 4), EAGER_EXPORT,
             "Where(triangle sliced to the length, scores, lowest), then " + EAGER,
             "q, k and v sliced from one Gemm, learned positions, norms first, tanh GELU, no cache"),
    "llama-past": (lambda: decoder_forms.llama_past(with_head(llama_weights(15)), 2, LLAMA), EAGER_EXPORT + ", as optimum writes it",
                   "LessOrEqual of ranges, rows from the past on, And mask > Where(., 0, lowest)",
                   "past keys and values in, present out; positions are an input; logits"),
    "gpt2-past": (lambda: decoder_forms.gpt2_past(with_head(gpt2_weights(16)), 2, 4), EAGER_EXPORT + ", as optimum writes it",
                  "Where(triangle sliced from the past to the total, scores, lowest), then " + EAGER,
                  "past keys and values in, present out; positions are an input; logits"),
    "linear-decoder": (lambda: linear_forms.decoder(linear_weights(17, 2), ["sum", "head"], LINEAR), "TorchScript, linear attention",
                       "times the keys", "no softmax: a running sum of keys times values and a normaliser; a decay for each head; logits"),
    "linear-hybrid": (lambda: linear_forms.decoder(linear_weights(18, 3), ["token", "softmax", "sum"], LINEAR), "TorchScript, linear and eager attention",
                      "times the keys; LessOrEqual of ranges And mask > Where(., 0, lowest)", "a decay for each token, softmax attention, a running sum; logits"),
}
PAST = {"llama-past", "gpt2-past"}
DECODERS = PAST | {"linear-decoder", "linear-hybrid"}


# Where rounding decides: another last bit before a quantisation can be another integer after it. With every value of bert-quantised
# rounded to f16 in numpy, its result moves by 1.1e-2 to 2.0e-2.
ROUNDED = {"bert-fp16": {"fp32": 1e-2, "fp16": 1e-2}, "bert-quantised": {"fp32": 5e-3, "fp16": 3e-2}}


# Of the inputs. A model that comes later gets a seed of its own, so that those of the others stay.
LATER = {"bert-quantised": 1100, "llama": 1012, "gpt2": 1013, "llama-past": 1014, "gpt2-past": 1015, "linear-decoder": 1016, "linear-hybrid": 1017, "squeezebert": 1018}
SEEDS = {name: 1000 + i for i, name in enumerate(sorted(set(MODELS) - set(LATER)))} | LATER


def masks():
    """The six patterns: full, right padded, left padded, scattered, one row without a token, one token each."""
    right, left = np.zeros((4, 32), np.int64), np.zeros((3, 24), np.int64)
    for row, n in zip(right, (32, 17, 5, 1)):
        row[:n] = 1
    for row, n in zip(left, (24, 9, 2)):
        row[24 - n:] = 1
    scattered = np.random.RandomState(99).randint(0, 2, (2, 16))
    scattered[:, [0, -1]] = 1
    empty = np.ones((2, 8), np.int64)
    empty[1] = 0
    return [np.ones((1, 13), np.int64), right, left, scattered.astype(np.int64), empty, np.ones((5, 1), np.int64)]


def feeds(name, model, seed):
    """Random ids and types for every mask, in padded places too; RoBERTa's padding has an id of its own."""
    random = np.random.RandomState(seed)
    for mask in masks():
        ids = random.randint(2, VOCABULARY, mask.shape).astype(np.int64)
        if name == "roberta":
            ids = np.where(mask == 1, ids, 1)
        given = {"input_ids": ids, "attention_mask": mask,
                 "token_type_ids": random.randint(0, 2, mask.shape).astype(np.int64)}
        yield {i.name: given[i.name] for i in model.graph.input}, mask.astype(bool)


def past_feeds(model, seed):
    """The same masks over past and new tokens: half of the keys, rounded down, are past."""
    random = np.random.RandomState(seed)
    for mask in masks():
        total = mask.shape[1]
        past = total // 2
        given = {"input_ids": random.randint(2, VOCABULARY, (mask.shape[0], total - past)).astype(np.int64), "attention_mask": mask,
                 "position_ids": np.maximum(mask.cumsum(1) - 1, 0)[:, past:]}
        for i in model.graph.input:
            if i.name.startswith("past"):
                dims = [d.dim_value for d in i.type.tensor_type.shape.dim]
                values = random.randint(-4096, 4097, (mask.shape[0], dims[1], past, dims[3]))
                given[i.name] = (values / 4096).astype(np.float32)
        yield given, mask[:, past:].astype(bool)


def greedy(model, prompt, count):
    """Ids after the prompt, each the likeliest, in float64; and the smallest distance between the likeliest two."""
    pasts = [i for i in model.graph.input if i.name.startswith("past")]
    cache = {i.name: np.zeros([1] + [i.type.tensor_type.shape.dim[1].dim_value, 0, i.type.tensor_type.shape.dim[3].dim_value]) for i in pasts}
    ids, out, margin = list(prompt), [], np.inf
    for _ in range(count):
        past = next(iter(cache.values())).shape[2] if pasts else 0
        feed = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, past + len(ids)), np.int64)}
        if pasts:
            feed |= {"position_ids": past + np.arange(len(ids))[None], **cache}
        got = evaluate(model, feed)
        last = got["logits"][0, -1]
        first, second = np.sort(last)[:-3:-1]
        margin = min(margin, first - second)
        out.append(int(last.argmax()))
        ids = out[-1:] if pasts else ids + out[-1:]
        cache = {i.name: got[i.name.replace("past_key_values", "present")] for i in pasts}
    return out, float(margin)


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.ascontiguousarray(array))


def describe(name, graph, model, spelling, mask, note):
    def values(infos):
        return [{"name": i.name, "type": onnx.TensorProto.DataType.Name(i.type.tensor_type.elem_type).lower(),
                 "dims": [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim]} for i in infos]
    return {"exporter": "spelled as " + spelling, "opset": graph.opset, "ops": graph.op_counts(), "mask": mask,
            "note": note, "inputs": values(model.graph.input), "outputs": values(model.graph.output),
            "tolerance": ROUNDED.get(name, TOLERANCE),
            "expected": "the graph in float64 by onnx_numpy.py, cast to float32"}


def write(name):
    """Writes one folder and returns [(feeds, valid, expected)]."""
    build, spelling, mask, note = MODELS[name]
    graph = build()
    model = graph.model()
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    cases = []
    made = past_feeds(model, SEEDS[name]) if name in PAST else feeds(name, model, SEEDS[name])
    for k, (inputs, valid) in enumerate(made):
        expected = {n: y.astype(np.float32) for n, y in evaluate(model, inputs).items()}
        for n, x in inputs.items():
            save(folder / f"cases/{k}/in/{n}.npy", x)
        for n, y in expected.items():
            save(folder / f"cases/{k}/out/{n}.npy", y)
        save(folder / f"cases/{k}/valid.npy", valid)
        cases.append((inputs, valid, expected))
    (folder / "about.json").write_text(json.dumps(describe(name, graph, model, spelling, mask, note), indent=1) + "\n")
    if name in DECODERS:
        prompt = np.random.RandomState(SEEDS[name]).randint(2, VOCABULARY, 8).tolist()
        tokens, margin = greedy(model, prompt, 24)
        (folder / "generate.json").write_text(json.dumps({"prompt": prompt, "tokens": tokens, "min_margin": round(margin, 5)}) + "\n")
    if name == "bert-external":
        onnx.save_model(model, folder / "model.onnx", save_as_external_data=True, location="model.onnx.data",
                        size_threshold=256)
    else:
        (folder / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
    return cases


def check(name, cases):
    """Largest relative L2 error of onnxruntime over all cases, where outputs are defined."""
    import onnxruntime
    session = onnxruntime.InferenceSession(str(HERE / name / "model.onnx"), providers=["CPUExecutionProvider"])
    worst = 0.0
    for inputs, valid, expected in cases:
        for n, got in zip(expected, session.run(list(expected), inputs)):
            part = valid if got.ndim == 3 else ... if n.startswith("present") else valid.any(1)
            want = expected[n].astype(np.float64)[part]
            worst = max(worst, float(np.linalg.norm(got[part] - want) / np.linalg.norm(want)))
    return worst


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", metavar="NAME", help="one of " + ", ".join(MODELS))
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    unknown = [n for n in a.names if n not in MODELS]
    if unknown:
        p.error("no model called " + ", ".join(unknown))
    failed = []
    for name in a.names or MODELS:
        cases = write(name)
        size = sum(f.stat().st_size for f in (HERE / name).rglob("*") if f.is_file())
        line = f"{name:18} {size / 1024:6.0f} KiB"
        if a.check:
            error, limit = check(name, cases), 3e-3 if name in ROUNDED else 1e-5
            line += f"   onnxruntime {error:.1e}" + ("" if error <= limit else f"  WRONG: above {limit:.0e}")
            failed += [name] if not error <= limit else []
        print(line, flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
