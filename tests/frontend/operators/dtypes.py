#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every operator of frontend/import/importers*.def in every element type, against the table dtypes.txt. Needs no ONNX package and no GPU.

    dtypes.py TFCC ONNX_FROM_TEXT [--target cpu] [--only OPERATOR ...] [--types TYPE ...] [--write]

A model of one node (FORMS) is what a pair of operator and type is tried with. The table says of each pair whether it is computed,
or with what words import refuses it (T stands for the type). What is computed is put together, one model for each type, which
`tfcc verify` compares with float64 on the CPU (--target cpu), or which is compiled for each target of --target sm_80,sm_90,
with --fp16 too; where that fails, the nodes are tried alone, so that the message names the operator. `operator_values` beside
ONNX_FROM_TEXT tries what is refused. --write makes the table; review the difference like code. Exit status 0 if all is as the
table says, 77 without NVRTC where that is needed.
"""
import argparse
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
# Unsigned integers of 16 bits and more are no inputs of a model; they are weights and what quantisation has between ops.
TYPES = {"float": 1, "float16": 10, "bfloat16": 16, "double": 11, "int64": 7, "int32": 6, "int16": 5, "int8": 3, "uint8": 2, "bool": 9}
NAMES = {"float": "f32", "float16": "f16", "bfloat16": "bf16", "double": "f64", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8",
         "bool": "bool"}
REALS = ("float", "float16", "bfloat16", "double")
# Inputs of every model; T is the type that is tried. `v` is a vector as long as the last axis, `s` a scalar.
INPUTS = {"x": "T[2,3,4]", "y": "T[2,3,4]", "w": "T[4,5]", "u": "T[5]", "v": "T[4]", "c": "T[3]", "s": "T", "p": "bool[2,3,4]", "i": "int64[2,3,4]",
          "f": "float[2,3,4]", "image": "T[2,3,5]", "filter": "T[3,3,2]", "square": "T[2,3,3]", "heads": "T[1,2,3,8]", "tokens": "T[1,3,16]",
          "cache": "T[1,2,5,8]", "wide": "T[16,48]", "wide_bias": "T[48]", "angles": "T[1,3,4]", "angle_table": "T[6,4]"}
ELEMENTWISE = """Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu
Log LogSoftmax LpNormalization Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu
BitwiseNot Shape Size Flatten Dropout Transpose Trilu""".split()
BINARY = """Add Sub Mul Div Mod Pow And Or Xor Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mean Sum PRelu SwiGLU BitwiseAnd BitwiseOr BitwiseXor""".split()
REDUCTIONS = """ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare""".split()


def constant(name, values, kind="int64"):
    return f"{name} = Constant <value = {kind}[{len(values)}] {{{', '.join(map(str, values))}}}> ()"


def scalar(name, value, kind="int64"):
    return f"{name} = Constant <value = {kind} {{{value}}}> ()"


# What an operator is tried with; `out` is the result, `@` stands for the number of the type in ONNX.
FORMS = {
    **{op: f"out = {op} (x)" for op in ELEMENTWISE},
    **{op: f"out = {op} (x, y)" for op in BINARY},
    **{op: constant("axes", [1]) + f"; out = {op} (x, axes)" for op in REDUCTIONS},
    "ArgMax": "out = ArgMax <axis = 1> (x)",
    "ArgMin": "out = ArgMin <axis = 1> (x)",
    "Attention": "out = Attention (heads, cache, cache)",
    "BatchNormalization": "out = BatchNormalization (x, c, c, c, c)",
    # By less than the width, as ONNX has it.
    "BitShift": "six = CastLike (six0, y); low = Mod (y, six); out = BitShift <direction = \"LEFT\"> (x, low); right = BitShift <direction = \"RIGHT\"> (x, low)",
    "Cast": "out = Cast <to = 1> (x); back = Cast <to = @> (f)",
    "CastLike": "out = CastLike (x, f); back = CastLike (f, x)",
    "CausalConvWithState": "taps = Slice (filter, zero1, one1, one1); out, last = CausalConvWithState (image, taps)",
    "Clip": "out = Clip (x, s)",
    "Compress": constant("kept", [1, 0, 1], "bool") + "; out = Compress <axis = 1> (x, kept)",
    "Concat": "out = Concat <axis = 1> (x, y)",
    "Constant": "out = Constant <value = T[3] {1, 0, 1}> ()",
    "ConstantOfShape": constant("shape", [2, 3]) + "; out = ConstantOfShape <value = T[1] {1}> (shape)",
    "Conv": "out = Conv (image, filter)",
    "ConvTranspose": "out = ConvTranspose (image, filter)",
    "CumSum": scalar("axis", 1) + "; out = CumSum (x, axis)",
    "DepthToSpace": constant("shape", [1, 4, 3, 2]) + "; four = Reshape (x, shape); out = DepthToSpace <blocksize = 2> (four)",
    "DequantizeLinear": scalar("scale", 0.5, "float") + "; out = DequantizeLinear (x, scale)",
    "DynamicQuantizeLinear": "out, scale, zero = DynamicQuantizeLinear (x)",
    "Einsum": "out = Einsum <equation = \"bij,jk->bik\"> (x, w)",
    "Expand": constant("shape", [2, 2, 3, 4]) + "; out = Expand (x, shape)",
    "EyeLike": "out = EyeLike (w); as_float = EyeLike <dtype = 1> (w)",
    "Gather": constant("at", [1, 0, 2]) + "; out = Gather <axis = 1> (x, at)",
    "GatherElements": scalar("three", 3) + "; low = Mod (i, three); out = GatherElements <axis = 1> (x, low)",
    "GatherND": constant("flat", [1, 0, 0, 2]) + "; " + constant("to", [2, 2]) + "; at = Reshape (flat, to); out = GatherND (x, at)",
    "Gemm": constant("to", [6, 4]) + "; rows = Reshape (x, to); out = Gemm (rows, w, u)",
    "GroupNormalization": "out = GroupNormalization <num_groups = 3> (x, c, c)",
    "If": scalar("yes", 1, "bool") + "; out = If <then_branch = a () => (T t) { t = Identity (x) }, else_branch = b () => (T e) { e = Identity (y) }> (yes)",
    "InstanceNormalization": "out = InstanceNormalization (x, c, c)",
    "LayerNormalization": "out = LayerNormalization (x, v, v)",
    "LinearAttention": "decay = Slice (tokens, zero1, two1, two1); "
        "out, state = LinearAttention <q_num_heads = 2, kv_num_heads = 2, update_rule = \"gated\"> (tokens, tokens, tokens, , decay)",
    "MatMul": "out = MatMul (x, w); transposed = Transpose <perm = [0, 2, 1]> (y); pair = MatMul (x, transposed)",
    "MatMulInteger": "out = MatMulInteger (x, w)",
    "NonZero": constant("mask", [1, 0, 1]) + "; cast = CastLike (mask, x); out = NonZero (cast)",
    "OneHot": scalar("depth", 4) + "; low = Mod (i, depth); off_on = Slice (v, zero1, two1); out = OneHot (low, depth, off_on)",
    "Pad": constant("pads", [0, 1, 0, 0, 0, 2]) + "; out = Pad (x, pads, s)",
    "QLinearMatMul": scalar("sx", 0.5, "float") + "; zero = CastLike (zero0, x); out = QLinearMatMul (x, sx, zero, w, sx, zero, sx, zero)",
    "QuantizeLinear": "scale = CastLike (half0, x); out = QuantizeLinear (x, scale)",
    "RMSNormalization": "out = RMSNormalization (x, v)",
    "SimplifiedLayerNormalization": "out = SimplifiedLayerNormalization (x, v)",
    "Range": "a = CastLike (zero0, x); b = CastLike (four0, x); d = CastLike (one0, x); out = Range (a, b, d)",
    "Reshape": constant("shape", [4, 6]) + "; out = Reshape (x, shape)",
    "ReverseSequence": constant("lengths", [1, 2, 3, 2]) + "; t = Transpose <perm = [1, 2, 0]> (x); out = ReverseSequence (t, lengths)",
    "RotaryEmbedding": "out = RotaryEmbedding (heads, angles, angles)",
    "Scatter": scalar("three", 3) + "; low = Mod (i, three); out = Scatter <axis = 1> (x, low, y)",
    "ScatterElements": scalar("three", 3) + "; low = Mod (i, three); out = ScatterElements <axis = 1, reduction = \"add\"> (x, low, y); set = ScatterElements <axis = 1> (x, low, y)",
    "ScatterND": constant("flat", [0, 1]) + "; " + constant("to", [2, 1]) + "; at = Reshape (flat, to); out = ScatterND <reduction = \"max\"> (x, at, y); set = ScatterND (x, at, y)",
    "Slice": "out = Slice (x, one1, two1, one1)",
    "SpaceToDepth": constant("shape", [1, 3, 2, 4]) + "; four = Reshape (x, shape); out = SpaceToDepth <blocksize = 2> (four)",
    "Split": "out, rest = Split <axis = 2, num_outputs = 2> (x)",
    "Squeeze": constant("shape", [2, 1, 12]) + "; r = Reshape (x, shape); out = Squeeze (r, one1)",
    "TensorScatter": constant("at", [2]) + "; out = TensorScatter (cache, heads, at)",
    "Tile": constant("repeats", [1, 2, 1]) + "; out = Tile (x, repeats)",
    "TopK": "out, at = TopK <axis = 1> (x, two1)",
    "Unsqueeze": "out = Unsqueeze (x, one1)",
    "Where": "out = Where (p, x, y)",
    "com.microsoft.Attention": "out = com.microsoft.Attention <num_heads = 2> (tokens, wide, wide_bias)",
    "com.microsoft.BiasGelu": "out = com.microsoft.BiasGelu (x, v)",
    "com.microsoft.CausalConvWithState": "taps = Slice (filter, zero1, one1, one1); out, last = com.microsoft.CausalConvWithState (image, taps)",
    "com.microsoft.DecoderMaskedMultiHeadAttention": "q = Slice (tokens, zero1, one1, one1); out = com.microsoft.DecoderMaskedMultiHeadAttention <num_heads = 2> (q, q, q)",
    "com.microsoft.DequantizeLinear": scalar("scale", 0.5, "float") + "; out = com.microsoft.DequantizeLinear (x, scale)",
    "com.microsoft.DynamicQuantizeMatMul": "w8 = Cast <to = 3> (fw); " + scalar("scale", 0.5, "float") + "; out = com.microsoft.DynamicQuantizeMatMul (x, w8, scale)",
    "com.microsoft.EmbedLayerNormalization": constant("flat", [0, 1, 2, 3]) + "; " + constant("to", [2, 2]) + "; ids = Reshape (flat, to); ids32 = Cast <to = 6> (ids); "
        "out, sum = com.microsoft.EmbedLayerNormalization (ids32, , wide, wide, , wide_bias, wide_bias)",
    "com.microsoft.FastGelu": "out = com.microsoft.FastGelu (x, v)",
    "com.microsoft.FusedGemm": constant("to", [6, 4]) + "; rows = Reshape (x, to); out = com.microsoft.FusedGemm <activation = \"Tanh\"> (rows, w, u)",
    "com.microsoft.FusedMatMul": "out = com.microsoft.FusedMatMul <alpha = 0.5> (x, w)",
    "com.microsoft.GatedRMSNorm": "out = com.microsoft.GatedRMSNorm (x, v, y)",
    "com.microsoft.GatherBlockQuantized": constant("bytes", [17] * 32, "uint8") + "; " + constant("to", [4, 8]) + "; packed = Reshape (bytes, to); four = CastLike (ones4, tokens); "
        + constant("column", [4, 1]) + "; scales = Reshape (four, column); " + constant("at", [1, 0, 3]) + "; out = com.microsoft.GatherBlockQuantized <bits = 4, block_size = 16> (packed, at, scales)",
    "com.microsoft.Gelu": "out = com.microsoft.Gelu (x)",
    "com.microsoft.GroupQueryAttention": constant("ends", [2], "int32") + "; " + scalar("total", 3, "int32")
        + "; out, k, v2 = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2> (tokens, tokens, tokens, , , ends, total)",
    "com.microsoft.LinearAttention": "decay = Slice (tokens, zero1, two1, two1); "
        "out, state = com.microsoft.LinearAttention <q_num_heads = 2, kv_num_heads = 2, update_rule = \"gated\"> (tokens, tokens, tokens, , decay)",
    "com.microsoft.LinearAttentionGate": "out, rates = com.microsoft.LinearAttentionGate (x, v, v, y)",
    "com.microsoft.MRotaryEmbedding": constant("at", [0, 1, 2, 0, 2, 1, 1, 0, 5]) + "; " + constant("streams", [3, 1, 3]) + "; positions = Reshape (at, streams); "
        "out = com.microsoft.MRotaryEmbedding <mrope_section = [2, 1, 1]> (heads, positions, angle_table, angle_table)",
    "com.microsoft.MatMulIntegerToFloat": scalar("scale", 0.5, "float") + "; out = com.microsoft.MatMulIntegerToFloat (x, w, scale, scale)",
    "com.microsoft.MatMulNBits": constant("bytes", [17] * 32, "uint8") + "; " + constant("to", [4, 1, 8]) + "; packed = Reshape (bytes, to); scales = CastLike (ones4, tokens); "
        "out = com.microsoft.MatMulNBits <K = 16, N = 4, bits = 4, block_size = 16> (tokens, packed, scales)",
    "com.microsoft.MoE": constant("to", [3, 16, 16]) + "; experts = Reshape (wide, to); " + constant("rows", [6, 3]) + "; router = Reshape (square, rows); "
        "two = Concat <axis = 0> (tokens, tokens); out = com.microsoft.MoE <k = 2, normalize_routing_weights = 1> (two, router, experts, , experts)",
    "com.microsoft.MultiHeadAttention": "out = com.microsoft.MultiHeadAttention <num_heads = 2> (tokens, tokens, tokens)",
    "com.microsoft.QGemm": constant("to", [6, 4]) + "; rows = Reshape (x, to); " + scalar("scale", 0.5, "float")
        + "; zero = CastLike (zero0, x); out = com.microsoft.QGemm (rows, scale, zero, w, scale, zero, , scale, zero)",
    **{f"com.microsoft.{op}": scalar("scale", 0.5, "float") + f"; zero = CastLike (zero0, x); out = com.microsoft.{op} (x, scale, zero, y, scale, zero, scale, zero)"
       for op in ("QLinearAdd", "QLinearMul")},
    "com.microsoft.QLinearConcat": scalar("scale", 0.5, "float") + "; zero = CastLike (zero0, x); out = com.microsoft.QLinearConcat <axis = 1> (scale, zero, x, scale, zero, y, scale, zero)",
    **{f"com.microsoft.{op}": scalar("scale", 0.5, "float") + f"; zero = CastLike (zero0, x); out = com.microsoft.{op} (x, scale, zero, scale, zero)"
       for op in ("QLinearLeakyRelu", "QLinearSigmoid")},
    "com.microsoft.QLinearSoftmax": scalar("scale", 0.5, "float") + "; zero = CastLike (zero0, x); out = com.microsoft.QLinearSoftmax <opset = 13> (x, scale, zero, scale, zero)",
    "com.microsoft.QuantizeLinear": "scale = CastLike (half0, x); zero = Constant <value = uint8 {3}> (); out = com.microsoft.QuantizeLinear (x, scale, zero)",
    "com.microsoft.QMoE": constant("bytes", [17] * 384, "uint8") + "; " + constant("to", [3, 16, 8]) + "; codes = Reshape (bytes, to); " + constant("rows", [6, 3])
        + "; router = Reshape (square, rows); " + constant("halves", [0.5] * 48, "float") + "; like = CastLike (halves, tokens); " + constant("columns", [3, 16])
        + "; scales = Reshape (like, columns); two = Concat <axis = 0> (tokens, tokens); "
        "out = com.microsoft.QMoE <k = 2, weights_prepacked = 0> (two, router, codes, scales, , codes, scales)",
    "com.microsoft.QuickGelu": "out = com.microsoft.QuickGelu (x)",
    "com.microsoft.RotaryEmbedding": constant("at", [0, 1, 2]) + "; " + constant("one_row", [1, 3]) + "; positions = Reshape (at, one_row); "
        "out = com.microsoft.RotaryEmbedding (heads, positions, angle_table, angle_table)",
    "com.microsoft.SkipLayerNormalization": "out = com.microsoft.SkipLayerNormalization (x, y, v, v)",
    "com.microsoft.SkipSimplifiedLayerNormalization": "out = com.microsoft.SkipSimplifiedLayerNormalization (x, y, v)",
    "com.microsoft.PackedAttention": constant("flat", [0, 1, 2]) + "; " + constant("to", [1, 3]) + "; offset0 = Reshape (flat, to); offset = Cast <to = 6> (offset0); "
        + constant("ends", [0, 3], "int32") + "; rows = Squeeze (tokens, zero1); out = com.microsoft.PackedAttention <num_heads = 2> (rows, wide, wide_bias, offset, ends)",
    "com.microsoft.PackedMultiHeadAttention": constant("flat", [0, 1, 2]) + "; " + constant("to", [1, 3]) + "; offset0 = Reshape (flat, to); offset = Cast <to = 6> (offset0); "
        + constant("ends", [0, 3], "int32") + "; rows = Squeeze (tokens, zero1); out = com.microsoft.PackedMultiHeadAttention <num_heads = 2> (rows, rows, rows, , offset, ends)",
    "com.microsoft.RemovePadding": constant("lengths", [2], "int32") + "; a, at, ends, most = com.microsoft.RemovePadding (tokens, lengths); out = com.microsoft.RestorePadding (a, at)",
    "com.microsoft.RestorePadding": constant("lengths", [2], "int32") + "; a, at, ends, most = com.microsoft.RemovePadding (tokens, lengths); out = com.microsoft.RestorePadding (a, at)",
}
# Other forms for some types: floats and integers differ in Mod, a scale is a float, and no reduction is one of truth values.
FORMS_BY_TYPE = {
    **{("Mod", kind): "out = Mod <fmod = 1> (x, y)" for kind in REALS},
    **{("QuantizeLinear", kind): scalar("scale", 0.5, "float") + "; out = QuantizeLinear (x, scale)" for kind in TYPES if kind not in REALS},
    **{("com.microsoft.QuantizeLinear", kind): scalar("scale", 0.5, "float") + "; zero = Constant <value = uint8 {3}> (); out = com.microsoft.QuantizeLinear (x, scale, zero)"
       for kind in TYPES if kind not in REALS},
    ("ScatterElements", "bool"): scalar("three", 3) + "; low = Mod (i, three); set = ScatterElements <axis = 1> (x, low, y)",
    ("ScatterND", "bool"): constant("flat", [0, 1]) + "; " + constant("to", [2, 1]) + "; at = Reshape (flat, to); set = ScatterND (x, at, y)",
}
# Values that forms share.
SHARED = {"zero0": scalar("zero0", 0), "six0": scalar("six0", 6), "one0": scalar("one0", 1), "four0": scalar("four0", 4), "half0": scalar("half0", 0.5, "float"), "zero1": constant("zero1", [0]),
          "one1": constant("one1", [1]), "two1": constant("two1", [2]), "fw": "fw = Cast <to = 1> (w)",
          "ones4": constant("ones4", [1, 1, 1, 1], "float")}


def operators():
    """The names of frontend/import/importers*.def, with the domain where it is not ONNX's own."""
    for file, domain in (("importers.def", ""), ("importers_microsoft.def", "com.microsoft.")):
        for name in re.findall(r"^TFCC_IMPORT\((\w+),", (ROOT / "frontend/import" / file).read_text(), re.M):
            yield domain + name


