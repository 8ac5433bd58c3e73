# SPDX-License-Identifier: Apache-2.0
"""tfcc.Generator on a real decoder. Run by ctest with PYTHONPATH=tools/python.

    python3 test_generator.py MODEL_FOLDER      a decoder of tests/models, with generate.json
"""
import json
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import tfcc

FOLDER = Path(sys.argv.pop())


class TestGenerator(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        path = tfcc.compile(FOLDER / "model.onnx", Path(cls.temporary.name) / "m.tfcc", targets="cpu")
        cls.model = tfcc.load(path, device="cpu", threads=1)
        golden = json.loads((FOLDER / "generate.json").read_text())
        cls.prompt, cls.tokens = golden["prompt"], tuple(golden["tokens"])

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def setUp(self):
        self.generator = self.model.generator()

    def test_gives_what_float64_gives(self):
        out = self.generator.generate(self.prompt, max_tokens=24)
        self.assertEqual((out.tokens, out.end), (self.tokens, "length"))
        self.assertLessEqual(out.first_token_ms, out.total_ms)
        self.assertEqual(tuple(self.generator.stream(self.prompt, max_tokens=24)), self.tokens)
        stop = self.tokens[9]
        out = self.generator.generate(self.prompt, max_tokens=24, stop_ids=[stop])
        self.assertEqual((out.tokens, out.end), (self.tokens[:self.tokens.index(stop)], "stop"))

    def test_many_at_a_time(self):
        ids = [self.generator.submit(self.prompt, max_tokens=n) for n in range(1, 25)]
        self.assertEqual([self.generator.wait(i).tokens for i in reversed(ids)], [self.tokens[:n] for n in range(24, 0, -1)])
        answers = [None] * 8

        def ask(k):
            answers[k] = tuple(self.generator.stream(self.prompt, max_tokens=24))
        threads = [threading.Thread(target=ask, args=(k,)) for k in range(len(answers))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(answers, [self.tokens] * len(answers))
        stats = self.generator.stats()
        self.assertEqual((stats["waiting"], stats["running"]), (0, 0))
        self.assertGreater(stats["pages"], 0)
        self.assertGreater(stats["steps"], stats["steps_ahead"])

    def test_log_probabilities_where_they_are_asked_for(self):
        self.assertEqual(self.generator.generate(self.prompt, max_tokens=3).log_probabilities, ())
        logs = self.generator.generate(self.prompt, max_tokens=3, log_probabilities=True).log_probabilities
        self.assertEqual(len(logs), 3)
        self.assertTrue(all(x < 0 for x in logs))

    def test_inputs_of_other_names_have_roles(self):
        data = (FOLDER / "model.onnx").read_bytes()
        for name, other in ((b"input_ids", b"in_put_xx"), (b"attention_mask", b"attention_xxxx"), (b"position_ids", b"where_it_was")):
            data = data.replace(name, other)
        path = Path(self.temporary.name) / "odd.tfcc"
        roles = {"in_put_xx": "ids", "attention_xxxx": "mask", "where_it_was": "positions"}
        by_use = tfcc.load(tfcc.compile(data, path, targets="cpu"), device="cpu")
        self.assertEqual(by_use.generator().generate(self.prompt, max_tokens=24).tokens, self.tokens)
        with self.assertRaisesRegex(tfcc.Error, "--role NAME=ids"):
            by_use.generator(literal=True)
        generator = tfcc.load(tfcc.compile(data, path, targets="cpu", roles=roles), device="cpu").generator()
        self.assertEqual(generator.generate(self.prompt, max_tokens=24).tokens, self.tokens)
        self.assertGreater(generator.stats()["pages"], 0)
        for wrong, why in (({"x": "ids"}, "'x' is no input or output"), ({"in_put_xx": "id"}, "'id' of 'in_put_xx' is neither"),
                           ({"in_put_xx": "ids", "where_it_was": "ids"}, "two have the role ids")):
            with self.assertRaisesRegex(tfcc.Error, why):
                tfcc.compile(data, path, targets="cpu", roles=wrong)

    def test_runs_ahead_where_it_is_told_to(self):
        ahead = self.model.generator(run_ahead=True)
        self.assertEqual(ahead.generate(self.prompt, max_tokens=9).tokens, self.generator.generate(self.prompt, max_tokens=9).tokens)
        self.assertEqual((ahead.stats()["steps"], ahead.stats()["steps_ahead"]), (9, 8))

    def test_draws_the_same_for_a_seed(self):
        def drawn(seed):
            return self.generator.generate(self.prompt, max_tokens=24, temperature=2.0, top_k=50, seed=seed).tokens
        self.assertEqual(drawn(1), drawn(1))
        self.assertNotEqual(drawn(1), drawn(2))

    def test_a_stream_that_is_left_is_cancelled(self):
        for token in self.generator.stream(self.prompt, max_tokens=10**6):
            self.assertEqual(token, self.tokens[0])
            break
        self.assertEqual(self.generator.stats()["running"], 0)

    def test_what_a_callback_raises_is_raised_by_wait(self):
        seen = []

        def third(token):
            seen.append(token)
            if len(seen) == 3:
                raise KeyError("enough")
        number = self.generator.submit(self.prompt, max_tokens=1000, on_token=third)
        with self.assertRaisesRegex(KeyError, "enough"):
            self.generator.wait(number)
        self.assertEqual(tuple(seen), self.tokens[:3])

    def test_cancel_and_poll(self):
        number = self.generator.submit(self.prompt, max_tokens=10**6)
        self.assertIn(self.generator.poll(number).end, ("running", "context"))
        self.generator.cancel(number)
        self.assertIn(self.generator.wait(number).end, ("cancelled", "context"))
        with self.assertRaisesRegex(tfcc.Error, "there is no sequence"):
            self.generator.wait(number)

    def test_errors(self):
        for prompt, options, what in [([], {}, "empty"), ([10**9], {}, "vocabulary"), ([1], {"max_tokens": -1}, "max_tokens"), ([1], {"top_p": 2.0}, "top_p"),
                                      ([1.5], {}, "an id of the prompt"), ([1], {"seed": -1}, "seed")]:
            with self.assertRaisesRegex(tfcc.Error, what):
                self.generator.submit(prompt, **options)
        with self.assertRaisesRegex(tfcc.Error, "cache of 1 bytes"):
            self.model.generator(cache_bytes=1)
        with self.assertRaisesRegex(tfcc.Error, "max_sequences"):
            self.model.generator(max_sequences=0)

    def test_goes_away_with_work_under_way(self):
        other = self.model.generator()
        other.submit(self.prompt, max_tokens=10**6, on_token=lambda token: None)
        del other


if __name__ == "__main__":
    unittest.main()
