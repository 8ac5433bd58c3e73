# SPDX-License-Identifier: Apache-2.0
"""Lookups at random expressions of hostile integers: the value of the table, or the error that an index leaves it; nothing else.

The expressions look as if they were in range (a minimum, a remainder, an absolute value) and are, until an operator wraps. Negative
indices count from the end. In one case of ten the table is a bias in the score of an attention.
"""
import numpy as np

from integer import Program, Value, constant, data, describe, simple, truncated
from judge import Case, Run
from onnx_model import Model

OUTSIDE = "a value lies outside ["
LENGTH = 16


def inner(rng, program, kind):
    """What a bound is put around: sums, products, absolute values of data."""
    def leaf():
        v = program.pick(kind)
        return simple("Abs", kind, abs, v) if rng.random() < 0.4 else v
    v = leaf()
    for _ in range(int(rng.integers(0, 4))):
        what = rng.integers(9)
        if what < 4:
            op, f = [("Add", lambda a, b: a + b), ("Sub", lambda a, b: a - b), ("Mul", lambda a, b: a * b), ("Max", max)][what]
            v = simple(op, kind, f, v, leaf() if rng.random() < 0.7 else program.number(kind))
        elif what == 4:
            v = simple("Neg", kind, lambda a: -a, v)
        elif what == 5:
            v = simple("Abs", kind, abs, v)
        elif what == 6:
            v = simple("Min", kind, min, v, constant(kind, int(rng.integers(0, 3))))
        elif what == 7:
            v = simple("Mul", kind, lambda a, b: a * b, v, v)
        else:
            v = program.cast(program.cast(v, rng.choice(["int8", "int32", "int64"])), kind)
    return v


def bounded(rng, program, v, size):
    """Forms that keep an index below `size`, or nearly."""
    kind = v.kind
    last, c = size - 1, lambda n: constant(kind, n)
    what = rng.integers(13)
    if what < 3:
        return simple("Min", kind, min, v, c(last))
    if what == 3:
        return simple("Mod", kind, lambda a, b: a % b, v, c(size), fmod=0)
    if what == 4:
        v = simple("Mod", kind, lambda a, b: a - b * truncated(a, b), v, c(size), fmod=1)
        return simple("Abs", kind, abs, v) if rng.random() < 0.5 else v
    if what == 5:
        return simple("Clip", kind, lambda a, b, d: min(max(a, b), d), v, c(int(rng.choice([0, -size, 1 - size]))), c(last))
    if what == 6:
        return simple("Max", kind, max, simple("Min", kind, min, v, c(last)), c(int(rng.choice([0, -size]))))
    if what == 7:
        return simple("Min", kind, min, simple("Max", kind, max, v, c(0)), c(last))
    if what == 8:
        return simple("BitwiseAnd", kind, lambda a, b: a & b, v, c(last if size & last == 0 else 0))
    if what == 9:
        return simple("Min", kind, min, simple("Neg", kind, lambda a: -a, simple("Min", kind, min, v, c(0))), c(last))
    if what == 10:
        return simple("Sub", kind, lambda a, b: a - b, c(last), simple("Mod", kind, lambda a, b: a % b, v, c(size), fmod=0))
    if what == 11:
        low = simple("Less", "bool", lambda a, b: a < b, v, c(0))
        return simple("Where", kind, lambda k, a, b: a if k else b, low, c(0), simple("Min", kind, min, v, c(last)))
    return simple("Div", kind, truncated, simple("Mod", kind, lambda a, b: a % b, v, c(size * 3), fmod=0), c(3))


def table_of(rng, shape):
    kind = rng.choice(["float32", "float32", "uint8", "int32", "int64"])
    # All different: in a table of equal values any index finds the same, and none is checked.
    return rng.permutation(200)[:int(np.prod(shape))].reshape(shape).astype(kind)


