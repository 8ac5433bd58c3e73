#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles encoders with and without padding and runs random_masks on each: eleven thousand masks on the CPU, as many tenths on a GPU, in fp16 too.

    random_masks.py TFCC RANDOM_MASKS ONNX_FROM_TEXT [cpu|cuda]

Exit status 0 only if all are good; 77, which ctest takes as skipped, without a GPU.
"""
import itertools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Plain, a pooler that reads token 0, positions counted from ids (so that ids of padding matter), a fused attention, one whose heads
# of 64 and lengths warpgroups serve on Hopper, and that one with three heads that weigh tokens.
MODELS = {"bert-eager": 4000, "bert-pooler": 2000, "roberta": 2000, "distilbert": 1000, "bert-attention-23": 1000, "long": 1000, "pooled": 500}
IDS_MATTER = {"roberta"}
LARGEST_ID, LARGEST_LENGTH, LONGEST = 15, 40, 300
TOLERANCE, TOLERANCE_F16 = 5e-5, 2e-2

LAYER = """
  qkv{0} = MatMul (x{0}, wqkv)
  q0{0}, k0{0}, v0{0} = Split <axis = -1> (qkv{0}, parts)
  q1{0} = Reshape (q0{0}, heads)
  k1{0} = Reshape (k0{0}, heads)
  v1{0} = Reshape (v0{0}, heads)
  q{0} = Transpose <perm = [0, 2, 1, 3]> (q1{0})
  k{0} = Transpose <perm = [0, 2, 3, 1]> (k1{0})
  v{0} = Transpose <perm = [0, 2, 1, 3]> (v1{0})
  scores{0} = MatMul (q{0}, k{0})
  scaled{0} = Mul (scores{0}, scale)
  masked{0} = Add (scaled{0}, mask)
  p{0} = Softmax <axis = -1> (masked{0})
  o{0} = MatMul (p{0}, v{0})
  o1{0} = Transpose <perm = [0, 2, 1, 3]> (o{0})
  o2{0} = Reshape (o1{0}, joined)
  o3{0} = MatMul (o2{0}, wout)
  sum{0} = Add (o3{0}, x{0})
  x{1} = LayerNormalization <axis = -1> (sum{0}, gamma)
