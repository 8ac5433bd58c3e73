# SPDX-License-Identifier: Apache-2.0
"""Random programs of integers; what each must give is computed in Python's own integers, wrapped to its width after every operator.

ONNX: Div towards zero; Mod with the sign of the divisor, with fmod = 1 of the dividend; Abs and Neg of the least value give it again;
comparisons are exact; a cast keeps the low bits, to bool asks for not 0. Division by zero and shifts beyond the width are not made; the least value by -1 wraps to itself.
"""
import numpy as np

from judge import Case, Run
from onnx_model import Model, type_of

WIDTHS = {"int8": (8, True), "uint8": (8, False), "int16": (16, True), "int32": (32, True), "int64": (64, True)}
INTEGERS = list(WIDTHS)
PROGRAMS = 40  # in one model
ROWS, COLUMNS = 4, 12


def limits(kind):
    bits, signed = WIDTHS[kind]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def wrap(kind, n):
    if kind == "bool":
        return n != 0
    bits, signed = WIDTHS[kind]
    n &= (1 << bits) - 1
    return n - (1 << bits) if signed and n >> bits - 1 else n


def truncated(a, b):
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def edges(kind):
    low, high = limits(kind)
    out = {low, low + 1, high, high - 1, 0, 1, 2, 3, 7, 31, 100, -1, -2, -7, 1 << 31, (1 << 31) - 1, -(1 << 31), -(1 << 31) - 1, 1 << 32,
           (1 << 62), -(1 << 62), (1 << 53) + 1, 127, 128, 255, 256, 32767, 32768}
    return [n for n in sorted(out) if low <= n <= high]


def data(rng, kind, shape):
    """Extremes, small numbers and any numbers."""
    count = int(np.prod(shape))
    if kind == "bool":
        return (rng.random(shape) < 0.5)
    low, high = limits(kind)
    special, out = edges(kind), []
    for _ in range(count):
        what = rng.random()
        if what < 0.5:
            out.append(special[rng.integers(len(special))])
        elif what < 0.75:
            out.append(min(max(int(rng.integers(-9, 10)), low), high))
        else:
            out.append(int(rng.integers(low, high, endpoint=True)))
    return np.array(out, dtype=object).reshape(shape)


class Value:
    """A node of a program: type, value in Python's integers, what it is called, how `write(model, names of its arguments)` makes it."""

    def __init__(self, kind, array, arguments, write, text):
        self.kind, self.array, self.arguments, self.write, self.text = kind, array, arguments, write, text

    def nodes(self):
        """Arguments first."""
        seen, out = set(), []

        def visit(v):
            if id(v) in seen:
                return
            seen.add(id(v))
            for a in v.arguments:
                visit(a)
            out.append(v)
        visit(self)
        return out

    def emit(self, model, names):
        for v in self.nodes():
            if id(v) not in names:
                names[id(v)] = v.write(model, *[names[id(a)] for a in v.arguments])
        return names[id(self)]


def elementwise(kind, f, *arrays):
    out = np.empty(np.broadcast_shapes(*[a.shape for a in arrays]), dtype=object)
    flat = [np.broadcast_to(a, out.shape).reshape(-1) for a in arrays]
    result = out.reshape(-1)
    for k in range(result.size):
        result[k] = wrap(kind, f(*[a[k] for a in flat]))
    return result.reshape(out.shape)


def simple(op, kind, f, *arguments, **attributes):
    return Value(kind, elementwise(kind, f, *[a.array for a in arguments]), list(arguments), lambda m, *n: m.op(op, *n, **attributes),
                 op + "".join(f" {k}={v}" for k, v in attributes.items() if k != "to"))


def constant(kind, numbers):
    array = np.array(numbers, dtype=object)
    return Value(kind, array, [], lambda m: m.const(array.astype(kind)), "constant")


