# SPDX-License-Identifier: Apache-2.0
"""The Python package on a program for tokens without padding. Run by ctest with PYTHONPATH=tools/python.

    python3 test_ragged.py MODEL_FOLDER      a folder of tests/models
"""
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

import tfcc
from tfcc import _tensors

FOLDER = Path(sys.argv.pop())


class TestRagged(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.path = Path(cls.temporary.name) / "m.tfcc"
        tfcc.compile(FOLDER / "model.onnx", cls.path, targets="cpu", ragged=True)
        cls.model = tfcc.load(cls.path, device="cpu", threads=2)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def test_is_there_where_it_was_asked_for(self):
        plain = Path(self.temporary.name) / "plain.tfcc"
        tfcc.compile(FOLDER / "model.onnx", plain, targets="cpu")
        with self.assertRaisesRegex(tfcc.Error, "compiled without --ragged"):
            tfcc.load(plain, device="cpu").ragged()
        self.assertTrue(tfcc.inspect(self.path).ragged)
        self.assertIn("cu_seqlens", [i["name"] for i in tfcc.inspect(self.path, ragged=True).inputs])

    def test_outlives_the_padded_one(self):
        ragged = tfcc.load(self.path.read_bytes(), device="cpu").ragged()
        tokens = {i.name: [[1, 2, 3]] if "type" not in i.name else [[0, 0, 0]] for i in ragged.inputs[:-1]}
        self.assertEqual(ragged.run(tokens)["last_hidden_state"].shape[0], 3)

    def test_is_what_the_padded_program_gives(self):
        model, ragged = self.model, self.model.ragged()
        self.assertEqual(ragged.inputs[-1].name, "cu_seqlens")
        lengths, rng = [3, 1, 6, 2], np.random.default_rng(1)
        mask = np.arange(6) < np.array(lengths)[:, None]
        padded = {i.name: mask.astype(np.int64) if "mask" in i.name else rng.integers(0, 2 if "type" in i.name else 16, mask.shape) for i in model.inputs}
        want = model.run(padded)
        tokens = [i.name for i in ragged.inputs[:-1]]
        lists = {n: [padded[n][b, :k].tolist() for b, k in enumerate(lengths)] for n in tokens}
        ends = np.cumsum([0, *lengths])
        flat = {n: padded[n][mask] for n in tokens}
        executor = ragged.executor()
        for inputs in (lists, {**flat, "cu_seqlens": ends}, {**flat, "cu_seqlens": ends.astype(np.int32)}, {**lists, "cu_seqlens": ends.tolist()}):
            for run in (ragged.run, executor.run):
                got = run(inputs)
                for name, w in want.items():
                    of_tokens = w.ndim == 3
                    np.testing.assert_array_equal(got[name], w[mask] if of_tokens else w)
        refused = {"cu_seqlens is not set": flat, "falls from 4 to 3 at sequence 2": {**flat, "cu_seqlens": [0, 3, 4, 3, 12]},
                   "has 12 tokens, cu_seqlens ends at 11": {**flat, "cu_seqlens": [0, 11]},
                   "sequence 1 has no token": {**flat, "cu_seqlens": [0, 3, 3, 12]}, "dtype is f64": {**flat, "cu_seqlens": [0.0, 12.0]},
                   "leave it out": {**lists, "cu_seqlens": [0, 12]}}
        for message, inputs in refused.items():
            with self.assertRaisesRegex(tfcc.Error, message):
                ragged.run(inputs)
        with self.assertRaisesRegex(tfcc.Error, "rows of different lengths; pad them, or give them to Model.ragged"):
            model.run(lists)
        with self.assertRaisesRegex(tfcc.Error, "sequences of other lengths"):
            joined = _tensors.joined({"a": [[1], [2, 3]], "b": [[1], [2]]}, ragged.inputs, "cu_seqlens")
        joined = _tensors.joined({"a": [np.ones((2, 3), np.float32), np.zeros((1, 3), np.float32)]}, ragged.inputs, "cu_seqlens")
        self.assertEqual((joined["a"].shape, joined["cu_seqlens"].tolist()), ((3, 3), [0, 2, 3]))
        none = ragged.run({n: [] for n in tokens})
        self.assertEqual([v.shape[0] for v in none.values()], [0] * len(none))
        executor.prepare({**{n: (20,) for n in tokens}, "cu_seqlens": (5,)})
        with self.assertRaisesRegex(tfcc.Error, "cu_seqlens:9 are 500 tokens of 8 sequences"):
            executor.prepare({n: (20,) for n in tokens})


if __name__ == "__main__":
    unittest.main()
