# SPDX-License-Identifier: Apache-2.0
"""From torch, from folders of the hub, sentences to vectors. Run by ctest with PYTHONPATH=tools/python.

    python3 test_export.py

What needs torch, transformers or tokenizers is skipped without them.
"""
import importlib.util
import json
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np

import tfcc
from tfcc import _export, _sentences


def have(*packages):
    return all(importlib.util.find_spec(p) for p in packages)


def needs(*packages):
    return unittest.skipUnless(have(*packages), f"needs {', '.join(packages)}")


class Folder(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = Path(self.temporary.name)
        cache = mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache"))
        cache.start()
        self.addCleanup(cache.stop)

    def write(self, name, value):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))

    def refused(self, text, code, f, *arguments, **named):
        with self.assertRaisesRegex(tfcc.Error, text) as caught:
            f(*arguments, **named)
        self.assertEqual(caught.exception.code, code)
        self.assertNotIn("\n", str(caught.exception))


class TestWithoutTorch(Folder):
    def sentence_folder(self, kinds=("Transformer", "Pooling", "Normalize"), **pooling):
        self.write("modules.json", [{"path": f"{k}_{kind}", "type": f"sentence_transformers.models.{kind}"} for k, kind in enumerate(kinds)])
        self.write("1_Pooling/config.json", pooling)

    def test_pooling_is_what_the_folder_says(self):
        self.assertEqual(_export.pooling_of(self.folder), (None, False))
        for key, mode in (("pooling_mode_mean_tokens", "mean"), ("pooling_mode_cls_token", "cls"), ("pooling_mode_max_tokens", "max"),
                          ("pooling_mode_lasttoken", "last")):
            self.sentence_folder(**{key: True})
            self.assertEqual(_export.pooling_of(self.folder), (mode, True))
        self.sentence_folder(kinds=("Transformer", "Pooling"), pooling_mode="lasttoken")
        self.assertEqual(_export.pooling_of(self.folder), ("last", False))
        for wrong in ({}, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
                      {"pooling_mode_mean_tokens": True, "pooling_mode_mean_sqrt_len_tokens": True}):
            self.sentence_folder(**wrong)
            self.refused("the pooling is none of mean, cls, max, last", "unsupported", _export.pooling_of, self.folder)
        self.sentence_folder(kinds=("Transformer", "Pooling", "Dense"), pooling_mode_cls_token=True)
        self.refused("modules Transformer, Pooling, Dense", "unsupported", _export.pooling_of, self.folder)
        self.write("modules.json", "{")
        self.refused("modules.json: is no JSON", "bad_file", _export.pooling_of, self.folder)

    def test_pools_over_real_tokens(self):
        hidden = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
        mask = np.array([[1, 1, 0], [1, 0, 0]])
        hidden[0, 2] = np.nan  # what lies in padding does not count
        for mode, want in (("mean", [[1, 2], [6, 7]]), ("cls", [[0, 1], [6, 7]]), ("max", [[2, 3], [6, 7]]), ("last", [[2, 3], [6, 7]])):
            np.testing.assert_array_equal(_sentences._pool(hidden, mask, mode), want, mode)

    def test_folders_that_are_none(self):
        self.refused("there is no config.json", "io", tfcc.from_pretrained, self.folder)
        self.refused("there is no such folder; download", "io", tfcc.SentenceEncoder, self.folder / "no-model")
        self.write("config.json", {})
        self.refused("no tokenizer.json|needs the package tokenizers", "io", tfcc.SentenceEncoder, self.folder)
        self.refused("from_pretrained.. has no option 'target' .did you mean targets", "invalid_argument", tfcc.from_pretrained, self.folder, target="cpu")
        self.refused("from_torch.. has no option 'pass'", "invalid_argument", tfcc.from_torch, None, (), **{"pass": 1})

    def test_a_ready_graph_is_taken_as_it_is_and_kept(self):
        model = Path(__file__).resolve().parents[2] / "models/bert-eager/model.onnx"
        self.write("config.json", {})
        (self.folder / "onnx").mkdir()
        (self.folder / "onnx/model.onnx").write_bytes(model.read_bytes())
        ids = np.ones((1, 4), np.int64)
        results = []
        for options in ({}, {}, {"skip_passes": "fuse-qkv"}):  # the second reads what the first wrote
            loaded = tfcc.from_pretrained(self.folder, targets="x86-64-v2", device="cpu", **options)
            results.append(loaded.run({i.name: ids for i in loaded.inputs})["last_hidden_state"])
        kept = sorted((self.folder / "cache/tfcc/models").glob("*.tfcc"))
        self.assertEqual(len(kept), 2)
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_allclose(results[0], results[2], rtol=1e-4, atol=1e-5)
        (self.folder / "onnx/model.onnx").write_bytes(model.read_bytes() + b"\0")  # another file now, and no model
        with self.assertRaises(tfcc.Error):
            tfcc.from_pretrained(self.folder, targets="x86-64-v2")

    def test_dynamic_sizes_are_of_inputs(self):
        example = mock.Mock(dim=lambda: 2)
        self.assertEqual(_export._dynamic_shapes({"x": example}, True), {"x": {0: "batch_size", 1: "sequence_length"}})
        self.assertEqual(_export._dynamic_shapes({"x": example}, None), {"x": {}})
        self.refused("dynamic names 'y', which is no input; the inputs are x", "invalid_argument", _export._dynamic_shapes, {"x": example}, {"y": {0: "n"}})