class Program:
    """Grows values from inputs; the last one is its output."""

    def __init__(self, rng, inputs, symbolic):
        self.rng, self.values, self.symbolic = rng, list(inputs), symbolic

    def pick(self, kind=None, integer=False):
        """A value of a type, if need be by a cast; the later ones more often."""
        rng = self.rng
        if kind is None:
            fit = [v for v in self.values if not integer or v.kind != "bool"]
            return fit[max(rng.integers(len(fit)), rng.integers(len(fit)))]
        fit = [v for v in self.values if v.kind == kind]
        if fit and rng.random() < 0.8:
            return fit[max(rng.integers(len(fit)), rng.integers(len(fit)))]
        return self.cast(self.pick(), kind)

    def cast(self, v, kind):
        if v.kind == kind:
            return v
        return simple("Cast", kind, lambda a: int(a), v, to=type_of(kind))

    def number(self, kind):
        special = edges(kind)
        n = special[self.rng.integers(len(special))] if self.rng.random() < 0.6 else int(self.rng.integers(0, 8))
        return constant(kind, n)

    def operand(self, kind):
        return self.number(kind) if self.rng.random() < 0.35 else self.pick(kind)

    def step(self):
        rng = self.rng
        make = [self.arithmetic, self.arithmetic, self.arithmetic, self.unary, self.divide, self.compare, self.compare, self.logic, self.convert, self.convert,
                self.choose, self.bits, self.shift, self.clip, self.lookup, self.reduce, self.view, self.by_real][rng.integers(18)]
        v = make()
        self.values.append(v)
        return v

    def kind(self):
        return self.rng.choice(INTEGERS, p=[0.12, 0.12, 0.1, 0.33, 0.33])

    def arithmetic(self):
        kind = self.kind()
        op, f = [("Add", lambda a, b: a + b), ("Sub", lambda a, b: a - b), ("Mul", lambda a, b: a * b), ("Min", min), ("Max", max)][self.rng.integers(5)]
        a, b = self.pick(kind), self.operand(kind)
        return simple(op, kind, f, *((a, b) if self.rng.random() < 0.7 else (b, a)))

    def unary(self):
        kind = self.rng.choice(["int8", "int16", "int32", "int64"], p=[0.15, 0.15, 0.35, 0.35])
        op, f = [("Neg", lambda a: -a), ("Abs", abs), ("Sign", lambda a: (a > 0) - (a < 0)), ("Relu", lambda a: max(a, 0))][self.rng.integers(4)]
        return simple(op, kind, f, self.pick(kind))

    def divide(self):
        """By a constant, or by data that a Max, a Min or a select keeps from 0."""
        rng, kind = self.rng, self.kind()
        low, _ = limits(kind)
        if rng.random() < 0.5:
            n = 0
            while n == 0:
                n = self.number(kind).array.item()
            by = constant(kind, n)
        else:
            by = self.pick(kind)
            if rng.random() < 0.5:
                by = simple("Max", kind, max, by, constant(kind, int(rng.integers(1, 5))))
            elif low < 0 and rng.random() < 0.5:
                by = simple("Min", kind, min, by, constant(kind, -int(rng.integers(1, 5))))
            else:
                zero = simple("Equal", "bool", lambda a, b: a == b, by, constant(kind, 0))
                by = simple("Where", kind, lambda c, a, b: a if c else b, zero, constant(kind, 3), by)
        a = self.pick(kind)
        what = rng.integers(3)
        if what == 0:
            return simple("Div", kind, truncated, a, by)
        if what == 1:
            return simple("Mod", kind, lambda x, y: x % y, a, by, fmod=0)
        return simple("Mod", kind, lambda x, y: x - y * truncated(x, y), a, by, fmod=1)

    def compare(self):
        kind = self.kind()
        op, f = [("Less", lambda a, b: a < b), ("LessOrEqual", lambda a, b: a <= b), ("Greater", lambda a, b: a > b),
                 ("GreaterOrEqual", lambda a, b: a >= b), ("Equal", lambda a, b: a == b)][self.rng.integers(5)]
        return simple(op, "bool", f, self.pick(kind), self.operand(kind))

    def logic(self):
        if self.rng.random() < 0.3:
            return simple("Not", "bool", lambda a: not a, self.pick("bool"))
        op, f = [("And", lambda a, b: a and b), ("Or", lambda a, b: a or b), ("Xor", lambda a, b: a != b)][self.rng.integers(3)]
        return simple(op, "bool", f, self.pick("bool"), self.pick("bool"))

    def convert(self):
        v = self.pick()
        return self.cast(v, self.rng.choice([k for k in INTEGERS + ["bool"] if k != v.kind]))

    def by_real(self):
        """Through float32 or double, of values that it holds exactly."""
        v = self.pick(integer=True)
        real = self.rng.choice(["float32", "float64"])
        bound = 1 << (23 if real == "float32" else 52)
        if limits(v.kind)[1] > bound:
            v = simple("Clip", v.kind, lambda a, b, c: min(max(a, b), c), v, constant(v.kind, -int(self.rng.integers(1, bound))), constant(v.kind, bound - 1))
        there = Value(real, v.array, [v], lambda m, n: m.op("Cast", n, to=type_of(real)), "Cast")
        low, high = min(there.array.flat), max(there.array.flat)
        fit = [k for k in INTEGERS if limits(k)[0] <= low and high <= limits(k)[1]]
        kind = fit[self.rng.integers(len(fit))]
        return Value(kind, there.array, [there], lambda m, n: m.op("Cast", n, to=type_of(kind)), "Cast")

    def choose(self):
        kind = self.kind()
        return simple("Where", kind, lambda c, a, b: a if c else b, self.pick("bool"), self.pick(kind), self.operand(kind))

    def bits(self):
        kind = self.kind()
        if self.rng.random() < 0.25:
            return simple("BitwiseNot", kind, lambda a: ~a, self.pick(kind))
        op, f = [("BitwiseAnd", lambda a, b: a & b), ("BitwiseOr", lambda a, b: a | b), ("BitwiseXor", lambda a, b: a ^ b)][self.rng.integers(3)]
        return simple(op, kind, f, self.pick(kind), self.operand(kind))

    def shift(self):
        v, by = self.pick("uint8"), constant("uint8", int(self.rng.integers(0, 8)))
        if self.rng.random() < 0.5:
            return simple("BitShift", "uint8", lambda a, b: a << b, v, by, direction="LEFT")
        return simple("BitShift", "uint8", lambda a, b: a >> b, v, by, direction="RIGHT")

    def clip(self):
        kind = self.kind()
        a, b = sorted((self.number(kind).array.item(), self.number(kind).array.item()))
        return simple("Clip", kind, lambda x, y, z: min(max(x, y), z), self.pick(kind), constant(kind, a), constant(kind, b))

    def lookup(self):
        """A small table, at an index made in range."""
        rng = self.rng
        index_kind, kind = rng.choice(["int32", "int64"]), self.kind()
        size = int(rng.integers(1, 9))
        v = self.pick(index_kind)
        what = rng.integers(4)
        if what == 0:
            v = simple("Mod", index_kind, lambda a, b: a % b, v, constant(index_kind, size), fmod=0)
        elif what == 1:
            v = simple("Clip", index_kind, lambda a, b, c: min(max(a, b), c), v, constant(index_kind, -size), constant(index_kind, size - 1))
        elif what == 2:
            v = simple("Min", index_kind, min, v, constant(index_kind, size - 1))
            v = simple("Max", index_kind, max, v, constant(index_kind, 0))
        else:
            v = simple("Mod", index_kind, lambda a, b: a - b * truncated(a, b), v, constant(index_kind, size), fmod=1)
        table = constant(kind, list(data(rng, kind, (size,))))
        array = table.array[np.array(v.array.tolist(), dtype=np.int64)]
        return Value(kind, array, [table, v], lambda m, t, i: m.op("Gather", t, i, axis=0), "Gather")

    def reduce(self):
        rng = self.rng
        kind = rng.choice(["int32", "int64"])
        v = self.pick(kind)
        if not v.array.ndim:
            return self.arithmetic()
        axis = int(rng.integers(v.array.ndim))
        what = rng.integers(4)
        if what == 3:
            exclusive, reverse = int(rng.integers(2)), int(rng.integers(2))
            a = np.flip(v.array, axis) if reverse else v.array
            sums = np.cumsum(a, axis=axis)
            sums = sums - a if exclusive else sums
            array = elementwise(kind, lambda x: x, np.flip(sums, axis) if reverse else sums)
            return Value(kind, array, [v], lambda m, n: m.op("CumSum", n, np.array(axis, np.int64), exclusive=exclusive, reverse=reverse), f"CumSum axis={axis} exclusive={exclusive} reverse={reverse}")
        op, f = [("ReduceSum", np.add), ("ReduceMax", np.maximum), ("ReduceMin", np.minimum)][what]
        array = elementwise(kind, lambda x: x, f.reduce(v.array, axis=axis, keepdims=True))
        return Value(kind, array, [v], lambda m, n: m.op(op, n, np.array([axis], np.int64), keepdims=1), f"{op} axis={axis}")

    def view(self):
        rng, v = self.rng, self.pick()
        if self.symbolic:  # a view that needs no number of rows
            array = v.array[:, ::-1]
            return Value(v.kind, array, [v], lambda m, n: m.op("Slice", n, m.ints(-1), m.ints(-(1 << 62)), m.ints(1), m.ints(-1)), "Slice step=-1")
        if v.array.shape != (ROWS, COLUMNS):
            shape = (ROWS, COLUMNS)
            return Value(v.kind, np.broadcast_to(v.array, shape), [v], lambda m, n: m.op("Expand", n, np.array(shape, np.int64)), "Expand")
        what = rng.integers(3)
        if what == 0:  # the middle of a transpose and its inverse
            array = v.array.T.reshape(ROWS, COLUMNS)
            return Value(v.kind, array, [v], lambda m, n: m.op("Reshape", m.op("Transpose", n, perm=[1, 0]), np.array([ROWS, COLUMNS], np.int64)), "Reshape Transpose")
        if what == 1:
            step = int(rng.choice([1, -1]))
            array = v.array[:, ::step]
            starts, ends = ([0], [COLUMNS]) if step == 1 else ([-1], [-(1 << 62)])
            return Value(v.kind, array, [v], lambda m, n: m.op("Slice", n, m.ints(*starts), m.ints(*ends), m.ints(1), m.ints(step)), f"Slice step={step}")
        row = int(rng.integers(ROWS))
        return Value(v.kind, v.array[row:row + 1], [v], lambda m, n: m.op("Slice", n, m.ints(row), m.ints(row + 1), m.ints(0)), f"Slice row {row}")


