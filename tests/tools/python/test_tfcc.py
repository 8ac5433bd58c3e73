# SPDX-License-Identifier: Apache-2.0
"""The Python package on a real model: numpy, DLPack, errors, threads. Run by ctest with PYTHONPATH=tools/python.

    python3 test_tfcc.py MODEL_FOLDER      a folder of tests/models
"""
import os
import shutil
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import numpy as np

import tfcc
from tfcc import _tensors

FOLDER = Path(sys.argv.pop())
REQUESTS = int(os.environ.get("TFCC_TEST_REQUESTS", "3200"))  # of test_one_model_in_many_threads


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
        cls.path = tfcc.compile(FOLDER / "model.onnx", Path(cls.temporary.name) / "m.tfcc", targets="cpu")
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

    def in_threads(self, count, work):
        """Calls work(number) in so many threads; a thread's failure is the test's."""
        failures = []

        def one(number):
            try:
                work(number)
            except Exception as e:
                failures.append(e)
        threads = [threading.Thread(target=one, args=(k,)) for k in range(count)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if failures:
            raise failures[0]

    def requests(self, count):
        """Inputs of mixed shapes, and what one executor makes of each, bit for bit."""
        r = np.random.default_rng(1)
        executor, made = self.model.executor(), []
        for _ in range(count):
            shape = int(r.integers(1, 6)), int(r.integers(1, 48))
            inputs = {i.name: np.ones(shape, np.int64) for i in self.model.inputs}
            inputs["input_ids"] = r.integers(0, 90, shape)
            made.append((inputs, executor.run(inputs)))
        return made

    def test_one_model_in_many_threads(self):
        requests = self.requests(40)
        model = tfcc.load(self.path, device="cpu", threads=1, executors=5)

        def work(number):
            r = np.random.default_rng(number)
            for _ in range(REQUESTS // 32):
                inputs, want = requests[int(r.integers(len(requests)))]
                got = model.run(inputs)
                for name, w in want.items():
                    np.testing.assert_array_equal(got[name], w)
        self.in_threads(32, work)
        self.assertLessEqual(model._pool.made, 5)
        self.assertEqual(len(model._pool.free), model._pool.made)

    def test_one_executor_in_two_threads_is_an_error(self):
        (inputs, want), *_ = self.requests(1)
        executor, said = self.model.executor(), []

        def work(_):
            for _ in range(20000):
                try:
                    got = executor.run(inputs)
                except tfcc.Error as e:
                    said.append(str(e))
                    self.assertEqual(e.code, "invalid_argument")
                    self.assertIn("in use by another call", str(e))
                else:
                    for name, w in want.items():
                        np.testing.assert_array_equal(got[name], w)
                if len(said) > 5:
                    return
        self.in_threads(2, work)
        self.assertGreater(len(said), 0)

    def test_run_starts_from_nothing(self):
        inputs, want = case()
        for run in (self.model.executor().run, self.model.run):
            self.assert_right(run(inputs), want)
            for name in inputs:
                rest = {n: a for n, a in inputs.items() if n != name}
                for _ in range(2):
                    with self.assertRaisesRegex(tfcc.Error, f"'{name}' is not set"):
                        run(rest)
            self.assert_right(run(inputs), want)

    def test_what_set_gave_stays(self):
        inputs, want = case()
        executor = self.model.executor()
        for name, array in inputs.items():
            executor.set(name, array)
        self.assert_right(executor.run(), want)
        name = next(iter(inputs))
        other = executor.run({name: np.zeros_like(inputs[name])})
        self.assertFalse(np.array_equal(other[self.model.outputs[0].name], want[self.model.outputs[0].name]))
        self.assert_right(executor.run(), want)                  # set()'s array again
        with self.assertRaises(tfcc.Error):
            executor.run({name: np.zeros(3, np.float64)})
        self.assert_right(executor.run(), want)

    def test_fork(self):
        (inputs, want), *_ = self.requests(1)
        model = tfcc.load(self.path, device="cpu", threads=3)
        executor = model.executor()
        executor.run(inputs)
        busy, done = [], threading.Event()
        for _ in range(2):  # some calls are under way whenever the process is forked
            busy.append(threading.Thread(target=lambda: [model.run(inputs) for _ in iter(done.is_set, True)]))
            busy[-1].start()
        try:
            for _ in range(5):
                child = os.fork()
                if child == 0:
                    ok = False
                    try:
                        runs = [executor.run(inputs), *(model.run(inputs) for _ in range(3)), tfcc.load(self.path, threads=2).run(inputs)]
                        ok = all(np.array_equal(got[name], w) for got in runs for name, w in want.items())
                    finally:
                        os._exit(0 if ok else 1)
                until = time.monotonic() + 60
                ended, status = 0, None
                while not ended and time.monotonic() < until:
                    ended, status = os.waitpid(child, os.WNOHANG)
                    time.sleep(0.01)
                if not ended:
                    os.kill(child, 9)
                    os.waitpid(child, 0)
                self.assertEqual((bool(ended), status), (True, 0))
        finally:
            done.set()
            for t in busy:
                t.join()

    def test_file_in_memory_may_change(self):
        inputs, want = case()
        path = Path(self.temporary.name) / "changed.tfcc"
        for cut in (False, True):
            shutil.copy(self.path, path)
            model = tfcc.load(path, device="cpu", in_memory=True)
            if cut:
                os.truncate(path, 4096)
            else:
                with path.open("r+b") as f:
                    f.write(bytes(path.stat().st_size))
            self.assert_right(model.run(inputs), want)

    def test_small_cache(self):
        model = tfcc.load(self.path, device="cpu", threads=2, cache_bytes=0)
        for inputs, want in self.requests(20):
            for name, w in want.items():
                np.testing.assert_array_equal(model.run(inputs)[name], w)

    def test_options_out_of_range(self):
        for threads in (-1, 4097, 100000):
            with self.assertRaisesRegex(tfcc.Error, f"LoadOptions::threads is {threads}, must be from 0 to 4096") as raised:
                tfcc.load(self.path, threads=threads)
            self.assertEqual(raised.exception.code, "invalid_argument")
        for options in ({"threads": 2**32 + 1}, {"threads": 10**309}, {"threads": 1.5}, {"threads": "2"}, {"cache_bytes": -1}, {"executors": 0}):
            with self.assertRaisesRegex(tfcc.Error, f"{next(iter(options))} is .*, must be an integer from"):
                tfcc.load(self.path, **options)

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

    def test_compile_of_bytes_and_its_report(self):
        data, stages = (FOLDER / "model.onnx").read_bytes(), []
        done = tfcc.compile(data, Path(self.temporary.name) / "bytes.tfcc", targets=["cpu"], max_shapes={"input_ids": (8, 16)},
                            progress=lambda stage, k, n: stages.append((stage, k <= n)))
        self.assertTrue(stages and all(ok for _, ok in stages))
        self.assertEqual(os.fspath(done), str(done.path))
        self.assertEqual(done.report["plans"][0]["family"], "cpu")
        self.assertGreater(done.fusions["fuse-attention"], 0)
        self.assertIn("fuse-attention", str(done))
        self.assertIn("<table>", done._repr_html_())
        inputs, want = case()
        self.assert_right(done.load(device="cpu").run(inputs), want)
        with self.assertRaisesRegex(tfcc.Error, "batch_size is 9, .*--maxShapes"):
            done.load(device="cpu").run({n: np.concatenate([a] * 9) for n, a in inputs.items()})
        loose = tfcc.compile(FOLDER / "model.onnx", Path(self.temporary.name) / "loose.tfcc", targets="x86-64-v2", passes=[])
        self.assertEqual((loose.fusions, loose.missed), ({}, []))
        kept = tfcc.compile(data, targets="x86-64-v2", strip=True, passes=(p for p in ["raise-gelu"]))  # an iterator is read once
        self.assertEqual((kept.path.suffix, list(kept.fusions)), (".tfcc", ["raise-gelu"]))
        os.unlink(kept)

    def test_wrong_compilations(self):
        for options, code, text in (
                ({"targets": "sm_75"}, "invalid_argument", "no target 'sm_75'"), ({"targets": 3}, "invalid_argument", "targets is"),
                ({"fp16": True, "bf16": True}, "invalid_argument", "exclude each other"), ({"bf16": True, "tf32": True}, "invalid_argument", "exclude each other"),
                ({"tf32": True, "tf32x3": True}, "invalid_argument", "exclude each other"), ({"tf32": 1}, "invalid_argument", "tf32 is 1"), ({"max_batch": 0}, "invalid_argument", "max_batch is 0"),
                ({"min_shapes": [1]}, "invalid_argument", "min_shapes is"), ({"passes": ["nothing"]}, "invalid_argument", "nothing"),
                ({"threads": -1}, "invalid_argument", "threads is -1"), ({"fp16": "no"}, "invalid_argument", "fp16 is 'no'"),
                ({"tokenizer": 3}, "invalid_argument", "tokenizer is 3"), ({"cache_dir": "a\0b"}, "invalid_argument", "holds a NUL"),
                ({"min_shapes": {"x": 1.5}}, "invalid_argument", "no integer"), ({"seq_buckets": b"16"}, "invalid_argument", "seq_buckets is"), ({"output": FOLDER / "model.onnx"}, "invalid_argument", "which is read")):
            with self.assertRaisesRegex(tfcc.Error, text) as caught:
                tfcc.compile(FOLDER / "model.onnx", **{"output": Path(self.temporary.name) / "wrong.tfcc", **options})
            self.assertEqual(caught.exception.code, code)
        before = set(Path(tempfile.gettempdir()).glob("model-*.tfcc"))
        with self.assertRaisesRegex(tfcc.Error, "model.onnx: ") as caught:
            tfcc.compile(b"no model")
        with self.assertRaises(tfcc.Error):
            tfcc.compile(b"no model", max_batch=0)
        self.assertEqual(set(Path(tempfile.gettempdir()).glob("model-*.tfcc")), before)
        with self.assertRaisesRegex(tfcc.Error, "the model is a path, bytes"):
            tfcc.compile(None)
        self.assertEqual(caught.exception.code, "bad_file")
        self.assertFalse((Path(self.temporary.name) / "wrong.tfcc").exists())

    def test_narrower_integers_where_they_are_allowed(self):
        inputs, want = case()
        wide = tfcc.load(self.path, device="cpu", widen=True)
        narrow = {n: a.astype(np.int32) if a.dtype == np.int64 else a for n, a in inputs.items()}
        self.assertTrue(any(a.dtype == np.int32 for a in narrow.values()))
        self.assert_right(wide.run(narrow), want)
        self.assert_right(wide.run(inputs), want)
        for wrong in (np.uint64, np.float32):  # values may be lost, or are no integers
            with self.assertRaisesRegex(tfcc.Error, "'input_ids'|must be i64"):
                wide.run({**inputs, "input_ids": inputs["input_ids"].astype(wrong)})

    def test_outputs_by_name(self):
        inputs, want = case()
        name = self.model.outputs[0].name
        self.assert_right(self.model.run(inputs, outputs=[name]), {name: want[name]})
        self.assertEqual(self.model.run(inputs, outputs=()), {})
        with self.assertRaisesRegex(tfcc.Error, "no output 'nobody'; its outputs are"):
            self.model.run(inputs, outputs=["nobody"])
        with self.assertRaisesRegex(tfcc.Error, "a dict of arrays by name, not ndarray"):
            self.model.run(inputs["input_ids"])

    def test_verify(self):
        found = tfcc.verify(FOLDER / "model.onnx", self.path)
        self.assertTrue(found)
        self.assertEqual({o["state"] for o in found.outputs}, {"ok"})
        self.assertIn("right on x86-64", str(found))
        self.assertIn("<table>", found._repr_html_())
        inputs, _ = case()
        given = tfcc.verify((FOLDER / "model.onnx").read_bytes(), target="cpu", inputs=inputs, tolerance=1e-9)
        self.assertFalse(given)
        self.assertEqual(given.cases, 1)
        self.assertIn("1 of 1 cases differ", given.problem)
        self.assertIn("first op that differs", given.explanation)
        self.assertIn("fail", str(given))
        for wrong in ({"target": "sm_1"}, {"shapes": {"nobody": 3}}, {"compiled": FOLDER / "model.onnx"}, {"fp16": 1}):
            with self.assertRaises(tfcc.Error) as caught:
                tfcc.verify(FOLDER / "model.onnx", **wrong)
            self.assertNotIn("\n", str(caught.exception))

    def test_inspect(self):
        file = tfcc.inspect(self.path, shapes={"batch_size": 4})
        self.assertEqual([t["name"] for t in file.inputs], [i.name for i in self.model.inputs])
        self.assertIn("attention", {k["op"] for k in file.plans[0]["kernels"]})
        self.assertIn("attention(", file.text("ir/cpu.tfir"))
        self.assertIn("plan cpu", file._repr_html_())
        folder = Path(self.temporary.name)
        self.assertTrue(file.page(folder / "page.html").read_text().startswith("<!doctype html>"))
        self.assertIn(b"attention", file.onnx(folder / "fused.onnx").read_bytes())
        with self.assertRaises(AttributeError):
            file.nobody
        for name in ("nowhere.tfcc", FOLDER / "model.onnx"):
            with self.assertRaisesRegex(tfcc.Error, Path(name).name):
                tfcc.inspect(name)

    def test_command_that_is_not_there(self):
        code = "import tfcc, sys\ntry: tfcc.inspect('x')\nexcept tfcc.Error as e: sys.exit(0 if 'TFCC_COMMAND' in str(e) else 3)\nsys.exit(4)"
        import subprocess
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(Path(tfcc.__file__).parent, Path(folder) / "tfcc")
            env = {k: v for k, v in os.environ.items() if k not in ("TFCC_COMMAND", "PATH")} | {"PYTHONPATH": folder, "PATH": folder}
            self.assertEqual(subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode, 0)

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
