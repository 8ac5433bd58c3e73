# SPDX-License-Identifier: Apache-2.0
"""Terms of attention masks: each as nodes of a model, and as what numpy says of the same data.

A term answers which keys a query sees: `emit(scope)` names a boolean tensor that broadcasts to [B, 1, Sq, Sk], `visible(data)` is
that array, `key(data)` the part of it that depends on the key alone, [B, Sk], or None.
"""
import numpy as np

LONGEST = 16


class Scope:
    """What the terms of one model share: positions and inputs, made at their first use."""

    def __init__(self, model, spec):
        self.m, self.spec, self.made = model, spec, {}

    def once(self, name, make):
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]

    def input(self, name, dtype, dims):
        return self.once(name, lambda: self.m.input(name, dtype, dims))

    def size(self, axis, of):
        return self.m.op("Gather", self.m.op("Shape", of), np.array(axis, np.int64), axis=0)

    def keys(self):
        """The number of keys, and of the past."""
        return self.once("Sk", lambda: self.size(2, self.made["k"]))

    def past(self):
        return self.once("P", lambda: self.size(1, self.made["past_k"]))

    def j(self):
        make = lambda: self.m.op("Unsqueeze", self.m.op("Range", np.array(0, np.int64), self.keys(), np.array(1, np.int64)), self.m.ints(0))  # noqa: E731
        return self.once("j", make)

    def i(self):
        def make():
            m = self.m
            n = m.op("Range", np.array(0, np.int64), self.once("Sq", lambda: self.size(1, "x")), np.array(1, np.int64))
            if self.spec["form"] == "past":
                n = m.op("Add", n, self.past())
            return m.op("Unsqueeze", n, m.ints(1))
        return self.once("i", make)

    def data(self, name):
        """An input by key, [B, Sk]."""
        dtype = {"mask": self.spec["mask_type"], "ids": "int64", "seg": self.spec["seg_type"], "t": "float32"}[name]
        return self.input(name, dtype, [self.spec["B"], self.spec["Sk"]])

    def at_key(self, name):
        return self.once(name + "_j", lambda: self.m.op("Unsqueeze", self.data(name), self.m.ints(1, 2)))

    def at_query(self, name):
        def make():
            m, v = self.m, self.data(name)
            if self.spec["form"] == "past":
                v = m.op("Slice", v, m.op("Unsqueeze", self.past(), m.ints(0)), m.ints(1 << 40), m.ints(1))
            return m.op("Unsqueeze", v, m.ints(1, 3))
        return self.once(name + "_i", make)


def grid(data):
    """Positions of queries and keys as arrays [1, 1, Sq, 1] and [1, 1, 1, Sk]."""
    i = np.arange(data["Sq"]) + data["P"]
    return i[None, None, :, None], np.arange(data["Sk"])[None, None, None, :]


def sides(data, name):
    """An input at the query and at the key."""
    a = data[name]
    return a[:, data["P"]:][:, None, :, None], a[:, None, None, :]


class Term:
    needs = ()      # inputs
    by_query = False  # asks for a self-attention: data of the query

    def __init__(self, rng):
        pass

    def key(self, data):
        return None