"""
LONG = """An encoder with positions but without a table of them.
<ir_version: 8, opset_import: ["" : 18]>
long (int64[B,S] input_ids, int64[B,S] attention_mask) => (float[B,S,128] x2)
<int64 zero = {0}, int64 one = {1}, int64 many = {65536}, int64[2] square = {128, 512}, int64[4] heads = {0, 0, 2, 64}, int64[3] joined = {0, 0, 128},
 int64[3] parts = {128, 128, 128}, int64[2] split = {384, 128}, int64[2] axes = {1, 2}, int64[1] second = {1}, float scale = {0.125}, float few = {0.2},
 float unit = {1.0}, float lowest = {-3.4e38}, int64[1] width = {128}, int64[2] table_shape = {512, 128}>
{
  numbers = Range (zero, many, one)
  reals = Cast <to = 1> (numbers)
  waves = Sin (reals)
  small = Mul (waves, few)
  table = Reshape (waves, table_shape)
  w = Reshape (small, square)
  wqkv, wout = Split <axis = -1> (w, split)
  gamma = Expand (unit, width)
  tokens = Gather (table, input_ids)
  shape = Shape (input_ids)
  length = Gather (shape, one)
  positions = Range (zero, length, one)
  place0 = Cast <to = 1> (positions)
  place1 = Unsqueeze (place0, second)
  place = Sin (place1)
  embedded = Add (tokens, place)
  x0 = LayerNormalization <axis = -1> (embedded, gamma)
  seen = Cast <to = 1> (attention_mask)
  rows = Unsqueeze (seen, axes)
  hidden = Sub (unit, rows)
  mask = Mul (hidden, lowest)
""" + LAYER.format(0, 1) + LAYER.format(1, 2) + "}\n"

# The tokens of each sequence weighed by a softmax whose mask is a choice, by one whose mask is added, and by the attention of token 0.
POOLED = LONG.replace("long (", "pooled (").replace("float[B,S,128] x2", "float[B,128] chosen, float[B,128] added, float[B,1,128] attended")[:-2] + """
  first = Gather <axis = 2> (x2, zero)
  dead = Equal (attention_mask, zero)
  score0 = Where (dead, lowest, first)
  weight0 = Softmax <axis = -1> (score0)
  row0 = Unsqueeze (weight0, second)
  pooled0 = MatMul (row0, x2)
  chosen = Squeeze (pooled0, second)
  gone = Squeeze (hidden, axes)
  penalty = Mul (gone, far)
  score1 = Add (first, penalty)
  weight1 = Softmax <axis = -1> (score1)
  column1 = Unsqueeze (weight1, last)
  weighed1 = Mul (x2, column1)
  added = ReduceSum <keepdims = 0> (weighed1, second)
  token0 = Gather <axis = 1> (x2, zero)
  query = Unsqueeze (token0, second)
  keys = Transpose <perm = [0, 2, 1]> (x2)
  product = MatMul (query, keys)
  scaled_product = Mul (product, scale)
  mask3 = Squeeze (mask, second)
  score2 = Add (scaled_product, mask3)
  weight2 = Softmax <axis = -1> (score2)
  attended = MatMul (weight2, x2)
}
"""
POOLED = POOLED.replace("float lowest = {-3.4e38}", "float lowest = {-3.4e38}, float far = {-10000.0}, int64[1] last = {2}")


# As ONNX Runtime's script for packing writes it: the padding is removed by an op of its own.
PACKED = """An encoder whose layers are between RemovePadding and RestorePadding.
<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
packed (int64[B,S] input_ids, int64[B,S] attention_mask) => (float[B,S,128] y, float[B,128] pooled)
<int64 zero = {0}, int64 one = {1}, int64 many = {81920}, int64[2] shape = {128, 640}, int64[2] table_shape = {640, 128}, int64[3] parts = {384, 128, 128},
 int64[1] ahead = {1}, float few = {0.2}, float unit = {1.0}, int64[1] width = {128}>
{
  numbers = Range (zero, many, one)
  reals = Cast <to = 1> (numbers)
  waves = Sin (reals)
  small = Mul (waves, few)
  table = Reshape (waves, table_shape)
  w = Reshape (small, shape)
  wqkv, wout, wup = Split <axis = -1> (w, parts)
  gamma = Expand (unit, width)
  tokens = Gather (table, input_ids)
  counted = ReduceSum <keepdims = 0> (attention_mask, ahead)
  count = Cast <to = 6> (counted)
  embedded = LayerNormalization <axis = -1> (tokens, gamma)
  x, offsets, ends = com.microsoft.RemovePadding (embedded, count)
  a = com.microsoft.PackedAttention <num_heads = 2> (x, wqkv, , offsets, ends)
  o = MatMul (a, wout)
  n = com.microsoft.SkipSimplifiedLayerNormalization (o, x, gamma)
  u = MatMul (n, wup)
  g = Tanh (u)
  z = com.microsoft.SkipSimplifiedLayerNormalization (g, n, gamma)
  y = com.microsoft.RestorePadding (z, offsets)
  pooled = Gather <axis = 1> (y, zero)
}
"""


def write_packed(from_text, folder):
    return write_text_model(from_text, folder, "packed", PACKED)


def write_long(from_text, folder):
    return write_text_model(from_text, folder, "long", LONG)


def write_pooled(from_text, folder):
    return write_text_model(from_text, folder, "pooled", POOLED)


def write_text_model(from_text, folder, name, model):
    text, models, path = folder / f"{name}.onnxtxt", folder / "models", folder / f"{name}.onnx"
    text.write_text("# " + model)
    subprocess.run([from_text, text, models], check=True)
    path.write_bytes(models.read_bytes().split(b"\n", 1)[1][:-1])  # behind its name and size
    return path


def arguments():
    """The programs, the device, and the options of its target; ends where there is no such device."""
    tfcc, check, from_text = sys.argv[1:4]
    device = sys.argv[4] if len(sys.argv) > 4 else "cpu"
    if device == "cuda" and (not shutil.which("nvidia-smi") or not subprocess.run(["nvidia-smi", "-L"], capture_output=True).stdout.strip()):
        print("skipped: there is no GPU")
        sys.exit(77)
    target = ["--target", "cuda"] if device == "cuda" else ["--target", "cpu", "--cpu", "native"]
    return tfcc, check, from_text, device, target


def main():
    tfcc, check, from_text, device, target = arguments()
    good = True
    precisions = {"f32": [], "f16": ["--fp16"]} if device == "cuda" else {"f32": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for (name, runs), (precision, options) in itertools.product(MODELS.items(), precisions.items()):
            written = {"long": write_long, "pooled": write_pooled}.get(name)
            model = written(from_text, folder) if written else Path(__file__).resolve().parent / name / "model.onnx"
            files = [folder / "packed.tfcc", folder / "padded.tfcc"]
            for file, padding in zip(files, ([], ["--keep-padding"])):
                subprocess.run([tfcc, "compile", model, "-o", file, "-q", *target, *options, *padding], check=True)
            print(f"{name:18} {precision}", end="  ", flush=True)
            good &= subprocess.run([check, *files, str(runs if device == "cpu" else runs // 10), str(LARGEST_ID), str(LONGEST if written else LARGEST_LENGTH),
                                    "0" if name in IDS_MATTER else "1", str(TOLERANCE_F16 if precision == "f16" else TOLERANCE), device,
                                    *(["weighs"] if name == "pooled" else [])]).returncode == 0
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
