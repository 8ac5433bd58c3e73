# SPDX-License-Identifier: Apache-2.0
"""Small ONNX models written node by node, with numpy alone.

    m = Model()
    x = m.input("x", np.float32, ["B", "S", 16])
    y = m.op("MatMul", x, np.ones((16, 8), np.float32))      # an array becomes an initializer
    m.output("y", y, np.float32); data = m.bytes()
"""
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "hostile"))
from onnx_bytes import attribute, block, number, tensor, value  # noqa: E402

TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "float64": 11}


def type_of(dtype):
    """The number of a type in ONNX."""
    return TYPES[np.dtype(dtype).name]


def encoded(name, v):
    """An attribute; a float is a real, an array a tensor."""
    if isinstance(v, np.ndarray):
        return block(1, name) + block(5, tensor("", v.shape, type_of(v.dtype), np.ascontiguousarray(v).tobytes())) + number(20, 4)
    return attribute(name, float(v) if isinstance(v, float) else v)


class Model:
    def __init__(self, opset=18):
        self.opset = opset
        self.nodes, self.inputs, self.outputs, self.weights = [], [], [], []
        self.count = 0
        self.input_types = {}

    def fresh(self, stem):
        self.count += 1
        return f"{stem}{self.count}"

    def input(self, name, dtype, dims):
        self.inputs.append(value(name, dims, type_of(dtype)))
        self.input_types[name] = np.dtype(dtype)
        return name

    def const(self, array):
        array = np.asarray(array)
        name = self.fresh("c")
        self.weights.append(tensor(name, array.shape, type_of(array.dtype), np.ascontiguousarray(array).tobytes()))
        return name

    def ints(self, *values):
        return self.const(np.array(values, np.int64))

    def op(self, kind, *inputs, outputs=1, domain="", **attributes):
        """Appends a node; its results' names: one, or a list for `outputs` above 1."""
        names = [i if isinstance(i, str) else self.const(i) for i in inputs]
        results = [self.fresh("t") for _ in range(outputs)]
        data = b"".join(block(1, n) for n in names) + b"".join(block(2, r) for r in results) + block(3, f"{kind}_{self.count}") + block(4, kind)
        data += b"".join(block(5, encoded(k, v)) for k, v in attributes.items()) + (block(7, domain) if domain else b"")
        self.nodes.append(data)
        return results[0] if outputs == 1 else results

    def output(self, name, of, dtype):
        """A graph output without a declared shape."""
        self.nodes.append(block(1, of) + block(2, name) + block(3, "out_" + name) + block(4, "Identity"))
        self.outputs.append(block(1, name) + block(2, block(1, number(1, type_of(dtype)))))

    def bytes(self):
        graph = b"".join(block(1, n) for n in self.nodes) + block(2, "g") + b"".join(block(5, w) for w in self.weights)
        graph += b"".join(block(11, i) for i in self.inputs) + b"".join(block(12, o) for o in self.outputs)
        return number(1, 9) + block(8, block(1, "") + number(2, self.opset)) + block(7, graph)
