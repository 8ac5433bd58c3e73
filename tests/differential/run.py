#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random graphs through the compiler, against the float64 oracle, Python's integers and, where it is installed, ONNX Runtime.

    run.py JUDGE --kind KIND [--seed N] [--count N] [--seconds N] [--from K] [--kernels-every N] [--keep DIR]

JUDGE is build/tests/differential/differential_judge; KIND one of attention, integer, near-miss, sizes, index, or all.
A case is made from the seed and its number alone: `--from K --count 1` makes case K again. Failing models go to DIR, with inputs.
Exit status 1 if a case is wrong; 2 if the graphs had not the power to be wrong (too many were refused, too few fused).
"""
import argparse
import collections
import importlib
import re
import sys
import time
from pathlib import Path

import numpy as np

from checks import Checker, Refused, Wrong, rng_of
from judge import Judge, onnxruntime

KINDS = {"attention": "attention", "integer": "integer", "near-miss": "near_miss", "sizes": "sizes", "index": "index"}
FIRST = ["raise-layer-norm", "raise-rms-norm", "raise-gelu", "raise-softmax", "raise-rope", "fuse-attention", "classify-mask", "fuse-bias-gelu",
         "fuse-residual-norm", "fuse-linear-bias"]
ANY = ["quantize-linear", "fold-constants", "canonicalize", "eliminate-common-ops", "eliminate-dead-ops", *FIRST, "fuse-pointwise", "canonicalize",
       "fuse-embedding", "fuse-gated-mlp", "fuse-qkv"]


def random_passes(rng):
    """A part of the passes, mostly in their order."""
    chosen = [p for p in ANY if rng.random() < 0.5]
    if rng.random() < 0.2:
        rng.shuffle(chosen)
    return ",".join(chosen) or "none"


def signature(problem):
    """Failures of one signature are likely one fault."""
    return re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?|nan|inf|\[[^\]]*\]", "#", problem.split(";")[0])[:110]


class Tally:
    def __init__(self):
        self.graphs = self.runs = self.kernels = self.found = 0
        self.refused, self.ops, self.wrong = collections.Counter(), collections.Counter(), collections.defaultdict(list)

    def refuse(self, e):
        self.refused[re.sub(r"^[^:]*: ", "", str(e))[:160]] += 1


def simplest(cases, checker, kernels, tally):
    """Of a graph's cases, the simplest first and the whole last: the first that fails, and how; (None, None) if the whole does not."""
    failure = None, None
    for case in [cases[-1], *cases[:-1]] if cases else []:
        try:
            checker.check(case, kernels)
        except Wrong as e:
            if case is not cases[-1]:
                return case, e
            failure = case, e
        except Refused as e:
            if case is cases[-1]:
                tally.refuse(e)
        if failure[0] is None:
            break  # the whole is right
    return failure


def needed(case, problem):
    """The sets of passes, beside the default ones, that a failure may need."""
    return [] if isinstance(problem, Wrong) and not problem.stage.endswith(tuple(case.passes)) else case.passes


def reduced(case, problem, checker, kernels):
    """Takes away what the failure does not need, a step at a time."""
    while case.simpler:
        for candidate in case.simpler():
            try:
                checker.check(candidate, kernels)
            except Wrong as e:
                if e.stage == problem.stage:
                    case, problem = candidate, e
                    break
            except Refused:
                pass
        else:
            break
    return case, problem


def keep(folder, name, case, problem):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.onnx").write_bytes(case.model)
    for k, run in enumerate(case.runs):
        np.savez(folder / f"{name}.{k}.npz", **run.inputs)
    (folder / f"{name}.txt").write_text(f"{case.title}\n{problem}\n")


def note(a, kind, number, case, problem, tally, k):
    key = signature(str(problem))
    tally.wrong[key].append(number)
    if len(tally.wrong[key]) <= a.show:
        print(f"WRONG  {kind} --seed {a.seed} --from {number}: {case.title}\n       {problem}", flush=True)
    if a.keep:
        keep(a.keep, f"{kind}-{a.seed}-{number}-{k}", case, problem)


