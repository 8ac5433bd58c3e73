# SPDX-License-Identifier: Apache-2.0
"""Tensors in and out: numpy arrays by their interface, everything else by DLPack, both without a copy."""
import ctypes
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p

import numpy as np

from tfcc import _library
from tfcc._library import Error

# The numbers of tfcc_dtype. bf16 has no numpy type: it comes out as uint16, the bits.
NAMES = ["f32", "f16", "bf16", "f64", "i64", "i32", "i16", "i8", "u8", "bool"]
NUMPY = [np.float32, np.float16, np.uint16, np.float64, np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_]
TORCH = ["float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"]
HOST, DEVICE = 0, 1

# DLPack: (type code, bits) -> tfcc_dtype; https://dmlc.github.io/dlpack
_DLPACK_TYPES = {(2, 32): 0, (2, 16): 1, (4, 16): 2, (2, 64): 3, (0, 64): 4, (0, 32): 5, (0, 16): 6, (0, 8): 7, (1, 8): 8, (6, 8): 9}
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13


class _DLTensor(Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8),
                ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def is_torch(value):
    """Whether `value` is a torch tensor; does not import torch."""
    return type(value).__module__.split(".")[0] == "torch"


class Bound:
    """One tensor as the C API takes it, with what keeps its memory alive."""

    def __init__(self, name, data, dtype, place, shape, keep, device_id=0):
        self.sizes = (c_int64 * max(1, len(shape)))(*shape)
        self.tensor = _library.Tensor(data, dtype, place, len(shape), self.sizes)
        self.name, self.shape, self.keep, self.device_id = name, tuple(shape), keep, device_id

    @property
    def on_device(self):
        return self.tensor.place == DEVICE


def _dense(shape, strides):
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _from_numpy(name, array, writable):
    if writable and not (array.flags.c_contiguous and array.flags.writeable):
        raise Error("invalid_argument", f"output '{name}': the array must be writable and C-contiguous")
    array = np.ascontiguousarray(array).reshape(array.shape)  # a strided array is copied; rank 0 stays rank 0
    types = [k for k, t in enumerate(NUMPY) if k != 2 and array.dtype == t]
    if not types:
        raise Error("invalid_argument", f"'{name}': numpy type {array.dtype} is none of {', '.join(NAMES)}")
    return Bound(name, array.ctypes.data, types[0], HOST, array.shape, array)


def _from_dlpack(name, value, stream):
    device_type, device_id = value.__dlpack_device__()
    if device_type not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
        raise Error("invalid_argument", f"'{name}': its DLPack device type {device_type} is neither the CPU nor CUDA")
    if device_type in (_CUDA, _CUDA_MANAGED):
        capsule = value.__dlpack__(stream=stream if stream else 1)  # the producer makes this stream wait for the data
    else:
        capsule = value.__dlpack__()
    t = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    shape = [t.shape[k] for k in range(t.ndim)]
    if t.strides and 0 not in shape and not _dense(shape, [t.strides[k] for k in range(t.ndim)]):
        raise Error("invalid_argument", f"'{name}' is not dense and row-major; pass a contiguous tensor")
    dtype = _DLPACK_TYPES.get((t.code, t.bits))
    if dtype is None or t.lanes != 1:
        raise Error("invalid_argument", f"'{name}': its DLPack type (code {t.code}, {t.bits} bits) is none of {', '.join(NAMES)}")
    place = DEVICE if device_type in (_CUDA, _CUDA_MANAGED) else HOST
    return Bound(name, (t.data or 0) + t.byte_offset, dtype, place, shape, (capsule, value), device_id)


