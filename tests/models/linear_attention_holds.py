#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What linear attention promises beside its values. Needs numpy.

    linear_attention_holds.py TFCC --target cpu | cuda [--fp16 | --bf16]

For each form below, with heads of 16 and 64:
  - NaN in q, k, v and decays of padding behind real tokens changes no bit of these;
  - a sequence has the same bits alone, without its padding, in a batch and in another order; two runs agree;
  - where the sum that divides is exactly 0, the result is what the division gives (0 / 0 is NaN), and only there.
Exit status 0 only if all hold; 77, which ctest takes as skipped, without a GPU for `--target cuda`.
"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HEADS = 2
ELU = "(s,b,h,t,c) => select(s < 0.0, exp(s), s + 1.0)"
RELU = "(s,b,h,t,c) => max(s, 0.0)"
SUM = "epilogue = (s,z,b,h,t,c) => s / (z + 1e-06)"
FORMS = {  # attributes in front of the heads, feature map
    "causal": (f"causal = true, {SUM}", ELU),
    "all tokens": (f"causal = false, {SUM}", ELU),
    "decay": ("causal = true, decay = (b,h,t) => %g[b,t,h]", ELU),
    "divided by zero": ("causal = true, epilogue = (s,z,b,h,t,c) => s / z", RELU),
}


def graph(form, size):
    how, feature_map = FORMS[form]
    width = HEADS * size
    of = {n: f"%{n}: f32[B,S,{width}]" for n in "qkv"}
    halves = "".join(f"  %{n}2 = pointwise(%{n}) {{body = (i,j,k) => %{n}[i,j,k] * 0.5}} : f32[B,S,{width}]\n" for n in "qkv")
    loads = "%mask, %g" if "%g" in how else "%mask"
    return (f"graph @main({', '.join(of.values())}, %mask: i64[B,S], %g: f32[B,S,{HEADS}]) "
            "symbols(B = q.0 in 1.. as batch, S = q.1 in 1.. as length) {\n" + halves +
            f"  %a = linear_attention(%q2, %k2, %v2, {loads}) {{{how}, heads = {HEADS}, k_map = {feature_map}, kv_heads = {HEADS}, "
            f"q_map = {feature_map}, visible = (b,h,t) => %mask[b,t] == 1}} : f32[B,S,{width}]\n"
            f"  %y = pointwise(%a) {{body = (i,j,k) => %a[i,j,k] * 2.0}} : f32[B,S,{width}]\n  return y = %y\n}}\n")


def bits(x):
    return x.view(np.uint32)


class Program:
    def __init__(self, tfcc, folder, text, options):
        self.tfcc, self.folder = tfcc, folder
        (folder / "m.tfir").write_text(text)
        subprocess.run([tfcc, "compile", folder / "m.tfir", "-o", folder / "m.tfcc", "-q", *options], check=True)

    def __call__(self, inputs):
        np.savez(self.folder / "in.npz", **inputs)
        subprocess.run([self.tfcc, "run", self.folder / "m.tfcc", "--inputs", self.folder / "in.npz", "--output", self.folder / "out.npz"],
                       check=True, stdout=subprocess.DEVNULL)
        with np.load(self.folder / "out.npz") as out:
            return out["y"]


def made(size, tokens, lengths, rng):
    x = {n: rng.standard_normal((len(lengths), tokens, HEADS * size)).astype(np.float32) for n in "qkv"}
    x["mask"] = (np.arange(tokens)[None] < np.array(lengths)[:, None]).astype(np.int64)
    x["g"] = -0.1 * rng.random((len(lengths), tokens, HEADS)).astype(np.float32)
    return x


def faults(form, size, run, rng):
    """What does not hold."""
    lengths = [700, 1, 64, 333, 65]
    x = made(size, 700, lengths, rng)
    if form == "divided by zero":  # keys without a feature above 0
        x["k"][:, :5] = -np.abs(x["k"][:, :5])
    real = x["mask"].astype(bool)
    y = run(x)
    if not np.array_equal(bits(run(x)), bits(y)):
        yield "two runs differ"
    dirty = {n: np.where(real[..., None], v, np.float32(np.nan)) if n in "qkvg" else v for n, v in x.items()}
    if not np.array_equal(bits(run(dirty))[real], bits(y)[real]):
        yield "NaN in padding reaches a real token"
    order = rng.permutation(len(lengths))
    if not np.array_equal(bits(run({n: v[order] for n, v in x.items()}))[np.argsort(order)][real], bits(y)[real]):
        yield "another order has other bits"
    for b in range(len(lengths)):
        if not np.array_equal(bits(run({n: v[b:b + 1] for n, v in x.items()}))[0][real[b]], bits(y)[b][real[b]]):
            yield f"sequence {b} has other bits alone"
        if not np.array_equal(bits(run({n: v[b:b + 1, :lengths[b]] for n, v in x.items()}))[0], bits(y)[b][real[b]]):
            yield f"sequence {b} has other bits without its padding"
    undefined = np.zeros(y.shape, bool)
    if form == "divided by zero":
        q, k = (np.maximum(x[n], 0).reshape(*y.shape[:2], HEADS, size) for n in "qk")
        z = np.einsum("bthc,bthc->bth", q, np.cumsum(k * x["mask"][..., None, None], 1, dtype=np.float64))
        undefined = np.repeat(z == 0, size, axis=-1)
        if not undefined[real].any():
            yield "the test has no zero to divide by"
    if not np.array_equal(np.isnan(y)[real], undefined[real]):
        yield "NaN elsewhere than where 0 is divided by 0"


def main():
    tfcc, *options = sys.argv[1:]
    if "cuda" in options and (not shutil.which("nvidia-smi") or not subprocess.run(["nvidia-smi", "-L"], capture_output=True).stdout.strip()):
        print("skipped: there is no GPU")
        sys.exit(77)
    rng, wrong = np.random.default_rng(17), 0
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMS:
            for size in 16, 64:
                found = list(faults(form, size, Program(tfcc, Path(folder), graph(form, size), options), rng))
                wrong += len(found)
                print(f"{form}, heads of {size}: {'; '.join(found) or 'holds'}", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
