#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Linear attention as exporters write it: python3 linear_attention_forms.py FOLDER [NAME ...]

Writes a folder FOLDER/NAME as README.md describes for each spelling below (all if none is named), expected outputs in float64. Needs
torch and onnx, and `--lengths 1,63,64,65` if other cases are wanted. Weights are random. `check.py TFCC --folder FOLDER` judges them.
With `--rounded` parameters and inputs are values of bf16, so that what bf16 makes of them is no error of a bf16 program.
With `--alone` there are no projections: q, k and v [batch, tokens, heads, size] are the inputs, as of fast-transformers' module.

  cumsum_einsum    (a) CumSum over the tokens of einsum(k, v), contracted with q; elu(x) + 1, normaliser q . cumsum(k) + eps
  cumsum_mul       (a) the same with unsqueezed operands and a Mul
  quadratic        (b) (q k^T under a triangle) v, rows divided by their sum
  quadratic_plain  (b) without a normaliser
  full_mask        (c) all tokens, two products, padding times k
  chunks           (d) chunks of 64 with a running state by CumSum over chunks, less the chunk itself
  chunks_einsum    (d) the same by einsum, moved on by a chunk; elu(x) + 1 and a normaliser
  retnet           (e) a constant decay for each head: powers of gamma under the triangle
  gated            (e) a decay for each token: exp of differences of a cumulative sum
  softmax          (a) by einsum, q and k under softmax over the features of a head
