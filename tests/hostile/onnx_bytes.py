# SPDX-License-Identifier: Apache-2.0
"""ONNX files byte by byte: a writer of protobuf fields that checks nothing, so that it can write what no library would."""
import struct

FLOAT, UINT8, INT8, INT32, INT64, STRING, BOOL, FLOAT16, DOUBLE = 1, 2, 3, 6, 7, 8, 9, 10, 11


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field, value):
    return varint(field << 3) + varint(value)


def block(field, value):
    data = value.encode() if isinstance(value, str) else bytes(value)
    return varint(field << 3 | 2) + varint(len(data)) + data


def real(field, value):
    return varint(field << 3 | 5) + struct.pack("<f", value)


def tensor(name, dims, dtype, raw=None, external=None, more=b""):
    """`external`: pairs of key and value, with data_location = external."""
    out = b"".join(number(1, d) for d in dims) + number(2, dtype) + block(8, name)
    if raw is not None:
        out += block(9, raw)
    for key, value in external or ():
        out += block(13, block(1, key) + block(2, value))
    return out + (number(14, 1) if external is not None else b"") + more


def floats(name, dims, values=None):
    count = 1
    for d in dims:
        count *= d
    return tensor(name, dims, FLOAT, struct.pack(f"<{count}f", *(values or [0.5] * count)))


def ints(name, values, dims=None):
    return tensor(name, [len(values)] if dims is None else dims, INT64, struct.pack(f"<{len(values)}q", *values))


def attribute(name, value, kind=None):
    out = block(1, name)
    if isinstance(value, float):
        out, kind = out + real(2, value), kind or 1
    elif isinstance(value, int):
        out, kind = out + number(3, value), kind or 2
    elif isinstance(value, str):
        out, kind = out + block(4, value), kind or 3
    elif isinstance(value, bytes):
        out, kind = out + block(5, value), kind or 4
    else:
        out, kind = out + b"".join(number(8, v) for v in value), kind or 7
    return out + number(20, kind)


def graph_attribute(name, graph):
    return block(1, name) + block(6, graph) + number(20, 5)


def node(op, inputs, outputs, *attributes, name="n", domain=""):
    out = b"".join(block(1, i) for i in inputs) + b"".join(block(2, o) for o in outputs) + block(3, name) + block(4, op)
    return out + b"".join(block(5, a) for a in attributes) + (block(7, domain) if domain else b"")


def value(name, dims, dtype=FLOAT):
    shape = b"".join(block(1, block(2, d) if isinstance(d, str) else number(1, d)) for d in dims)
    return block(1, name) + block(2, block(1, number(1, dtype) + block(2, shape)))


def graph(nodes, inputs=None, outputs=None, initializers=()):
    inputs = [value("x", ["B", 4])] if inputs is None else inputs
    outputs = [value("y", ["B", 4])] if outputs is None else outputs
    return (b"".join(block(1, n) for n in nodes) + block(2, "g") + b"".join(block(5, t) for t in initializers) +
            b"".join(block(11, i) for i in inputs) + b"".join(block(12, o) for o in outputs))


def model(nodes, inputs=None, outputs=None, initializers=(), opset=17, ir=8, domains=(), more=b""):
    imports = block(8, block(1, "") + number(2, opset))
    imports += b"".join(block(8, block(1, d) + number(2, 1)) for d in domains)
    return number(1, ir) + imports + block(7, graph(nodes, inputs, outputs, initializers)) + more
