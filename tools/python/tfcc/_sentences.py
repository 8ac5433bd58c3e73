# SPDX-License-Identifier: Apache-2.0
"""Sentences to vectors, with the interface of sentence-transformers' encode()."""
import sys
from pathlib import Path

import numpy as np

from tfcc._export import _need, from_pretrained, need_folder, pooling_of, read_json
from tfcc._library import Error


class SentenceEncoder:
    """A sentence-transformers folder, compiled: `encode()` gives what SentenceTransformer(folder).encode() gives.

        encoder = tfcc.SentenceEncoder("all-MiniLM-L6-v2")
        vectors = encode(["A sentence.", "Another one."])          # numpy, [2, 384]

    folder          as from_pretrained(): config.json, tokenizer.json, modules.json, and weights or onnx/model.onnx
    max_seq_length  tokens after which a sentence is cut; default: what the folder says, else what the model takes
    options         of from_pretrained(): targets, fp16, device, threads, ...

    Needs the package tokenizers. Any number of threads may call encode().
    """

    def __init__(self, folder, *, max_seq_length=None, **options):
        folder = Path(folder)
        need_folder(folder)
        tokenizers = _need("tokenizers", "SentenceEncoder")
        if not (folder / "tokenizer.json").is_file():
            raise Error("io", f"{folder}: there is no tokenizer.json; save the tokenizer as a fast one (AutoTokenizer...save_pretrained)")
        self.pooling, self.normalize = pooling_of(folder)
        if self.pooling is None:
            raise Error("unsupported", f"{folder}: there is no modules.json, so nothing says how tokens become a sentence; tfcc.from_pretrained() gives the tokens")
        self.model = from_pretrained(folder, **options)
        self._inputs = {i.name: i for i in self.model.inputs}
        self._output = self.model.outputs[0].name
        self._pooled = len(self.model.outputs[0].dims) == 2  # else the graph ends in tokens
        config = read_json(folder / "config.json", {})
        told = read_json(folder / "tokenizer_config.json", {}).get("model_max_length") or 0  # 1e30 where it is not known
        said = read_json(folder / "sentence_bert_config.json", {}).get("max_seq_length") or (told if told < 2**31 else None) \
            or config.get("max_position_embeddings")
        most = self._inputs["input_ids"].dims[1].max
        self.max_seq_length = int(min(n for n in (max_seq_length or said or 512, most) if n))
        prompts = read_json(folder / "config_sentence_transformers.json", {})
        self.prompt = (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name")) or ""
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.max_seq_length)
        self._pad = config.get("pad_token_id") or 0
        self._lower = bool(read_json(folder / "sentence_bert_config.json", {}).get("do_lower_case"))

    @property
    def embedding_dimension(self):
        """Length of a vector."""
        return self.model.outputs[0].dims[-1].max

    def encode(self, sentences, batch_size=32, show_progress_bar=None, normalize_embeddings=False, convert_to_tensor=False, prompt=None):
        """Vectors of sentences, [sentences, dimension] in f32; of one text, [dimension].

        Batches hold sentences of like length, the longest first. show_progress_bar: None shows a bar on a terminal where there are
        more than 20 batches. normalize_embeddings: to length 1, if the folder does not say so anyway. prompt: text before each sentence;
        default: what the folder says.
        """
        if isinstance(sentences, str):
            return self.encode([sentences], batch_size, False, normalize_embeddings, convert_to_tensor, prompt)[0]
        if not isinstance(batch_size, int) or batch_size < 1:
            raise Error("invalid_argument", f"batch_size is {batch_size!r}, must be an integer from 1")
        sentences = list(sentences)
        for s in sentences:
            if not isinstance(s, str):
                raise Error("invalid_argument", f"a sentence is {s!r}, must be a text")
        texts = [((self.prompt if prompt is None else prompt) + s).strip() for s in sentences]
        if self._lower:
            texts = [s.lower() for s in texts]
        encoded = self._tokenizer.encode_batch(texts)
        order = sorted(range(len(texts)), key=lambda i: -len(encoded[i].ids))
        out = np.empty((len(texts), self.embedding_dimension), np.float32)
        starts = range(0, len(texts), batch_size)
        bar = _Bar(len(starts)) if show_progress_bar or (show_progress_bar is None and len(starts) > 20 and sys.stderr.isatty()) else None
        for start in starts:
            places = order[start:start + batch_size]
            out[places] = self._vectors([encoded[i] for i in places])
            if bar:
                bar.step()
        if normalize_embeddings:
            out /= np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-12)
        if convert_to_tensor:
            return _need("torch", "convert_to_tensor").from_numpy(out)
        return out

    def _vectors(self, batch):
        length = max(1, max(len(e.ids) for e in batch))
        columns = {"input_ids": ("ids", self._pad), "attention_mask": ("attention_mask", 0), "token_type_ids": ("type_ids", 0)}
        inputs = {}
        for name, info in self._inputs.items():
            if name not in columns:
                raise Error("unsupported", f"the model has an input '{name}', which a tokenizer does not give")
            field, filler = columns[name]
            inputs[name] = np.full((len(batch), length), filler, np.int64 if info.dtype == "i64" else np.int32)
            for row, e in zip(inputs[name], batch):
                values = getattr(e, field)
                row[:len(values)] = values
        result = self.model.run(inputs)[self._output].astype(np.float32, copy=False)
        if self._pooled:
            return result
        vectors = _pool(result, inputs["attention_mask"], self.pooling)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12) if self.normalize else vectors

    def similarity(self, a, b):
        """Cosines of each vector of `a` with each of `b`."""
        a, b = (np.atleast_2d(np.asarray(x, np.float32)) for x in (a, b))
        return (a / np.linalg.norm(a, axis=1, keepdims=True)) @ (b / np.linalg.norm(b, axis=1, keepdims=True)).T

    def __repr__(self):
        return f"<tfcc.SentenceEncoder on {self.model.device}: {self.pooling} pooling, {self.embedding_dimension} numbers, at most {self.max_seq_length} tokens>"


def _pool(hidden, mask, mode):
    """[batch, length, features] to [batch, features] by the tokens that are real."""
    m = mask[:, :, None].astype(np.float32)
    if mode == "mean":
        return np.where(m > 0, hidden, 0).sum(1) / np.maximum(m.sum(1), 1e-9)
    if mode == "cls":
        return hidden[:, 0]
    if mode == "max":
        return np.where(m > 0, hidden, np.finfo(np.float32).min).max(1)
    return hidden[np.arange(len(hidden)), np.maximum(mask.sum(1) - 1, 0)]


class _Bar:
    """Batches done, on standard error: tqdm's bar where there is one."""

    def __init__(self, total):
        try:
            from tqdm import tqdm
            self._bar = tqdm(total=total, desc="Batches")
        except ImportError:
            self._bar = None
        self._total, self._done = total, 0

    def step(self):
        self._done += 1
        if self._bar is not None:
            self._bar.update(1)
            if self._done == self._total:
                self._bar.close()
        else:
            sys.stderr.write(f"\rBatches: {self._done} of {self._total}" + ("\n" if self._done == self._total else ""))
            sys.stderr.flush()