def inputs_of(rng):
    """Two inputs of the wide types, one of each other."""
    names = [("a", "int64"), ("b", "int64"), ("c", "int32"), ("d", "int32"), ("e", "int8"), ("f", "uint8"), ("g", "int16"), ("h", "bool")]
    out = []
    for name, kind in names:
        array = data(rng, kind, (ROWS, COLUMNS))
        v = Value(kind, array, [], None, name)
        v.name = name
        out.append(v)
    return out


def case_of(title, inputs, results, passes, symbolic):
    """A model whose outputs are these values; `symbolic`: the number of rows is a size of the run."""
    model, names = Model(), {}
    for v in inputs:
        names[id(v)] = model.input(v.name, v.kind, ["N" if symbolic else ROWS, COLUMNS])
    run = Run({v.name: v.array.astype(v.kind) for v in inputs})
    for k, v in enumerate(results):
        name = f"y{k}"
        model.output(name, v.emit(model, names), v.kind)
        run.want[name] = v.array.astype(v.kind)
    return Case(title, model.bytes(), [run], passes)


def make(rng, passes):
    """A model of PROGRAMS programs."""
    inputs, results, symbolic = inputs_of(rng), [], bool(rng.random() < 0.5)
    for _ in range(PROGRAMS):
        program = Program(rng, inputs, symbolic)
        for _ in range(int(rng.integers(2, 9))):
            last = program.step()
        results.append(last)
    case = case_of("integer programs", inputs, results, passes, symbolic)
    case.graphs = PROGRAMS
    case.parts = [lambda sets, r=r: parts_of(inputs, r, sets, symbolic) for r in results]
    return case


def parts_of(inputs, result, passes, symbolic):
    """A program as one case for each of its values, arguments first: the first that fails is the smallest."""
    return [case_of(describe(v), inputs, [v], passes, symbolic) for v in result.nodes() if v.arguments and v.kind in (*WIDTHS, "bool")]


def describe(v, depth=4):
    """The program as text."""
    if hasattr(v, "name"):
        return f"{v.name}:{v.kind}"
    if not v.arguments:
        return f"{v.kind}({', '.join(map(str, v.array.reshape(-1)[:8]))})"
    inner = ", ".join(describe(a, depth - 1) for a in v.arguments) if depth else "..."
    return f"{v.text}({inner}):{v.kind}"
