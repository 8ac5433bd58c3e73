# SPDX-License-Identifier: Apache-2.0
"""Random attentions: projections, a score, one to four mask terms in many spellings, and a reader of the result.

What need not agree are rows that docs/numerics.md leaves undefined: those of padded tokens, which a condition on the key alone hides,
and those of texts that are wholly padded, as long as the reader leaves them at their own place. A row without a visible key by position
or by the query's data is real. Where masked rows reach another place, that place is compared.
"""
import copy

import numpy as np

from judge import Case, Run
from masks import Scope, any_term
from onnx_model import Model

WIDTH = 16
PENALTIES = [-1e4, -1e9, -3.4028234663852886e38, -np.inf]
READERS = ["plain", "plain", "residual norm", "mean", "masked mean", "max", "first", "last", "counted", "conv", "shift", "same attention", "other attention", "free attention",
           "in-batch softmax", "roll batch", "concat batch", "sum", "mean batch", "softmax batch", "batch product", "project"]

AT_ITS_PLACE = ("plain", "residual norm", "project")


def spec_of(rng):
    heads = int(rng.choice([1, 2, 4]))
    form = rng.choice(["self", "cross", "past"], p=[0.8, 0.1, 0.1])
    s = {
        "form": form, "heads": heads, "kv_heads": int(rng.choice([h for h in (1, 2, 4) if heads % h == 0])) if rng.random() < 0.25 else heads,
        "B": "B", "S": "S", "Sk": {"self": "S", "cross": "T", "past": "L"}[form], "shared": rng.choice(["", "", "", "kv", "qkv"]),
        "biases": bool(rng.random() < 0.5), "scale": rng.choice(["div", "mul", "q", "none"]), "softcap": bool(rng.random() < 0.07),
        "bias": rng.choice(["", "", "", "", "", "distance", "table"]), "merged": bool(rng.random() < 0.1), "k_last": bool(rng.random() < 0.3),
        "terms": [any_term(rng, form != "cross") for _ in range(int(rng.choice([1, 2, 3, 4], p=[0.45, 0.35, 0.13, 0.07])))],
        "join": rng.choice(["and", "and", "add", "add", "or", "where", "min", "mul", "nested"]), "apply": rng.choice(["where", "where not", "add where", "add", "sub", "blend"]),
        "penalty": float(rng.choice(PENALTIES, p=[0.2, 0.25, 0.3, 0.25])), "guard": bool(rng.random() < 0.12), "reader": rng.choice(READERS),
        "between": rng.choice(["", "", "", "norm", "project", "times mask", "where mask"]), "mask_type": rng.choice(["int64", "int64", "int32", "bool", "float32"]), "seg_type": rng.choice(["int64", "int32"]), "opset": 18,
    }
    return clean(s)


def clean(s):
    """What does not go together."""
    if s["penalty"] == -np.inf and s["apply"] in ("add", "sub", "blend"):
        s["apply"] = "add where"  # 0 * inf
    if s["guard"] and s["penalty"] != -np.inf:
        s["guard"] = False
    if s["form"] == "past" and (s["merged"] or s["kv_heads"] != s["heads"]):
        s["merged"], s["kv_heads"] = False, s["heads"]
    if s["form"] == "cross" and s["shared"] == "qkv":
        s["shared"] = "kv"
    if s["form"] != "self" and s["reader"] == "same attention":
        s["reader"] = "other attention"
    if s["form"] != "self" and s["reader"] in ("masked mean", "counted"):
        s["reader"] = "mean"  # the mask is of the keys
    if s["between"] in ("times mask", "where mask") and s["form"] != "self":
        s["between"] = ""  # the mask is of the keys
    if s["penalty"] == -np.inf and s["reader"] == "max" and not s["guard"]:
        s["reader"] = "mean"  # the largest of NaNs is up to the runtime
    return s


# ---- nodes ----