class Position(Term):
    """Of positions alone."""
    FORMS = {
        "causal": lambda i, j: j <= i, "causal >=": lambda i, j: j <= i, "causal not": lambda i, j: j <= i, "causal + 1": lambda i, j: j <= i,
        "causal sub": lambda i, j: j <= i, "causal trilu": lambda i, j: j <= i, "causal constant": lambda i, j: j <= i,
        "strict": lambda i, j: j < i, "strict sub": lambda i, j: j < i, "strict trilu": lambda i, j: j < i, "shift 2": lambda i, j: j <= i - 2,
        "ahead": lambda i, j: j >= i, "strictly ahead": lambda i, j: j > i, "window": lambda i, j: abs(i - j) <= 2, "window left": lambda i, j: i - j < 3,
        "window both": lambda i, j: (j >= i - 1) & (j <= i + 3), "window shifted": lambda i, j: (j >= i - 4) & (j <= i - 1), "band far": lambda i, j: abs(i - j) >= 1,
        "blocks": lambda i, j: i // 4 == j // 4, "blocks before": lambda i, j: j // 2 < i // 2, "blocks up to": lambda i, j: j // 2 <= i // 2,
        "not self": lambda i, j: i != j, "self": lambda i, j: i == j, "every second": lambda i, j: (i - j) % 2 == 0, "sink": lambda i, j: (j < 1) | (i - j < 2),
        "prefix": lambda i, j: (j < 2) | (j <= i), "first": lambda i, j: (j < 1) & (i >= 0), "past first": lambda i, j: (j >= 1) & (i >= 0),
    }

    def __init__(self, rng):
        self.form = rng.choice(list(self.FORMS))
        self.name = self.form

    def visible(self, data):
        return self.FORMS[self.form](*grid(data)) & np.ones((data["B"], 1, data["Sq"], data["Sk"]), bool)

    def emit(self, s):
        m, i, j, f = s.m, s.i(), s.j(), self.form
        n = lambda v: np.array(v, np.int64)  # noqa: E731
        distance = lambda: m.op("Sub", i, j)  # noqa: E731
        if f in ("causal trilu", "strict trilu", "causal constant") and s.spec["form"] != "self":
            f = f.split()[0]
        if f == "causal":
            return m.op("LessOrEqual", j, i)
        if f == "causal >=":
            return m.op("GreaterOrEqual", i, j)
        if f == "causal not":
            return m.op("Not", m.op("Less", i, j))
        if f == "causal + 1":
            return m.op("Less", j, m.op("Add", i, n(1)))
        if f == "causal sub":
            return m.op("GreaterOrEqual", distance(), n(0))
        if f in ("causal trilu", "strict trilu"):
            ones = m.op("ConstantOfShape", m.op("Concat", *[m.op("Unsqueeze", s.keys(), m.ints(0))] * 2, axis=0), value=np.array([1], np.float32))
            return m.op("Cast", m.op("Trilu", ones, np.array(0 if f[0] == "c" else -1, np.int64), upper=0), to=9)
        if f == "causal constant":
            table = m.const(np.tril(np.ones((1, 1, LONGEST, LONGEST), bool)))
            end = m.op("Unsqueeze", s.keys(), m.ints(0))
            table = m.op("Slice", table, m.ints(0), end, m.ints(2))
            return m.op("Slice", table, m.ints(0), end, m.ints(3))
        if f == "strict":
            return m.op("Less", j, i)
        if f == "strict sub":
            return m.op("GreaterOrEqual", distance(), n(1))
        if f == "shift 2":
            return m.op("LessOrEqual", j, m.op("Sub", i, n(2)))
        if f == "ahead":
            return m.op("GreaterOrEqual", j, i)
        if f == "strictly ahead":
            return m.op("Greater", j, i)
        if f == "window":
            return m.op("LessOrEqual", m.op("Abs", distance()), n(2))
        if f == "window left":
            return m.op("Less", distance(), n(3))
        if f == "window both":
            return m.op("And", m.op("GreaterOrEqual", j, m.op("Sub", i, n(1))), m.op("LessOrEqual", j, m.op("Add", i, n(3))))
        if f == "window shifted":
            return m.op("And", m.op("GreaterOrEqual", j, m.op("Sub", i, n(4))), m.op("LessOrEqual", j, m.op("Sub", i, n(1))))
        if f == "band far":
            return m.op("GreaterOrEqual", m.op("Abs", distance()), n(1))
        if f in ("blocks", "blocks before", "blocks up to"):
            by, op = {"blocks": (4, "Equal"), "blocks before": (2, "Less"), "blocks up to": (2, "LessOrEqual")}[f]
            return m.op(op, m.op("Div", j, n(by)), m.op("Div", i, n(by)))
        if f == "not self":
            return m.op("Not", m.op("Equal", i, j))
        if f == "self":
            return m.op("Equal", i, j)
        if f == "every second":
            return m.op("Equal", m.op("Mod", distance(), n(2)), n(0))
        if f == "sink":
            return m.op("Or", m.op("Less", j, n(1)), m.op("Less", distance(), n(2)))
        if f == "prefix":
            return m.op("Or", m.op("Less", j, n(2)), m.op("LessOrEqual", j, i))
        if f == "first":
            return m.op("Less", j, n(1))
        return m.op("GreaterOrEqual", j, n(1))