def run_kind(a, kind, checker, tally):
    generator = importlib.import_module(KINDS[kind])
    start, number = time.monotonic(), a.first
    while (tally.graphs < a.count if a.count else True) and (not a.seconds or time.monotonic() - start < a.seconds):
        rng = rng_of([a.seed, sorted(KINDS).index(kind)], number)
        passes = ["none"] + [random_passes(rng) for _ in range(a.subsets)] if kind in ("integer", "index") else [random_passes(rng)] if number % 5 == 0 else []
        case = generator.make(rng, passes)
        kernels = a.kernels_every > 0 and number % a.kernels_every == 0
        tally.graphs += case.graphs
        tally.runs += len(case.runs)
        tally.kernels += kernels
        try:
            ops = checker.check(case, kernels)
            tally.ops.update({k: n for k, n in ops.items() if isinstance(n, int)})
            tally.found += any(ops.get(k, 0) for k in case.expect)
        except (Refused, Wrong) as e:
            failures = [simplest(make(needed(case, e)), checker, kernels, tally) for make in case.parts]
            failures = [(c, why) for c, why in failures if c is not None]
            if not failures and isinstance(e, Refused):
                if not case.parts:
                    tally.refuse(e)
            elif not failures:
                failures = [reduced(case, e, checker, kernels)]
            for k, (c, why) in enumerate(failures):
                note(a, kind, number, c, why, tally, k)
        number += 1
    return time.monotonic() - start


def report(kind, tally, checker, seconds):
    wrong = sum(len(v) for v in tally.wrong.values())
    ops = ", ".join(f"{n} {k}" for k, n in sorted(tally.ops.items(), key=lambda x: -x[1]) if k in REPORTED)
    print(f"{kind}: {tally.graphs} graphs, {tally.runs} runs, {tally.kernels} models in kernels, {sum(tally.refused.values())} refused, {wrong} wrong, "
          f"{seconds:.0f} s{'' if checker.peer else '; no ONNX Runtime'}")
    if tally.found:
        print(f"  the pattern was found in {tally.found}; in optimised graphs: {ops}")
    for text, n in tally.refused.most_common(5):
        print(f"  refused {n} times: {text}")
    for text, n in sorted(checker.undone.items(), key=lambda x: -x[1])[:3]:
        print(f"  ONNX Runtime could not run {n}: {text}")
    for text, numbers in sorted(tally.wrong.items(), key=lambda x: -len(x[1])):
        print(f"  wrong {len(numbers)} times, first --from {numbers[0]}: {text}")


REPORTED = {"attention", "masked", "norm", "residual", "gelu", "softmax", "rope", "fuse-gated-mlp",
            "fuse-qkv", "fuse-embedding", "classify-mask", "fuse-pointwise"}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("judge")
    p.add_argument("--kind", choices=[*KINDS, "all"], default="all")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--count", type=int, default=0, help="graphs of each kind; default 100, or any number with --seconds")
    p.add_argument("--seconds", type=float, default=0)
    p.add_argument("--from", type=int, default=0, dest="first", help="number of the first case")
    p.add_argument("--kernels-every", type=int, default=10, help="compile and run every Nth case; 0: evaluate alone")
    p.add_argument("--level", default="x86-64-v2", help="level of the CPU that kernels are compiled for")
    p.add_argument("--cache", default="", help="folder of compiled kernels; default: none are kept")
    p.add_argument("--subsets", type=int, default=2, help="random sets of passes that integers are tried with")
    p.add_argument("--no-peer", action="store_true", help="not against ONNX Runtime")
    p.add_argument("--least-found", type=float, default=0, help="fail if a smaller part of the graphs was fused")
    p.add_argument("--keep", type=Path, help="folder for failing models")
    p.add_argument("--show", type=int, default=2, help="failures of one kind to print")
    a = p.parse_args()
    if not a.count and not a.seconds:
        a.count = 100
    failed = weak = False
    for kind in KINDS if a.kind == "all" else [a.kind]:
        judge, tally = Judge(a.judge, a.cache), Tally()
        checker = Checker(judge, a.level, not a.no_peer)
        try:
            seconds = run_kind(a, kind, checker, tally)
        finally:
            judge.close()
        report(kind, tally, checker, seconds)
        failed |= bool(tally.wrong)
        weak |= tally.found < a.least_found * tally.graphs or sum(tally.refused.values()) * 5 > tally.graphs
    sys.exit(1 if failed else 2 if weak else 0)


if __name__ == "__main__":
    main()
