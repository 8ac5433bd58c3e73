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
        def joined(**inputs):
            dims = {"a": "T", "b": "T", "f": "T,3", "p": "1,S"}
            types = {"a": "i64", "b": "i32", "f": "f32", "p": "i64"}
            infos = [tfcc.TensorInfo(n, types[n], tuple(tfcc.Dim(d, 0, None) for d in dims[n].split(","))) for n in dims]
            return _tensors.joined(inputs, [*infos, tfcc.TensorInfo("ends", "i32", (tfcc.Dim("B + 1", 0, None),))], "ends")

        rows = joined(f=[np.ones((2, 3), np.float32), np.zeros((1, 3), np.float32)], p=[[0, 1]])
        self.assertEqual((rows["f"].shape, rows["ends"].tolist(), rows["p"]), ((3, 3), [0, 2, 3], [[0, 1]]))
        self.assertEqual(joined(f=[[[1, 2, 3]], [[4, 5, 6]]], ends=[0, 1, 2])["f"].shape, (2, 3))
        self.assertEqual(joined(f=[[1, 2, 3], [4, 5, 6]], ends=[0, 2])["f"], [[1, 2, 3], [4, 5, 6]])  # one array
        self.assertEqual(joined(b=[[1], [2, 3]])["b"].dtype, np.int32)
        self.assertEqual(joined(a=[[], [1]])["ends"].tolist(), [0, 0, 1])
        self.assertEqual(joined(a=[np.ones(2, np.int32)])["a"].dtype, np.int32)  # arrays are not converted
        wrong = {"sequences of other lengths": {"a": [[1], [2, 3]], "b": [[1], [2]]}, "does not fit i32": {"b": [[2**40]]},
                 "different widths": {"f": [np.ones((1, 3)), np.ones((1, 4))]}, "no list of whole numbers": {"ends": [[0], [1, 2]]},
                 "a sequence that is no array": {"a": [[[1, 2], [3]]]}}
        for message, inputs in wrong.items():
            with self.assertRaisesRegex(tfcc.Error, message):
                joined(**inputs)
        none = ragged.run({n: [] for n in tokens})
        self.assertEqual([v.shape[0] for v in none.values()], [0] * len(none))
        executor.prepare({**{n: (20,) for n in tokens}, "cu_seqlens": (5,)})
        with self.assertRaisesRegex(tfcc.Error, "cu_seqlens:9 are 500 tokens of 8 sequences"):
            executor.prepare({n: (20,) for n in tokens})


if __name__ == "__main__":
    unittest.main()
