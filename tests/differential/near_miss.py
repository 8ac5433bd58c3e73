# SPDX-License-Identifier: Apache-2.0
"""Near misses of every pattern that a pass looks for: the pattern as exporters write it, with none, one or two things changed.

Each pattern asks `c(as it is, *others)` at every place that may differ: a constant, an axis, an operand, an order, a further use.
"""
import numpy as np

from judge import Case, Run
from onnx_model import Model

D = 16
F = np.float32


class Choices:
    """Says "as it is" but at the chosen places."""

    def __init__(self, rng, changed=()):
        self.rng, self.changed, self.asked, self.picked = rng, set(changed), 0, []

    def __call__(self, normal, *others):
        self.asked += 1
        if self.asked - 1 not in self.changed:
            return normal
        k = int(self.rng.integers(len(others)))
        self.picked.append(f"{self.asked - 1}.{k}")
        return others[k]


class Graph:
    """A model with an input x [B, S, D] and helpers; `S` is a size of the run or 16, as D is."""

    def __init__(self, rng, square):
        self.m, self.rng = Model(18), rng
        self.S = D if square else "S"
        self.others, self.outputs = {}, 0
        self.x = self.m.input("x", F, ["B", self.S, D])

    @property
    def x2(self):
        """Another tensor: of the same shape, or of one that broadcasts to it."""
        name = str(self.rng.choice(["x2", "x2", "row", "text", "rolled"]))
        if name not in self.others:
            dims = {"row": [self.S, D], "text": ["B", 1, D]}.get(name, ["B", self.S, D])
            self.others[name] = rolled(self, self.x, 1) if name == "rolled" else self.m.input(name, F, dims)
        return self.others[name]

    def weight(self, *shape):
        return self.m.const((self.rng.standard_normal(shape) * 0.4).astype(F))

    def op(self, *a, **k):
        return self.m.op(*a, **k)

    def out(self, v, dtype=F):
        self.m.output(f"y{self.outputs}", v, dtype)
        self.outputs += 1

    def mean(self, x, axis=-1, op="ReduceMean", keepdims=1):
        return self.op(op, x, self.m.ints(*np.atleast_1d(axis)), keepdims=keepdims)

    def swapped(self, c, op, a, b):
        """Operands in either order."""
        return self.op(op, *c((a, b), (b, a)))


def n(v, dtype=F):
    return np.array(v, dtype)


def root(g, c, v, eps):
    """1 / sqrt(v + eps), or sqrt(v + eps) and the operator to use it with."""
    inside = g.op("Add", v, c(n(eps), n(0.5), n(-0.001), np.full(D, eps, F), np.linspace(0.01, 1, D, dtype=F)))
    inside = c(inside, v, g.op("Mul", v, n(1.25)), g.op("Sub", v, n(-eps)))
    r = c(g.op("Sqrt", inside), g.op("Pow", inside, n(0.5)), g.op("Abs", inside), g.op("Pow", inside, n(0.25)), g.op("Add", g.op("Sqrt", inside), n(0.1)))
    return r


def affine(g, c, y, beta=True):
    shape = c((D,), (D, 1), (1,), (1, 1, D), (D, D))
    if g.S != D and shape in ((D, 1), (D, D)):
        shape = (1,)
    y = g.swapped(c, "Mul", y, c(g.weight(*shape), g.x2))
    y = c(y, g.op("Relu", y))
    if beta:
        y = c(g.op("Add", y, c(g.weight(D), g.x, g.weight(1))), g.op("Sub", y, g.weight(D)), y)
    return y


