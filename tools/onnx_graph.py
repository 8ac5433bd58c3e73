# SPDX-License-Identifier: Apache-2.0
"""Builds ONNX graphs node by node, with the names that PyTorch's TorchScript exporter gives.

    g = Graph(opset=17)
    ids = g.input("input_ids", np.int64, ["batch_size", "sequence_length"])
    s = g.at("/model/embeddings")
    x = s("Gather", g.weight("word_embeddings.weight", table), ids)      # node /model/embeddings/Gather
    g.output("last_hidden_state", np.float32, [...]); g.model()
"""
import collections

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16,
         np.dtype(np.int64): TensorProto.INT64, np.dtype(np.int32): TensorProto.INT32,
         np.dtype(np.bool_): TensorProto.BOOL}


def tensor(name, value):
    # numpy_helper stores little-endian raw data, so equal arrays give equal bytes
    return numpy_helper.from_array(np.ascontiguousarray(value).reshape(np.shape(value)), name)


class Scope:
    """A module path; calling it appends a node there. The first node of a kind is `Add`, the next `Add_1`."""

    def __init__(self, graph, path):
        self.graph, self.path = graph, path

    def __call__(self, op, *inputs, out=None, **attributes):
        name = self.graph.unique(self.path, op)
        return self.graph.node(op, name, inputs, out or name + "_output_0", **attributes)

    def const(self, value, dtype=np.int64):
        """A Constant node."""
        return self("Constant", value=tensor("", np.asarray(value, dtype)))

    def at(self, path):
        return Scope(self.graph, self.path + "/" + path)


class Graph:
    def __init__(self, opset, ir_version=8, producer="tfcc"):
        self.opset, self.ir_version, self.producer = opset, ir_version, producer
        self.nodes, self.inputs, self.outputs = [], [], []
        self.initializers = {}
        self.counts = collections.Counter()

    def unique(self, path, op):
        k = self.counts[path, op]
        self.counts[path, op] += 1
        return f"{path}/{op}" + (f"_{k}" if k else "")

    def node(self, op, name, inputs, output, **attributes):
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=name, **attributes))
        return output

    def at(self, path):
        return Scope(self, path)

    def anonymous(self, user, value):
        """A Constant outside of any module, as the exporter makes for the axes of Unsqueeze."""
        k = len(self.nodes)
        return self.node("Constant", f"Constant_{k}", [], f"onnx::{user}_{k}",
                         value=tensor("", np.asarray(value, np.int64)))

    def weight(self, name, value):
        """An initializer; giving one name twice gives the first."""
        self.initializers.setdefault(name, tensor(name, value))
        return name

    def matrix(self, value):
        """A Linear's weight [out, in], stored transposed under an anonymous name."""
        return self.weight(f"onnx::MatMul_{len(self.initializers) + 200}", np.asarray(value).T)

    def input(self, name, dtype, dims):
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[np.dtype(dtype)], dims))
        return name

    def output(self, name, dtype, dims):
        self.outputs.append(helper.make_tensor_value_info(name, TYPES[np.dtype(dtype)], dims))

    def op_counts(self):
        counts = collections.Counter(n.op_type for n in self.nodes)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def model(self):
        graph = helper.make_graph(self.nodes, "main_graph", self.inputs, self.outputs, list(self.initializers.values()))
        further = sorted({n.domain for n in self.nodes if n.domain})
        model = helper.make_model(graph, producer_name=self.producer, ir_version=self.ir_version,
                                  opset_imports=[helper.make_opsetid("", self.opset), *(helper.make_opsetid(d, 1) for d in further)])
        if self.opset <= onnx.defs.onnx_opset_version():  # a checker knows no later one
            onnx.checker.check_model(model)
        return model
