# SPDX-License-Identifier: Apache-2.0
"""Evaluates an ONNX graph in float64 with numpy alone, one function per operator: the reference of tests/models.

All floating-point tensors are float64, whatever their type in the graph (weights keep the value that they have in
their own type); integers and booleans keep theirs. Slow and plain on purpose.
"""
import functools
import math

import numpy as np
import onnx
from onnx import numpy_helper

# Debian 12's onnx, 1.12, has the table alone; later releases have the function alone.
_numpy_type = getattr(onnx.helper, "tensor_dtype_to_np_dtype", None) or onnx.mapping.TENSOR_TYPE_TO_NP_TYPE.__getitem__
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _value(tensor, base=""):
    a = numpy_helper.to_array(tensor, base)
    return a.astype(np.float64) if a.dtype.kind == "f" else a


def _shape(a, x):
    return np.array(x.shape[a.get("start", 0):a.get("end", None)], np.int64)


def _slice(a, x, starts, ends, axes=None, steps=None):
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    index = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps):
        assert step > 0, "only forward slices"
        n = x.shape[axis]
        clamp = [min(max(int(v) + (n if v < 0 else 0), 0), n) for v in (start, end)]
        index[axis] = slice(clamp[0], clamp[1], int(step))
    return x[tuple(index)]


def _reshape(a, x, shape):
    shape = [x.shape[i] if s == 0 and not a.get("allowzero", 0) else int(s) for i, s in enumerate(shape)]
    return x.reshape(shape)


def _unsqueeze(a, x, axes):
    rank = x.ndim + len(axes)
    for axis in sorted(int(v) % rank for v in axes):
        x = np.expand_dims(x, axis)
    return x


def _cast(a, x):
    to = np.dtype(_numpy_type(a["to"]))
    with np.errstate(invalid="ignore"):  # T5 casts log(0); the value is not used
        return x.astype(np.float64) if to.kind == "f" else x.astype(to)


def _softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _layer_norm(a, x, gain, bias=None):
    axis = a.get("axis", -1) % x.ndim
    axes = tuple(range(axis, x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    y = centred / np.sqrt((centred ** 2).mean(axes, keepdims=True) + a.get("epsilon", 1e-5)) * gain
    return y if bias is None else y + bias


def _gelu(a, x):
    if a.get("approximate", b"none") == b"tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _attention(a, q, k, v, mask=None):
    """Rank-4 inputs and an additive or boolean mask: what the exporter writes for encoders."""
    assert q.ndim == 4 and not a.get("is_causal", 0) and not a.get("softcap", 0.0)
    score = q @ k.swapaxes(-1, -2) * a.get("scale", 1 / math.sqrt(q.shape[-1]))
    if mask is not None:
        score = np.where(mask, score, -np.inf) if mask.dtype == bool else score + mask
    return _softmax(score, -1) @ v


def _gemm(a, x, y, c=None):
    x = x.T if a.get("transA", 0) else x
    y = y.T if a.get("transB", 0) else y
    out = a.get("alpha", 1.0) * (x @ y)
    return out if c is None else out + a.get("beta", 1.0) * c


def _conv(a, x, w, b=None):
    """Over one token: weights [out, in / group, 1]."""
    assert x.ndim == 3 and w.shape[2] == 1 and not any(a.get("pads", [0])) and all(v == 1 for v in a.get("strides", [1]))
    group = a.get("group", 1)
    x = x.reshape(x.shape[0], group, -1, x.shape[2])
    out = (w.reshape(group, -1, w.shape[1]) @ x).reshape(x.shape[0], -1, x.shape[3])
    return out if b is None else out + b[:, None]


def _divide(a, x, y):
    if x.dtype.kind == "f":
        return x / y
    return np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))  # integers round towards zero


def _mean(a, x, axes=None):
    axes = a.get("axes") if axes is None else axes
    return x.mean(tuple(int(v) for v in axes), keepdims=bool(a.get("keepdims", 1)))


def _gather_nd(a, x, indices):
    assert not a.get("batch_dims", 0), "no batch axes"
    return x[tuple(np.moveaxis(indices, -1, 0))]


def _quiet_log(a, x):
    with np.errstate(divide="ignore"):
        return np.log(x)


def _per_axis(v, x, axis):
    """A scale or zero point of one axis, shaped to broadcast."""
    return v if v.ndim == 0 else v.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def _quantize(a, x, scale, zero):
    limits, axis = np.iinfo(zero.dtype), a.get("axis", 1)
    y = np.rint(x / _per_axis(scale, x, axis)) + _per_axis(zero, x, axis).astype(np.int64)
    return np.clip(y, limits.min, limits.max).astype(zero.dtype)


def _dequantize(a, x, scale, zero):
    axis = a.get("axis", 1)
    return (x.astype(np.int64) - _per_axis(zero, x, axis).astype(np.int64)) * _per_axis(scale, x, axis)


