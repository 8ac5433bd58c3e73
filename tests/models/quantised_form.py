# SPDX-License-Identifier: Apache-2.0
"""A graph with quantised weights, in the forms that onnxruntime's tools write: the projections of attention dynamic
(DynamicQuantizeLinear, MatMulInteger), the first product of the feed-forward static (QuantizeLinear, DequantizeLinear, per
channel), the second in 4 bits (com.microsoft.MatMulNBits with zero points)."""
from collections import Counter

import numpy as np
from onnx import helper, numpy_helper

BLOCK = 32


class Quantised:
    """Takes the place of an onnx_graph.Graph."""

    def __init__(self, graph):
        self.opset, self._model = graph.opset, graph.model()
        g = self._model.graph
        self.weights = {t.name: t for t in g.initializer}
        self.added, self.done, self.quantised = [], [], {}
        products = 0
        for node in g.node:
            weight = self.weights.get(node.input[1]) if node.op_type == "MatMul" else None
            if weight is None:
                self.done.append(node)
                continue
            form = (self.dynamic, self.dynamic, self.dynamic, self.dynamic, self.static, self.four_bits)[products % 6]
            form(node.input[0], node.input[1], numpy_helper.to_array(weight), node.output[0])
            g.initializer.remove(weight)
            products += 1
        g.initializer.extend(self.added)
        del g.node[:]
        g.node.extend(self.done)
        self._model.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    def model(self):
        return self._model

    def op_counts(self):
        return dict(sorted(Counter(n.op_type for n in self._model.graph.node).items()))

    def constant(self, name, array):
        self.added.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op, inputs, outputs, **attributes):
        self.done.append(helper.make_node(op, inputs, outputs, name=outputs[0], **attributes))

    def dynamic(self, x, name, w, y):
        if x not in self.quantised:  # Q, K and V share it
            self.quantised[x] = [x + "_quantized", x + "_scale", x + "_zero_point"]
            self.node("DynamicQuantizeLinear", [x], self.quantised[x])
        q, scale, zero = self.quantised[x]
        step = np.float32(np.abs(w).max() / 127)
        self.constant(name + "_quantized", np.rint(w / step).astype(np.int8))
        self.node("MatMulInteger", [q, name + "_quantized", zero], [y + "_quantized"])
        self.node("Cast", [y + "_quantized"], [y + "_cast"], to=1)
        self.node("Mul", [scale, self.constant(name + "_scale", step)], [y + "_scales"])
        self.node("Mul", [y + "_cast", y + "_scales"], [y])

    def static(self, x, name, w, y):
        scale, zero = self.constant(x + "_scale", np.float32(0.03125)), self.constant(x + "_zero_point", np.uint8(129))
        self.node("QuantizeLinear", [x, scale, zero], [x + "_q"])
        self.node("DequantizeLinear", [x + "_q", scale, zero], [x + "_dq"])
        steps = (np.abs(w).max(0) / 127).astype(np.float32)
        inputs = [self.constant(name + "_quantized", np.rint(w / steps).astype(np.int8)), self.constant(name + "_scale", steps),
                  self.constant(name + "_zero_point", np.zeros(steps.shape, np.int8))]
        self.node("DequantizeLinear", inputs, [name + "_dq"], axis=1)
        self.node("MatMul", [x + "_dq", name + "_dq"], [y])

    def four_bits(self, x, name, w, y):
        k, n = w.shape
        blocks = w.T.reshape(n, k // BLOCK, BLOCK)
        low, high = np.minimum(blocks.min(2), 0), np.maximum(blocks.max(2), 0)
        steps = ((high - low) / 15).astype(np.float32)
        zeros = np.clip(np.rint(-low / steps), 0, 15).astype(np.uint8)
        q = np.clip(np.rint(blocks / steps[..., None]) + zeros[..., None], 0, 15).astype(np.uint8)
        inputs = [x, self.constant(name + "_Q4", q[..., ::2] | q[..., 1::2] << 4),
                  self.constant(name + "_scales", steps.ravel()),
                  self.constant(name + "_zero_points", (zeros[:, ::2] | zeros[:, 1::2] << 4).ravel())]
        self.node("MatMulNBits", inputs, [y], domain="com.microsoft", K=k, N=n, bits=4, block_size=BLOCK)