def nodes_of(op, kind, prefix):
    """The nodes of a form, their names behind a prefix, and the outputs of the model: every `out`, and what else stands for itself."""
    form = FORMS_BY_TYPE.get((op, kind), FORMS[op])
    for name, text in SHARED.items():
        if re.search(rf"\b{name}\b", form):
            form = text + "; " + form
    made = []
    for node in form.split("; "):
        made += [n.strip() for n in node.split(" = ", 1)[0].split(",")]
    own = {n for n in made if n}

    def renamed(match):
        word = match.group(0)
        return prefix + word if word in own else word

    lines = []
    for node in form.split("; "):
        left, right = node.split(" = ", 1)
        left = re.sub(r"\w+", renamed, left)
        # Names within <...> are attributes; those of branches are the model's inputs.
        call, arguments = right.rsplit(" (", 1)
        arguments = re.sub(r"[A-Za-z_]\w*", renamed, arguments)
        lines.append(f"  {left} = {call} ({arguments}")
    text = "\n".join(lines).replace("@", str(TYPES[kind]))
    text = re.sub(r"\bT\b", kind, text)
    return text, [prefix + n for n in made if n in ("out", "back", "set", "pair", "as_float", "right")]


def model(name, ops, kind):
    bodies, outputs = [], []
    for number, op in enumerate(ops):
        text, results = nodes_of(op, kind, f"n{number}_" if len(ops) > 1 else "")
        bodies.append(text)
        outputs += results
    body = "\n".join(bodies)
    used = [n for n in INPUTS if re.search(rf"\b{n}\b", re.sub(r"<[^<>]*=[^<>]*\{[^<>]*>", "", body))]
    declared = ", ".join(INPUTS[n].replace("T", kind) + " " + n for n in used)
    return (f'<ir_version: 10, opset_import: ["" : 28, "com.microsoft" : 1]>\n{name} ({declared}) => ({", ".join("float[N] " + o for o in outputs)})\n'
            f"{{\n{body}\n}}\n")