def layer_norm(g, c, x=None):
    x = x or g.x
    axis = c(-1, -2, 0, (-2, -1))
    mu = c(g.mean(x, axis), g.mean(x, axis, "ReduceMax"), g.mean(g.x2, axis), g.op("Mul", g.mean(x, axis), n(1.01)))
    d = c(g.op("Sub", x, mu), g.op("Sub", mu, x), g.op("Sub", g.x2, mu), g.op("Add", x, mu))
    square = c(lambda: g.op("Pow", d, n(2)), lambda: g.op("Mul", d, d), lambda: g.op("Pow", d, n(4)), lambda: g.op("Mul", d, g.op("Abs", d)),
               lambda: g.op("Mul", x, x), lambda: g.op("Pow", g.op("Sub", g.x2, mu), n(2)))()
    second = c(-1, -2, 0, (-2, -1))
    v = c(lambda: g.mean(square, second), lambda: g.op("Mul", g.mean(square, second), n(D / (D - 1))), lambda: g.mean(square, second, "ReduceSum"),
          lambda: g.mean(square, second, "ReduceMax"), lambda: g.mean(g.mean(square, -1), -2))()
    r = root(g, c, v, 1e-5)
    y = c(lambda: g.op("Div", d, r), lambda: g.op("Mul", d, g.op("Reciprocal", r)), lambda: g.op("Mul", d, r), lambda: g.op("Div", r, g.op("Add", g.op("Abs", d), n(1))),
          lambda: g.op("Div", g.op("Sub", x, g.mean(x, -1)), r), lambda: g.op("Div", x, r))()
    further_use(g, c, d, v, r)
    return affine(g, c, y)


def further_use(g, c, *values):
    which = c(None, *values)
    if which:
        g.out(which)


def rms_norm(g, c, x=None):
    x = x or g.x
    axis = c(-1, -2, 0, (-2, -1))
    square = c(lambda: g.op("Pow", x, n(2)), lambda: g.op("Mul", x, x), lambda: g.op("Mul", x, g.x2), lambda: g.op("Pow", x, n(4)), lambda: g.op("Abs", x))()
    v = c(lambda: g.mean(square, axis), lambda: g.mean(square, axis, "ReduceSum"), lambda: g.op("Sub", g.mean(square, axis), n(0.001)))()
    r = root(g, c, v, 1e-6)
    y = c(lambda: g.op("Mul", x, g.op("Reciprocal", r)), lambda: g.op("Div", x, r), lambda: g.op("Div", g.x2, r), lambda: g.op("Mul", x, g.op("Div", n(2), r)),
          lambda: g.op("Mul", x, r))()
    further_use(g, c, v, r)
    return affine(g, c, y, beta=c(False, True))


def gelu_erf(g, c, x=None):
    x = x or g.x
    inner = c(lambda: g.op("Div", x, c(n(np.sqrt(2)), n(1.5), n(1.36), n(-np.sqrt(2)))), lambda: g.op("Mul", x, n(np.sqrt(0.5))), lambda: g.op("Div", g.x2, n(np.sqrt(2))))()
    e = c(lambda: g.op("Erf", inner), lambda: g.op("Tanh", inner), lambda: g.op("Neg", g.op("Erf", inner)))()
    one = g.swapped(c, "Add", e, c(n(1), n(0.9), n(-1), g.weight(D)))
    if c(True, False):
        return g.swapped(c, "Mul", g.op("Mul", c(x, g.x2), one), c(n(0.5), n(0.55), n(0.45), g.weight(D)))
    return g.op("Mul", g.op("Mul", x, n(0.5)), one)


def gelu_tanh(g, c, x=None):
    x = x or g.x
    cube = c(lambda: g.op("Pow", x, c(n(3), n(2), n(4))), lambda: g.op("Mul", x, g.op("Mul", x, x)), lambda: g.op("Mul", x, g.op("Mul", x, g.x2)))()
    scaled = g.swapped(c, "Mul", cube, c(n(0.044715), n(0.05), n(0.04), g.weight(D)))
    total = c(lambda: g.op("Add", x, scaled), lambda: g.op("Sub", x, scaled), lambda: g.op("Add", g.x2, scaled))()
    e = g.op("Tanh", g.op("Mul", total, c(n(np.sqrt(2 / np.pi)), n(0.85), n(-0.8))))
    one = g.op("Add", e, c(n(1), n(1.1)))
    if c(True, False):
        return g.op("Mul", g.op("Mul", x, c(n(0.5), n(0.6))), one)
    return g.op("Mul", c(x, g.x2), g.op("Mul", one, n(0.5)))


