# SPDX-License-Identifier: Apache-2.0
"""The cases of make.py, with those of recent_cases.py: FILES is name -> (comment, blocks); a block is a model and its runs."""
import numpy as np

B, S, P, D = 2, 3, 2, 4  # batch, length, past, head size
H = 2                    # heads
W = H * D


def model(name, inputs, outputs, body, opset=17):
    body = body.replace('""', "")  # how every version of the text form leaves an input out
    return (f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n{name} ({inputs}) => ({outputs})\n'
            "{\n" + "\n".join("  " + l for l in body.strip().splitlines()) + "\n}")


# ---- norms ----

def norm_cases():
    x = f"float[B,S,{W}] x"
    g = f"float[{W}] g"
    vec = lambda r, *names: {n: r.real(W) for n in names}
    skip = lambda *vs, full=True: lambda r: {"x": r.real(B, S, W), "s": r.real(B, S, W) if full else r.real(S, W), **vec(r, *vs)}
    yield model("skip_layer_normalization", f"{x}, float[B,S,{W}] s, {g}, float[{W}] b", f"float[B,S,{W}] y",
                "y = com.microsoft.SkipLayerNormalization<epsilon = 1e-5>(x, s, g, b)"), [skip("g", "b")]
    yield model("skip_layer_normalization_with_bias_and_sum", f"{x}, float[B,S,{W}] s, {g}, float[{W}] b, float[{W}] c",
                f"float[B,S,{W}] y, float[B,S,{W}] z",
                'y, "", "", z = com.microsoft.SkipLayerNormalization<epsilon = 1e-5>(x, s, g, b, c)'), [skip("g", "b", "c")]
    yield model("skip_layer_normalization_without_beta", f"{x}, float[B,S,{W}] s, {g}, float[{W}] c", f"float[B,S,{W}] y",
                'y = com.microsoft.SkipLayerNormalization<epsilon = 1e-5>(x, s, g, "", c)'), [skip("g", "c")]
    yield model("skip_layer_normalization_broadcasts_skip", f"{x}, float[S,{W}] s, {g}, float[{W}] b", f"float[B,S,{W}] y",
                "y = com.microsoft.SkipLayerNormalization<epsilon = 1e-5>(x, s, g, b)"), [skip("g", "b", full=False)]
    yield model("skip_simplified_layer_normalization", f"{x}, float[B,S,{W}] s, {g}, float[{W}] c",
                f"float[B,S,{W}] y, float[B,S,{W}] z",
                'y, "", "", z = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 1e-5>(x, s, g, c)'), [skip("g", "c")]
    yield model("skip_simplified_layer_normalization_alone", f"{x}, float[B,S,{W}] s, {g}", f"float[B,S,{W}] y",
                "y = com.microsoft.SkipSimplifiedLayerNormalization(x, s, g)"), [skip("g")]
    yield model("simplified_layer_normalization", f"{x}, {g}", f"float[B,S,{W}] y",
                "y = SimplifiedLayerNormalization<axis = -1, epsilon = 1e-5, stash_type = 1>(x, g)"), [
                    lambda r: {"x": r.real(B, S, W), "g": r.real(W)}]
    yield model("rms_normalization", f"{x}, {g}", f"float[B,S,{W}] y", "y = RMSNormalization(x, g)", 23), [
        lambda r: {"x": r.real(B, S, W), "g": r.real(W)}]
    yield model("rms_normalization_of_two_axes", f"float[B,3,{W}] x, float[3,{W}] g", f"float[B,3,{W}] y",
                "y = RMSNormalization<axis = 1, epsilon = 0.01>(x, g)", 23), [lambda r: {"x": r.real(B, 3, W), "g": r.real(3, W)}]
    yield model("rms_normalization_with_one_scale", f"{x}, float[1] g", f"float[B,S,{W}] y", "y = RMSNormalization(x, g)", 23), [
        lambda r: ({"x": r.real(B, S, W), "g": r.real(1)}, None, lambda f: {"y": f["x"] / np.sqrt((f["x"] ** 2).mean(-1, keepdims=True) + 1e-5) * f["g"]})]


def embed_cases():
    tables = f"float[11,{W}] w, float[6,{W}] p, float[2,{W}] t, float[{W}] g, float[{W}] b"

    def feeds(r, mask=None, segments=True, positions=None):
        f = {"ids": r.below(11, B, S, dtype=np.int32)}
        if segments:
            f["seg"] = r.below(2, B, S, dtype=np.int32)
        f |= {"w": r.real(11, W), "p": r.real(6, W), "t": r.real(2, W), "g": r.real(W), "b": r.real(W)}
        if mask is not None:
            f["m"] = np.array(mask, np.int32)
        if positions is not None:
            f["pos"] = np.array(positions, np.int32)
        return f

    mask = [[1, 1, 0], [1, 0, 0]]
    yield model("embed_layer_normalization", f"int32[B,S] ids, int32[B,S] seg, {tables}, int32[B,S] m",
                f"float[B,S,{W}] y, int32[B] n", "y, n = com.microsoft.EmbedLayerNormalization<epsilon = 1e-5>(ids, seg, w, p, t, g, b, m)"), [
                    lambda r: feeds(r, mask)]
    yield model("embed_layer_normalization_counts_holes", f"int32[B,S] ids, int32[B,S] seg, {tables}, int32[B,S] m", "int32[B] n",
                "y, n = com.microsoft.EmbedLayerNormalization(ids, seg, w, p, t, g, b, m)"), [lambda r: feeds(r, [[1, 0, 1], [0, 1, 1]])]
    yield model("embed_layer_normalization_of_positions", f"int32[B,S] ids, int32[B,S] seg, {tables}, int32[B,S] pos",
                f"float[B,S,{W}] y, float[B,S,{W}] e",
                'y, "", e = com.microsoft.EmbedLayerNormalization<epsilon = 1e-5>(ids, seg, w, p, t, g, b, "", pos)'), [
                    lambda r: feeds(r, positions=[[3, 4, 5], [0, 2, 1]])]
    yield model("embed_layer_normalization_without_segments", f"int32[B,S] ids, {tables.replace(f'float[2,{W}] t, ', '')}, int32[1,S] pos",
                f"float[B,S,{W}] y, int32[B] n",
                'y, n = com.microsoft.EmbedLayerNormalization<epsilon = 1e-5>(ids, "", w, p, "", g, b, "", pos)'), [
                    lambda r: {k: v for k, v in feeds(r, segments=False, positions=[[3, 1, 5]]).items() if k != "t"}]


def elementwise_cases():
    x, b = f"float[B,S,{W}] x", f"float[{W}] b"
    out = f"float[B,S,{W}] y"
    two = lambda r: {"x": r.real(B, S, W, scale=3), "b": r.real(W)}
    one = lambda r: {"x": r.real(B, S, W, scale=3)}
    yield model("bias_gelu", f"{x}, {b}", out, "y = com.microsoft.BiasGelu(x, b)"), [two]
    yield model("fast_gelu", x, out, "y = com.microsoft.FastGelu(x)"), [one]
    yield model("fast_gelu_with_bias", f"{x}, {b}", out, "y = com.microsoft.FastGelu(x, b)"), [two]
    yield model("gelu", x, out, "y = com.microsoft.Gelu(x)"), [one]
    yield model("quick_gelu", x, out, "y = com.microsoft.QuickGelu(x)"), [one]
    yield model("quick_gelu_alpha", x, out, "y = com.microsoft.QuickGelu<alpha = -0.7>(x)"), [one]


def matmul_cases():
    def case(name, a, b, y, attrs, da, db):
        dims = lambda d: ",".join(map(str, d))
        return model(name, f"float[{a}] a, float[{b}] b", f"float[{y}] y", f"y = com.microsoft.FusedMatMul<{attrs}>(a, b)"), [
            lambda r: {"a": r.real(*da), "b": r.real(*db)}]
    yield case("fused_matmul", "B,S,4", "4,5", "B,S,5", "alpha = 0.5", (B, S, 4), (4, 5))
    yield case("fused_matmul_trans_a", "B,4,S", "B,4,5", "B,S,5", "transA = 1", (B, 4, S), (B, 4, 5))
    yield case("fused_matmul_trans_b", "B,S,4", "5,4", "B,S,5", "transB = 1, alpha = 2.0", (B, S, 4), (5, 4))
    yield case("fused_matmul_trans_both", "B,H,4,S", "B,H,T,4", "B,H,S,T", "transA = 1, transB = 1", (B, 2, 4, S), (B, 2, 5, 4))
    yield case("fused_matmul_batch_inside", "S,B,4", "4,B,5", "B,S,5", "transBatchA = 1, transBatchB = 1", (S, B, 4), (4, B, 5))
    yield case("fused_matmul_batch_inside_and_transposed", "4,B,H,S", "T,B,H,4", "B,H,S,T",
               "transBatchA = 1, transA = 1, transBatchB = 1, transB = 1", (4, B, 2, S), (5, B, 2, 4))
    for name, attrs, c in (("relu", 'activation = "Relu", alpha = 0.5, beta = 2.0', "5"), ("leaky_relu", 'activation = "LeakyRelu", activation_alpha = 0.3, transB = 1', "S,5"),
                           ("tanh", 'activation = "Tanh", transA = 1', "5"), ("sigmoid", 'activation = "Sigmoid"', "5")):
        a, b = ("4,S" if "transA" in attrs else "S,4"), ("5,4" if "transB" in attrs else "4,5")
        dims = {"4,S": (4, S), "S,4": (S, 4), "5,4": (5, 4), "4,5": (4, 5), "5": (5,), "S,5": (S, 5)}
        yield model(f"fused_gemm_{name}", f"float[{a}] a, float[{b}] b, float[{c}] c", "float[S,5] y", f"y = com.microsoft.FusedGemm<{attrs}>(a, b, c)"), [
            lambda r, a=a, b=b, c=c: {"a": r.real(*dims[a], scale=2), "b": r.real(*dims[b]), "c": r.real(*dims[c])}]
    yield case("fused_matmul_of_vector", "4", "B,4,5", "B,5", "alpha = 0.25", (4,), (B, 4, 5))


# ---- rotation ----

def rotary_cases():
    cache = lambda n: f"float[7,{n}] c, float[7,{n}] s"
    def feeds(shape, n, positions, dtype=np.int64, three=False):
        return lambda r: {"x": r.real(*shape), **({"p": np.array(positions, dtype)} if positions is not None else {}),
                          "c": r.real(*((B, S) if three else (7,)), n), "s": r.real(*((B, S) if three else (7,)), n)}
    rows = [[0, 1, 2], [4, 6, 5]]
    order = lambda x, n: f"{x} x, int64[B,S] p, {cache(n)}"
    x4, x3 = f"float[B,{H},S,{D}]", f"float[B,S,{W}]"
    for tag, attrs in (("", ""), ("_interleaved", "<interleaved = 1>")):
        yield model(f"microsoft_rotary_embedding{tag}", order(x4, 2), f"{x4} y", f"y = com.microsoft.RotaryEmbedding{attrs}(x, p, c, s)"), [
            feeds((B, H, S, D), 2, rows)]
    yield model("microsoft_rotary_embedding_of_rank_3", order(x3, 2), f"{x3} y", "y = com.microsoft.RotaryEmbedding(x, p, c, s)"), [
        feeds((B, S, W), 2, rows)]
    yield model("microsoft_rotary_embedding_from_one_position", f"{x3} x, int64[1] p, {cache(2)}", f"{x3} y",
                "y = com.microsoft.RotaryEmbedding(x, p, c, s)"), [feeds((B, S, W), 2, [3])]
    yield model("microsoft_rotary_embedding_of_a_part", order(f"float[B,S,12]", 2), "float[B,S,12] y",
                "y = com.microsoft.RotaryEmbedding<num_heads = 2, rotary_embedding_dim = 4>(x, p, c, s)"), [feeds((B, S, 12), 2, rows)]
    for tag, attrs in (("", ""), ("_interleaved", "<interleaved = 1>")):
        yield model(f"rotary_embedding{tag}", order(x4, 2), f"{x4} y", f"y = RotaryEmbedding{attrs}(x, c, s, p)", 23), [
            feeds((B, H, S, D), 2, rows)]
        yield model(f"rotary_embedding_of_a_part{tag}", order(f"float[B,{H},S,6]", 2), f"float[B,{H},S,6] y",
                    f"y = RotaryEmbedding<rotary_embedding_dim = 4{', interleaved = 1' if tag else ''}>(x, c, s, p)", 23), [
                        feeds((B, H, S, 6), 2, rows)]
    yield model("rotary_embedding_of_rank_3", order(x3, 2), f"{x3} y", f"y = RotaryEmbedding<num_heads = {H}>(x, c, s, p)", 23), [
        feeds((B, S, W), 2, rows)]
    yield model("rotary_embedding_without_positions", f"{x4} x, float[B,S,2] c, float[B,S,2] s", f"{x4} y", "y = RotaryEmbedding(x, c, s)", 23), [
        feeds((B, H, S, D), 2, None, three=True)]