def call(*argv, timeout=600):
    return subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout)


def first_line(done):
    return next((l for l in done.stderr.splitlines() if l.strip()), f"exit status {done.returncode}")


class Trials:
    """Models of the text form as files, and what tfcc does with them."""

    def __init__(self, args, scratch):
        self.args, self.scratch = args, scratch

    def write(self, texts):
        """The files of models m0, m1, ..."""
        source, binary = self.scratch / "models.txt", self.scratch / "models.bin"
        source.write_text("".join(texts))
        done = call(self.args.onnx_from_text, source, binary)
        if done.returncode:
            sys.exit(done.stderr.strip())
        data, at, files = binary.read_bytes(), 0, []
        while at < len(data):
            end = data.index(b"\n", at)
            name, size = data[at:end].decode().split()
            files.append(self.scratch / f"{name}.onnx")
            files[-1].write_bytes(data[end + 1:end + 1 + int(size)])
            at = end + 2 + int(size)
        return files

    def reasons(self, pairs):
        """For each pair None if import takes it, else why not."""
        files = self.write(model(f"m{i}", [op], kind) for i, (op, kind) in enumerate(pairs))

        def reason(file, kind):
            done = call(self.args.tfcc, "opt", file, "--passes=")
            if not done.returncode:
                return None
            words = re.sub(r"^tfcc: \S*\.onnx: (node '[^']*' \([^)]*\): )?", "", first_line(done))
            return re.sub(rf"\b{NAMES[kind]}\b", "T", words)
        with ThreadPoolExecutor() as pool:
            return list(pool.map(reason, files, [kind for _, kind in pairs]))

    def refused(self, table):
        """What is wrong with the pairs that the table says are refused."""
        texts = [model(f"m{i}", [op], kind) + "#refused " + re.sub(r"\bT\b", NAMES[kind], why) + "\n"
                 for i, ((op, kind), why) in enumerate(table)]
        source = self.scratch / "refused.onnxtxt"
        source.write_text("".join(texts))
        done = subprocess.run([str(self.args.onnx_from_text.parent / "operator_values"), str(source)], cwd=self.scratch, capture_output=True, text=True)
        lines = [re.sub(r"^refused:m(\d+): ", lambda m: "{} in {}: ".format(*table[int(m.group(1))][0]), l) for l in done.stderr.splitlines() if l.strip()]
        return lines or (["operator_values: exit status " + str(done.returncode)] if done.returncode else [])

    def verified(self, ops, kind):
        done = call(self.args.tfcc, "verify", self.write([model("m", ops, kind)])[0], "--target", "cpu")
        if done.returncode == 0:
            return None
        return first_line(done) if done.returncode != 1 else " / ".join((done.stdout + done.stderr).split("\n")[-6:])

    def compiled(self, ops, kind, *options):
        done = call(self.args.tfcc, "compile", self.write([model("m", ops, kind)])[0], "-o", self.scratch / "m.tfcc", "-q", "--target", self.args.target, *options)
        if done.returncode and "NVRTC" in done.stderr and "does not compile" not in done.stderr:
            print(f"skipped: {first_line(done)}")
            sys.exit(77)
        return first_line(done) if done.returncode else None