def softmax(g, c, x=None):
    x = x or g.x
    axis = c(-1, -2, 0, (-2, -1))
    top = c(lambda: g.mean(x, axis, "ReduceMax"), lambda: g.mean(x, axis, "ReduceMin"), lambda: g.mean(g.x2, axis, "ReduceMax"), lambda: g.mean(x, -2, "ReduceMax"), lambda: g.mean(x, (-2, -1), "ReduceMax"), lambda: g.op("Mul", g.mean(x, axis, "ReduceMax"), n(0.5)))()
    d = c(lambda: g.op("Sub", x, top), lambda: x, lambda: g.op("Sub", top, x), lambda: g.op("Sub", g.x2, top))()
    e = c(lambda: g.op("Exp", d), lambda: g.op("Exp", g.op("Mul", d, n(2))), lambda: g.op("Pow", n(2), d))()
    second = c(axis, -2, 0, -1, (-2, -1))
    total = c(lambda: g.mean(e, second, "ReduceSum"), lambda: g.mean(e, second), lambda: g.op("Add", g.mean(e, second, "ReduceSum"), n(1)),
              lambda: g.mean(g.op("Exp", g.x2), second, "ReduceSum"), lambda: g.mean(e, second, "ReduceMax"))()
    further_use(g, c, e, total)
    return c(lambda: g.op("Div", e, total), lambda: g.op("Mul", e, g.op("Reciprocal", total)), lambda: g.op("Div", total, e), lambda: g.op("Div", g.op("Exp", g.x2), total))()