# ---- Attention of com.microsoft ----

def packed_attention(name, inputs, call, runs, attrs=f"num_heads = {H}", outputs=f"float[B,S,{W}] y", results="y"):
    text = model(name, f"float[B,S,5] x, float[5,{3 * W}] w" + (f", {inputs}" if inputs else ""), outputs,
                 f"{results} = com.microsoft.Attention<{attrs}>({call})")
    return text, runs


def microsoft_attention_cases():
    base = lambda r, **more: {"x": r.real(B, S, 5), "w": r.real(5, 3 * W), **{k: v(r) if callable(v) else np.array(v, np.int32) for k, v in more.items()}}
    bias = lambda r: r.real(3 * W)
    c = f"float[{3 * W}] c"
    yield packed_attention("attention_plain", c, "x, w, c", [lambda r: base(r, c=bias)])

    def with_zero_bias(f):  # onnxruntime crashes without a bias
        from make import expected
        return expected(packed_attention("plain", c, "x, w, c", [], f"num_heads = {H}, scale = 0.3")[0], f | {"c": np.zeros(3 * W, np.float32)})
    yield packed_attention("attention_without_bias_scaled", "", "x, w", [lambda r: (base(r), None, with_zero_bias)], f"num_heads = {H}, scale = 0.3")
    yield packed_attention("attention_of_lengths", f"{c}, int32[B] m", "x, w, c, m", [lambda r: base(r, c=bias, m=[2, 3])])
    text, runs = packed_attention("attention_of_ends_and_starts", f"{c}, int32[4] m", "x, w, c, m", [lambda r: base(r, c=bias, m=[3, 2, 1, 0])])
    yield text.replace("[B,", f"[{B},"), runs  # with a batch of any size, the mask could be one of lengths
    yield packed_attention("attention_of_raw_mask", f"{c}, int32[B,S] m", "x, w, c, m", [lambda r: base(r, c=bias, m=[[1, 0, 1], [0, 1, 1]])],
                           f"num_heads = {H}, mask_filter_value = -3.4028235e38")
    yield packed_attention("attention_of_an_all_masked_row", f"{c}, int32[B,S] m", "x, w, c, m", [
        lambda r: (base(r, c=bias, m=[[1, 1, 0], [0, 0, 0]]), {"y": np.array([False, True]).reshape(2, 1, 1)})])
    yield packed_attention("attention_of_mask_per_query", f"{c}, int32[B,S,S] m", "x, w, c, m", [
        lambda r: base(r, c=bias, m=[[[1, 0, 0], [1, 1, 0], [0, 1, 1]], [[1, 1, 1], [0, 1, 0], [0, 0, 1]]])])
    yield packed_attention("attention_unidirectional", c, "x, w, c", [lambda r: base(r, c=bias)], f"num_heads = {H}, unidirectional = 1")
    yield packed_attention("attention_unidirectional_of_raw_mask", f"{c}, int32[B,S] m", "x, w, c, m", [
        lambda r: base(r, c=bias, m=[[1, 1, 0], [1, 0, 1]])], f"num_heads = {H}, unidirectional = 1")
    yield packed_attention("attention_with_score_bias", f"{c}, float[1,{H},S,S] a", 'x, w, c, "", "", a', [
        lambda r: base(r, c=bias, a=lambda r: r.real(1, H, S, S))])
    past = f"float[2,B,{H},P,{D}] past"
    present = f"float[B,S,{W}] y, float[2,B,{H},T,{D}] present"
    yield packed_attention("attention_with_past", f"{c}, {past}", 'x, w, c, "", past', [
        lambda r: base(r, c=bias, past=lambda r: r.real(2, B, H, P, D))], f"num_heads = {H}, unidirectional = 1", present, "y, present")
    yield packed_attention("attention_with_past_and_mask", f"{c}, int32[B,T] m, {past}", "x, w, c, m, past", [
        lambda r: base(r, c=bias, m=[[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]], past=lambda r: r.real(2, B, H, P, D))], f"num_heads = {H}, unidirectional = 1", present, "y, present")
    yield model("attention_of_other_value_size", f"float[B,S,5] x, float[5,{2 * W + 6}] w, float[{2 * W + 6}] c", "float[B,S,6] y",
                f"y = com.microsoft.Attention<num_heads = {H}, qkv_hidden_sizes = [{W}, {W}, 6]>(x, w, c)"), [
                    lambda r: {"x": r.real(B, S, 5), "w": r.real(5, 2 * W + 6), "c": r.real(2 * W + 6)}]

    def of_table(f):
        n = f["x"].shape[1]
        qkv = f["x"] @ f["w"] + f["c"]
        q, k, v = (qkv[:, :, i * W:(i + 1) * W].reshape(B, n, H, D).transpose(0, 2, 1, 3) for i in range(3))
        s = q @ k.transpose(0, 1, 3, 2) / np.sqrt(D) + np.where(f["m"][:, :, :n, :n] > 0, 0, -10000.0)
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        return {"y": (p @ v).transpose(0, 2, 1, 3).reshape(B, n, W).astype(np.float32)}
    # onnxruntime has no CPU kernel for a table.
    yield packed_attention("attention_of_a_table", f"{c}, int32[B,1,4,4] m", "x, w, c, m", [
        lambda r: (base(r, c=bias, m=[np.tril(np.ones((1, 4, 4)))] * B), None, of_table)])

    def turned(x, first, dim):
        e = np.arange(dim // 2)
        angle = (first + np.arange(x.shape[2]))[:, None] * 10000.0 ** (-2 * e / dim)
        u, v = x[..., :dim // 2], x[..., dim // 2:dim]
        return np.concatenate([u * np.cos(angle) - v * np.sin(angle), v * np.cos(angle) + u * np.sin(angle), x[..., dim:]], -1)

    def rotary(dim):
        def reference(f):
            n = f["x"].shape[1]
            qkv = f["x"] @ f["w"] + f["c"]
            q, k, v = (qkv[:, :, i * W:(i + 1) * W].reshape(B, n, H, D).transpose(0, 2, 1, 3) for i in range(3))
            done = f["past"].shape[3] if "past" in f else 0
            q, k = turned(q, done, dim), turned(k, done, dim)
            if done:
                k, v = np.concatenate([f["past"][0], k], 2), np.concatenate([f["past"][1], v], 2)
            s = q @ k.transpose(0, 1, 3, 2) / np.sqrt(D)
            s = np.where(np.arange(done + n)[None, :] <= np.arange(done, done + n)[:, None], s, -np.inf)
            p = np.exp(s - s.max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            y = (p @ v).transpose(0, 2, 1, 3).reshape(B, n, W).astype(np.float32)
            return {"y": y, "present": np.stack([k, v]).astype(np.float32)} if done else {"y": y}
        return reference
    # onnxruntime rotates here on CUDA alone.
    yield packed_attention("attention_rotary", c, "x, w, c", [lambda r: (base(r, c=bias), None, rotary(D))], f"num_heads = {H}, unidirectional = 1, do_rotary = 1")
    yield packed_attention("attention_rotary_of_two_columns_with_past", f"{c}, {past}", 'x, w, c, "", past', [
        lambda r: (base(r, c=bias, past=lambda r: r.real(2, B, H, P, D)), None, rotary(2))],
        f"num_heads = {H}, unidirectional = 1, do_rotary = 1, rotary_embedding_dim = 2", present, "y, present")


def multi_head_cases():
    q, k, v = f"float[B,S,{W}] q", f"float[B,L,{W}] k", f"float[B,L,6] v"
    out = "float[B,S,6] y"
    L = 4
    base = lambda r, **more: {"q": r.real(B, S, W), "k": r.real(B, L, W), "v": r.real(B, L, 6),
                              **{n: f(r) if callable(f) else np.array(f, np.int32) for n, f in more.items()}}
    def case(name, inputs, call, runs, attrs=f"num_heads = {H}", outputs=out, results="y"):
        return model(name, f"{q}, {k}, {v}" + (f", {inputs}" if inputs else ""), outputs, f"{results} = com.microsoft.MultiHeadAttention<{attrs}>({call})"), runs
    yield case("multi_head_plain", "", "q, k, v", [lambda r: base(r)])
    yield case("multi_head_scaled", "", "q, k, v", [lambda r: base(r)], f"num_heads = {H}, scale = 0.7")
    yield case("multi_head_with_bias", f"float[{2 * W + 6}] c", "q, k, v, c", [lambda r: base(r, c=lambda r: r.real(2 * W + 6))])
    yield case("multi_head_of_lengths", "int32[B] m", 'q, k, v, "", m', [lambda r: base(r, m=[4, 2])])
    yield case("multi_head_of_raw_mask", "int32[B,L] m", 'q, k, v, "", m', [lambda r: base(r, m=[[1, 1, 0, 1], [0, 1, 1, 0]])])
    yield case("multi_head_of_mask_per_query", "int32[B,S,L] m", 'q, k, v, "", m', [
        lambda r: base(r, m=np.array([1, 1, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1] * B).reshape(B, S, L))])
    yield case("multi_head_with_score_bias", f"float[B,1,S,L] a", 'q, k, v, "", "", a', [lambda r: base(r, a=lambda r: r.real(B, 1, S, L))])
    yield case("multi_head_of_mask_and_score_bias", f"int32[B,L] m, float[1,{H},S,L] a", 'q, k, v, "", m, a', [
        lambda r: base(r, m=[[1, 1, 0, 1], [0, 1, 1, 0]], a=lambda r: r.real(1, H, S, L))], f"num_heads = {H}, mask_filter_value = -1e9")
    one = lambda r, **more: {n: r.real(B, S, W) for n in "qkv"} | {n: f(r) for n, f in more.items()}
    same = f"float[B,S,{W}] q, float[B,S,{W}] k, float[B,S,{W}] v"
    yield model("multi_head_unidirectional", same, f"float[B,S,{W}] y", f"y = com.microsoft.MultiHeadAttention<num_heads = {H}, unidirectional = 1>(q, k, v)"), [one]
    past = f"float[B,{H},P,{D}] pk, float[B,{H},P,{D}] pv"
    presents = f"float[B,S,{W}] y, float[B,{H},T,{D}] k2, float[B,{H},T,{D}] v2"
    pasts = dict(pk=lambda r: r.real(B, H, P, D), pv=lambda r: r.real(B, H, P, D))
    yield model("multi_head_with_past", f"{same}, {past}", presents,
                f'y, k2, v2 = com.microsoft.MultiHeadAttention<num_heads = {H}, unidirectional = 1>(q, k, v, "", "", "", pk, pv)'), [lambda r: one(r, **pasts)]
    yield model("multi_head_with_past_and_mask", f"{same}, int32[B,T] m, {past}", presents,
                f'y, k2, v2 = com.microsoft.MultiHeadAttention<num_heads = {H}>(q, k, v, "", m, "", pk, pv)'), [
                    lambda r: one(r, m=lambda r: np.array([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]], np.int32), **pasts)]
    yield model("multi_head_present_without_past", same, presents, f"y, k2, v2 = com.microsoft.MultiHeadAttention<num_heads = {H}>(q, k, v)"), [one]
    yield model("multi_head_cross_from_cache", f"{q}, float[B,{H},L,{D}] k, float[B,{H},L,{D}] v", f"float[B,S,{W}] y",
                f"y = com.microsoft.MultiHeadAttention<num_heads = {H}>(q, k, v)"), [
                    lambda r: {"q": r.real(B, S, W), "k": r.real(B, H, L, D), "v": r.real(B, H, L, D)}]

    # onnxruntime's CPU kernels take no packed operands: the same numbers, unpacked, through the plain form.
    def unpacked(pick, c=False):
        from make import expected
        text = model("plain", f"float[B,S,{W}] q, float[B,L,{W}] k, float[B,L,{W}] v" + (f", float[{3 * W}] c" if c else ""), f"float[B,S,{W}] y",
                     f"y = com.microsoft.MultiHeadAttention<num_heads = {H}>(q, k, v{', c' if c else ''})")
        def reference(f):
            q, k, v = pick(f)
            return expected(text, {"q": q, "k": k, "v": v} | ({"c": f["c"]} if c else {}))
        return reference
    flat = lambda a: np.ascontiguousarray(a).reshape(*a.shape[:2], W)
    yield model("multi_head_packed_kv", f"{q}, float[B,L,{H},2,{D}] kv", f"float[B,S,{W}] y", f"y = com.microsoft.MultiHeadAttention<num_heads = {H}>(q, kv)"), [
        lambda r: ({"q": r.real(B, S, W), "kv": r.real(B, L, H, 2, D)}, None,
                   unpacked(lambda f: (f["q"], flat(f["kv"][:, :, :, 0]), flat(f["kv"][:, :, :, 1]))))]
    yield model("multi_head_packed_qkv", f"float[B,S,{H},3,{D}] qkv, float[{3 * W}] c", f"float[B,S,{W}] y",
                f'y = com.microsoft.MultiHeadAttention<num_heads = {H}>(qkv, "", "", c)'), [
        lambda r: ({"qkv": r.real(B, S, H, 3, D), "c": r.real(3 * W)}, None,
                   unpacked(lambda f: tuple(flat(f["qkv"][:, :, :, i]) for i in range(3)), True))]


def decoder_masked_cases():
    name = "com.microsoft.DecoderMaskedMultiHeadAttention"
    one = f"float[B,1,{W}]"
    def feeds(r, length, capacity, mask=None):
        f = {n: r.real(B, 1, W) for n in "qkv"} | {"pk": r.real(B, H, capacity, D), "pv": r.real(B, H, capacity, D)}
        if mask is not None:
            f["m"] = np.array(mask, np.int32)
        if length is not None:
            f["n"] = np.array([length], np.int32)
        return f
    inputs = f"{one} q, {one} k, {one} v, float[B,{H},P,{D}] pk, float[B,{H},P,{D}] pv"
    outs = f"{one} y, float[B,{H},T,{D}] k2, float[B,{H},T,{D}] v2"
    # Slots of the shared buffer past the new token keep what the caller left there.
    yield model("decoder_masked_shared_buffer", f"{inputs}, int32[1] n", outs.replace("T,", "P,"),
                f'y, k2, v2 = {name}<num_heads = {H}, past_present_share_buffer = 1>(q, k, v, "", "", pk, pv, n)'), [
                    lambda r: (feeds(r, 3, 6), None, decoder_reference), lambda r: (feeds(r, 0, 2), None, decoder_reference)]
    yield model("decoder_masked_shared_buffer_of_mask", f"{inputs}, int32[B,T] m, int32[1] n", outs.replace("T,", "P,"),
                f'y, k2, v2 = {name}<num_heads = {H}, past_present_share_buffer = 1>(q, k, v, m, "", pk, pv, n)'), [
                    lambda r: (feeds(r, 3, 6, [[1, 0, 1, 1], [0, 1, 1, 1]]), None, decoder_reference)]
    yield model("decoder_masked_cross", f"{one} q, float[B,{H},L,{D}] k, float[B,{H},L,{D}] v, int32[B,L] m", f"{one} y",
                f"y = {name}<num_heads = {H}>(q, k, v, m)"), [
                    lambda r: {"q": r.real(B, 1, W), "k": r.real(B, H, 4, D), "v": r.real(B, H, 4, D), "m": np.array([[1, 1, 1, 0], [0, 1, 1, 0]], np.int32)}]


def decoder_reference(f):
    """What onnxruntime's CPU kernel computes; it writes the cache in place, which separate outputs cannot show."""
    n = int(f["n"][0])
    heads = lambda a: a.reshape(B, 1, H, D).transpose(0, 2, 1, 3)
    k, v = f["pk"].copy(), f["pv"].copy()
    k[:, :, n], v[:, :, n] = heads(f["k"])[:, :, 0], heads(f["v"])[:, :, 0]
    s = heads(f["q"]) @ k[:, :, :n + 1].transpose(0, 1, 3, 2) / np.sqrt(D)
    if "m" in f:
        s = s + np.where(f["m"] > 0, 0, -10000.0)[:, None, None]
    p = np.exp(s - s.max(-1, keepdims=True))
    y = (p / p.sum(-1, keepdims=True)) @ v[:, :, :n + 1]
    return {"y": y.transpose(0, 2, 1, 3).reshape(B, 1, W).astype(np.float32), "k2": k, "v2": v}


# ---- GroupQueryAttention ----

def group_query_cases(D):
    heads, kv = 4, 2
    width, kv_width = heads * D, kv * D

    def case(name, runs, attrs="", packed=False, past=True, more=(), call=("", "", "", "", ""), total="int32[1] n", symbols=("S", "T"), outputs=""):
        """`call`: cos, sin, position_ids, attention_bias, head_sink; `total` is an input unless it is computed."""
        length, total_length = symbols
        new = [f"float[B,{length},{width + 2 * kv_width}] q"] if packed else [
            f"float[B,{length},{width}] q", f"float[B,{length},{kv_width}] k", f"float[B,{length},{kv_width}] v"]
        pasts = [f"float[B,{kv},P,{D}] pk", f"float[B,{kv},P,{D}] pv"] if past else []
        tokens = "q, , " if packed else "q, k, v"
        rest = list(call)
        while rest and not rest[-1]:
            rest.pop()
        inputs = f"{tokens}, {'pk, pv' if past else ', '}, m, n" + "".join(f", {c}" for c in rest)
        outs = f"float[B,{length},{width}] y, float[B,{kv},{total_length},{D}] k2, float[B,{kv},{total_length},{D}] v2{outputs}"
        body = f"y, k2, v2{', qk' if outputs else ''} = com.microsoft.GroupQueryAttention<num_heads = {heads}, kv_num_heads = {kv}{attrs}>({inputs})"
        return model(name, ", ".join([*new, *pasts, "int32[B] m", total, *more]), outs, body), runs

    def feeds(lengths, total, s, p=None, packed=False, caches=False, **more):
        def make(r):
            b = len(lengths)
            f = {"q": r.real(b, s, width + 2 * kv_width)} if packed else {"q": r.real(b, s, width), "k": r.real(b, s, kv_width), "v": r.real(b, s, kv_width)}
            if p is not None:
                f |= {"pk": r.real(b, kv, p, D), "pv": r.real(b, kv, p, D)}
            f |= {"m": np.array(lengths, np.int32) - 1, "n": np.array([total], np.int32)}
            if caches:
                f |= {"c": r.real(9, D // 2), "s": r.real(9, D // 2)}
            f |= {k: v(r) for k, v in more.items()}
            # A row of a first pass that is shorter than the others has no token after its length.
            rows = np.arange(s) >= (np.array(lengths) - max(0, total - s))[:, None] if total == s else np.zeros((b, s), bool)
            keys = np.arange(max(p or 0, total)) >= np.array(lengths)[:, None]
            return f, {"y": rows[:, :, None], "k2": keys[:, None, :, None], "v2": keys[:, None, :, None], "qk": np.array(True)}
        return make

    first = feeds([3, 3], 3, 3, 0)
    step = feeds([5, 5], 5, 1, 4)
    yield case("group_query_first_and_next", [first, step])
    yield case("group_query_packed", [feeds([3, 3], 3, 3, 0, packed=True), feeds([5, 5], 5, 1, 4, packed=True)], packed=True)
    yield case("group_query_without_past", [feeds([3, 3], 3, 3)], past=False, symbols=("S", "S"))
    yield case("group_query_of_uneven_rows", [feeds([3, 2], 3, 3, 0), feeds([4, 3], 4, 1, 3)])
    yield case("group_query_three_more_tokens", [feeds([6], 6, 3, 3)])
    rotary = dict(more=(f"float[9,{D // 2}] c", f"float[9,{D // 2}] s"), call=("c", "s", "", "", ""))
    for tag, attrs in (("", ""), ("_interleaved", ", rotary_interleaved = 1")):
        yield case(f"group_query_rotary{tag}", [feeds([3, 2], 3, 3, 0, caches=True), feeds([5, 4], 5, 1, 4, caches=True)], f", do_rotary = 1{attrs}", **rotary)
    yield case("group_query_rotary_packed", [feeds([3, 3], 3, 3, 0, packed=True, caches=True), feeds([5, 4], 5, 1, 4, packed=True, caches=True)],
               ", do_rotary = 1", packed=True, **rotary)
    yield case("group_query_rotary_of_positions", [feeds([3, 3], 3, 3, 0, caches=True, p2=lambda r: np.array([[0, 1, 2]] * 2)),
                                                   feeds([5, 4], 5, 1, 4, caches=True, p2=lambda r: np.array([[7], [3]]))],
               ", do_rotary = 1", more=(f"float[9,{D // 2}] c", f"float[9,{D // 2}] s", "int64[B,S] p2"), call=("c", "s", "p2", "", ""))
    yield case("group_query_window", [feeds([5, 5], 5, 5, 0), feeds([6, 5], 6, 1, 5)], ", local_window_size = 2")
    yield case("group_query_soft_cap", [first, step], ", softcap = 0.5, scale = 2.0")
    yield case("group_query_smooth", [first, step], ", smooth_softmax = 1")
    yield case("group_query_sinks", [feeds([3, 2], 3, 3, 0, h=lambda r: r.real(heads)), feeds([5, 4], 5, 1, 4, h=lambda r: r.real(heads))],
               more=(f"float[{heads}] h",), call=("", "", "", "", "h"))
    yield case("group_query_window_and_sinks", [feeds([5, 5], 5, 5, 0, h=lambda r: r.real(heads))], ", local_window_size = 3",
               more=(f"float[{heads}] h",), call=("", "", "", "", "h"))
    yield case("group_query_score_bias", [feeds([3, 3], 3, 3, 0, a=lambda r: r.real(1, heads, 3, 3)), feeds([5, 4], 5, 1, 4, a=lambda r: r.real(1, heads, 1, 5))],
               more=(f"float[1,{heads},S,T] a",), call=("", "", "", "a", ""))
    yield case("group_query_both_ways", [feeds([3, 2], 3, 3, 0)], ", causal = 0")
    yield case("group_query_scores", [(lambda f: lambda r: (f(r)[0], {**f(r)[1], "qk": None}))(feeds([3, 3], 3, 3, 0))], ", qk_output = 2",
               outputs=f", float[B,{heads},S,T] qk")

    # The total from a shape, as the builder of onnxruntime-genai writes it: the cache keeps the larger of both lengths.
    def from_mask(lengths, s, p):
        plain = feeds(lengths, max(lengths), s, p)
        def make(r):
            f, ignore = plain(r)
            f.pop("m"), f.pop("n")
            f["mask"] = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
            return f, ignore
        return make
    yield model("group_query_of_an_attention_mask", f"float[B,S,{width}] q, float[B,S,{kv_width}] k, float[B,S,{kv_width}] v, "
                f"float[B,{kv},P,{D}] pk, float[B,{kv},P,{D}] pv, int64[B,T] mask", f"float[B,S,{width}] y, float[B,{kv},N,{D}] k2, float[B,{kv},N,{D}] v2", f"""
one = Constant<value = int64[1] {{1}}>()
count = ReduceSum<keepdims = 0>(mask, one)
before = Sub(count, one)
m = Cast<to = 6>(before)
shape = Shape(mask)
index = Constant<value = int64 {{1}}>()
size = Gather(shape, index)
n = Cast<to = 6>(size)
y, k2, v2 = com.microsoft.GroupQueryAttention<num_heads = {heads}, kv_num_heads = {kv}>(q, k, v, pk, pv, m, n)
"""), [from_mask([3, 2], 3, 0), from_mask([5, 4], 1, 4), from_mask([5, 5], 1, 7)]


# ---- Attention of ONNX ----

def attention_cases():
    q, k, v = f"float[B,{H},S,{D}] q", f"float[B,{H},T,{D}] k", f"float[B,{H},T,6] v"
    T = 4
    base = lambda r, **more: {"q": r.real(B, H, S, D), "k": r.real(B, H, T, D), "v": r.real(B, H, T, 6), **{n: f(r) for n, f in more.items()}}
    def case(name, inputs, call, runs, attrs="", outputs=f"float[B,{H},S,6] y", results="y", opset=23):
        return model(f"standard_{name}", f"{q}, {k}, {v}" + (f", {inputs}" if inputs else ""), outputs,
                     f"{results} = Attention{f'<{attrs}>' if attrs else ''}({call})", opset), runs
    keep = lambda *dims: lambda r: r.below(3, *dims).astype(bool) | (np.arange(dims[-1]) == 0)
    yield case("plain", "", "q, k, v", [lambda r: base(r)])
    yield case("causal", "", "q, k, v", [lambda r: base(r)], "is_causal = 1")
    yield case("scaled_and_capped", "", "q, k, v", [lambda r: base(r)], "scale = 1.5, softcap = 0.7")
    yield case("of_bool_mask", f"bool[B,1,S,T] m", "q, k, v, m", [lambda r: base(r, m=keep(B, 1, S, T))])
    yield case("of_bool_mask_of_two_dims", f"bool[S,T] m", "q, k, v, m", [lambda r: base(r, m=keep(S, T))])
    yield case("of_an_all_masked_row", "bool[B,1,S,T] m", "q, k, v, m", [
        lambda r: base(r, m=lambda r: np.array([[1, 0, 1, 1], [0, 0, 0, 0]], bool)[:, None, None].repeat(S, 2))])
    yield case("of_real_mask_capped_and_causal", f"float[B,{H},S,T] m", "q, k, v, m", [lambda r: base(r, m=lambda r: r.real(B, H, S, T))],
               "softcap = 0.7, is_causal = 1")
    for mode in range(4):
        yield case(f"scores_{mode}", f"float[S,T] m", "q, k, v, m", [lambda r: base(r, m=lambda r: r.real(S, T))],
                   f"softcap = 0.7, qk_matmul_output_mode = {mode}", f"float[B,{H},S,6] y, float[B,{H},S,T] qk", 'y, "", "", qk')
    past = f"float[B,{H},P,{D}] pk, float[B,{H},P,6] pv"
    pasts = dict(pk=lambda r: r.real(B, H, P, D), pv=lambda r: r.real(B, H, P, 6))
    presents = f"float[B,{H},S,6] y, float[B,{H},N,{D}] k2, float[B,{H},N,6] v2"
    yield case("with_past", past, 'q, k, v, "", pk, pv', [lambda r: base(r, **pasts)], "", presents, "y, k2, v2")
    yield case("with_past_causal", past, 'q, k, v, "", pk, pv', [lambda r: base(r, **pasts)], "is_causal = 1", presents, "y, k2, v2")
    yield case("with_past_and_mask", f"bool[B,1,S,N] m, {past}", "q, k, v, m, pk, pv", [lambda r: base(r, m=keep(B, 1, S, P + T), **pasts)], "", presents, "y, k2, v2")
    yield model("standard_grouped", f"float[B,4,S,{D}] q, float[B,2,T,{D}] k, float[B,2,T,{D}] v", f"float[B,4,S,{D}] y", "y = Attention<is_causal = 1>(q, k, v)", 23), [
        lambda r: {"q": r.real(B, 4, S, D), "k": r.real(B, 2, T, D), "v": r.real(B, 2, T, D)}]
    yield model("standard_of_rank_3_grouped_with_past", f"float[B,S,16] q, float[B,T,8] k, float[B,T,8] v, float[B,2,P,{D}] pk, float[B,2,P,{D}] pv",
                f"float[B,S,16] y, float[B,2,N,{D}] k2, float[B,2,N,{D}] v2",
                'y, k2, v2 = Attention<q_num_heads = 4, kv_num_heads = 2>(q, k, v, "", pk, pv)', 23), [
                    lambda r: {"q": r.real(B, S, 16), "k": r.real(B, T, 8), "v": r.real(B, T, 8), "pk": r.real(B, 2, P, D), "pv": r.real(B, 2, P, D)}]
    yield case("of_used_lengths", "int64[B] n", 'q, k, v, "", "", "", n', [lambda r: base(r, n=lambda r: np.array([4, 2]))], opset=24)
    yield case("of_used_lengths_causal", "int64[B] n", 'q, k, v, "", "", "", n', [lambda r: (base(r, n=lambda r: np.array([4, 2])), None, standard_reference)],
               "is_causal = 1", opset=24)
    yield case("of_a_short_mask", "bool[B,1,S,M] m", "q, k, v, m", [lambda r: (base(r, m=keep(B, 1, S, 3)), None, standard_reference)], opset=24)
    yield case("window", "", "q, k, v", [lambda r: (base(r), None, lambda f: standard_reference(f, left=1, right=1))],
               "left_window_size = 1, right_window_size = 1", opset=25)
    yield case("window_with_past_causal", past, 'q, k, v, "", pk, pv', [
        lambda r: (base(r, **pasts), None, lambda f: standard_reference(f, left=2, causal=True))], "is_causal = 1, left_window_size = 2", presents, "y, k2, v2", 25)


def standard_reference(f, causal=None, left=-1, right=-1):
    """The operator's text in numpy, for what the installed onnxruntime does not have."""
    k, v = (np.concatenate([f[p], f[n]], 2) if p in f else f[n] for p, n in (("pk", "k"), ("pv", "v")))
    used = f.get("n")
    causal = used is not None if causal is None else causal
    s = f["q"] @ k.transpose(0, 1, 3, 2) / np.sqrt(D)
    j, i = np.arange(k.shape[2])[None, None, None], np.arange(f["q"].shape[2])[None, None, :, None]
    offset = (used[:, None, None, None] - f["q"].shape[2]) if used is not None else k.shape[2] - f["k"].shape[2]
    seen = np.ones(s.shape, bool)
    if used is not None:
        seen &= j < used[:, None, None, None]
    if causal:
        seen &= j <= i + offset
    if left >= 0:
        seen &= j >= i + offset - left
    if right >= 0:
        seen &= j <= i + offset + right
    if "m" in f:
        seen &= np.concatenate([f["m"], np.zeros((*f["m"].shape[:-1], k.shape[2] - f["m"].shape[-1]), bool)], -1)
    s = np.where(seen, s, -np.inf)
    p = np.exp(s - np.where(seen.any(-1, keepdims=True), s.max(-1, keepdims=True), 0))
    total = p.sum(-1, keepdims=True)
    y = (np.where(total > 0, p / np.where(total > 0, total, 1), 0) @ v).astype(np.float32)
    return {"y": y, **({"k2": k, "v2": v} if "pk" in f else {})}


# ---- packed tokens; onnxruntime has these on CUDA alone, so the definitions stand here in numpy ----

def packing(counts, s):
    """Offsets of real tokens, then of padding; where each sequence ends."""
    real = np.arange(s) < np.array(counts)[:, None]
    places = np.arange(len(counts) * s).reshape(real.shape)
    offsets = np.concatenate([places[real], places[~real]]).reshape(real.shape).astype(np.int32)
    return real, offsets, np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def packed_heads(q, k, v, counts, bias=0, scale=None):
    """Attention of padded [B, S, H * D], zeros at padding."""
    b, s = q.shape[:2]
    q, k, v = (x.reshape(b, s, H, -1).transpose(0, 2, 1, 3) for x in (q, k, v))
    score = q @ k.transpose(0, 1, 3, 2) * (scale or 1 / np.sqrt(q.shape[-1])) + bias
    real = np.arange(s) < np.array(counts)[:, None]
    score = np.where(real[:, None, None, :], score, -1e30)
    p = np.exp(score - score.max(-1, keepdims=True))
    y = (p / p.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(b, s, -1)
    return np.where(real[:, :, None], y, 0).astype(np.float32)


def padded(rows, real):
    x = np.zeros((*real.shape, *rows.shape[1:]), np.float32)
    x[real] = rows
    return x


def packed_cases():
    s = 4
    counts = [[4, 2, 1], [1, 4, 3], [4, 4, 4]]
    tokens = lambda r, c: {"x": r.real(len(c), s, W), "n": np.array(c, np.int32)}

    def pair(f):
        real, offsets, ends = packing(f["n"], s)
        return {"y": np.where(real[:, :, None], 2 * f["x"], 0).astype(np.float32), "offsets": offsets, "ends": ends, "most": np.array([f["n"].max()], np.int32)}
    yield model("remove_and_restore_padding", f"float[B,S,{W}] x, int32[B] n", f"float[B,S,{W}] y, int32[B,S] offsets, int32[N] ends, int32[1] most", """
p, offsets, ends, most = com.microsoft.RemovePadding(x, n)
twice = Add(p, p)
y = com.microsoft.RestorePadding(twice, offsets)
"""), [(lambda c: lambda r: (tokens(r, c), None, pair))(c) for c in counts]

    def attention(f):
        qkv = f["x"] @ f["w"] + f["c"]
        return {"y": packed_heads(*np.split(qkv, 3, -1), f["n"])}
    weights = lambda r: {"w": r.real(W, 3 * W), "c": r.real(3 * W)}
    yield model("packed_attention_between_both", f"float[B,S,{W}] x, int32[B] n, float[{W},{3 * W}] w, float[{3 * W}] c", f"float[B,S,{W}] y", f"""
p, offsets, ends, most = com.microsoft.RemovePadding(x, n)
a = com.microsoft.PackedAttention<num_heads = {H}>(p, w, c, offsets, ends)
y = com.microsoft.RestorePadding(a, offsets)
"""), [(lambda c: lambda r: (tokens(r, c) | weights(r), None, attention))(c) for c in counts]

    c = [4, 2, 1]
    real, offsets, ends = packing(c, s)
    places = {"offsets": offsets, "ends": ends}

    def alone(f):
        y = attention({"x": padded(f["x"], real), "w": f["w"], "c": f["c"], "n": c})["y"]
        return {"y": y[real]}
    yield model("packed_attention", f"float[T,{W}] x, float[{W},{3 * W}] w, float[{3 * W}] c, int32[B,S] offsets, int32[N] ends", f"float[T,{W}] y",
                f"y = com.microsoft.PackedAttention<num_heads = {H}>(x, w, c, offsets, ends)"), [
                    lambda r: ({"x": r.real(sum(c), W), **weights(r), **places}, None, alone)]
    yield model("packed_multi_head_attention", f"float[T,{W}] q, float[T,{W}] k, float[T,6] v, float[{2 * W + 6}] c, int32[B,S] offsets, int32[N] ends, float[1,{H},S,S] a",
                "float[T,6] y", f"y = com.microsoft.PackedMultiHeadAttention<num_heads = {H}, scale = 0.4>(q, k, v, c, offsets, ends, a)"), [
                    lambda r: ({"q": r.real(sum(c), W), "k": r.real(sum(c), W), "v": r.real(sum(c), 6), "c": r.real(2 * W + 6), **places, "a": r.real(1, H, s, s)}, None,
                               lambda f: {"y": packed_heads(padded(f["q"] + f["c"][:W], real), padded(f["k"] + f["c"][W:2 * W], real),
                                                            padded(f["v"] + f["c"][2 * W:], real), c, f["a"], 0.4)[real]})]
    yield model("packed_multi_head_attention_of_packed_heads", f"float[T,{H},3,{D}] q, int32[B,S] offsets, int32[N] ends", f"float[T,{W}] y",
                f'y = com.microsoft.PackedMultiHeadAttention<num_heads = {H}>(q, "", "", "", offsets, ends)'), [
                    lambda r: ({"q": r.real(sum(c), H, 3, D), **places}, None, lambda f: {
                        "y": packed_heads(*(padded(f["q"][:, :, i].reshape(-1, W), real) for i in range(3)), c)[real]})]
    yield model("restore_padding_of_given_offsets", f"float[T,{W}] x, int32[B,S] offsets", f"float[B,S,{W}] y", "y = com.microsoft.RestorePadding(x, offsets)"), [
        lambda r: ({"x": r.real(sum(c), W), "offsets": offsets}, None, lambda f: {"y": padded(f["x"], real)})]


# ---- normalisation of channels ----

def channel_norm_cases():
    channels = "float[3] s, float[3] b"
    own = lambda r: {"s": r.real(3), "b": r.real(3)}
    moments = lambda r: {"m": r.real(3), "v": np.abs(r.real(3)) + np.float32(0.25)}
    yield model("batch_normalization", f"float[B,3,S] x, {channels}, float[3] m, float[3] v", "float[B,3,S] y",
                "y = BatchNormalization(x, s, b, m, v)"), [lambda r: {"x": r.real(B, 3, S), **own(r), **moments(r)}]
    yield model("batch_normalization_of_a_matrix", f"float[B,3] x, {channels}, float[3] m, float[3] v", "float[B,3] y",
                "y = BatchNormalization<epsilon = 0.1, momentum = 0.5>(x, s, b, m, v)", 9), [lambda r: {"x": r.real(B, 3), **own(r), **moments(r)}]
    yield model("instance_normalization_of_any_length", f"float[B,3,S] x, {channels}", "float[B,3,S] y",
                "y = InstanceNormalization<epsilon = 0.01>(x, s, b)"), [lambda r: {"x": r.real(B, 3, S + 2), **own(r)}]
    # The scale and the bias broadcast to all of x, not to the normalised axes alone.
    ln = lambda name, scale, bias, axis, make: (model(f"layer_normalization_{name}", f"float[B,4,5] x, float[{scale}] g" + (f", float[{bias}] b" if bias else ""), "float[B,4,5] y",
                                                     f"y = LayerNormalization<axis = {axis}>(x, g{', b' if bias else ''})"), [lambda r: {"x": r.real(B, 4, 5), **make(r)}])
    yield ln("scale_of_rows", "1,4,1", "5", -1, lambda r: {"g": r.real(1, 4, 1), "b": r.real(5)})
    yield ln("scale_of_vectors_bias_of_rows", "5", "4,1", -1, lambda r: {"g": r.real(5), "b": r.real(4, 1)})
    yield ln("scale_and_bias_of_all", "4,5", "1,4,5", -1, lambda r: {"g": r.real(4, 5), "b": r.real(1, 4, 5)})
    yield ln("scale_of_rank_3_without_bias", "1,1,5", "", 2, lambda r: {"g": r.real(1, 1, 5)})
    yield ln("scale_of_two_axes_and_one", "1,4,5", "5", 1, lambda r: {"g": r.real(1, 4, 5), "b": r.real(5)})
    yield model("group_normalization_of_any_length", "float[B,4,S] x, float[4] s, float[4] b", "float[B,4,S] y",
                "y = GroupNormalization<num_groups = 2>(x, s, b)", 21), [lambda r: {"x": r.real(B, 4, S + 2), "s": r.real(4), "b": r.real(4)}]


# ---- caches and narrow integers ----

def tensor_scatter_cases():
    def written(axis, circular):
        def reference(f):
            y, u = f["p"].copy(), f["u"]
            for b in range(y.shape[0]):
                for t in range(u.shape[axis]):
                    at = (int(f["i"][b]) if "i" in f else 0) + t
                    if circular:
                        at %= y.shape[axis]
                    np.moveaxis(y, axis, 1)[b, at] = np.moveaxis(u, axis, 1)[b, t]
            return {"y": y}
        return reference
    at = lambda *v: np.array(v, np.int64)
    # No onnxruntime of today has a kernel for it.
    yield model("tensor_scatter", f"float[B,{H},6,{D}] p, float[B,{H},S,{D}] u, int64[B] i", f"float[B,{H},6,{D}] y", "y = TensorScatter(p, u, i)", 24), [
        lambda r: ({"p": r.real(B, H, 6, D), "u": r.real(B, H, 2, D), "i": at(1, 4)}, None, written(2, False))]
    yield model("tensor_scatter_circular", f"float[B,{H},6,{D}] p, float[B,{H},S,{D}] u, int64[B] i", f"float[B,{H},6,{D}] y",
                'y = TensorScatter<mode = "circular">(p, u, i)', 24), [
                    lambda r: ({"p": r.real(B, H, 6, D), "u": r.real(B, H, 3, D), "i": at(5, 2)}, None, written(2, True))]
    yield model("tensor_scatter_of_three_dims", f"float[B,6,{D}] p, float[B,S,{D}] u", f"float[B,6,{D}] y", "y = TensorScatter<axis = 1>(p, u)", 24), [
        lambda r: ({"p": r.real(B, 6, D), "u": r.real(B, 2, D)}, None, written(1, False))]


def narrow_cases():
    """uint16 and uint32 inside a graph: what leaves their range wraps."""
    def case(name, kind, op, reference, a=(5, 60000, 65535, 1), b=(7, 10000, 3, 2)):
        code = {"uint16": 4, "uint32": 12}[kind]
        numpy_type = getattr(np, kind)
        text = model(name, "int64[4] a, int64[4] b", "int64[4] y", f"u = Cast<to = {code}>(a)\nv = Cast<to = {code}>(b)\nw = {op}\nz = Reshape(w, shape)\ny = Cast<to = 7>(z)", 18)
        text = text.replace("\n{", "\n<int64[1] shape = {-1}>\n{", 1)
        with np.errstate(over="ignore"):
            return text, [lambda r: ({"a": np.array(a), "b": np.array(b)}, None,
                                     lambda f: {"y": reference(f["a"].astype(numpy_type), f["b"].astype(numpy_type)).astype(np.int64)})]
    big = (5, 4294967295, -1, 1 << 33)
    yield case("uint16_sum", "uint16", "Add(u, v)", lambda a, b: a + b)
    yield case("uint16_difference", "uint16", "Sub(u, v)", lambda a, b: a - b)
    yield case("uint32_sum", "uint32", "Add(u, v)", lambda a, b: a + b, big)
    yield case("uint32_difference", "uint32", "Sub(u, v)", lambda a, b: a - b, big)
    yield case("uint32_product", "uint32", "Mul(u, v)", lambda a, b: a * b, big)
    yield case("uint32_not", "uint32", "BitwiseNot(u)", lambda a, b: ~a, big)
    yield case("uint32_shift", "uint32", 'BitShift<direction = "LEFT">(u, v)', np.left_shift, (5, 1 << 30, 4294967295, 1 << 31), (7, 2, 31, 0))


def qlinear_cases():
    """Operators on 8 bits as onnxruntime's static quantiser writes them. Inputs and outputs are int32, cast inside; scales that make no ties."""
    def case(name, op, inputs, constants, feeds, to=2, out="int32[N,M] y", attributes="", reference=None):
        casts = "".join(f"{n}8 = Cast<to = {to}>({n})\n" for n in inputs)
        text = model(name, ", ".join(f"int32{dims} {n}" for n, dims in inputs.items()), out,
                     f"{casts}q = com.microsoft.{op}\ny = Cast<to = {1 if out.startswith('float') else 6}>(q)")
        return text.replace("\n{", f"\n<{constants}>\n{{", 1), [lambda r: (feeds(r), None, reference)]

    u8 = lambda *dims: lambda r: r.below(256, *dims, dtype=np.int32)
    i8 = lambda *dims: lambda r: r.below(256, *dims, dtype=np.int32) - 128
    two = lambda a, b: lambda r: {"a": a(r), "b": b(r)}
    one = lambda a: lambda r: {"a": a(r)}
    scales = "float sa = {0.0301}, float sb = {0.0513}, float sy = {0.0717}"
    yield case("qlinear_add", "QLinearAdd(a8, sa, za, b8, sb, zb, sy, zy)", {"a": "[2,3]", "b": "[2,3]"},
               f"{scales}, uint8 za = {{120}}, uint8 zb = {{131}}, uint8 zy = {{100}}", two(u8(2, 3), u8(2, 3)))
    yield case("qlinear_add_broadcasts_without_zero_points", "QLinearAdd(a8, sa, , b8, sb, , sy)", {"a": "[2,3]", "b": "[3]"}, scales,
               two(u8(2, 3), u8(3)), reference=lambda f: {  # onnxruntime's schema has them optional, its inference refuses that
                   "y": np.clip(np.rint((f["a"] * 0.0301 + f["b"] * 0.0513) / 0.0717), 0, 255).astype(np.int32)})
    yield case("qlinear_add_of_int8_saturates", "QLinearAdd(a8, sa, za, b8, sb, zb, sy, zy)", {"a": "[4,3]", "b": "[4,3]"},
               "float sa = {0.0301}, float sb = {0.0513}, float sy = {0.0217}, int8 za = {-3}, int8 zb = {4}, int8 zy = {7}", two(i8(4, 3), i8(4, 3)), to=3)
    yield case("qlinear_mul", "QLinearMul(a8, sa, za, b8, sb, zb, sy, zy)", {"a": "[2,3]", "b": "[2,1]"},
               f"{scales}, uint8 za = {{120}}, uint8 zb = {{131}}, uint8 zy = {{100}}", two(u8(2, 3), u8(2, 1)))
    yield case("qlinear_sigmoid", "QLinearSigmoid(a8, sa, za, sy, zy)", {"a": "[2,5]"},
               "float sa = {0.0513}, float sy = {0.00390625}, uint8 za = {120}, uint8 zy = {0}", one(u8(2, 5)))
    yield case("qlinear_leaky_relu", "QLinearLeakyRelu<alpha = 0.25>(a8, sa, za, sy, zy)", {"a": "[2,5]"},
               "float sa = {0.0513}, float sy = {0.0617}, int8 za = {12}, int8 zy = {-20}", one(i8(2, 5)), to=3)
    yield case("qlinear_softmax", "QLinearSoftmax<axis = -1, opset = 13>(a8, sa, za, sy, zy)", {"a": "[2,5]"},
               "float sa = {0.0217}, float sy = {0.00390625}, uint8 za = {120}, uint8 zy = {0}", one(u8(2, 5)))
    yield case("qlinear_softmax_of_all_axes_from_one_on", "QLinearSoftmax<axis = 1, opset = 11>(a8, sa, za, sy, zy)", {"a": "[2,3,4]"},
               "float sa = {0.0217}, float sy = {0.00390625}, uint8 za = {120}, uint8 zy = {0}", one(u8(2, 3, 4)), out="int32[N,M,K] y")
    yield case("qlinear_softmax_of_one_element_saturates", "QLinearSoftmax<axis = -1, opset = 13>(a8, sa, za, sy, zy)", {"a": "[2,1]"},
               "float sa = {0.0217}, float sy = {0.00390625}, uint8 za = {120}, uint8 zy = {0}", one(u8(2, 1)),
               reference=lambda f: {"y": np.full((2, 1), 255, np.int32)})  # onnxruntime's 256 becomes 0
    yield case("qlinear_concat", "QLinearConcat<axis = 1>(sy, zy, a8, sa, za, b8, sb, zb)", {"a": "[2,3]", "b": "[2,2]"},
               f"{scales}, uint8 za = {{120}}, uint8 zb = {{131}}, uint8 zy = {{100}}", two(u8(2, 3), u8(2, 2)))
    yield case("qgemm", "QGemm<transB = 1, alpha = 0.5>(a8, sa, za, b8, sb, zb, c, sy, zy)", {"a": "[3,4]", "b": "[2,4]"},
               "float sa = {0.0301}, float[2] sb = {0.0513, 0.0217}, uint8 za = {120}, uint8[2] zb = {131, 99}, int32[2] c = {-700, 900}, "
               "float sy = {0.4}, uint8 zy = {100}", two(u8(3, 4), u8(2, 4)))
    yield case("qgemm_to_reals", "QGemm<transA = 1>(a8, sa, za, b8, sb, zb)", {"a": "[4,3]", "b": "[4,2]"},
               "float sa = {0.0301}, float sb = {0.0513}, uint8 za = {120}, uint8 zb = {131}", two(u8(4, 3), u8(4, 2)), out="float[N,M] y")


# ---- attentions whose masks leave rows without a key, and what reads such rows ----

def masked_rows_cases():
    """The largest finite penalty makes a row of hidden keys an average over all of them, exactly. A mask of zeros stands in `dead` alone."""
    def case(name, condition, reader, feeds, output="float[B,N,M] y", neg=-3.4028235e38):
        body = f"""
neg = Constant<value = float {{{neg}}}>()
f0 = Constant<value = float {{0.0}}>()
f1 = Constant<value = float {{1.0}}>()
i0 = Constant<value = int64 {{0}}>()
i1 = Constant<value = int64 {{1}}>()
a0 = Constant<value = int64[1] {{0}}>()
a1 = Constant<value = int64[1] {{1}}>()
a2 = Constant<value = int64[1] {{2}}>()
shape = Shape(x)
length = Gather(shape, i1)
count = Gather(shape, i0)
j = Range(i0, length, i1)
i = Unsqueeze(j, a1)
mi = Unsqueeze(m, a2)
mj = Unsqueeze(m, a1)
ki = Cast<to = 9>(mi)
kj = Cast<to = 9>(mj)
{condition}
xt = Transpose<perm = [0, 2, 1]>(x)
s0 = MatMul(x, xt)
s = Add(s0, bias)
p = Softmax<axis = -1>(s)
c = MatMul(p, x)
{reader}"""
        return model(name, f"float[B,S,{D}] x, int64[B,S] m", output, body), [feeds(k) for k in range(2)]

    def masks(*rows):
        return lambda k: lambda r: {"x": r.real(len(rows), len(rows[0]), D), "m": np.array(rows)[::1 - 2 * k]}

    whole, right, left = [1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]
    padded, ids = masks(whole, right, left), masks([5, 7, 3, 0, 0], [2, 9, 9, 4, 0], [1, 1, 1, 2, 2])
    two, keep = "w = Where(k, f0, neg)\nbias = Identity(w)", "y = Identity(c)"
    where = lambda lines: lines + "\n" + two
    pair = where("k = And(ki, kj)")
    triangle = where("t = LessOrEqual(j, i)\nk = And(t, kj)")
    mean = "y = ReduceMean<axes = [1], keepdims = 0>(c)"
    for name, lines in {"strictly_earlier": "k = Less(j, i)", "all_but_itself": "e = Equal(j, i)\nk = Not(e)",
                        "earlier_by_two": "h = Add(j, i1)\nk = Less(h, i)", "another_segment": "e = Equal(mi, mj)\nk = Not(e)"}.items():
        yield case(f"keys_{name}", where(lines), keep, padded)
    for name, lines in {
        "mean": mean, "max": "y = ReduceMax<axes = [1], keepdims = 0>(c)", "last": "q = Constant<value = int64 {-1}>()\ny = Gather<axis = 1>(c, q)",
        "sum_of_weights": "f = Cast<to = 1>(m)\ng = Unsqueeze(f, a1)\ny = MatMul(g, c)",
        "attention": "ct = Transpose<perm = [0, 2, 1]>(c)\nd = MatMul(c, ct)\nr = Softmax<axis = -1>(d)\ny = MatMul(r, c)",
    }.items():
        yield case(f"padded_pairs_then_{name}", pair, lines, padded)
        yield case(f"padded_triangle_then_{name}", triangle, lines, padded)
    similar = "f = Cast<to = 1>(m)\ng = Unsqueeze(f, a2)\nh = Mul(c, g)\nz = ReduceSum<keepdims = 0>(h, a1)\nzt = Transpose(z)\no = MatMul(z, zt)\ny = Softmax<axis = -1>(o)"
    dead = masks(whole, [0, 0, 0, 0, 0], right)
    yield case("similarities_of_masked_sums", where("k = Identity(kj)"), similar, dead)
    yield case("similarities_of_means", where("k = Identity(kj)"), mean.replace("y =", "z =") + "\nzt = Transpose(z)\no = MatMul(z, zt)\ny = Softmax<axis = -1>(o)", dead)
    number = "u = Sub(f1, n)\nbias = Mul(u, neg)"
    for name, lines in {"sign": "h = Sign(mj)\nn = Cast<to = 1>(h)", "clip": "h = Clip(mj, i0, i1)\nn = Cast<to = 1>(h)", "min": "h = Min(mj, i1)\nn = Cast<to = 1>(h)",
                        "real_clip": "h = Cast<to = 1>(mj)\nn = Clip(h, f0, f1)"}.items():
        yield case(f"ids_by_{name}", lines + "\n" + number, keep, ids)
    yield case("distance_of_segments", "h = Sub(mi, mj)\nd = Abs(h)\nn = Cast<to = 1>(d)\nbias = Mul(n, neg)", keep, ids)
    yield case("square_of_a_distance", "e = Cast<to = 1>(mi)\nf = Cast<to = 1>(mj)\nh = Sub(e, f)\nn = Mul(h, h)\nbias = Mul(n, neg)", keep, ids)


# ---- sizes of 0 ----

def empty_cases():
    """Sizes of 0 with the rest of the model at work; each run again with none of them 0."""
    def runs(**inputs):
        """One run for each column: inputs by name, a list of dims (reals) for each run."""
        return [lambda r, i=i: {k: r.real(*v[i]) for k, v in inputs.items()} for i in range(len(next(iter(inputs.values()))))]

    attend = """
  kt = Transpose <perm = [0, 2, 1]> (k)
  s = MatMul (q, kt)
  p = Softmax <axis = -1> (s)
  c = MatMul (p, v)"""
    yield model("cache_of_rank_3", "float[B,S,4] q, float[B,S,4] x, float[B,P,4] pk, float[B,P,4] pv", "float[B,S,4] c, float[B,N,4] k, float[B,N,4] v", f"""
  k = Concat <axis = 1> (pk, x)
  v = Concat <axis = 1> (pv, x){attend}"""), runs(q=[(1, 2, 4)] * 3 + [(1, 0, 4)], x=[(1, 2, 4)] * 3 + [(1, 0, 4)], pk=[(1, 0, 4), (1, 3, 4), (1, 1, 4), (1, 3, 4)], pv=[(1, 0, 4), (1, 3, 4), (1, 1, 4), (1, 3, 4)])
    yield model("cache_of_rank_5", "float[B,2,S,4] q, float[2,B,2,P,4] past", "float[B,2,S,4] y, float[2,B,2,N,4] present", """
  axes = Constant <value = int64[1] {0}> ()
  u = Unsqueeze (q, axes)
  two = Concat <axis = 0> (u, u)
  present = Concat <axis = 3> (past, two)
  k5, v5 = Split <axis = 0> (present)
  k = Squeeze (k5, axes)
  v = Squeeze (v5, axes)
  kt = Transpose <perm = [0, 1, 3, 2]> (k)
  s = MatMul (q, kt)
  p = Softmax <axis = -1> (s)
  y = MatMul (p, v)""", opset=13), runs(q=[(1, 2, 2, 4)] * 2, past=[(2, 1, 2, 0, 4), (2, 1, 2, 3, 4)])
    yield model("memory_without_tokens", "float[B,S,4] x, float[B,T,4] z, float[4,4] w, float[4] b", "float[B,S,4] y", f"""
  q = Identity (x)
  k = MatMul (z, w)
  kb = Add (k, b)
  v = MatMul (z, w)
  kt = Transpose <perm = [0, 2, 1]> (kb)
  s = MatMul (q, kt)
  p = Softmax <axis = -1> (s)
  c = MatMul (p, v)
  y = Add (x, c)"""), runs(x=[(2, 3, 4)] * 2 + [(2, 0, 4)], z=[(2, 0, 4), (2, 3, 4), (2, 2, 4)], w=[(4, 4)] * 3, b=[(4,)] * 3)
    yield model("memory_read_by_its_probabilities", "float[B,S,4] x, float[B,T,4] z", "float[B,S,T] p, float[B,S,4] c", """
  kt = Transpose <perm = [0, 2, 1]> (z)
  s = MatMul (x, kt)
  p = Softmax <axis = -1> (s)
  c = MatMul (p, z)"""), runs(x=[(2, 3, 4)] * 2, z=[(2, 0, 4), (2, 3, 4)])
    yield model("prefixes_two_of_them", "float[B,P,4] a, float[B,Q,4] b, float[B,S,4] x, float[4,5] w", "float[B,N,5] y", """
  c = Concat <axis = 1> (a, b, x)
  y = MatMul (c, w)"""), runs(a=[(2, 0, 4), (2, 2, 4), (2, 0, 4), (2, 1, 4)], b=[(2, 3, 4), (2, 0, 4), (2, 0, 4), (2, 0, 4)], x=[(2, 2, 4)] * 3 + [(2, 0, 4)], w=[(4, 5)] * 4)
    yield model("features_without_rows", "float[N,4] x, float[4,5] w, float[5] b", "float[1,5] sum, float[4,4] gram, float[4,4] biased, float[N,5] rows", """
  h = MatMul (x, w)
  rows = Add (h, b)
  axes = Constant <value = int64[1] {0}> ()
  sum = ReduceSum (rows, axes)
  xt = Transpose (x)
  gram = MatMul (xt, x)
  c = Constant <value = float[4] {1.0, 2.0, 3.0, 4.0}> ()
  biased = Gemm <transA = 1, alpha = 0.5> (x, x, c)"""), runs(x=[(0, 4), (3, 4)], w=[(4, 5)] * 2, b=[(5,)] * 2)
    yield model("product_over_nothing_in_doubles_and_a_batch", "double[2,N,3] x, double[2,N,5] z", "double[2,3,5] y", """
  xt = Transpose <perm = [0, 2, 1]> (x)
  y = MatMul (xt, z)"""), [
        lambda r, n=n: {"x": r.real(2, n, 3).astype(np.float64), "z": r.real(2, n, 5).astype(np.float64)} for n in (0, 2)]
    yield model("reductions_over_nothing", "float[2,N] x", "float[2] a, float[2] b, float[2] c, float[2] d, float[2] e, float[2] f, float[2] g, float[2,1] h", """
  a = ReduceMax <axes = [1], keepdims = 0> (x)
  b = ReduceMin <axes = [1], keepdims = 0> (x)
  c = ReduceProd <axes = [1], keepdims = 0> (x)
  d = ReduceL1 <axes = [1], keepdims = 0> (x)
  e = ReduceL2 <axes = [1], keepdims = 0> (x)
  f = ReduceSumSquare <axes = [1], keepdims = 0> (x)
  g = ReduceLogSumExp <axes = [1], keepdims = 0> (x)
  axes = Constant <value = int64[1] {1}> ()
  h = ReduceSum (x, axes)""", opset=13), runs(x=[(2, 0), (2, 3)])
    yield model("reductions_across_nothing", "float[N,3] x, float[N,2,3] z", "float[3] a, float[3] b, float[2] c", """
  a = ReduceMax <axes = [0], keepdims = 0> (x)
  b = ReduceMin <axes = [0], keepdims = 0> (x)
  c = ReduceMax <axes = [0, 2], keepdims = 0> (z)""", opset=13), runs(x=[(0, 3), (2, 3)], z=[(0, 2, 3), (2, 2, 3)])
    # ONNX leaves it open, onnxruntime gives 0, and numpy, PyTorch and sum / count give NaN.
    with np.errstate(all="ignore"):
        def mean(f):
            x = f["x"].astype(np.float64)
            m = np.where(x.shape[1] == 0, np.nan, x.sum(1) / max(x.shape[1], 1))
            return {"y": m.astype(np.float32), "z": m.astype(np.float32)}
    yield model("mean_over_nothing", "float[2,N,3] x", "float[2,3] y, float[2,3] z", """
  y = ReduceMean <axes = [1], keepdims = 0> (x)
  one = Constant <value = int64[1] {1}> ()
  n = Shape <start = 1, end = 2> (x)
  c = Cast <to = 1> (n)
  s = ReduceSum <keepdims = 0> (x, one)
  z = Div (s, c)"""), [lambda r, n=n: ({"x": r.real(2, n, 3)}, None, mean) for n in (0, 2)]
    yield model("extremes_of_no_integers", "float[2,N] x", "int64[2] a, int64[2] b, int32[2] c, int32[2] d, uint8[2] e, int8[2] f, int32[2] g, int32[2] m", """
  i = Cast <to = 7> (x)
  j = Cast <to = 6> (x)
  k = Cast <to = 2> (x)
  l = Cast <to = 3> (x)
  a = ReduceMax <axes = [1], keepdims = 0> (i)
  b = ReduceMin <axes = [1], keepdims = 0> (i)
  c = ReduceMax <axes = [1], keepdims = 0> (j)
  d = ReduceMin <axes = [1], keepdims = 0> (j)
  e = ReduceMax <axes = [1], keepdims = 0> (k)
  f = ReduceMin <axes = [1], keepdims = 0> (l)
  g = ReduceProd <axes = [1], keepdims = 0> (j)
  m = ReduceMean <axes = [1], keepdims = 0> (j)""", opset=13), [lambda r, n=n: {"x": r.real(2, n) * 0 + 3} for n in (0, 2)]
    yield model("extremes_of_no_truth_values", "float[2,N] x", "bool[2] a, bool[2] b", """
  t = Cast <to = 9> (x)
  axes = Constant <value = int64[1] {1}> ()
  a = ReduceMax <keepdims = 0> (t, axes)
  b = ReduceMin <keepdims = 0> (t, axes)""", opset=20), [  # onnxruntime has no reduction of no truth values; ONNX says what it is
        lambda r, n=n: ({"x": r.real(2, n)}, None, lambda f: {"a": (f["x"] != 0).any(1), "b": (f["x"] != 0).all(1)}) for n in (0, 2)]
    yield model("softmax_over_nothing", "float[3,N] x", "float[3,N] a, float[3,N] b, float[3,M] y", """
  a = Softmax <axis = 1> (x)
  b = LogSoftmax <axis = 0> (x)
  t = Constant <value = float[3,1] {1.0, 2.0, 3.0}> ()
  y = Concat <axis = 1> (t, a)"""), runs(x=[(3, 0), (3, 4)])
    yield model("convolution_of_nothing_but_padding", "float[1,2,N] x, float[3,2,3] w, float[3] b", "float[1,3,M] y", """
  y = Conv <pads = [2, 2]> (x, w, b)"""), [lambda r, n=n: ({"x": r.real(1, 2, n), "w": r.real(3, 2, 3), "b": r.real(3)}, None, padded_convolution) for n in (0, 1, 4)]
    yield model("padding_of_nothing", "float[2,N] x", "float[2,M] y, float[3,2,N] e, float[J] z", """
  pads = Constant <value = int64[4] {0, 1, 0, 2}> ()
  v = Constant <value = float {7.0}> ()
  y = Pad (x, pads, v)
  s = Shape (x)
  three = Constant <value = int64[1] {3}> ()
  es = Concat <axis = 0> (three, s)
  e = Expand (x, es)
  n = Size (x)
  o = Constant <value = int64 {3}> ()
  zero = Constant <value = int64 {0}> ()
  j = Add (n, o)
  z0 = Range (zero, j, o)
  z = Cast <to = 1> (z0)"""), runs(x=[(2, 0), (2, 3)])
    yield model("running_sums_of_nothing", "float[2,N] x", "float[2,N] c, float[2,M] y, int64[2] s", """
  axis = Constant <value = int64 {1}> ()
  c = CumSum (x, axis)
  t = Constant <value = float[2,1] {1.0, 2.0}> ()
  u = Concat <axis = 1> (c, t, x)
  y = CumSum <reverse = 1> (u, axis)
  s = Shape (x)"""), runs(x=[(2, 0), (2, 3)])
    yield model("contractions_over_nothing", "float[B,N,3] x, float[B,N,4] z", "float[B,3,4] y, float[B,N,3,4] o", """
  y = Einsum <equation = "bni,bnj->bij"> (x, z)
  o = Einsum <equation = "bni,bnj->bnij"> (x, z)"""), runs(x=[(2, 0, 3), (2, 2, 3), (0, 2, 3)], z=[(2, 0, 4), (2, 2, 4), (0, 2, 4)])
    yield model("sizes_that_ask_for_zero", "float[N,M] x", "float[A] a, float[B] b, int64[2] s, float[C,M] c", """
  n = Shape <start = 0, end = 1> (x)
  s = Shape (x)
  one = Constant <value = int64[1] {1}> ()
  zero = Constant <value = int64[1] {0}> ()
  most = Max (n, one)
  a = ConstantOfShape <value = float[1] {2.0}> (most)
  none = Equal (n, zero)
  five = Constant <value = int64[1] {5}> ()
  w = Where (none, five, n)
  b = ConstantOfShape <value = float[1] {3.0}> (w)
  p = Sub (one, n)
  q = Max (p, zero)
  m = Shape <start = 1, end = 2> (x)
  qm = Concat <axis = 0> (q, m)
  t = ConstantOfShape <value = float[1] {4.0}> (qm)
  c = Concat <axis = 0> (x, t)"""), runs(x=[(0, 2), (1, 2), (3, 2), (0, 0), (2, 0)])
    yield model("pooled_over_nothing", "float[B,S,4] x, float[4,4] w, float[4] g, float[4] b", "float[B,S,4] h, float[B,4] m", """
  d = MatMul (x, w)
  r = Add (x, d)
  h = LayerNormalization <axis = -1> (r, g, b)
  m = ReduceMax <axes = [1], keepdims = 0> (h)"""), runs(x=[(2, 0, 4), (2, 3, 4), (0, 3, 4)], w=[(4, 4)] * 3, g=[(4,)] * 3, b=[(4,)] * 3)
    yield model("rows_reshaped_with_none", "float[N,6] x, float[2,3] t", "float[M,3] y, float[N,2,3] z, float[K,6] u", """
  s = Constant <value = int64[2] {-1, 3}> ()
  r = Reshape (x, s)
  y = Concat <axis = 0> (t, r)
  s3 = Constant <value = int64[3] {0, 2, 3}> ()
  z = Reshape (x, s3)
  flat = Constant <value = int64[2] {1, 6}> ()
  one = Reshape (t, flat)
  u = Concat <axis = 0> (x, one, x)"""), runs(x=[(0, 6), (2, 6)], t=[(2, 3)] * 2)


def gather_cases():
    random = np.random.RandomState(5)

    def case(name, values, block, bits, zeros=False, indices="S", rows=5, dtype="float", extra=""):
        """A table of `values` columns; zero points of a row are whole bytes, too."""
        blocks = -(-values // block)
        parts = [("w", (rows, values * bits // 8), 256)] + ([("z", (rows, -(-blocks * bits // 8)), 256)] if zeros else [])
        body = "".join(f"{n} = Constant<value = uint8[{d[0]},{d[1]}] {{{', '.join(map(str, random.randint(0, most, d).ravel()))}}}>()\n" for n, d, most in parts)
        scales = ", ".join(f"{x:.3f}" for x in random.uniform(-0.5, 0.5, rows * blocks))
        body += f"s = Constant<value = {dtype}[{rows},{blocks}] {{{scales}}}>()\n"
        body += f"y = com.microsoft.GatherBlockQuantized<bits = {bits}, block_size = {block}{extra}>(w, i, s{', z' if zeros else ''})"
        out = f"{indices},{values}"
        dims = {"S": (3,), "B,S": (2, 3), "1": (1,)}[indices]
        return model(name, f"int64[{indices}] i", f"{dtype}[{out}] y", body, 21), [
            lambda r: {"i": r.below(rows, *dims)}, lambda r: {"i": r.below(2 * rows, *dims) - rows}]

    yield case("gather_of_4_bits", 32, 16, 4)
    yield case("gather_of_4_bits_with_zero_points", 48, 16, 4, True, "B,S", extra=", gather_axis = 0, quantize_axis = -1")
    yield case("gather_of_a_begun_block", 40, 16, 4, True)
    yield case("gather_of_one_row", 32, 32, 4, True, "1")
    yield case("gather_of_8_bits", 32, 16, 8)
    yield case("gather_of_8_bits_with_zero_points", 32, 16, 8, True, "B,S")
    yield case("gather_of_2_bits", 32, 16, 2)
    yield case("gather_of_2_bits_with_zero_points", 32, 16, 2, True)


EXPERTS, WIDTH, INNER = 4, 8, 6
ACTIVATIONS = {"relu": lambda a: np.maximum(a, 0), "silu": lambda a: a / (1 + np.exp(-a)), "identity": lambda a: a}


def mixture_reference(f, k, normalised=False, activation="relu", fused=0, alpha=1.0, beta=0.0, limit=np.inf):
    """onnxruntime has no third matrix on a CPU, and swiglu of neighbours alone."""
    f = {name: v.astype(np.float64) for name, v in f.items()}
    x, p = f["x"].reshape(-1, f["x"].shape[-1]), f["p"].reshape(-1, f["p"].shape[-1])
    shares = np.exp(p - p.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    y = np.zeros_like(x)

    def product(name, e, v):
        return f["w" + name][e] @ v + (f["b" + name][e] if "b" + name in f else 0)

    for row, token in enumerate(x):
        best = np.argsort(-shares[row], kind="stable")[:k]
        for e in best:
            a = product("1", e, token)
            if activation == "swiglu":
                gate, linear = {0: lambda: (a, product("3", e, token)), 1: lambda: (a[0::2], a[1::2]), 2: lambda: np.split(a, 2)}[fused]()
                gate, linear = np.minimum(gate, limit), np.clip(linear, -limit, limit)
                a = gate / (1 + np.exp(-alpha * gate)) * (linear + beta)
            else:
                a = ACTIVATIONS[activation](a) * (product("3", e, token) if "w3" in f else 1)
            y[row] += shares[row, e] / (shares[row, best].sum() if normalised else 1) * product("2", e, a)
    return {"y": y.reshape(f["x"].shape).astype(np.float32)}


def mixture_cases():
    def case(name, attributes, biases="12", third=False, wide=INNER, rank=2, router=None, **reference):
        rows = "R" if rank == 2 else "B,S"
        sizes = {"x": None, "p": None, "w1": (EXPERTS, wide, WIDTH), "b1": (EXPERTS, wide), "w2": (EXPERTS, WIDTH, INNER), "b2": (EXPERTS, WIDTH)}
        if third:
            sizes |= {"w3": (EXPERTS, INNER, WIDTH), "b3": (EXPERTS, INNER)}
        given = [n for n in sizes if n[0] != "b" or n[1] in biases]
        dims = {"x": f"{rows},{WIDTH}", "p": f"{router or rows},{EXPERTS}"} | {n: ",".join(map(str, d)) for n, d in sizes.items() if d}
        call = ", ".join(n if n in given else '""' for n in sizes)
        body = f"y = com.microsoft.MoE<{attributes}>({call})"
        if rank == 3:
            body = f"d = Constant<value = int64[2] {{-1, {EXPERTS}}}>()\nr = Reshape(p, d)\n" + body.replace("x, p,", "x, r,")
        text = model(name, ", ".join(f"float[{dims[n]}] {n}" for n in given), f"float[{dims['x']}] y", body)

        def run(r, leading):
            made = {n: r.real(*sizes[n]) for n in given[2:]}
            feeds = {"x": r.real(*leading, WIDTH, scale=2), "p": r.real(*leading, EXPERTS, scale=2)} | made
            return (feeds, None, lambda f: mixture_reference(f, **reference)) if reference else feeds

        return text, [lambda r, d=d: run(r, d) for d in (((1,), (5,)) if rank == 2 else ((1, 2), (2, 3)))]

    yield case("experts", 'activation_type = "relu"')
    yield case("experts_two", 'k = 2, activation_type = "relu", swiglu_fusion = 1', router="T")
    yield case("experts_normalised", 'k = 2, normalize_routing_weights = 1, activation_type = "gelu"', rank=3)
    yield case("experts_all", 'k = 4, activation_type = "silu", normalize_routing_weights = 1', biases="")
    yield case("experts_identity", 'k = 3, activation_type = "identity"', biases="1")
    yield case("experts_swiglu", 'k = 2, normalize_routing_weights = 1, activation_type = "swiglu", swiglu_fusion = 1, activation_alpha = 1.702, '
               'activation_beta = 1.0, swiglu_limit = 1.0', wide=2 * INNER, rank=3)
    yield case("experts_swiglu_plain", 'k = 2, activation_type = "swiglu", swiglu_fusion = 1', wide=2 * INNER, biases="2")
    yield case("experts_swiglu_halves", 'k = 2, activation_type = "swiglu", swiglu_fusion = 2, swiglu_limit = 2.0', wide=2 * INNER,
               k=2, activation="swiglu", fused=2, limit=2.0)
    yield case("experts_swiglu_apart", 'k = 1, activation_type = "swiglu", activation_alpha = 2.0, activation_beta = 0.5', third=True, biases="123",
               k=1, activation="swiglu", alpha=2.0, beta=0.5)
    yield case("experts_gated", 'k = 2, normalize_routing_weights = 1, activation_type = "silu"', third=True, biases="", k=2, normalised=True, activation="silu")


def coded_mixture_cases():
    experts, width, inner = 3, 32, 16

    def decode(codes, bits):
        return np.stack([codes >> bits * i & (1 << bits) - 1 for i in range(8 // bits)], -1).reshape(*codes.shape[:-1], -1).astype(np.float64)

    def case(name, attributes, bits=4, block=16, zeros=False, mixing=False, third=False, rank=2, exact=True, wide=2 * inner, first_bits=None, **reference):
        """Of 8 bits in blocks onnxruntime rounds tokens to 8 bits, too; a third matrix it has not at all on a CPU."""
        random = np.random.RandomState(sum(map(ord, name)))
        given, matrices = {}, {}
        for part, (n, k) in ({"1": (wide, width), "2": (width, inner)} | ({"3": (wide, width)} if third else {})).items():
            own = first_bits if part == "1" and first_bits else bits
            blocks = k // block if block else n
            leading = (experts, n) if block else (experts,)
            codes = random.randint(0, 256, (experts, n, k * own // 8))
            scales = np.round(random.uniform(0.01, 0.03, (*leading, blocks)) * 2 ** (4 - own), 5).astype(np.float32)
            given |= {"w" + part: codes, "s" + part: scales, "b" + part: np.round(random.uniform(-0.5, 0.5, (experts, n)), 2).astype(np.float32)}
            zero = np.full(scales.shape, 2.0 ** (own - 1))
            if zeros:
                given["z" + part] = random.randint(0, 256, (*leading, -(-blocks * own // 8)))
                zero = decode(given["z" + part], own)[..., :blocks]
            of_value = (lambda a: np.repeat(a, block, -1)) if block else (lambda a: a[..., None])
            matrices |= {"w" + part: (decode(codes, own) - of_value(zero)) * of_value(scales.astype(np.float64)), "b" + part: given["b" + part]}
        body = "".join(f"{n} = Constant<value = {'float' if a.dtype == np.float32 else 'uint8'}[{','.join(map(str, a.shape))}] {{{', '.join(f'{v:g}' for v in a.ravel())}}}>()\n"
                       for n, a in given.items())
        order = ["x", "p", "w1", "s1", "b1", "w2", "s2", "b2", "w3", "s3", "b3", "z1", "z2", "z3", "m"]
        there = [n if n in given or n in ("x", "p") or (n == "m" and mixing) else '""' for n in order]
        while there[-1] == '""':
            there.pop()
        sizes = f", block_size = {block}" if block else ""
        own_bits = f", fc1_expert_weight_bits = {first_bits}" if first_bits else ""
        call = ", ".join(there)
        if rank == 3:
            body += f"d = Constant<value = int64[2] {{-1, {experts}}}>()\nr = Reshape(p, d)\n"
            call = call.replace("x, p,", "x, r,")
        body += f"y = com.microsoft.QMoE<{attributes}, expert_weight_bits = {bits}{own_bits}{sizes}, weights_prepacked = 0>({call})"
        rows = "R" if rank == 2 else "B,S"
        inputs = f"float[{rows},{width}] x, float[{rows},{experts}] p" + (f", float[{rows},{experts}] m" if mixing else "")
        text = model(name, inputs, f"float[{rows},{width}] y", body)

        def run(r, leading):
            feeds = {"x": r.real(*leading, width), "p": r.real(*leading, experts, scale=2)}
            if mixing:
                feeds["m"] = r.real(*leading, experts) + 2
            return feeds if exact else (feeds, None, lambda f: mixture_reference(f | matrices, normalised=True, **reference))

        return text, [lambda r, d=d: run(r, d) for d in (((1,), (5,)) if rank == 2 else ((1, 2), (2, 3)))]

    swiglu = 'k = 2, activation_type = "swiglu", swiglu_fusion = 1'
    limited = f"{swiglu}, activation_alpha = 1.702, activation_beta = 1.0, swiglu_limit = 1.0"
    yield case("coded_experts", limited, rank=3)
    yield case("coded_experts_and_zero_points", swiglu, zeros=True)
    yield case("coded_experts_by_columns", swiglu, block=0)
    yield case("coded_experts_by_columns_with_zero_points", f"{swiglu}, normalize_routing_weights = 1", block=0, zeros=True)
    yield case("coded_experts_of_2_bits", swiglu, bits=2, zeros=True)
    yield case("coded_experts_of_8_bits", f"{limited}, normalize_routing_weights = 1", bits=8, zeros=True, exact=False,
               k=2, activation="swiglu", fused=1, alpha=1.702, beta=1.0, limit=1.0)
    yield case("coded_experts_of_8_and_4_bits", swiglu, first_bits=8, exact=False, k=2, activation="swiglu", fused=1)
    yield case("coded_experts_relu", 'k = 1, activation_type = "relu"', wide=inner)
    yield case("coded_experts_apart", 'k = 2, activation_type = "swiglu"', third=True, wide=inner, exact=False, k=2, activation="swiglu")
    yield case("coded_experts_mixed", swiglu, mixing=True)
    yield case("coded_experts_mixed_normalised", f"{swiglu}, normalize_routing_weights = 1", mixing=True)


def padded_convolution(f):
    """onnxruntime refuses an image without pixels, which padding makes one."""
    x = np.pad(f["x"].astype(np.float64), [(0, 0), (0, 0), (2, 2)])
    columns = [np.einsum("bck,ock->bo", x[:, :, i:i + 3], f["w"]) + f["b"] for i in range(x.shape[2] - 2)]
    return {"y": np.stack(columns, -1).astype(np.float32)}


FILES = {
    "masked_rows": ("Attentions written out, with masks that leave rows without a key, and what reads these.", list(masked_rows_cases())),
    "microsoft_qlinear": ("QLinearAdd and relatives, QGemm.", list(qlinear_cases())),
    "tensor_scatter": ("TensorScatter.", list(tensor_scatter_cases())),
    "narrow_integers": ("Unsigned integers of 16 and 32 bits inside a graph.", list(narrow_cases())),
    "microsoft_packed_attention": ("RemovePadding, RestorePadding and what is between them.", list(packed_cases())),
    "attention": ("Attention of ONNX.", list(attention_cases())),
    "microsoft_group_query_attention": ("GroupQueryAttention.", [
        b for size in (8, 16) for b in group_query_cases(size) if ("group_query_rotary" in b[0]) == (size == 16)]),  # sizes that onnxruntime takes
    "microsoft_attention": ("Attention of com.microsoft.", list(microsoft_attention_cases())),
    "microsoft_multi_head_attention": ("MultiHeadAttention and DecoderMaskedMultiHeadAttention.", [*multi_head_cases(), *decoder_masked_cases()]),
    "microsoft_norm": ("Norms with a residual or an embedding.", [*norm_cases(), *embed_cases()]),
    "microsoft_gather": ("GatherBlockQuantized.", list(gather_cases())),
    "microsoft_moe": ("MoE.", list(mixture_cases())),
    "microsoft_qmoe": ("QMoE.", list(coded_mixture_cases())),
    "channel_norm": ("Norms of channels.", list(channel_norm_cases())),
    "microsoft_elementwise": ("GELU, FusedMatMul and FusedGemm.", [*elementwise_cases(), *matmul_cases()]),
    "empty": ("Sizes of 0.", list(empty_cases())),
    "rotary_embedding": ("RotaryEmbedding of both domains.", list(rotary_cases())),
}