# The text form has no tensors of these types.
UNWRITTEN = {(op, kind) for op in ("Constant", "ConstantOfShape") for kind in ("float16", "bfloat16")}


def read_table(path):
    """{(operator, type): None if computed, else the reason}"""
    table, op = {}, None
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if not line.startswith(" "):
            op = line
            continue
        what, why = (line.strip().split(": ", 1) + [None])[:2]
        for kind in what.split()[1:]:
            table[op, kind] = why
    return table


def write_table(path, found):
    lines = ["# What dtypes.py holds every operator to in every element type: computed, or refused at import with these words, T for the type."]
    for op in operators():
        lines.append(op)
        by_reason = {}
        for kind in TYPES:
            if (op, kind) in found:
                by_reason.setdefault(found[op, kind], []).append(kind)
        if None in by_reason:
            lines.append("  computed " + " ".join(by_reason.pop(None)))
        lines += [f"  refused {' '.join(kinds)}: {why}" for why, kinds in by_reason.items()]
    path.write_text("\n".join(lines) + "\n")


def check_computed(args, trials, ops, kind):
    """What goes wrong with these operators in one model, by operator."""
    if args.target == "cpu":
        tries = [("", lambda ops: trials.verified(ops, kind))]
    else:
        tries = [("", lambda ops: trials.compiled(ops, kind))]
        if kind in REALS:
            tries.append((" with --fp16", lambda ops: trials.compiled(ops, kind, "--fp16")))
    problems = []
    for options, attempt in tries:
        together = attempt(ops) if ops else None
        if together:
            alone = [(op, attempt([op])) for op in ops]
            wrong = [f"{op} in {kind} on {args.target}{options}: {why}" for op, why in alone if why]
            problems += wrong or [f"all operators in one model of {kind} on {args.target}{options}: {together}"]
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tfcc", type=Path)
    parser.add_argument("onnx_from_text", type=Path)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--types", nargs="+", default=list(TYPES))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    args.tfcc, args.onnx_from_text = args.tfcc.resolve(), args.onnx_from_text.resolve()
    ops = [op for op in operators() if not args.only or op in args.only]
    problems = [f"{op}: no form to try it with; add one to FORMS" for op in ops if op not in FORMS]
    pairs = [(op, kind) for op in ops for kind in args.types if op in FORMS and (op, kind) not in UNWRITTEN]
    path = HERE / "dtypes.txt"
    table = read_table(path) if path.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(args, Path(folder))
        if args.write:
            table.update(zip(pairs, trials.reasons(pairs)))
            write_table(path, table)
        problems += [f"{op} in {kind}: not in dtypes.txt; run dtypes.py --write and review" for op, kind in pairs if (op, kind) not in table]
        pairs = [pair for pair in pairs if pair in table]
        if args.target == "cpu":
            problems += trials.refused([(pair, table[pair]) for pair in pairs if table[pair]])
        for kind in args.types:
            problems += check_computed(args, trials, [op for op, k in pairs if k == kind and table[op, k] is None], kind)
    for p in problems:
        print(p)
    computed = sum(table[pair] is None for pair in pairs)
    print(f"{len(ops)} operators in {len(args.types)} types: {computed} computed, {len(pairs) - computed} refused, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