def bind(name, value, stream=0, writable=False):
    """A tensor of the caller. Numpy arrays, numbers and nested lists go by numpy, all else by `__dlpack__`."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        if not isinstance(value, np.ndarray):
            try:
                value = np.asarray(value)
            except ValueError:
                raise Error("invalid_argument", f"'{name}' has rows of different lengths; pad them, or give them to Model.ragged()") from None
        return _from_numpy(name, value, writable)
    if is_torch(value) and value.requires_grad:
        value = value.detach()
    return _from_dlpack(name, value, stream)


def widened(value, dtype):
    """An array or torch tensor of integers as the wider integers that an input has, `dtype`; anything else as it is."""
    if dtype not in ("i64", "i32", "i16"):
        return value
    if is_torch(value):
        import torch
        to = getattr(torch, TORCH[NAMES.index(dtype)])
        whole = not value.dtype.is_floating_point and not value.dtype.is_complex
        return value.to(to) if whole and value.dtype != to and torch.can_cast(value.dtype, to) and value.element_size() < to.itemsize else value
    if isinstance(value, np.ndarray) and value.dtype.kind in "iub":
        to = np.dtype(NUMPY[NAMES.index(dtype)])
        return value.astype(to) if value.dtype != to and np.can_cast(value.dtype, to, "safe") else value
    return value


def joined(inputs, infos, ends):
    """Inputs of a model without padding: what is given as a list for an input over tokens, an array for each sequence, as one array,
    and `ends` (cu_seqlens) as whole numbers of the host."""
    by_name = {i.name: i for i in infos}
    tokens = infos[0].dims[0].text if infos[0].dims else None  # inputs over tokens come first
    out, lengths = {}, None
    for name, value in inputs.items():
        if name == ends:
            out[name] = _ends(name, value)
            continue
        info = by_name.get(name)
        of_tokens = info is not None and info.name != ends and info.dims and info.dims[0].text == tokens
        if of_tokens and isinstance(value, (list, tuple)) and all(np.ndim(v) == len(info.dims) if not is_torch(v) else v.ndim == len(info.dims) for v in _shapes(name, value)):
            if [len(v) for v in value] != (lengths if lengths is not None else [len(v) for v in value]):
                raise Error("invalid_argument", f"'{name}' has sequences of other lengths than the inputs before it")
            lengths = [len(v) for v in value]
            value = _concatenated(name, value, info)
        out[name] = value
    if lengths is not None:
        of_lists = np.cumsum([0, *lengths], dtype=np.int64)
        if ends in out and not np.array_equal(out[ends], of_lists):
            raise Error("invalid_argument", f"'{ends}' is not that of the sequences in lists; leave it out")
        out[ends] = of_lists
    return out


def _ends(name, value):
    try:
        value = value.cpu().numpy() if is_torch(value) else np.asarray(value)
    except ValueError:
        raise Error("invalid_argument", f"'{name}' is no list of whole numbers") from None
    return value.astype(np.int64) if value.dtype.kind in "iu" else value


def _shapes(name, value):
    """The pieces, each of which must be an array."""
    try:
        return [v if is_torch(v) else np.asarray(v) for v in value]
    except ValueError:
        raise Error("invalid_argument", f"'{name}' has a sequence that is no array") from None


def _concatenated(name, value, info):
    """Sequences as one array; Python's numbers have the input's type, if they fit."""
    if value and all(is_torch(v) for v in value):
        import torch
        return torch.cat(list(value))
    if info.dtype == "bf16":
        return np.concatenate([np.asarray(v) for v in value]) if value else np.zeros(0, np.uint16)
    to = np.dtype(NUMPY[NAMES.index(info.dtype)])
    pieces = [np.asarray(v) for v in value]
    pieces = [p for p in pieces if p.size] or [np.zeros(0, to)]
    try:
        all_of_them = np.concatenate(pieces)
    except ValueError:
        raise Error("invalid_argument", f"'{name}' has sequences of different widths") from None
    numbers = not any(isinstance(v, np.ndarray) for v in value)
    if all_of_them.dtype == to or not numbers or (all_of_them.dtype.kind == "f") != (to.kind == "f"):
        return all_of_them
    if to.kind in "iu" and all_of_them.size and (all_of_them.min() < np.iinfo(to).min or all_of_them.max() > np.iinfo(to).max):
        raise Error("invalid_argument", f"'{name}': a number does not fit {info.dtype}")
    return all_of_them.astype(to)


def to_numpy(tensor):
    """A copy of a host tensor of the C API."""
    shape = [tensor.shape[k] for k in range(tensor.rank)]
    out = np.empty(shape, NUMPY[tensor.dtype])
    if out.nbytes:
        ctypes.memmove(out.ctypes.data, tensor.data, out.nbytes)
    return out