def rope(g, c):
    """Rotation of half of the last axis, with tables of constants or of computed angles; in an attention, as exporters have it."""
    m, heads, dim = g.m, 2, 8
    q = g.op("Transpose", g.op("Reshape", g.op("MatMul", g.x, g.weight(D, D)), m.ints(0, 0, heads, dim)), perm=[0, 2, 1, 3])
    angles = np.arange(32)[:, None] * (10.0 ** -np.arange(dim // 2))[None]
    table = np.concatenate([angles, angles], 1) if c(True, False) else np.concatenate([angles, angles * 0.7], 1)
    ends = g.op("Slice", g.op("Shape", g.x), m.ints(1), m.ints(2), m.ints(0))
    cos, sin = [g.op("Slice", m.const(f(table).astype(F)), m.ints(c(0, 0, 0)), ends, m.ints(0)) for f in (np.cos, np.sin)]
    cos, sin = c((cos, sin), (sin, cos), (cos, cos))
    half = c(dim // 2, dim // 4)
    low = g.op("Slice", q, m.ints(0), m.ints(half), m.ints(-1))
    high = g.op("Slice", q, m.ints(half), m.ints(dim), m.ints(-1))
    turned = c(lambda: [g.op("Neg", high), low], lambda: [high, low], lambda: [high, g.op("Neg", low)], lambda: [low, g.op("Neg", high)], lambda: [g.op("Neg", low), high],
               lambda: [g.op("Mul", high, n(-2)), low])()
    turned = g.op("Concat", *turned, axis=-1)
    op = c("Add", "Sub")
    a, b = g.op("Mul", c(q, g.op("Relu", q)), cos), g.op("Mul", turned, c(sin, g.op("Neg", sin)))
    r = g.swapped(c, op, a, b)
    further_use(g, c, q, turned)
    k = c(lambda: g.op("Transpose", g.op("Reshape", g.op("MatMul", g.x, g.weight(D, D)), m.ints(0, 0, heads, dim)), perm=[0, 2, 1, 3]), lambda: r)()
    p = g.op("Softmax", g.op("MatMul", r, g.op("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
    return g.op("Reshape", g.op("Transpose", g.op("MatMul", p, k), perm=[0, 2, 1, 3]), m.ints(0, 0, D))


def rolled(g, v, axis):
    m = g.m
    return g.op("Concat", g.op("Slice", v, m.ints(-1), m.ints(1 << 40), m.ints(axis)), g.op("Slice", v, m.ints(0), m.ints(-1), m.ints(axis)), axis=axis)


def gated_mlp(g, c):
    def linear(x, bias):
        y = g.op("MatMul", x, g.weight(D, 32))
        return g.op("Add", y, g.weight(32)) if bias else y
    gate, up = linear(g.x, c(False, True)), linear(c(g.x, g.x2, rolled(g, g.x, 1)), c(False, True))
    further_use(g, c, gate, up)
    act = c(lambda: g.op("Mul", gate, g.op("Sigmoid", gate)), lambda: g.op("Relu", gate), lambda: g.op("Mul", gate, g.op("Sigmoid", up)), lambda: gelu_erf(g, Choices(g.rng), gate),
            lambda: g.op("Mul", gate, g.op("Sigmoid", g.op("Mul", gate, n(1.702)))))()
    up = c(up, g.op("Add", up, n(1)), rolled(g, up, 1), rolled(g, up, 2), g.op("Sigmoid", up))
    return g.op("MatMul", g.swapped(c, "Mul", act, up), g.weight(32, D))


def residual_norm(g, c):
    h = g.op("MatMul", g.x, g.weight(D, D))
    b = c(g.weight(D), g.weight(1), g.x2, g.weight(1, 1, D))
    h = c(lambda: g.op("Add", h, b), lambda: h, lambda: g.op("Sub", h, b))()
    other = c(g.x, g.x2, g.weight(D), g.mean(g.x, 1), g.mean(g.x, 0), rolled(g, g.x, 0), g.op("Mul", g.x, n(0.5)))
    s = c(lambda: g.swapped(c, "Add", h, other), lambda: g.op("Sub", h, other), lambda: g.op("Add", h, h))()
    further_use(g, c, s, h)
    y = c(lambda: layer_norm(g, c, s), lambda: rms_norm(g, Choices(g.rng), s), lambda: g.op("LayerNormalization", s, g.weight(D), g.weight(D), axis=-1))()
    return c(lambda: y, lambda: g.op("Add", y, s), lambda: g.op("Add", y, h))()


def bias_gelu(g, c):
    h = g.op("MatMul", g.x, g.weight(D, 32))
    b = c(g.weight(32), g.weight(1), g.op("MatMul", g.x2, g.weight(D, 32)), g.weight(1, 32))
    s = c(lambda: g.swapped(c, "Add", h, b), lambda: g.op("Sub", h, b), lambda: g.op("Add", g.op("Add", h, b), n(0.1)))()
    further_use(g, c, s, h)
    return g.op("MatMul", gelu_erf_of(g, c, s), g.weight(32, D))


def gelu_erf_of(g, c, x):
    e = g.op("Erf", g.op("Div", x, c(n(np.sqrt(2)), n(1.5))))
    y = g.op("Mul", g.op("Mul", x, g.op("Add", e, n(1))), n(0.5))
    return c(y, g.op("Mul", g.op("Mul", x, g.op("Add", g.op("Tanh", x), n(1))), n(0.5)), g.op("Relu", x))


def qkv(g, c):
    m, heads = g.m, c(2, 1, 4)
    sources = c((g.x, g.x, g.x), (g.x, g.x2, g.x2), (g.x, g.x, g.x2), (g.x2, g.x, g.x), (g.x, rolled(g, g.x, 1), g.x))
    biases = c((1, 1, 1), (0, 0, 0), (1, 0, 1), (0, 1, 0))
    w = [g.weight(D, D) for _ in range(3)]
    w = c(w, [w[0], w[0], w[2]], [w[0], w[1], w[1]])
    def product(x, v, bias):  # noqa: E306
        y = g.op("MatMul", x, v)
        return g.op("Add", y, g.weight(D)) if bias else y
    q, k, v = [product(*a) for a in zip(sources, w, biases)]
    further_use(g, c, q, k, v)
    changed = c(lambda t: t, lambda t: [g.op("Relu", t[0]), *t[1:]], lambda t: [t[0], g.op("Mul", t[1], n(0.5)), t[2]], lambda t: [t[1], t[0], t[2]], lambda t: [t[0], t[2], t[2]])
    q, k, v = changed([q, k, v])
    split = lambda t, perm: g.op("Transpose", g.op("Reshape", t, m.ints(0, 0, heads, D // heads)), perm=perm)  # noqa: E731
    q, v = split(q, [0, 2, 1, 3]), split(v, [0, 2, 1, 3])
    k = c(lambda: split(k, [0, 2, 3, 1]), lambda: g.op("Transpose", split(k, [0, 2, 1, 3]), perm=[0, 1, 3, 2]))()
    s = g.op("MatMul", q, k)
    s = c(lambda: g.op("Div", s, n((D // heads) ** 0.5)), lambda: s, lambda: g.op("Mul", s, g.weight(heads, 1, 1)), lambda: g.op("Add", s, g.mean(s, -1)), lambda: g.op("Add", s, g.mean(s, -2)))()
    p = g.op("Softmax", s, axis=c(-1, -2, 1, 0))
    p = c(lambda: p, lambda: g.op("Add", p, n(0.01)), lambda: g.op("Mul", p, p), lambda: g.op("Transpose", p, perm=[0, 1, 3, 2]))()
    further_use(g, c, s, p)
    y = g.op("Transpose", g.op("MatMul", p, v), perm=[0, 2, 1, 3])
    return c(lambda: g.op("Reshape", y, m.ints(0, 0, D)), lambda: g.op("ReduceSum", y, m.ints(2), keepdims=0), lambda: g.op("Reshape", g.op("Transpose", y, perm=[0, 1, 3, 2]), m.ints(0, 0, D)))()


def embedding(g, c):
    m, rows = g.m, 30
    ids = m.input("ids", np.int64, ["B", g.S])
    word, position, kind = g.weight(rows, D), g.weight(40, D), g.weight(2, D)
    e = g.op("Gather", word, ids, axis=0)
    places = g.op("Range", n(0, np.int64), g.op("Gather", g.op("Shape", ids), n(1, np.int64), axis=0), n(1, np.int64))
    places = c(places, g.op("Add", places, n(2, np.int64)), g.op("CumSum", g.op("Cast", g.op("Not", g.op("Equal", ids, n(0, np.int64))), to=7), n(1, np.int64)),
               g.op("Mod", ids, n(7, np.int64)))
    p = g.op("Gather", position, places, axis=0)
    types = c(lambda: g.op("Gather", kind, g.op("Mod", ids, n(2, np.int64)), axis=0), lambda: g.op("Gather", word, ids, axis=0), lambda: g.op("Gather", kind, n([0], np.int64), axis=0))()
    s = g.op("Add", g.op("Add", e, types), p)
    s = c(lambda: s, lambda: g.op("Mul", s, n(4)), lambda: g.op("Add", s, g.x), lambda: g.op("Sub", s, e))()
    further_use(g, c, s, e)
    y = c(lambda: g.op("LayerNormalization", s, g.weight(D), g.weight(D), axis=-1), lambda: layer_norm(g, c, s), lambda: rms_norm(g, Choices(g.rng), s))()
    return c(lambda: y, lambda: g.op("Add", y, s))()


PATTERNS = {"layer norm": (layer_norm, ("norm",)), "rms norm": (rms_norm, ("norm",)),
            "gelu erf": (gelu_erf, ("gelu",)), "gelu tanh": (gelu_tanh, ("gelu",)), "softmax": (softmax, ("softmax",)), "rope": (rope, ("rope",)),
            "gated mlp": (gated_mlp, ("fuse-gated-mlp",)), "residual norm": (residual_norm, ("residual",)), "bias gelu": (bias_gelu, ("gelu",)),
            "qkv": (qkv, ("fuse-qkv", "attention")), "embedding": (embedding, ("fuse-embedding",))}


def build(name, changed, square, seed, passes):
    rng = np.random.default_rng(seed)
    g = Graph(rng, square)
    c = Choices(np.random.default_rng([seed, 1]), changed)
    pattern, expect = PATTERNS[name]
    g.out(pattern(g, c))
    runs, data = [], np.random.default_rng([seed, 2])
    used = set(g.m.input_types)
    for batch, length in [(2, 5), (1, 1), (3, 16)]:
        s = D if square else length
        shapes = {"x": (batch, s, D), "x2": (batch, s, D), "row": (s, D), "text": (batch, 1, D)}
        arrays = {k: data.standard_normal(v).astype(F) for k, v in shapes.items()}
        arrays["ids"] = data.integers(0, 30, (batch, s))
        # One key, and as many values as x has rows: a product of S = 1 alone, which the importer finds out.
        one_key = name == "qkv" and "text" in used and s != 1
        runs.append(Run({k: v for k, v in arrays.items() if k in used}, may_fail=f"expected f32[B,1,{D}]" if one_key else "", title=f"B {batch}, S {s}"))
    case = Case(f"{name}, changed {' '.join(c.picked) or 'nothing'}{', S = D' if square else ''}", g.m.bytes(), runs, passes, expect=expect)
    case.asked = c.asked
    case.tolerance = 1e-3
    case.simpler = lambda: [build(name, [k for k in changed if k != gone], square, seed, []) for gone in changed]
    return case


def make(rng, passes):
    name, square, seed = rng.choice(list(PATTERNS)), bool(rng.random() < 0.4), int(rng.integers(1 << 40))
    places = build(name, [], square, seed, []).asked
    changed = rng.choice(places, size=min(places, int(rng.choice([0, 1, 2], p=[0.1, 0.6, 0.3]))), replace=False)
    return build(name, [int(k) for k in changed], square, seed, passes)
