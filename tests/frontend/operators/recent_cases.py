# SPDX-License-Identifier: Apache-2.0
"""More cases for make.py, of operators and forms of opset 27 and 28. onnxruntime has no kernels for them yet: each has a reference."""
import numpy as np

from cases import B, S, model


def recurrence(f, rule, heads, kv, scale=0.0):
    """LinearAttention token by token, in float64."""
    q, k, v = (f[n].astype(np.float64).reshape(*f[n].shape[:2], h, -1) for n, h in (("q", heads), ("k", kv), ("v", kv)))
    batch, tokens, _, d = q.shape
    state = f["p"].astype(np.float64) if "p" in f else np.zeros((batch, kv, d, v.shape[3]))
    y = np.zeros((batch, tokens, heads, v.shape[3]))
    for t in range(tokens):
        if rule.startswith("gated"):
            state = state * np.exp(f["g"][:, t].astype(np.float64).reshape(batch, kv, -1, 1))
        change = v[:, t]
        if rule.endswith("delta"):
            change = f["r"][:, t].astype(np.float64)[:, :, None] * (change - np.einsum("bhem,bhe->bhm", state, k[:, t]))
        state = state + np.einsum("bhe,bhm->bhem", k[:, t], change)
        y[:, t] = np.einsum("bhe,bhem->bhm", q[:, t], np.repeat(state, heads // kv, 1)) * (scale or d ** -0.5)
    return {"y": y.reshape(batch, tokens, -1).astype(np.float32), "n": state.astype(np.float32)}


def linear_attention_cases():
    def case(name, rule, heads=2, kv=2, d=4, dv=3, past=False, present=True, scale=0.0, tokens="T", lengths=(1, 5), beta=None, channels=1, forgotten=0):
        inputs = f"float[B,{tokens},{heads * d}] q, float[B,{tokens},{kv * d}] k, float[B,{tokens},{kv * dv}] v"
        inputs += f", float[B,Heads,Keys,Values] p" if past else ""  # told by the other inputs
        inputs += f", float[B,{tokens},{kv * channels}] g" if "gated" in rule else ""
        inputs += f", float[B,{tokens},{beta or kv}] r" if "delta" in rule else ""
        call = ["q", "k", "v", "p" if past else '""', "g" if "gated" in rule else '""', "r" if "delta" in rule else '""']
        while call[-1] == '""':
            call.pop()
        attrs = f'q_num_heads = {heads}, kv_num_heads = {kv}, update_rule = "{rule}"' + (f", scale = {scale}" if scale else "")

        def run(length):
            def make(r):
                f = {"q": r.real(B, length, heads * d), "k": r.real(B, length, kv * d), "v": r.real(B, length, kv * dv)}
                if past:
                    f["p"] = r.real(B, kv, d, dv)
                if "gated" in rule:
                    f["g"] = -np.abs(r.real(B, length, kv * channels))
                    if forgotten:  # at one token, which the words of a file can say
                        f["g"][0, length // 2] = forgotten
                if "delta" in rule:
                    f["r"] = np.abs(r.real(B, length, beta or kv))
                want = recurrence(f, rule, heads, kv, scale)
                return f, None, lambda _: want if present else {"y": want["y"]}
            return make
        outputs = f"float[B,{tokens},{heads * dv}] y" + (f", float[B,{kv},{d},{dv}] n" if present else "")
        return model(name, inputs, outputs, f"{'y, n' if present else 'y'} = LinearAttention<{attrs}>({', '.join(call)})", 27), [run(n) for n in lengths]

    yield case("linear_attention", "linear", present=False)
    yield case("linear_attention_of_groups", "linear", heads=4, past=True)
    yield case("linear_attention_gated", "gated", scale=0.75)
    yield case("linear_attention_gated_with_past", "gated", heads=4, past=True)
    yield case("linear_attention_gated_by_channel", "gated", heads=4, past=True, channels=4)
    for name, more in (("minus_infinity", {"forgotten": -np.inf}), ("the_least_number", {"forgotten": -3e38})):
        yield case(f"linear_attention_that_forgets_by_{name}", "gated", past=True, **more)
        yield case(f"linear_attention_of_channels_that_forgets_by_{name}", "gated", past=True, channels=4, **more)
    for rule, more in (("delta", {"beta": 1}), ("gated_delta", {"heads": 4, "past": True}), ("gated_delta", {"past": True, "channels": 4})):
        for length in (3, 8, 13):
            name = f"linear_attention_{rule}_of_{length}" + ("_by_channel" if "channels" in more else "")
            yield case(name, rule, tokens=length, lengths=[length], **more)
    yield case("linear_attention_delta_step", "delta", tokens=1, lengths=[1], beta=1)
    yield case("linear_attention_gated_delta_step", "gated_delta", heads=4, past=True, tokens=1, lengths=[1])
    yield case("linear_attention_gated_delta_step_by_channel", "gated_delta", past=True, tokens=1, lengths=[1], channels=4)


def causal_conv_cases():
    def case(name, taps, bias=False, past=False, activation=""):
        inputs = f"float[B,{'C' if past else 3},L] x, float[3,1,{taps}] w" + (", float[3] b" if bias else "") + (f", float[B,3,P] p" if past else "")
        call = "x, w" + (", b" if bias else ', ""' if past else "") + (", p" if past else "")

        def run(length):
            def make(r):
                f = {"x": r.real(B, 3, length), "w": r.real(3, 1, taps)}
                if bias:
                    f["b"] = r.real(3)
                before = np.zeros((B, 3, taps - 1), np.float32)
                if past:
                    before = f["p"] = r.real(B, 3, taps - 1)
                full = np.concatenate([before, f["x"]], 2).astype(np.float64)
                y = sum(full[:, :, k:k + length] * f["w"][None, :, 0, k, None] for k in range(taps)) + (f["b"][None, :, None] if bias else 0)
                y = y / (1 + np.exp(-y)) if activation else y
                return f, None, lambda _: {"y": y.astype(np.float32), "n": full[:, :, length:].astype(np.float32)}
            return make
        attrs = f'<activation = "{activation}">' if activation else ""
        return model(name, inputs, f"float[B,3,L] y, float[B,3,{taps - 1}] n", f"y, n = CausalConvWithState{attrs}({call})", 27), [run(1), run(5)]

    yield case("causal_conv", 4)
    yield case("causal_conv_with_past", 4, bias=True, past=True, activation="silu")
    yield case("causal_conv_of_two", 2, past=True, activation="swish")


def lp_normalization_cases():
    def case(name, attrs, p, axis):
        def make(r):
            x = r.real(B, S, 4)
            x[0, 1] = 0  # has no length
            wide = x.astype(np.float64)
            norm = np.abs(wide).sum(axis, keepdims=True) if p == 1 else np.sqrt((wide ** 2).sum(axis, keepdims=True))
            return {"x": x}, None, lambda _: {"y": np.where(norm == 0, 0, wide / np.where(norm == 0, 1, norm)).astype(np.float32)}
        return model(name, "float[B,S,4] x", "float[B,S,4] y", f"y = LpNormalization{attrs}(x)", 22), [make]

    yield case("lp_normalization", "", 2, 2)
    yield case("lp_normalization_of_magnitudes", "<axis = 1, p = 1>", 1, 1)


def mod_cases():
    """Of reals, from opset 28 on with the sign of the divisor."""
    inf = np.float32(np.inf)

    def make(r):
        f = {"a": np.array([6, -4.25, 7.5, -7.5, 4, -4, 0, 3, -3, 3, inf, 2], np.float32),
             "b": np.array([2.5, 2, -3.5, -2, -2, 2, -1, inf, inf, -inf, 2, 0], np.float32)}
        with np.errstate(invalid="ignore"):
            return f, None, lambda _: {"y": np.mod(f["a"], f["b"])}
    yield model("mod_of_reals", "float[12] a, float[12] b", "float[12] y", "y = Mod(a, b)", 28), [make]


def shift_cases():
    """Signed integers, from opset 28 on; amounts outside of the width leave what comes in from outside."""
    def case(name, kind, direction, bits):
        def make(r):
            n = np.array([-1, 0, 1, bits - 2, bits - 1, bits, bits + 40, -bits], np.int64)
            a, n = (v.ravel() for v in np.meshgrid(np.array([-(1 << (bits - 1)), -8, -1, 0, 1, 5, (1 << (bits - 1)) - 1], object), n.astype(object)))
            outside = (n < 0) | (n >= bits)
            wrap = lambda v: ((int(v) + (1 << (bits - 1))) % (1 << bits)) - (1 << (bits - 1))
            y = [(-1 if v < 0 and direction == "RIGHT" else 0) if o else wrap(v << m) if direction == "LEFT" else v >> m for v, m, o in zip(a, n, outside)]
            dtype = {8: np.int8, 32: np.int32, 64: np.int64}[bits]
            return {"a": a.astype(dtype), "n": np.clip(n.astype(np.int64), -128, 127).astype(dtype)}, None, lambda _: {"y": np.array(y, dtype)}
        return model(name, f"{kind}[56] a, {kind}[56] n", f"{kind}[56] y", f'y = BitShift<direction = "{direction}">(a, n)', 28), [make]

    for kind, bits in (("int8", 8), ("int32", 32), ("int64", 64)):
        for direction in ("LEFT", "RIGHT"):
            yield case(f"shift_{direction.lower()}_{kind}", kind, direction, bits)


def blocks_of_columns_cases():
    def make(r):
        x = r.real(2, 3, 4, 6)
        y = x.reshape(2, 3, 2, 2, 3, 2).transpose(0, 1, 3, 5, 2, 4).reshape(2, 12, 2, 3)
        return {"x": x}, None, lambda _: {"y": y}
    yield model("space_to_depth_columns_first", "float[2,3,4,6] x", "float[2,12,2,3] y", 'y = SpaceToDepth<blocksize = 2, mode = "CRD">(x)', 28), [make]


def swi_glu_cases():
    def case(name, attrs, alpha):
        def make(r):
            f = {"a": r.real(B, S, 4, scale=3), "b": r.real(B, S, 4)}
            return f, None, lambda _: {"y": (f["a"] / (1 + np.exp(-alpha * f["a"].astype(np.float64))) * f["b"]).astype(np.float32)}
        return model(name, "float[B,S,4] a, float[B,S,4] b", "float[B,S,4] y", f"y = SwiGLU{attrs}(a, b)", 28), [make]

    yield case("swi_glu", "", 1.0)
    yield case("swi_glu_alpha", "<alpha = 1.702>", 1.702)


FILES = {
    "linear_attention": ("LinearAttention and CausalConvWithState.", [*linear_attention_cases(), *causal_conv_cases()]),
    "opset_28": ("SwiGLU, LpNormalization, Mod of reals, BitShift of signed integers, SpaceToDepth.", [
        *swi_glu_cases(), *lp_normalization_cases(), *mod_cases(), *shift_cases(), *blocks_of_columns_cases()]),
}
