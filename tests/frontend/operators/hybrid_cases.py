# SPDX-License-Identifier: Apache-2.0
"""More cases for make.py, of the operators of com.microsoft that decoders with linear attention are made of (Qwen3.5, LFM2)."""
import numpy as np

from cases import B, S, model


def linear_attention_cases():
    """As in recent_cases.py, but with fewer heads of queries, or of queries and keys, than the state has."""
    def case(name, rule, heads, keys, kv, length=5, channels=1, d=4, dv=3, scale=1.0):
        inputs = (f"float[{B},{length},{heads * d}] q, float[{B},{length},{keys * d}] k, float[{B},{length},{kv * dv}] v, float[{B},{kv},{d},{dv}] p"
                  + (f", float[{B},{length},{kv * channels}] g" if "gated" in rule else "") + (f", float[{B},{length},{kv}] r" if "delta" in rule else ""))
        call = ["q", "k", "v", "p", "g" if "gated" in rule else '""'] + (["r"] if "delta" in rule else [])

        def make(r):
            f = {"q": r.real(B, length, heads * d), "k": r.real(B, length, keys * d), "v": r.real(B, length, kv * dv), "p": r.real(B, kv, d, dv)}
            if "gated" in rule:
                f["g"] = -np.abs(r.real(B, length, kv * channels))
            if "delta" in rule:
                f["r"] = np.abs(r.real(B, length, kv))
            return f
        attrs = f'q_num_heads = {heads}, kv_num_heads = {kv}, update_rule = "{rule}", scale = {scale}'
        return model(name, inputs, f"float[{B},{length},{max(heads, kv) * dv}] y, float[{B},{kv},{d},{dv}] n",
                     f"y, n = com.microsoft.LinearAttention<{attrs}>({', '.join(call)})"), [make]

    yield case("microsoft_linear_attention", "linear", 4, 2, 2)
    yield case("microsoft_linear_attention_of_few_queries", "gated", 2, 4, 4)
    yield case("microsoft_linear_attention_of_few_queries_by_channel", "gated", 2, 4, 4, channels=4)
    yield case("microsoft_linear_attention_of_few_queries_and_keys", "gated_delta", 2, 2, 4, length=7)
    yield case("microsoft_linear_attention_of_few_keys", "delta", 1, 2, 4)
    yield case("microsoft_linear_attention_step", "gated_delta", 2, 2, 4, length=1)


def causal_conv_cases():
    def case(name, attrs, reach, last=False):
        x, p = ("float[B,L,3]", f"float[B,{reach},3]") if last else ("float[B,3,L]", f"float[B,3,{reach}]")

        def run(length):
            def make(r):
                shape = (lambda n: (B, n, 3)) if last else (lambda n: (B, 3, n))
                return {"x": r.real(*shape(length)), "w": r.real(3, 1, 4), "b": r.real(3), "p": r.real(*shape(reach))}
            return make
        return model(name, f"{x} x, float[3,1,4] w, float[3] b, {p} p", f"{x} y, {p} n", f"y, n = com.microsoft.CausalConvWithState{attrs}(x, w, b, p)"), [run(1), run(6)]

    yield case("microsoft_causal_conv", '<activation = "silu", ndim = 1, state_window = 0>', 3)
    yield case("microsoft_causal_conv_dilated", "<dilation = 2>", 6)
    yield case("microsoft_causal_conv_channels_last", '<channels_last = 1, activation = "swish">', 3, last=True)
    yield case("microsoft_causal_conv_channels_last_dilated", "<channels_last = 1, dilation = 3>", 9, last=True)


def gate_cases():
    def gates(name, outputs, call):
        def make(r):
            return {"a": r.real(B, S, 3, scale=20), "t": r.real(3), "s": -np.abs(r.real(3)), **({"b": r.real(B, S, 3, scale=5)} if "b" in call else {})}
        return model(name, f"float[B,S,3] a, float[3] t, float[3] s{', float[B,S,3] b' if 'b' in call else ''}", outputs, call), [make]

    yield gates("linear_attention_gate", "float[B,S,3] d, float[B,S,3] e", "d, e = com.microsoft.LinearAttentionGate(a, t, s, b)")
    yield gates("linear_attention_gate_without_beta", "float[B,S,3] d", "d = com.microsoft.LinearAttentionGate(a, t, s)")

    def norm(name, attrs, width):
        def make(r):
            return {"x": r.real(B, S, 12, scale=3), "s": r.real(width), "g": r.real(B, S, 12, scale=4)}
        return model(name, f"float[B,S,12] x, float[{width}] s, float[B,S,12] g", "float[B,S,12] y", f"y = com.microsoft.GatedRMSNorm{attrs}(x, s, g)"), [make]

    yield norm("gated_rms_norm_of_heads", "", 4)
    yield norm("gated_rms_norm_of_rows", '<activation = "sigmoid", epsilon = 0.01>', 12)
    yield norm("gated_rms_norm_swish", '<activation = "swish">', 6)


def rotary_cases():
    """Three positions for each token: columns of a section, or every third column, turn by one of them."""
    def case(name, attrs, half, shape="float[B,S,24]", dims=(B, S, 24)):
        def make(r):
            return {"x": r.real(*dims), "p": r.below(9, 3, B, S), "c": r.real(9, half), "s": r.real(9, half)}
        return model(name, f"{shape} x, int64[3,B,S] p, float[9,{half}] c, float[9,{half}] s", f"{shape} y", f"y = com.microsoft.MRotaryEmbedding<{attrs}>(x, p, c, s)"), [make]

    yield case("m_rotary_embedding_of_sections", "mrope_section = [1, 2, 1], num_heads = 3", 4)
    yield case("m_rotary_embedding_of_thirds", "mrope_section = [2, 1, 1], mrope_layout = 1, num_heads = 3", 4)
    yield case("m_rotary_embedding_of_a_part", "mrope_section = [1, 1, 1], mrope_layout = 1, num_heads = 3, rotary_embedding_dim = 6", 3)
    yield case("m_rotary_embedding_interleaved", "mrope_section = [4, 0, 0], num_heads = 3, interleaved = 1", 4)
    yield case("m_rotary_embedding_by_head", "mrope_section = [2, 2, 2], mrope_layout = 1", 6, "float[B,2,S,12]", (B, 2, S, 12))


FILES = {
    "microsoft_linear_attention": ("LinearAttention, CausalConvWithState, LinearAttentionGate, GatedRMSNorm and MRotaryEmbedding of com.microsoft.", [
        *linear_attention_cases(), *causal_conv_cases(), *gate_cases(), *rotary_cases()]),
}