def _dynamic_quantize(a, x):
    low, high = min(x.min(), 0.0), max(x.max(), 0.0)
    scale = np.float64((high - low) / 255)
    zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
    return _quantize(a, x, scale, zero), scale, zero


def _matmul_integer(a, x, y, x_zero):
    return ((x.astype(np.int64) - x_zero) @ y.astype(np.int64)).astype(np.int32)


def _matmul_4_bits(a, x, w, scales, zeros):
    n, blocks = a["N"], a["K"] // a["block_size"]
    values = np.stack([w & 15, w >> 4], -1).reshape(n, blocks, -1).astype(np.float64)
    zeros = np.stack([zeros & 15, zeros >> 4], -1).reshape(n, -1)[:, :blocks]
    weight = (values - zeros[..., None]) * scales.reshape(n, blocks, 1)
    return x @ weight.reshape(n, -1).T


OPERATORS = {
    "Abs": lambda a, x: np.abs(x),
    "Add": lambda a, x, y: x + y,
    "And": lambda a, x, y: x & y,
    "Attention": _attention,
    "Cast": _cast,
    "Concat": lambda a, *xs: np.concatenate(xs, a["axis"]),
    "Constant": lambda a: _value(a["value"]),
    "ConstantOfShape": lambda a, shape: np.full(shape, _value(a["value"])[0]),
    "Cos": lambda a, x: np.cos(x),
    "CumSum": lambda a, x, axis: np.cumsum(x, int(axis), dtype=x.dtype),
    "DequantizeLinear": _dequantize,
    "Div": _divide,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "Elu": lambda a, x: np.where(x > 0, x, a.get("alpha", 1.0) * np.expm1(np.minimum(x, 0))),
    "Equal": lambda a, x, y: x == y,
    "Erf": lambda a, x: _erf(x),
    "Exp": lambda a, x: np.exp(x),
    "Expand": lambda a, x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))),
    "Flatten": lambda a, x: x.reshape(math.prod(x.shape[:a.get("axis", 1)]), -1),
    "Gather": lambda a, x, i: np.take(x, i, a.get("axis", 0)),
    "GatherND": _gather_nd,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "Conv": _conv,
    "Greater": lambda a, x, y: x > y,
    "Identity": lambda a, x: x,
    "IsNaN": lambda a, x: np.isnan(x),
    "LayerNormalization": _layer_norm,
    "Less": lambda a, x, y: x < y,
    "LessOrEqual": lambda a, x, y: x <= y,
    "Log": _quiet_log,
    "MatMul": lambda a, x, y: x @ y,
    "MatMulInteger": _matmul_integer,
    "MatMulNBits": _matmul_4_bits,
    "Max": lambda a, *xs: functools.reduce(np.maximum, xs),
    "Min": lambda a, *xs: functools.reduce(np.minimum, xs),
    "Mul": lambda a, x, y: x * y,
    "Neg": lambda a, x: -x,
    "Not": lambda a, x: ~x,
    "Pow": lambda a, x, y: x ** y,
    "QuantizeLinear": _quantize,
    "Range": lambda a, start, end, step: np.arange(start, end, step, dtype=start.dtype),
    "Reciprocal": lambda a, x: 1 / x,
    "ReduceMean": _mean,
    "ReduceSum": lambda a, x, axes: x.sum(tuple(axes.tolist()), keepdims=bool(a.get("keepdims", 1))),
    "Reshape": _reshape,
    "Shape": _shape,
    "Sigmoid": lambda a, x: 1 / (1 + np.exp(-x)),
    "Sin": lambda a, x: np.sin(x),
    "Slice": _slice,
    "Softmax": lambda a, x: _softmax(x, a.get("axis", -1)),
    "Sqrt": lambda a, x: np.sqrt(x),
    "Squeeze": lambda a, x, axes=None: x.squeeze(None if axes is None else tuple(axes.tolist())),
    "Sub": lambda a, x, y: x - y,
    "Tanh": lambda a, x: np.tanh(x),
    "Transpose": lambda a, x: x.transpose(a.get("perm")),
    "Unsqueeze": _unsqueeze,
    "Where": lambda a, c, x, y: np.where(c, x, y),
}


def evaluate(model, feeds, base=""):
    """Outputs of `model` by name. `base` is the folder of external data."""
    values = {i.name: _value(i, base) for i in model.graph.initializer}
    values.update({n: np.float64(x) if x.dtype.kind == "f" else x for n, x in feeds.items()})
    for node in model.graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        inputs = [values[n] if n else None for n in node.input]
        results = OPERATORS[node.op_type](attributes, *inputs)
        for name, result in zip(node.output, results if isinstance(results, tuple) else (results,)):
            values[name] = np.asarray(result)
    return {o.name: values[o.name] for o in model.graph.output}
