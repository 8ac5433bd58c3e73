# SPDX-License-Identifier: Apache-2.0
"""One case through the compiler: what disagrees with whom."""
import numpy as np

from judge import Died, Peer, difference, onnxruntime

EXACT = 2e-6  # two evaluations in float64, written as f32


class Wrong(Exception):
    """Stage and what was found there."""

    def __init__(self, stage, text):
        super().__init__(f"{stage}: {text}")
        self.stage = stage


class Refused(Exception):
    """The importer does not take the model."""


class Checker:
    """`level`: the CPU level of kernels, "" for none; `peer`: ONNX Runtime too, where it is installed."""

    def __init__(self, judge, level="x86-64-v2", peer=True):
        self.judge, self.level = judge, level
        self.peer = peer and onnxruntime is not None
        self.found, self.undone = {}, {}

    def check(self, case, kernels):
        """The kinds of ops in the optimised graph. Raises Wrong, Refused."""
        try:
            return self.stages(case, kernels)
        except Died as e:
            raise Wrong("crash", str(e))

    def stages(self, case, kernels):
        good, text = self.judge.load(case.model)
        if not good:
            raise Refused(text)
        variants = [("default", "default")] + [(f"passes{k}", p) for k, p in enumerate(case.passes)]
        ops = {}
        for name, passes in variants:
            good, text = self.judge.ask("optimise", name, passes)
            if not good:
                raise Wrong(f"optimise {passes}", text)
            counts = {k: int(n) if n.isdigit() else n for k, n in (w.rsplit(":", 1) for w in text.split())}
            if name == "default":
                ops = counts
        references = [self.reference(case, run) for run in case.runs]
        for name, passes in variants:
            for run, reference in zip(case.runs, references):
                self.compare(f"float64 after passes {passes}", "eval", name, run, reference or run.want, EXACT)
        if kernels and self.level:
            self.kernels(case, variants, references)
        return ops

    def reference(self, case, run):
        """What the graph as imported gives in float64; it must be what the generator knows."""
        got, error = self.judge.outputs("eval", "imported", run.inputs)
        self.judge_error("float64 oracle", run, error)
        if got is not None and run.want:
            self.compare_arrays("float64 oracle", run, got, run.want, EXACT)
        return got

    def judge_error(self, stage, run, error):
        right = [t for t in [run.must_fail, *run.may_fail.split("|")] if t]
        if error and not any(t in error for t in right):
            raise Wrong(stage, f"refused: {error}; {run.title}")
        if run.must_fail and not error:
            raise Wrong(stage, f"no error about {run.must_fail}; {run.title}")

    def compare(self, stage, command, name, run, want, tolerance):
        got, error = self.judge.outputs(command, name, run.inputs)
        self.judge_error(stage, run, error)
        if got is not None and want:
            self.compare_arrays(stage, run, got, want, tolerance)

    def compare_arrays(self, stage, run, got, want, tolerance):
        for name in want:
            if name not in got:
                raise Wrong(stage, f"no output {name}")
            problem = difference(got[name], want[name], run.defined.get(name), tolerance)
            if problem:
                raise Wrong(stage, f"{name}: {problem}; {run.title}")

    def kernels(self, case, variants, references):
        wants = [self.expected(case, run, reference) for run, reference in zip(case.runs, references)]
        for name, passes in variants:
            good, text = self.judge.ask("compile", name, self.level)
            if not good:
                raise Wrong(f"compile after passes {passes}", text)
            for run, want in zip(case.runs, wants):
                self.compare(f"kernels after passes {passes}", "run", name, run, want, case.tolerance)

    def expected(self, case, run, reference):
        """What f32 kernels must give; none where nobody can tell."""
        if run.want or run.must_fail:
            return run.want
        if self.peer and run.ask_peer:
            try:
                theirs = Peer(case.model).outputs(run.inputs)
            except Exception as e:  # noqa: BLE001 (whatever the other runtime raises, it is no judge then)
                self.undone[str(e).split("\n")[0][:100]] = self.undone.get(str(e).split("\n")[0][:100], 0) + 1
                theirs = None
            if theirs is not None and reference is not None and overflows(theirs, reference):
                return None
            if theirs is not None:
                if reference is not None and run.same_in_f32:
                    self.compare_arrays("float64 oracle against ONNX Runtime", run, reference, theirs, case.tolerance)
                return theirs
        return reference if run.same_in_f32 else None


def overflows(theirs, reference):
    """Two penalties of -3.4e38 add up to -inf in f32 alone: a row of such is NaN there, and 0 in kernels (docs/numerics.md)."""
    return any(np.any(np.isnan(theirs[k]) & ~np.isnan(reference[k])) for k in reference if k in theirs and theirs[k].dtype.kind == "f")


def rng_of(seed, number):
    """The generator of case `number`: it does not depend on the cases before."""
    return np.random.default_rng([seed, number])