class Key(Term):
    """Of the mask at the key, in many spellings; with ids, which are not 0 and 1, those that make a condition of them."""
    BY_MASK = ["cast", "not 0", "is 1", "above 0", "at least 1", "number"]
    BY_IDS = ["not pad", "above", "sign", "min", "clip", "mod", "two pads"]
    needs = ("mask",)

    def __init__(self, rng):
        self.of = "mask" if rng.random() < 0.6 else "ids"
        self.form = rng.choice(self.BY_MASK if self.of == "mask" else self.BY_IDS)
        self.needs = (self.of,)
        self.name = f"key {self.form}"

    def holds(self, a):
        a = np.asarray(a)
        return {"mod": a % 2 == 1, "two pads": (a != 0) & (a != 2)}.get(self.form, a > 0)

    def key(self, data):
        return self.holds(data[self.of])

    def visible(self, data):
        return self.key(data)[:, None, None, :] & np.ones((1, 1, data["Sq"], 1), bool)

    def condition(self, s, v):
        m, f = s.m, self.form
        kind = s.spec["mask_type"] if self.of == "mask" else "int64"
        if kind == "bool":
            return v
        n = lambda x: np.array(x, kind)  # noqa: E731
        if f == "cast":
            return m.op("Cast", v, to=9)
        if f in ("not 0", "not pad"):
            return m.op("Not", m.op("Equal", v, n(0)))
        if f == "is 1":
            return m.op("Equal", v, n(1))
        if f in ("above 0", "above"):
            return m.op("Greater", v, n(0))
        if f == "at least 1":
            return m.op("GreaterOrEqual", v, n(1))
        return m.op("Cast", self.number(s, v), to=9)

    def number(self, s, v):
        """The same as a number that is 0 or 1, of its own type."""
        m, f = s.m, self.form
        n = lambda x: np.array(x, "int64")  # noqa: E731
        if f == "sign":
            return m.op("Sign", v)
        if f == "min":
            return m.op("Min", v, n(1))
        if f == "clip":
            return m.op("Clip", v, n(0), n(1))
        if f == "mod":
            return m.op("Mod", v, n(2))
        if f == "two pads":
            return m.op("Mul", *[m.op("Cast", m.op("Not", m.op("Equal", v, n(k))), to=7) for k in (0, 2)])
        return v

    def emit(self, s):
        return self.condition(s, s.at_key(self.of))

    def emit_number(self, s):
        """As a float32 that is 0 or 1; None if this spelling is a condition."""
        if self.form not in ("number", "sign", "min", "clip", "mod", "two pads"):
            return None
        v = self.number(s, s.at_key(self.of))
        return v if self.of == "mask" and s.spec["mask_type"] == "float32" else s.m.op("Cast", v, to=1)


class Length(Term):
    """j < length of the row."""
    needs = ("len",)
    name = "length"

    def key(self, data):
        return np.arange(data["Sk"])[None, :] < data["len"][:, None]

    def visible(self, data):
        return self.key(data)[:, None, None, :] & np.ones((1, 1, data["Sq"], 1), bool)

    def emit(self, s):
        n = s.input("len", "int64", [s.spec["B"]])
        return s.m.op("Less", s.j(), s.m.op("Unsqueeze", n, s.m.ints(1, 2, 3)))


class Both(Term):
    """Of the mask at the query and at the key."""
    needs, by_query = ("mask",), True

    def __init__(self, rng):
        self.form = rng.choice(["and", "mul", "sum"])
        self.name = f"query and key {self.form}"

    def key(self, data):
        return np.asarray(data["mask"]) > 0

    def visible(self, data):
        q, k = sides(data, "mask")
        return (q > 0) & (k > 0)

    def numbers(self, s):
        return [v if s.spec["mask_type"] == "float32" else s.m.op("Cast", v, to=1) for v in (s.at_query("mask"), s.at_key("mask"))]

    def emit(self, s):
        m = s.m
        if self.form == "and":
            return m.op("And", *[m.op("Cast", v, to=9) for v in (s.at_query("mask"), s.at_key("mask"))])
        if self.form == "mul":
            return m.op("Cast", m.op("Mul", *self.numbers(s)), to=9)
        return m.op("GreaterOrEqual", m.op("Add", *self.numbers(s)), np.array(2, np.float32))

    def emit_number(self, s):
        return s.m.op("Mul", *self.numbers(s)) if self.form == "mul" else None


