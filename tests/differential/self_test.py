#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""That the differential test notices: a compiler that lies must be found out by every kind, at every stage.

    self_test.py JUDGE
"""
import sys
import types

import numpy as np

import attention
import index
import integer
import near_miss
import sizes
from checks import Checker, Refused, Wrong, rng_of
from judge import Judge, difference

CASES = 6  # of each kind


class Liar(Judge):
    """Answers of one stage have one element changed: the first, or the first that `where` marks."""

    def __init__(self, program, command, name, where=None):
        super().__init__(program)
        self.lie, self.where, self.told = (command, name), where, 0

    def outputs(self, command, name, inputs):
        got, error = super().outputs(command, name, inputs)
        if (command, name) == self.lie and got is not None:
            for key, array in got.items():
                places = np.argwhere(np.broadcast_to(self.where(key, array) if self.where else True, array.shape))
                if len(places):
                    at = tuple(places[0])
                    array[at] = not array[at] if array.dtype == bool else array[at] + (1 if array.dtype.kind != "f" else 0.1 * (1 + np.nanmax(np.abs(array[np.isfinite(array)]), initial=0)))
                    self.told += bool(array.dtype.kind != "f" or np.isfinite(array[at]))
        return got, error


def right_cases(program, module):
    """Cases in which the compiler is right, so that only a lie is found."""
    judge, found = Judge(program), []
    for number in range(200):
        case = module.make(rng_of([11], number), [])
        try:
            Checker(judge, "").check(case, False)
        except (Wrong, Refused):
            continue
        found.append(case)
        if len(found) == CASES:
            break
    judge.close()
    assert len(found) == CASES, f"{module.__name__}: {len(found)} of 200 cases are right"
    return found


def found_out(program, case, command, name, kernels=False, where=None):
    """Whether a lie at this stage is found; None if there was nothing to lie about."""
    judge = Liar(program, command, name, where)
    try:
        Checker(judge, "x86-64-v2" if kernels else "").check(case, kernels)
        return False if judge.told else None
    except Wrong:
        return True
    finally:
        judge.close()


def check_kinds(program):
    integer.PROGRAMS = 5
    for module in (attention, integer, near_miss, sizes, index):
        cases = right_cases(program, module)
        for stage in (("eval", "imported"), ("eval", "default")):
            results = [found_out(program, c, *stage) for c in cases]
            assert False not in results and True in results, f"{module.__name__}, a lie of {stage}: {results}"
        judged = [c for c in cases if all(r.want or r.same_in_f32 for r in c.runs)]  # also where ONNX Runtime is not installed
        result = [found_out(program, c, "run", "default", kernels=True) for c in judged[:2]]
        assert False not in result and True in result, f"{module.__name__}, a lie of kernels: {result}"
        print(f"{module.__name__}: lies are found")


def check_undefined_rows(program):
    """A padded row at its own place may hold anything, and nothing but such a row."""
    tried = 0
    for number in range(300):
        case = attention.make(rng_of([12], number), [])
        masks = iter([r.defined["y"] for r in case.runs])
        if all(np.all(r.defined["y"]) for r in case.runs):
            continue
        judge = Judge(program)
        try:
            Checker(judge, "").check(case, False)
        except (Wrong, Refused):
            continue
        finally:
            judge.close()
        tried += 1
        assert not found_out(program, case, "eval", "default", where=lambda key, a: ~np.broadcast_to(next(masks), a.shape)), case.title
        if tried == 4:
            return print("rows of padded tokens are left out")
    raise AssertionError("no attention has rows of padded tokens")


def check_crash():
    judge = Judge("/bin/false")
    try:
        Checker(judge, "").check(types.SimpleNamespace(model=b"", passes=[], runs=[]), False)
    except Wrong as e:
        assert e.stage == "crash", e
        return print("a crash is found")
    finally:
        judge.close()
    raise AssertionError("a process that ends is not noticed")


def check_difference():
    a = np.array([1, 2, 3], np.float32)
    wrong = [a[:2], a.astype(np.float64), a + np.float32(0.01), np.array([1, np.nan, 3], np.float32), np.array([np.inf, 2, 3], np.float32)]
    assert all(difference(b, a, None, 1e-4) for b in wrong)
    assert not difference(a + np.float32(1e-6), a, None, 1e-4)
    assert difference(a, np.array([1, np.nan, 3], np.float32), None, 1e-4)
    nan = np.array([1, np.nan, 3], np.float32)
    assert not difference(nan, nan.copy(), None, 1e-4)
    assert not difference(a + np.array([0, 1, 0], np.float32), a, np.array([True, False, True]), 1e-4)
    assert difference(np.array([1, 2]), np.array([1, 3]), None, 1e-4)


def check_integers():
    """ONNX semantics at the ends, by hand."""
    assert integer.wrap("int8", 128) == -128 and integer.wrap("uint8", -1) == 255 and integer.wrap("int64", 1 << 63) == -(1 << 63)
    assert integer.truncated(-7, 2) == -3 and integer.truncated(7, -2) == -3
    least = integer.constant("int32", [-(1 << 31)])
    assert integer.simple("Abs", "int32", abs, least).array[0] == -(1 << 31)


if __name__ == "__main__":
    check_difference()
    check_integers()
    check_crash()
    check_undefined_rows(sys.argv[1])
    check_kinds(sys.argv[1])