A name may end in -ts14, -ts17 (torch.onnx's TorchScript exporter at that opset) or -dynamo18, -dynamo20, -dynamo23.
"""
import json
import sys
from pathlib import Path

import numpy
import torch

BATCH, TOKENS, HEADS, SIZE = 2, 128, 4, 16
WIDTH = HEADS * SIZE


class Block(torch.nn.Module):
    """Projections around an attention; its input is [batch, tokens, WIDTH]."""

    causal = True

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def heads(self, x):
        return x.view(x.shape[0], x.shape[1], HEADS, SIZE)

    def forward(self, x, mask=None):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        y = self.attend(q, k, v) if mask is None else self.attend(q, k, v, mask)
        return self.o(y.reshape(x.shape[0], x.shape[1], WIDTH))


def features(x):
    return torch.nn.functional.elu(x) + 1


class CumsumEinsum(Block):
    def attend(self, q, k, v):
        q, k = features(q), features(k)
        state = torch.einsum("blhd,blhm->blhdm", k, v).cumsum(1)
        z = 1 / (torch.einsum("blhd,blhd->blh", q, k.cumsum(1)) + 1e-6)
        return torch.einsum("blhd,blhdm,blh->blhm", q, state, z)


class CumsumMul(Block):
    def attend(self, q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (features(q), features(k), v))
        state = torch.cumsum(k.unsqueeze(-1) * v.unsqueeze(-2), dim=2)
        y = (q.unsqueeze(-2) @ state).squeeze(-2)
        z = (q * torch.cumsum(k, dim=2)).sum(-1, keepdim=True) + 1e-6
        return (y / z).transpose(1, 2)


class Quadratic(Block):
    def attend(self, q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (torch.relu(q), torch.relu(k), v))
        scores = torch.tril(q @ k.transpose(-1, -2))
        return (scores / (scores.sum(-1, keepdim=True) + 1e-6) @ v).transpose(1, 2)


class QuadraticPlain(Block):
    def attend(self, q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (torch.exp(q), torch.relu(k) ** 2, v))
        mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
        return ((q @ k.transpose(-1, -2) * SIZE**-0.5).masked_fill(~mask, 0) @ v).transpose(1, 2)


class FullMask(Block):
    causal = False

    def attend(self, q, k, v, mask):
        q, k = features(q), features(k) * mask[:, :, None, None]
        state = torch.einsum("nshd,nshm->nhmd", k, v)
        z = 1 / (torch.einsum("nlhd,nhd->nlh", q, k.sum(dim=1)) + 1e-6)
        return torch.einsum("nlhd,nhmd,nlh->nlhm", q, state, z).contiguous()


class Chunks(Block):
    def attend(self, q, k, v):
        n, c = q.shape[0], 64
        q, k, v = (t.transpose(1, 2).reshape(n, HEADS, -1, c, SIZE) for t in (torch.relu(q), torch.relu(k), v))
        kv = k.transpose(-1, -2) @ v
        before = torch.cumsum(kv, dim=2) - kv
        within = torch.tril(q @ k.transpose(-1, -2)) @ v
        return (within + q @ before).reshape(n, HEADS, -1, SIZE).transpose(1, 2)


class ChunksEinsum(Block):
    def attend(self, q, k, v):
        q, k, v = (t.unflatten(1, (-1, 64)) for t in (features(q), features(k), v))
        mask = torch.ones(64, 64, dtype=torch.bool).tril()
        weights = torch.einsum("bnche,bnshe->bnhcs", q, k).masked_fill(~mask, 0)
        state, z = torch.einsum("bnshe,bnshm->bnhem", k, v).cumsum(1), k.sum(2).cumsum(1)
        state, z = (torch.nn.functional.pad(t, (0, 0) * (t.dim() - 2) + (1, 0))[:, :-1] for t in (state, z))
        y = torch.einsum("bnhcs,bnshm->bnchm", weights, v) + torch.einsum("bnche,bnhem->bnchm", q, state)
        z = weights.sum(-1).transpose(2, 3) + torch.einsum("bnche,bnhe->bnch", q, z)
        return (y / (z.unsqueeze(-1) + 1e-6)).flatten(1, 2)


class Retnet(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("decay", torch.log(1 - 2.0 ** (-5 - torch.arange(HEADS))))

    def attend(self, q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k * SIZE**-0.5, v))
        index = torch.arange(q.shape[2], dtype=torch.float32)
        distance = index[:, None] - index[None, :]
        mask = torch.exp(distance * self.decay[:, None, None]).masked_fill(distance < 0, 0)
        return (q @ k.transpose(-1, -2) * mask @ v).transpose(1, 2)


class Gated(Block):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(WIDTH, HEADS)

    def forward(self, x):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        log_decay = torch.nn.functional.logsigmoid(self.gate(x)) / 16
        y = self.attend(q, k, v, log_decay)
        return self.o(y.reshape(x.shape[0], x.shape[1], WIDTH))

    def attend(self, q, k, v, log_decay):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        g = log_decay.transpose(1, 2).cumsum(-1)
        n = q.shape[2]
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        w = torch.exp((g[..., :, None] - g[..., None, :]).masked_fill(~mask, float("-inf")))
        return ((q @ k.transpose(-1, -2)) * w @ v).transpose(1, 2)


class Softmax(Block):
    def attend(self, q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = q.softmax(-1) * SIZE**-0.5, k.softmax(-1)
        state = torch.einsum("bhld,bhlm->bhldm", k, v).cumsum(2)
        z = torch.einsum("bhld,bhld->bhl", q, k.cumsum(2))
        return (torch.einsum("bhld,bhldm->bhlm", q, state) / z.unsqueeze(-1)).transpose(1, 2)


class Alone(torch.nn.Module):
    """The attention of a block without its projections; `more` is a mask, or what the decays are made of."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, q, k, v, more=None):
        if isinstance(self.block, Gated):
            return self.block.attend(q, k, v, torch.nn.functional.logsigmoid(more) / 16)
        return self.block.attend(q, k, v) if more is None else self.block.attend(q, k, v, more)


FORMS = {"cumsum_einsum": CumsumEinsum, "cumsum_mul": CumsumMul, "quadratic": Quadratic, "quadratic_plain": QuadraticPlain,
         "full_mask": FullMask, "chunks": Chunks, "chunks_einsum": ChunksEinsum,
         "retnet": Retnet, "gated": Gated, "softmax": Softmax}
EXPORTERS = ["ts14", "ts17", "dynamo18", "dynamo20", "dynamo23"]


def arguments(form, batch, tokens, seed, given=lambda x: x, alone=False):
    """By name."""
    g = torch.Generator().manual_seed(seed)
    made = lambda *shape: given(torch.randn(batch, tokens, *shape, generator=g))  # noqa: E731
    inputs = {n: made(HEADS, SIZE) for n in "qkv"} if alone else {"x": made(WIDTH)}
    if alone and form is Gated:
        inputs["gate"] = made(HEADS)
    if not form.causal:
        lengths = torch.randint(1, tokens + 1, (batch,), generator=g)
        inputs["mask"] = (torch.arange(tokens)[None] < lengths[:, None]).float()
    return inputs


def export(name, exporter, folder, lengths, given, alone):
    torch.manual_seed(0)
    module = FORMS[name]().eval()
    for p in module.parameters():
        p.data = given(p.data)
    if alone:
        module = Alone(module)
    made = arguments(FORMS[name], BATCH, TOKENS, 1, alone=alone)
    names, example = list(made), tuple(made.values())
    opset = int(exporter[-2:])
    path = folder / "model.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    if exporter.startswith("ts"):
        axes = {n: {0: "batch", 1: "sequence"} for n in names + ["y"]}
        torch.onnx.export(module, example, path, input_names=names, output_names=["y"], dynamic_axes=axes, opset_version=opset, dynamo=False)
    else:
        batch, sequence = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("sequence", min=2, max=1 << 20)
        if name.startswith("chunks"):
            sequence = 64 * torch.export.Dim("chunks", min=1, max=1 << 14)
        shapes = tuple({0: batch, 1: sequence} for _ in names)
        torch.onnx.export(module, example, path, input_names=names, output_names=["y"], dynamic_shapes=shapes, opset_version=opset, dynamo=True)
    about = {"spelling": f"{name}, {exporter}", "opset": opset, "inputs": [{"name": n} for n in names], "outputs": [{"name": "y"}],
             "tolerance": {"fp32": 1e-5, "fp16": 3e-3}}
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    module = module.double()
    for case, tokens in enumerate(lengths):
        tokens = -(-tokens // 64) * 64 if name.startswith("chunks") else tokens
        inputs = arguments(FORMS[name], 1 + case % 3, tokens, 2 + case, given, alone)
        with torch.no_grad():
            y = module(*(i.double() for i in inputs.values()))
        at = folder / "cases" / str(case)
        for part in ("in", "out"):
            (at / part).mkdir(parents=True, exist_ok=True)
        for n, i in inputs.items():
            numpy.save(at / "in" / f"{n}.npy", i.numpy())
        numpy.save(at / "out" / "y.npy", y.float().numpy())
        numpy.save(at / "valid.npy", inputs["mask"].bool().numpy() if "mask" in inputs else numpy.ones(y.shape[:2], bool))


def main():
    words, lengths, given = sys.argv[1:], [128, 37, 1, 65], lambda x: x
    alone = "--alone" in words
    words = [w for w in words if w != "--alone"]
    if "--rounded" in words:
        words.remove("--rounded")
        given = lambda x: x.bfloat16().float()  # noqa: E731
    if "--lengths" in words:
        at = words.index("--lengths")
        lengths = [int(n) for n in words[at + 1].split(",")]
        del words[at:at + 2]
    folder, wanted = Path(words[0]), words[1:] or list(FORMS)
    for one in (n for w in wanted for n in ([w] if "-" in w else [f"{w}-{e}" for e in EXPORTERS])):
        name, exporter = one.rsplit("-", 1)
        export(name, exporter, folder / one, lengths, given, alone)
        print(one, flush=True)


if __name__ == "__main__":
    main()
