# SPDX-License-Identifier: Apache-2.0
"""Where the cases are declared: name -> (function that writes model.onnx or returns its bytes, pattern, whether it compiles)."""
from onnx_bytes import model, node

CASES = {}


def case(pattern, compiles=False):
    """Declares a case: the function writes model.onnx (and more) into the folder it gets, or returns its bytes.

    `compiles`: False: must be refused with a match of `pattern`; True: must compile; None: either.
    """
    def add(function):
        CASES[function.__name__] = (function, pattern, compiles)
        return function
    return add


def one(name, pattern, data, compiles=False):
    CASES[name] = (lambda _: data, pattern, compiles)


def relu(**more):
    return model([node("Relu", ["x"], ["y"])], **more)