class Lookup:
    """A lookup with its table: `emit` writes it, `value` computes it (None where an index lies outside)."""

    def __init__(self, rng, program, kind):
        self.size = int(rng.choice([2, 2, 5, 8, 8, 8, 16]))
        self.form = rng.choice(["Gather", "Gather", "Gather rows", "Gather columns", "GatherElements", "GatherND", "GatherND 2"])
        index = lambda size: bounded(rng, program, inner(rng, program, kind), size)  # noqa: E731
        self.indices = [index(self.size)]
        shape = {"Gather": (self.size,), "Gather rows": (self.size, 3), "Gather columns": (2, self.size), "GatherElements": (self.size,),
                 "GatherND": (self.size, 2), "GatherND 2": (self.size, 4)}[self.form]
        if self.form == "GatherND 2":
            self.indices.append(index(4))
        self.table = table_of(rng, shape)
        self.sizes = [self.size, 4]

    def value(self):
        where = []
        for v, size in zip(self.indices, self.sizes):
            if any(not -size <= n < size for n in v.array.flat):
                return None
            where.append(np.array(v.array.tolist(), np.int64) % size)
        return self.table[:, where[0]] if self.form == "Gather columns" else self.table[tuple(where)]

    def emit(self, model, names, table):
        names = [v.emit(model, names) for v in self.indices]
        if self.form.startswith("GatherND"):
            if "int32" in (v.kind for v in self.indices):
                names = [model.op("Cast", n, to=7) for n in names]
            columns = [model.op("Unsqueeze", n, model.ints(1)) for n in names]
            return model.op("GatherND", table, columns[0] if len(columns) == 1 else model.op("Concat", *columns, axis=1))
        if self.form == "GatherElements":
            return model.op("GatherElements", table, names[0], axis=0)
        return model.op("Gather", table, names[0], axis=1 if self.form == "Gather columns" else 0)


def inputs_of(rng, tame):
    out = []
    for name, kind in (("x", "int64"), ("y", "int64"), ("u", "int32"), ("w", "int32"), ("s", "int8")):
        array = np.array([int(n) for n in rng.integers(0, 4, LENGTH)], dtype=object) if tame else data(rng, kind, (LENGTH,))
        v = Value(kind, array, [], None, name)
        v.name = name
        out.append(v)
    return out


def make(rng, passes):
    state = rng.bit_generator.state
    runs, case = [], None
    for k in range(3):  # the same program on other data: its structure is made from the same random numbers
        other = np.random.default_rng([int(rng.integers(1 << 30)), k])
        rng.bit_generator.state = state
        inputs = inputs_of(other, tame=k == 1)
        program = Program(rng, inputs, True)
        lookup = Lookup(rng, program, rng.choice(["int64", "int64", "int32"]))
        in_score, table_input = rng.random() < 0.1 and lookup.form == "Gather", rng.random() < 0.5
        own = {v.name: v.array.astype(v.kind) for v in inputs}
        value = lookup.value()
        run = Run(own, title=f"data {k}")
        if value is None:
            run.must_fail = OUTSIDE
        if table_input:
            own["table"] = lookup.table
        if in_score:
            own["d"] = other.standard_normal((4, 8)).astype(np.float32)
        if value is not None:
            run.want["o"] = attended(own["d"].astype(np.float64), value) if in_score else value
        runs.append(run)
        if case is None:
            case = build(inputs, lookup, table_input, in_score)
    case.runs, case.passes = runs, passes
    return case


def attended(d, found):
    """The attention whose score has what was found. ONNX Runtime is not asked: its int64 Mod with fmod and Max are wrong for some data."""
    score = d @ d.T + found.reshape(4, 4)
    p = np.exp(score - score.max(axis=1, keepdims=True))
    return (p / p.sum(axis=1, keepdims=True) @ d).astype(np.float32)


def build(inputs, lookup, table_input, in_score):
    model, names = Model(), {}
    for v in inputs:
        names[id(v)] = model.input(v.name, v.kind, [LENGTH if in_score else "N"])
    table = model.input("table", lookup.table.dtype, lookup.table.shape) if table_input else model.const(lookup.table)
    title = f"{lookup.form} of {list(lookup.table.shape)} {lookup.table.dtype} at {', '.join(describe(v) for v in lookup.indices)}"
    if in_score:
        d = model.input("d", np.float32, [4, 8])
        bias = model.op("Cast", model.op("Reshape", lookup.emit(model, names, table), model.ints(4, 4)), to=1)
        score = model.op("Add", model.op("MatMul", d, model.op("Transpose", d, perm=[1, 0])), bias)
        model.output("o", model.op("MatMul", model.op("Softmax", score, axis=-1), d), np.float32)
        return Case(title + " in a score", model.bytes(), [])
    model.output("o", lookup.emit(model, names, table), lookup.table.dtype)
    return Case(title, model.bytes(), [])