class Builder:
    """Writes a spec as a model."""

    def __init__(self, spec, seed):
        self.spec, self.m = spec, Model(spec["opset"])
        self.rng = np.random.default_rng(seed)
        self.scope = Scope(self.m, spec)
        self.memory = "z" if spec["form"] == "cross" else "x"

    def weight(self, *shape):
        return (self.rng.standard_normal(shape) * 0.3).astype(np.float32)

    def linear(self, x, n, width=WIDTH, bias=False):
        y = self.m.op("MatMul", x, self.weight(width, n))
        return self.m.op("Add", y, self.weight(n)) if bias else y

    def split(self, x, heads, perm=(0, 2, 1, 3)):
        return self.m.op("Transpose", self.m.op("Reshape", x, self.m.ints(0, 0, heads, WIDTH // self.spec["heads"])), perm=list(perm))

    def repeated(self, x):
        """[B, G, S, D] with every head `heads / kv_heads` times."""
        m, n = self.m, self.spec["heads"] // self.spec["kv_heads"]
        if n == 1:
            return x
        many = m.op("Concat", *[m.op("Unsqueeze", x, m.ints(2))] * n, axis=2)
        return m.op("Reshape", many, m.ints(0, self.spec["heads"], -1, WIDTH // self.spec["heads"]))

    def attention(self, x, memory, terms, past, bias=""):
        """[B, S, WIDTH] of queries from x and keys from memory."""
        m, s = self.m, self.spec
        dim, width = WIDTH // s["heads"], WIDTH * s["kv_heads"] // s["heads"]
        q = self.linear(x, WIDTH, bias=s["biases"])
        k = q if s["shared"] == "qkv" and s["kv_heads"] == s["heads"] else self.linear(memory, width, bias=s["biases"])
        v = k if s["shared"] else self.linear(memory, width, bias=s["biases"])
        q, k, v = self.split(q, s["heads"]), self.split(k, s["kv_heads"]), self.split(v, s["kv_heads"])
        if past:
            dims = [s["B"], "P", s["heads"], dim]
            names = [self.scope.once("past_" + n, lambda n=n: m.input("past_" + n, np.float32, dims)) for n in "kv"]
            k, v = [m.op("Concat", m.op("Transpose", p, perm=[0, 2, 1, 3]), n, axis=2) for p, n in zip(names, (k, v))]
        k, v = self.repeated(k), self.repeated(v)
        self.scope.made["k"] = k
        if s["scale"] == "q":
            q = m.op("Mul", q, np.array(dim ** -0.5, np.float32))
        kt = m.op("Transpose", k, perm=[0, 1, 3, 2])
        score = self.product(q, kt)
        if s["scale"] == "div":
            score = m.op("Div", score, np.array(dim ** 0.5, np.float32))
        elif s["scale"] == "mul":
            score = m.op("Mul", score, np.array(dim ** -0.5, np.float32))
        if s["softcap"]:
            score = m.op("Mul", m.op("Tanh", m.op("Div", score, np.array(5, np.float32))), np.array(5, np.float32))
        if bias == "distance":
            far = m.op("Cast", m.op("Abs", m.op("Sub", self.scope.i(), self.scope.j())), to=1)
            score = m.op("Add", score, m.op("Mul", far, np.array(-0.25, np.float32)))
        elif bias == "table":
            far = m.op("Add", m.op("Clip", m.op("Sub", self.scope.i(), self.scope.j()), np.array(-3, np.int64), np.array(3, np.int64)), np.array(3, np.int64))
            score = m.op("Add", score, m.op("Gather", self.weight(7), far, axis=0))
        score = self.masked(score, terms)
        p = m.op("Softmax", score, axis=-1)
        if s["guard"]:
            p = m.op("Where", m.op("IsNaN", p), np.array(0, np.float32), p)
        c = m.op("Transpose", self.product(p, v), perm=[0, 2, 1, 3])
        return self.linear(m.op("Reshape", c, m.ints(0, 0, WIDTH)), WIDTH, bias=s["biases"])

    def product(self, a, b):
        """a @ b, where the spec says so with batch and heads as one axis."""
        m = self.m
        if not self.spec["merged"]:
            return m.op("MatMul", a, b)
        one = [m.op("Reshape", x, m.op("Concat", m.ints(-1), m.op("Slice", m.op("Shape", x), m.ints(2), m.ints(4), m.ints(0)), axis=0)) for x in (a, b)]
        y = m.op("MatMul", *one)
        shape = m.op("Concat", m.ints(-1, self.spec["heads"]), m.op("Slice", m.op("Shape", y), m.ints(1), m.ints(3), m.ints(0)), axis=0)
        return m.op("Reshape", y, shape)

    def masked(self, score, terms):
        m, s = self.m, self.spec
        if not terms:
            return score
        if s["join"] == "add" or (s["join"] == "min" and s["apply"] not in ("where", "where not")):
            return self.penalised(score, terms)
        if s["join"] == "where":  # one select within the other
            for t in terms:
                score = self.select(t.emit(self.scope), score)
            return score
        if s["join"] == "mul":
            seen = [self.number(t) for t in terms]
            for n in seen[1:]:
                seen[0] = m.op("Mul", seen[0], n)
            return self.blended(score, seen[0])
        seen = [t.emit(self.scope) for t in terms]
        for k, n in enumerate(seen[1:]):
            seen[0] = m.op("Or" if s["join"] == "or" or (s["join"] == "nested" and k == 1) else "And", seen[0], n)
        if s["apply"] in ("add", "sub", "blend"):
            return self.blended(score, m.op("Cast", seen[0], to=1))
        return self.select(seen[0], score)

    def number(self, term):
        """A term as f32 0 or 1."""
        own = term.emit_number(self.scope) if hasattr(term, "emit_number") and term.name != "segment equal" else None
        return own or self.m.op("Cast", term.emit(self.scope), to=1)

    def constant(self):
        return np.array(self.spec["penalty"], np.float32)

    def select(self, seen, score):
        m, how = self.m, self.spec["apply"]
        if how == "where not":
            return m.op("Where", m.op("Not", seen), self.constant(), score)
        if how == "add where":
            return m.op("Add", m.op("Where", seen, np.array(0, np.float32), self.constant()), score)
        return m.op("Where", seen, score, self.constant())

    def blended(self, score, seen):
        """By a number that is 0 or 1."""
        m, how, one = self.m, self.spec["apply"], np.array(1, np.float32)
        if self.spec["penalty"] == -np.inf:
            return self.select(m.op("Cast", seen, to=9), score)
        if how == "sub":
            return m.op("Sub", score, m.op("Mul", m.op("Sub", one, seen), -self.constant()))
        if how == "blend":
            return m.op("Add", m.op("Mul", score, seen), m.op("Mul", m.op("Sub", one, seen), self.constant()))
        return m.op("Add", score, m.op("Mul", m.op("Sub", one, seen), self.constant()))

    def penalised(self, score, terms):
        """Every term a tensor to add, or the least of them."""
        m, one, parts = self.m, np.array(1, np.float32), []
        for t in terms:
            own = t.emit_number(self.scope) if hasattr(t, "emit_number") and self.spec["penalty"] != -np.inf else None
            if own:
                parts.append(m.op("Mul", m.op("Sub", one, own), self.constant()))
            else:
                parts.append(m.op("Where", t.emit(self.scope), np.array(0, np.float32), self.constant()))
        if self.spec["join"] == "min":
            return m.op("Add", score, m.op("Min", *parts) if len(parts) > 1 else parts[0])
        for p in parts:
            score = m.op("Add", score, p)
        return score

    # ---- readers ----

    def between(self, y):
        """What works by row, or leaves rows out."""
        m, how = self.m, self.spec["between"]
        if how == "norm":
            return m.op("LayerNormalization", m.op("Add", "x", y), self.weight(WIDTH), self.weight(WIDTH), axis=-1)
        if how == "project":
            return m.op("Tanh", self.linear(y, WIDTH, bias=True))
        if not how:
            return y
        kept = m.op("Unsqueeze", m.op("Cast", self.scope.data("mask"), to=9), m.ints(2))
        return m.op("Mul", y, m.op("Cast", kept, to=1)) if how == "times mask" else m.op("Where", kept, y, np.array(0, np.float32))

    def read(self, y):
        """The output of the reader, from y [B, S, WIDTH]."""
        m, r = self.m, self.spec["reader"]
        mean = lambda v, axis: m.op("ReduceMean", v, m.ints(axis), keepdims=0)  # noqa: E731
        if r == "residual norm":
            return m.op("LayerNormalization", m.op("Add", "x", y), self.weight(WIDTH), self.weight(WIDTH), axis=-1)
        if r == "mean":
            return mean(y, 1)
        if r == "masked mean":
            kept = m.op("Unsqueeze", m.op("Cast", m.op("Cast", self.scope.data("mask"), to=9), to=1), m.ints(2))
            total = m.op("ReduceSum", m.op("Mul", y, kept), m.ints(1), keepdims=0)
            return m.op("Div", total, m.op("Max", m.op("ReduceSum", kept, m.ints(1), keepdims=0), np.array(1e-9, np.float32)))
        if r == "max":
            return m.op("ReduceMax", y, m.ints(1), keepdims=0)
        if r == "first":
            return m.op("Gather", y, np.array(0, np.int64), axis=1)
        if r == "last":
            return m.op("Gather", y, np.array(-1, np.int64), axis=1)
        if r == "counted":  # the last token that is none of padding on the right
            kept = m.op("Cast", m.op("Cast", self.scope.data("mask"), to=9), to=7)
            last = m.op("Sub", m.op("ReduceSum", kept, m.ints(1), keepdims=1), m.ints(1))
            return m.op("GatherND", y, last, batch_dims=1)
        if r == "conv":
            c = m.op("Conv", m.op("Transpose", y, perm=[0, 2, 1]), self.weight(WIDTH, WIDTH, 3), kernel_shape=[3], pads=[1, 1])
            return m.op("Transpose", c, perm=[0, 2, 1])
        if r in ("shift", "roll batch"):
            axis = 1 if r == "shift" else 0
            head = m.op("Slice", y, m.ints(-1), m.ints(1 << 40), m.ints(axis))
            return m.op("Concat", head, m.op("Slice", y, m.ints(0), m.ints(-1), m.ints(axis)), axis=axis)
        if r == "same attention":
            return self.attention(y, y, self.spec["terms"], False)
        if r == "free attention":
            return self.attention(y, y, [], False)
        if r == "other attention":
            other = m.op("Unsqueeze", m.op("Cast", m.input("mask2", np.int64, ["B", "S"]), to=9), m.ints(1, 2))
            return self.attention(y, y, [Given(other)], False)
        if r == "in-batch softmax":
            p = mean(y, 1)
            return m.op("Softmax", m.op("MatMul", p, m.op("Transpose", p, perm=[1, 0])), axis=-1)
        if r == "concat batch":
            return m.op("Concat", y, "x", axis=0)
        if r == "sum":
            return m.op("ReduceSum", y, keepdims=0)
        if r == "mean batch":
            return mean(y, 0)
        if r == "softmax batch":
            return m.op("Softmax", y, axis=0)
        if r == "batch product":
            flat = mean(y, 1)
            return m.op("MatMul", m.op("Transpose", flat, perm=[1, 0]), flat)
        if r == "project":
            return self.m.op("Relu", self.linear(y, 8, bias=True))
        return y

    def build(self):
        m, s = self.m, self.spec
        x = m.input("x", np.float32, [s["B"], s["S"], WIDTH])
        if s["form"] == "cross":
            m.input("z", np.float32, [s["B"], "T", WIDTH])
        y = self.attention(x, self.memory, s["terms"], s["form"] == "past", s["bias"])
        m.output("y", self.read(self.between(y)), np.float32)
        return m.bytes()


class Given:
    """A term that is a tensor already."""
    name = "mask2"

    def __init__(self, name):
        self.tensor = name

    def emit(self, scope):
        return self.tensor


# ---- data ----

def padding(rng, rows, length):
    """A mask of 0 and 1: padded on the right, on the left, anywhere; sometimes a whole row."""
    kind = rng.choice(["full", "right", "left", "scattered", "scattered"])
    mask = np.ones((rows, length), np.int64)
    for b in range(rows):
        n = int(rng.integers(1, length + 1)) if length else 0
        if kind == "right":
            mask[b, n:] = 0
        elif kind == "left":
            mask[b, :length - n] = 0
        elif kind == "scattered":
            mask[b] = rng.random(length) < 0.6
            if length and not mask[b].any():
                mask[b, rng.integers(length)] = 1
        if rng.random() < 0.15:
            mask[b] = 0
    return mask


def data_of(spec, rng, batch, length):
    past = int(rng.choice([0, 1, 3])) if spec["form"] == "past" else 0
    keys = {"self": length, "cross": int(rng.choice([1, 3, 6])), "past": past + length}[spec["form"]]
    real = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    mask = padding(rng, batch, keys)
    ids = mask * rng.choice([1, 2, 3, 5, 7], mask.shape)
    if rng.random() < 0.3:
        ids = rng.integers(0, 4, mask.shape)
    d = {"x": real(batch, length, WIDTH), "mask": mask.astype(spec["mask_type"]), "ids": ids.astype(np.int64), "mask2": padding(rng, batch, length),
         "seg": np.sort(rng.integers(0, 3, mask.shape), axis=1).astype(spec["seg_type"]) if rng.random() < 0.5 else rng.integers(0, 3, mask.shape).astype(spec["seg_type"]),
         "t": real(*mask.shape), "len": rng.integers(0 if rng.random() < 0.3 else 1, keys + 1, batch)}
    if spec["form"] == "cross":
        d["z"] = real(batch, keys, WIDTH)
    if spec["form"] == "past":
        dim = WIDTH // spec["heads"]
        d["past_k"], d["past_v"] = real(batch, past, spec["heads"], dim), real(batch, past, spec["heads"], dim)
    return d, {**d, "B": batch, "Sq": length, "Sk": keys, "P": past}


def joined(spec, data):
    """(what is visible [B, 1, Sq, Sk], the part that depends on the key alone [B, Sk])."""
    seen, keys = [t.visible(data) for t in spec["terms"]], [t.key(data) for t in spec["terms"]]
    if spec["join"] == "or" or (spec["join"] == "nested" and len(seen) > 2):
        return np.ones((data["B"], 1, data["Sq"], data["Sk"]), bool) & seen_by(spec, seen), alternatives(spec, keys, data)
    key = np.ones((data["B"], data["Sk"]), bool)
    for k in keys:
        key = key if k is None else key & k
    return np.logical_and.reduce(seen), key


def seen_by(spec, seen):
    """As masked() joins them, from the left."""
    out = seen[0]
    for k, v in enumerate(seen[1:]):
        out = out | v if spec["join"] == "or" or k == 1 else out & v
    return out


def alternatives(spec, keys, data):
    everything = np.ones((data["B"], data["Sk"]), bool)
    out = everything if keys[0] is None else keys[0]
    for k, v in enumerate(keys[1:]):
        if spec["join"] == "or" or k == 1:
            out = everything if v is None else out | v
        else:
            out = out if v is None else out & v
    return out


def defined_by(spec, data):
    """Which elements of the output are real, broadcast to its shape; and whether every row sees a key."""
    visible, key = joined(spec, data)
    real_text = key.any(1)
    rows = np.broadcast_to(real_text[:, None], (data["B"], data["Sq"]))
    if spec["form"] != "cross":
        rows = rows & key[:, data["P"]:]
    r = spec["reader"]
    sharp = bool(visible.any(-1).all())
    if spec["penalty"] == -np.inf and not spec["guard"] and not sharp:
        return np.array(False), sharp  # a row of -inf alone is 0, not NaN (docs/numerics.md), and so is what reads it
    if r in ("mean", "masked mean", "max", "first", "last", "counted"):
        return real_text[:, None], sharp
    if r == "in-batch softmax":
        return real_text[:, None], sharp
    if r == "shift":
        return rows[:, :, None], sharp
    if r == "other attention":
        mask2 = data["mask2"] > 0
        return (rows & mask2)[:, :, None], sharp and bool(mask2.any(1).all())
    if r == "concat batch":
        return np.concatenate([rows, np.ones_like(rows)])[:, :, None], sharp
    if r in ("sum", "mean batch", "softmax batch", "batch product"):
        return np.array(True), sharp
    return rows[:, :, None], sharp


def errors_of(spec, data):
    """What a run may be refused for."""
    errors = []
    if spec["form"] == "past" and not data["P"]:
        errors += [" is 0", " size 0"]
    visible, key = joined(spec, data)
    if spec["reader"] == "first" and spec["form"] != "cross" and (key.any(1) & ~key[:, data["P"]]).any():
        errors.append("reads the first token of each sequence by itself, and in one it is padding")
    if spec["reader"] == "counted":
        last = (np.arange(data["B"]), (data["mask"] != 0).sum(1) - 1)
        sees = np.broadcast_to(visible.any(1), (data["B"], data["Sq"], data["Sk"]))[last].any(1)
        if (key.any(1) & ~sees).any():
            errors.append("reads one token of each sequence by itself, and in one it is padding that sees no token")
    return "|".join(errors)


def build(spec, seed, passes):
    b = Builder(spec, seed)
    model = b.build()
    runs = []
    used = set(b.m.input_types)
    rng = np.random.default_rng([seed, 1])
    for batch, length in [(2, 5), *zip(rng.choice([1, 2, 3], 2), rng.choice([1, 2, 5, 8], 2))]:
        inputs, data = data_of(spec, rng, int(batch), int(length))
        defined, sharp = defined_by(spec, data)
        runs.append(Run({k: v for k, v in inputs.items() if k in used}, defined={"y": defined}, same_in_f32=sharp,
                        may_fail=errors_of(spec, data), title=f"B {batch}, S {length}, Sk {data['Sk']}"))
    title = f"{spec['form']}, {spec['heads']} heads of {spec['kv_heads']}; {', '.join(t.name for t in spec['terms'])} ({spec['join']}) by {spec['apply']} {spec['penalty']:.3g}"
    title += "".join(f", {k}" for k in ("guard", "softcap", "merged", "biases") if spec[k]) + (f", bias {spec['bias']}" if spec["bias"] else "")
    title += f", shared {spec['shared']}" if spec["shared"] else ""
    case = Case(f"{title}; {spec['mask_type']}; then {spec['between'] and spec['between'] + ', '}{spec['reader']}", model, runs, passes, expect=("masked",))
    case.tolerance = 1e-2 if spec["penalty"] == -1e4 else 2e-4
    case.simpler = lambda: [build(s, seed, []) for s in simpler(spec)]
    return case


def simpler(spec):
    """Specs one step simpler."""
    def but(**changes):
        return clean({**copy.copy(spec), **changes})
    out = [but(terms=spec["terms"][:k] + spec["terms"][k + 1:]) for k in range(len(spec["terms"])) if len(spec["terms"]) > 1]
    plain = {"reader": "plain", "between": "", "guard": False, "softcap": False, "bias": "", "merged": False, "biases": False, "shared": "", "scale": "none", "heads": 1, "kv_heads": 1,
             "form": "self", "apply": "where", "penalty": -1e9, "mask_type": "int64", "seg_type": "int64", "join": "and"}
    for k, v in plain.items():
        if spec[k] != v:
            changes = {k: v}
            if k == "heads":
                changes["kv_heads"] = 1
            if k == "kv_heads":
                changes["kv_heads"] = spec["heads"]
                if spec["kv_heads"] == spec["heads"]:
                    continue
            if k == "form":
                changes["Sk"] = "S"
            out.append(but(**changes))
    return out


def make(rng, passes):
    return build(spec_of(rng), int(rng.integers(1 << 40)), passes)