@needs("torch", "onnxscript")
class TestTorch(Folder):
    def test_a_module(self):
        import torch

        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.down, self.norm = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16), torch.nn.LayerNorm(16)

            def forward(self, x):
                return self.norm(x + self.down(torch.nn.functional.gelu(self.up(x))))

        block = Block().train()
        block.norm.eval()
        model = tfcc.from_torch(block, torch.randn(2, 5, 16), targets="cpu", device="cpu")
        self.assertEqual([m.training for m in (block, block.up, block.norm)], [True, True, False])  # as they were
        self.assertEqual([d.text for d in model.inputs[0].dims], ["batch_size", "sequence_length", "16"])
        x = torch.randn(3, 9, 16)
        got = next(iter(model.run({model.inputs[0].name: x}).values()))
        np.testing.assert_allclose(got.numpy(), block.eval()(x).detach().numpy(), rtol=1e-4, atol=1e-5)
        fixed = tfcc.from_torch(block, (torch.randn(2, 5, 16),), self.folder / "m.tfcc", dynamic=False, targets="cpu", output_names=["y"])
        self.assertEqual([o.name for o in fixed.outputs], ["y"])
        self.assertEqual([d.text for d in fixed.inputs[0].dims], ["2", "5", "16"])
        self.assertTrue((self.folder / "m.tfcc").is_file())
        self.refused("2 example inputs for 1 parameters", "invalid_argument", tfcc.from_torch, block, (x, x))

        class Bad(torch.nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x

        self.refused("torch.onnx.export failed: ", "unsupported", tfcc.from_torch, Bad(), torch.randn(2, 3))


@needs("torch", "onnxscript", "transformers")
class TestPretrained(Folder):
    def small(self, **more):
        import transformers
        return transformers.BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                                       max_position_embeddings=64, **more)

    def inputs(self, batch=3, length=11):
        import torch
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[1, 6:] = 0
        return {"input_ids": torch.randint(0, 99, (batch, length)), "attention_mask": mask, "token_type_ids": torch.zeros_like(mask)}

    def compare(self, loaded, model, name, index):
        import torch
        inputs = self.inputs()
        with torch.no_grad():
            want = model.eval()(**inputs)[index]
        got = loaded.run(inputs)[name]
        if got.dim() == 3:  # padding is 0 here
            want = want * inputs["attention_mask"][:, :, None]
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-3, atol=1e-4)

    def test_encoder_and_classifier(self):
        import transformers
        model = transformers.BertModel(self.small())
        model.save_pretrained(self.folder / "encoder")
        self.compare(tfcc.from_pretrained(self.folder / "encoder", targets="cpu", device="cpu"), model, "last_hidden_state", 0)
        model = transformers.BertForMaskedLM(self.small())
        model.save_pretrained(self.folder / "masked")
        self.compare(tfcc.from_pretrained(self.folder / "masked", targets="cpu", device="cpu"), transformers.BertModel.from_pretrained(self.folder / "masked"),
                     "last_hidden_state", 0)
        model = transformers.BertForQuestionAnswering(self.small())
        model.save_pretrained(self.folder / "answers")
        loaded = tfcc.from_pretrained(self.folder / "answers", targets="cpu", device="cpu")
        self.assertEqual([o.name for o in loaded.outputs], ["start_logits", "end_logits"])
        model = transformers.BertForSequenceClassification(self.small(num_labels=3))
        model.save_pretrained(self.folder / "classifier")
        self.compare(tfcc.from_pretrained(self.folder / "classifier", targets="cpu", device="cpu"), model, "logits", 0)

    def test_a_decoder_says_what_to_do(self):
        self.write("config.json", {"architectures": ["LlamaForCausalLM"]})
        self.refused("LlamaForCausalLM generates text; .*optimum-cli", "unsupported", tfcc.from_pretrained, self.folder)

    @needs("tokenizers", "sentence_transformers")
    def test_sentences_as_sentence_transformers(self):
        import sentence_transformers
        import tokenizers
        import transformers
        words = "[PAD] [UNK] [CLS] [SEP] a man is eating food the sky blue deep learning".split()
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        fast = transformers.BertTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
        sentences = ["a man is eating food", "the sky", "", " deep learning " * 40] * 3
        for mode in ("mean", "cls", "max"):
            folder = self.folder / mode
            fast.save_pretrained(folder)
            transformers.BertModel(self.small()).save_pretrained(folder)
            self.write(f"{mode}/modules.json", [{"idx": k, "name": str(k), "path": path, "type": f"sentence_transformers.models.{kind}"}
                                                for k, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling")))])
            self.write(f"{mode}/1_Pooling/config.json", {"word_embedding_dimension": 32, **{f"pooling_mode_{m}": m.startswith(mode) for m in
                                                         ("mean_tokens", "cls_token", "max_tokens")}})
            self.write(f"{mode}/sentence_bert_config.json", {"max_seq_length": 24})
            theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
            ours = tfcc.SentenceEncoder(folder, targets="cpu", device="cpu")
            self.assertEqual((ours.pooling, ours.embedding_dimension), (mode, 32))
            got, want = ours.encode(sentences, batch_size=5), theirs.encode(sentences, batch_size=5)
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(ours.encode(sentences[0]), want[0], rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(np.linalg.norm(ours.encode(sentences, normalize_embeddings=True), axis=1), 1, rtol=1e-5)
        self.assertEqual(ours.similarity(got[:2], got).shape, (2, 12))
        self.refused("batch_size is 0", "invalid_argument", ours.encode, sentences, batch_size=0)


if __name__ == "__main__":
    unittest.main()