class Query(Term):
    """Of the mask at the query alone: whole rows."""
    needs, by_query, name = ("mask",), True, "query"

    def visible(self, data):
        return (sides(data, "mask")[0] > 0) & np.ones((1, 1, 1, data["Sk"]), bool)

    def emit(self, s):
        v = s.at_query("mask")
        return s.m.op("Cast", v, to=9)


class Segment(Term):
    """Of what the query's data and the key's have to do with each other."""
    needs, by_query = ("seg",), True
    FORMS = {"equal": lambda q, k: q == k, "not later": lambda q, k: k <= q, "earlier": lambda q, k: k < q, "other": lambda q, k: q != k,
             "near": lambda q, k: abs(q - k) <= 1, "sum": lambda q, k: q + k >= 2}

    def __init__(self, rng):
        self.form = rng.choice(list(self.FORMS), p=[0.4, 0.15, 0.1, 0.1, 0.15, 0.1])
        self.name = f"segment {self.form}"

    def visible(self, data):
        q, k = sides(data, "seg")
        return self.FORMS[self.form](q.astype(np.int64), k.astype(np.int64))

    def emit(self, s):
        m, q, k, f = s.m, s.at_query("seg"), s.at_key("seg"), self.form
        n = lambda x: np.array(x, s.spec["seg_type"])  # noqa: E731
        if f == "equal":
            return m.op("Equal", q, k)
        if f == "not later":
            return m.op("LessOrEqual", k, q)
        if f == "earlier":
            return m.op("Less", k, q)
        if f == "other":
            return m.op("Not", m.op("Equal", q, k))
        if f == "near":
            return m.op("LessOrEqual", m.op("Abs", m.op("Sub", q, k)), n(1))
        return m.op("GreaterOrEqual", m.op("Add", q, k), n(2))

    def emit_number(self, s):
        """1 where equal, else 0 or less: a penalty that grows."""
        if self.form != "equal":
            return None
        away = s.m.op("Cast", s.m.op("Abs", s.m.op("Sub", s.at_query("seg"), s.at_key("seg"))), to=1)
        return s.m.op("Sub", np.array(1, np.float32), away)


class Threshold(Term):
    """Of real data."""
    needs, by_query = ("t",), True
    FORMS = {"sum": lambda q, k: q + k > 0, "above": lambda q, k: q > k, "near": lambda q, k: np.abs(q - k) < 1, "query": lambda q, k: (q > 0) & (k == k)}

    def __init__(self, rng):
        self.form = rng.choice(list(self.FORMS))
        self.name = f"threshold {self.form}"

    def visible(self, data):
        return self.FORMS[self.form](*sides(data, "t"))

    def emit(self, s):
        m, q, k, f = s.m, s.at_query("t"), s.at_key("t"), self.form
        n = lambda x: np.array(x, np.float32)  # noqa: E731
        if f == "sum":
            return m.op("Greater", m.op("Add", q, k), n(0))
        if f == "above":
            return m.op("Greater", q, k)
        if f == "near":
            return m.op("Less", m.op("Abs", m.op("Sub", q, k)), n(1))
        return m.op("Greater", q, n(0))


class KeyThreshold(Term):
    """Of real data of the key alone."""
    needs, name = ("t",), "threshold key"

    def key(self, data):
        return data["t"] > -0.5

    def visible(self, data):
        return self.key(data)[:, None, None, :] & np.ones((1, 1, data["Sq"], 1), bool)

    def emit(self, s):
        return s.m.op("Greater", s.at_key("t"), np.array(-0.5, np.float32))


def any_term(rng, self_attention):
    """Positions and padding most of all."""
    while True:
        kind = rng.choice([Position, Key, Length, Both, Query, Segment, Threshold, KeyThreshold], p=[0.3, 0.3, 0.05, 0.12, 0.03, 0.1, 0.06, 0.04])
        if self_attention or not kind.by_query:
            return kind(rng)
