# SPDX-License-Identifier: Apache-2.0
"""The Python package on a real model: numpy, DLPack, errors, threads. Run by ctest with PYTHONPATH=tools/python.

    python3 test_tfcc.py MODEL_FOLDER      a folder of tests/models
"""
import os
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import numpy as np

import tfcc
from tfcc import _tensors

FOLDER = Path(sys.argv.pop())


class OnlyDlpack:
    """An array that shows its memory through DLPack alone, as a tensor of another library would."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **_):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def case(number=0):
    folder = FOLDER / "cases" / str(number)
    return tuple({p.stem: np.load(p) for p in (folder / side).glob("*.npy")} for side in ("in", "out"))


class TestTfcc(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.path = tfcc.compile(FOLDER / "model.onnx", Path(cls.temporary.name) / "m.tfcc", "--target", "cpu")
        cls.model = tfcc.load(cls.path, device="cpu", threads=2)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def assert_right(self, got, want):
        self.assertEqual(list(got), [o.name for o in self.model.outputs])
        for name, w in want.items():
            valid = np.load(FOLDER / "cases/0/valid.npy") if (FOLDER / "cases/0/valid.npy").exists() else None
            g = np.asarray(got[name])
            self.assertEqual(g.shape, w.shape)
            if valid is not None and w.shape[:2] == valid.shape:
                g, w = g[valid], w[valid]
            self.assertLess(np.linalg.norm(g - w) / np.linalg.norm(w), 1e-4, name)

    def test_numpy(self):
        inputs, want = case()
        self.assert_right(self.model.run(inputs), want)
        self.assertIn("input_ids: i64[", repr(self.model))
        self.assertEqual(self.model.inputs[0].dims[0].max, None)

    def test_memory_of_dlpack_is_read_in_place(self):
        inputs, want = case()
        self.assert_right(self.model.run({n: OnlyDlpack(a) for n, a in inputs.items()}), want)
        a = inputs["input_ids"]
        self.assertEqual(_tensors.bind("x", OnlyDlpack(a)).tensor.data, a.ctypes.data)
        self.assertEqual(_tensors.bind("x", OnlyDlpack(a[:, 1:3])).tensor.data, a.ctypes.data + a.itemsize) if len(a) == 1 else None
        with self.assertRaisesRegex(tfcc.Error, "'x' is not dense"):
            _tensors.bind("x", OnlyDlpack(np.zeros((4, 4))[:, ::2]))

    def test_strided_and_scalar_numpy(self):
        inputs, want = case()
        self.assert_right(self.model.run({n: np.asfortranarray(a) for n, a in inputs.items()}), want)
        self.assertEqual(_tensors.bind("x", np.float32(3)).shape, ())

    def test_outputs_given_are_written_once(self):
        inputs, want = case()
        name = self.model.outputs[0].name
        mine = np.full(want[name].shape, -1, np.float32)
        executor = self.model.executor()
        got = executor.run(inputs, {name: mine})
        self.assertIs(got[name], mine)
        self.assert_right(got, want)
        mine[:] = -1
        executor.run(inputs)
        self.assertTrue((mine == -1).all())

    def test_prepared_runs_keep_their_arena(self):
        inputs, want = case()
        executor = self.model.executor()
        executor.prepare({n: a.shape for n, a in inputs.items()})
        arena = executor.arena_bytes()
        self.assertGreater(arena, 0)
        self.assert_right(executor.run(inputs), want)
        self.assertEqual(executor.arena_bytes(), arena)
        self.assertEqual(executor.stats()["graphs_made"], 0)
        self.assertEqual(executor.output_shape(self.model.outputs[0].name), want[self.model.outputs[0].name].shape)

    def test_bytes(self):
        inputs, want = case()
        self.assert_right(tfcc.load(Path(self.path).read_bytes(), device="cpu").run(inputs), want)

    def test_one_executor_per_thread(self):
        inputs, want = case()
        failures = []

        def work():
            try:
                executor = self.model.executor()
                for _ in range(5):
                    self.assert_right(executor.run(inputs), want)
            except Exception as e:  # a thread's failure must reach the test
                failures.append(e)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])

    def test_errors(self):
        inputs, _ = case()
        with self.assertRaisesRegex(tfcc.Error, "none.tfcc") as raised:
            tfcc.load("none.tfcc")
        self.assertEqual(raised.exception.code, "io")
        with self.assertRaisesRegex(tfcc.Error, "no input or output is named 'nothing'"):
            self.model.run({**inputs, "nothing": np.zeros(1, np.float32)})
        for wrong in ("input_ids\0x", "\0"):
            with self.assertRaisesRegex(tfcc.Error, "holds a NUL"):
                self.model.run({**inputs, wrong: inputs["input_ids"]})
            with self.assertRaisesRegex(tfcc.Error, "holds a NUL"):
                self.model.executor().output_shape(wrong)
        with self.assertRaisesRegex(tfcc.Error, "holds a NUL"):
            tfcc.load(str(self.path) + "\0.tfcc")
        with self.assertRaisesRegex(tfcc.Error, "dtype is i32, must be i64"):
            self.model.run({**inputs, "input_ids": inputs["input_ids"].astype(np.int32)})
        with self.assertRaisesRegex(tfcc.Error, "numpy type complex"):
            self.model.run({**inputs, "input_ids": inputs["input_ids"].astype(complex)})
        with self.assertRaisesRegex(tfcc.Error, "must be writable"):
            self.model.run(inputs, {self.model.outputs[0].name: np.zeros((2, 2), np.float32).T})
        with self.assertRaisesRegex(tfcc.Error, "is not set"):
            self.model.executor().run({})
        with self.assertRaisesRegex(tfcc.Error, "none.onnx"):
            tfcc.compile("none.onnx")

    def test_library_that_is_not_there(self):
        code = "import tfcc, sys\ntry: tfcc.version()\nexcept tfcc.Error as e: sys.exit(0 if 'TFCC_LIBRARY' in str(e) else 3)\nsys.exit(4)"
        import subprocess
        env = dict(os.environ, TFCC_LIBRARY="/nowhere/libtfcc.so")
        self.assertEqual(subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode, 0)

    def test_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        inputs, want = case()
        got = self.model.run({n: torch.from_numpy(a) for n, a in inputs.items()})
        self.assertTrue(all(isinstance(t, torch.Tensor) for t in got.values()))
        self.assert_right({n: t.numpy() for n, t in got.items()}, want)


if __name__ == "__main__":
    unittest.main()
