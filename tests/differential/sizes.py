# SPDX-License-Identifier: Apache-2.0
"""Random graphs of views, products, norms and reductions over sizes of the run, at sizes 0, 1 and equal by accident.

At a size of 0 an error that names it is right as well as the result; values that are not those of the graph never are.
"""
import numpy as np

from judge import Case, Run
from onnx_model import Model

D, HEADS = 8, 2
F = np.float32
ENVIRONMENTS = [  # of B, S, P
    (2, 5, 3), (1, 1, 1), (2, 2, 2), (4, 4, 4), (8, 8, 8), (2, 8, 1), (3, 1, 4), (1, 6, 2),
]
EMPTY = [(2, 5, 0), (2, 0, 3), (0, 5, 3), (2, 0, 0), (0, 0, 0), (1, 1, 0)]


def value_of(dim, env):
    return dim if isinstance(dim, int) else int(eval(dim, {"max": max}, env))


class Tensor:
    def __init__(self, name, dims, text, arguments=()):
        self.name, self.dims, self.text, self.arguments = name, list(dims), text, list(arguments)


def dim(text):
    return int(text) if text.isdigit() else text


class Grower:
    """Adds random operators; every tensor knows its dims as texts over B, S and P."""

    def __init__(self, rng):
        self.rng, self.m = rng, Model(18)
        self.all = [self.input("x", ["B", "S", D])]
        for name, dims in (("past", ["B", "P", D]), ("cache", ["B", HEADS, "P", D // HEADS]), ("rows", ["S", D]), ("memory", ["P", D]), ("one", ["B", 1, D])):
            if rng.random() < 0.35:
                self.all.append(self.input(name, dims))
        self.ids = self.m.input("ids", np.int64, ["B", "S"]) if rng.random() < 0.3 else None

    def input(self, name, dims):
        self.m.input(name, F, dims)
        return Tensor(name, dims, name)

    def pick(self, test=lambda t: True):
        fit = [t for t in self.all if test(t)]
        return fit[max(self.rng.integers(len(fit)), self.rng.integers(len(fit)))] if fit else None

    def add(self, name, dims, text, *arguments):
        self.all.append(Tensor(name, [dim(str(d)) for d in dims], text, arguments))
        return True

    def axis(self, t):
        return int(self.rng.integers(len(t.dims)))

    def weight(self, *shape):
        return (self.rng.standard_normal(shape) * 0.4).astype(F)

    def step(self):
        steps = [self.linear, self.linear, self.pair, self.transpose, self.merge, self.heads, self.unheads, self.concat, self.concat, self.slice, self.reduce, self.softmax, self.norm,
                 self.binary, self.binary, self.unary, self.lookup, self.expand, self.fold, self.attention, self.one_axis]
        for _ in range(20):
            if steps[self.rng.integers(len(steps))]():
                return

    def linear(self):
        t = self.pick(lambda t: t.dims and isinstance(t.dims[-1], int))
        if not t:
            return False
        n = int(self.rng.choice([D, 4, HEADS]))
        y = self.m.op("MatMul", t.name, self.weight(t.dims[-1], n)) if len(t.dims) > 1 else None
        if not y:
            return False
        if self.rng.random() < 0.6:
            y = self.m.op("Add", y, self.weight(n))
        return self.add(y, [*t.dims[:-1], n], "linear", t)

    def pair(self):
        """t @ u^T, u of the same last axis and leading ones."""
        t = self.pick(lambda t: len(t.dims) >= 2)
        u = t and self.pick(lambda u: len(u.dims) == len(t.dims) and u.dims[-1] == t.dims[-1] and u.dims[:-2] == t.dims[:-2])
        if not u:
            return False
        r = len(t.dims)
        turned = self.m.op("Transpose", u.name, perm=[*range(r - 2), r - 1, r - 2])
        y = self.m.op("Mul", self.m.op("MatMul", t.name, turned), np.array(0.2, F))
        return self.add(y, [*t.dims[:-1], u.dims[-2]], "product", t, u)

    def attention(self):
        """Softmax of a product, and the product with the keys again."""
        t = self.pick(lambda t: len(t.dims) >= 3)
        u = t and self.pick(lambda u: len(u.dims) == len(t.dims) and u.dims[-1] == t.dims[-1] and u.dims[:-2] == t.dims[:-2])
        if not u:
            return False
        r = len(t.dims)
        s = self.m.op("MatMul", t.name, self.m.op("Transpose", u.name, perm=[*range(r - 2), r - 1, r - 2]))
        return self.add(self.m.op("MatMul", self.m.op("Softmax", s, axis=-1), u.name), t.dims, "attention", t, u)

    def transpose(self):
        t = self.pick(lambda t: len(t.dims) >= 2)
        perm = [int(k) for k in self.rng.permutation(len(t.dims))]
        return self.add(self.m.op("Transpose", t.name, perm=perm), [t.dims[k] for k in perm], f"transpose {perm}", t)

    def merge(self):
        """Two axes as one; what follows is constant, so that -1 is they."""
        t = self.pick(lambda t: len(t.dims) >= 2 and all(isinstance(d, int) for d in t.dims[2:]))
        if not t:
            return False
        return self.add(self.m.op("Reshape", t.name, self.m.ints(-1, *t.dims[2:])), [f"({t.dims[0]})*({t.dims[1]})", *t.dims[2:]], "merge", t)

    def heads(self):
        t = self.pick(lambda t: len(t.dims) == 3 and t.dims[2] == D)
        if not t:
            return False
        y = self.m.op("Transpose", self.m.op("Reshape", t.name, self.m.ints(0, 0, HEADS, D // HEADS)), perm=[0, 2, 1, 3])
        return self.add(y, [t.dims[0], HEADS, t.dims[1], D // HEADS], "heads", t)

    def unheads(self):
        t = self.pick(lambda t: len(t.dims) == 4 and t.dims[1] == HEADS and t.dims[3] == D // HEADS)
        if not t:
            return False
        return self.add(self.m.op("Reshape", self.m.op("Transpose", t.name, perm=[0, 2, 1, 3]), self.m.ints(0, 0, D)), [t.dims[0], t.dims[2], D], "unheads", t)

    def concat(self):
        t = self.pick(lambda t: t.dims)
        axis = self.axis(t)
        u = self.pick(lambda u: len(u.dims) == len(t.dims) and all(k == axis or a == b for k, (a, b) in enumerate(zip(u.dims, t.dims))))
        total = t.dims[axis] + u.dims[axis] if isinstance(t.dims[axis], int) and isinstance(u.dims[axis], int) else f"({t.dims[axis]})+({u.dims[axis]})"
        return self.add(self.m.op("Concat", t.name, u.name, axis=axis), [*t.dims[:axis], total, *t.dims[axis + 1:]], f"concat {axis}", t, u)

    def slice(self):
        t = self.pick(lambda t: t.dims)
        axis = self.axis(t)
        d = f"({t.dims[axis]})"
        start, end, step, size = [(0, 1, 1, f"min({d},1)"), (1, 1 << 40, 1, f"max({d}-1,0)"), (0, -1, 1, f"max({d}-1,0)"), (-1, 1 << 40, 1, f"min({d},1)"), (0, 1 << 40, 2, f"({d}+1)//2"),
                                  (-1, -(1 << 40), -1, d)][self.rng.integers(6)]
        y = self.m.op("Slice", t.name, self.m.ints(start), self.m.ints(end), self.m.ints(axis), self.m.ints(step))
        if isinstance(t.dims[axis], int):
            size = str(value_of(size, {"min": min}))
        return self.add(y, [*t.dims[:axis], size, *t.dims[axis + 1:]], f"slice {axis} {start}:{end if abs(end) < 99 else ''}:{step}", t)

    def reduce(self):
        t = self.pick(lambda t: t.dims)
        axis, keep, op = self.axis(t), int(self.rng.integers(2)), self.rng.choice(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2"])
        y = self.m.op(op, t.name, self.m.ints(axis), keepdims=keep)
        return self.add(y, [*t.dims[:axis], *([1] if keep else []), *t.dims[axis + 1:]], f"{op} {axis}", t)

    def softmax(self):
        t = self.pick(lambda t: t.dims)
        axis = self.axis(t)
        return self.add(self.m.op("Softmax", t.name, axis=axis), t.dims, f"softmax {axis}", t)

    def norm(self):
        t = self.pick(lambda t: len(t.dims) > 1 and isinstance(t.dims[-1], int))
        if not t:
            return False
        n = t.dims[-1]
        return self.add(self.m.op("LayerNormalization", t.name, self.weight(n), self.weight(n), axis=-1), t.dims, "norm", t)

    def binary(self):
        t = self.pick(lambda t: t.dims)
        u = self.pick(lambda u: len(u.dims) == len(t.dims) and all(a == b or b == 1 for a, b in zip(t.dims, u.dims)))
        op = self.rng.choice(["Add", "Sub", "Mul", "Max"])
        return self.add(self.m.op(op, t.name, u.name), t.dims, op, t, u)

    def unary(self):
        t = self.pick()
        op = self.rng.choice(["Relu", "Tanh", "Neg", "Sigmoid"])
        return self.add(self.m.op(op, t.name), t.dims, op, t)

    def lookup(self):
        if not self.ids:
            return False
        return self.add(self.m.op("Gather", self.weight(10, D), self.ids, axis=0), ["B", "S", D], "lookup")

    def expand(self):
        """To the shape of a tensor that it broadcasts to."""
        t = self.pick(lambda t: t.dims)
        u = self.pick(lambda u: len(u.dims) <= len(t.dims) and all(a == b or a == 1 for a, b in zip(u.dims[::-1], t.dims[::-1])))
        if not u:
            return False
        return self.add(self.m.op("Expand", u.name, self.m.op("Shape", t.name)), t.dims, "expand", u, t)

    def fold(self):
        """[B, S, D] as [B, S*D]."""
        t = self.pick(lambda t: len(t.dims) == 3 and isinstance(t.dims[2], int))
        if not t:
            return False
        m = self.m
        size = m.op("Mul", m.op("Slice", m.op("Shape", t.name), m.ints(1), m.ints(2), m.ints(0)), m.ints(t.dims[2]))
        shape = m.op("Concat", m.op("Slice", m.op("Shape", t.name), m.ints(0), m.ints(1), m.ints(0)), size, axis=0)
        return self.add(m.op("Reshape", t.name, shape), [t.dims[0], f"({t.dims[1]})*{t.dims[2]}"], "fold", t)

    def one_axis(self):
        t = self.pick(lambda t: len(t.dims) < 5)
        at = int(self.rng.integers(len(t.dims) + 1))
        return self.add(self.m.op("Unsqueeze", t.name, self.m.ints(at)), [*t.dims[:at], 1, *t.dims[at:]], f"unsqueeze {at}", t)


def describe(t, depth=6):
    if not t.arguments:
        return t.text
    return f"{t.text}({', '.join(describe(a, depth - 1) for a in t.arguments) if depth else '...'})"


def history(t):
    """Of a tensor, arguments first, without the inputs."""
    out, seen = [], set()

    def visit(v):
        if id(v) in seen:
            return
        seen.add(id(v))
        for a in v.arguments:
            visit(a)
        if v.arguments:
            out.append(v)
    visit(t)
    return out


def build(seed, steps, chosen, environments, passes):
    """The graph of a seed with the tensors `chosen` (numbers) as outputs; the last ones if None."""
    rng = np.random.default_rng(seed)
    g = Grower(rng)
    inputs = len(g.all)
    for _ in range(steps):
        g.step()
    numbers = {id(t): k for k, t in enumerate(g.all)}
    if chosen is None:
        chosen = sorted({len(g.all) - 1, *[int(k) for k in rng.integers(inputs, len(g.all), 2) if len(g.all) > inputs]})
    outputs = [g.all[k] for k in chosen]
    for k, t in zip(chosen, outputs):
        g.m.output(f"y{k}", t.name, F)
    runs = []
    for env in environments:
        data, sizes = np.random.default_rng([seed, *env]), dict(zip("BSP", env))
        arrays = {}
        for t in g.all[:inputs]:
            arrays[t.name] = data.standard_normal([value_of(d, sizes) for d in t.dims]).astype(F)
        if g.ids:
            arrays["ids"] = data.integers(0, 10, (sizes["B"], sizes["S"]))
        # The mean of nothing is up to the runtime.
        runs.append(Run(arrays, may_fail=" is 0| size 0" if 0 in env else "", ask_peer=0 not in env or not any("Mean" in t.text for t in g.all), title=", ".join(f"{k} {v}" for k, v in sizes.items())))
    case = Case(" | ".join(f"{describe(t)}" for t in outputs), g.m.bytes(), runs, passes)
    case.tolerance = 1e-3
    # Each output by itself, from its first tensor on.
    case.parts = [lambda sets, t=t: [build(seed, steps, [numbers[id(v)]], environments, sets) for v in history(t)] for t in outputs]
    return case


def make(rng, passes):
    environments = [ENVIRONMENTS[k] for k in rng.choice(len(ENVIRONMENTS), 3, replace=False)] + [EMPTY[k] for k in rng.choice(len(EMPTY), 2, replace=False)]
    return build(int(rng.integers(1 << 40)), int(rng.integers(2, 14)), None, environments, passes)
