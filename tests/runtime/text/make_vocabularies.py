#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small vocabularies in GGUF and in Mistral's tekken.json to tests/runtime/text/data, with ids and texts of the packages that they stand for.

    make_vocabularies.py                     writes data/ beside this file
    make_vocabularies.py --check TOKENIZE    compares TOKENIZE (a test program) on 10,000 more lines, and on the tekken.json of mistral-common

Needs the packages tokenizers, sentencepiece and mistral-common. Lines that spell a special token are left out where the reference
reads letters there.
"""
import base64
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from make_golden import HERE, all_tokenizers, case, lines, many_lines
import make_sentencepiece as pieces

try:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    import mistral_common.tokens.tokenizers as mistral
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    from sentencepiece import sentencepiece_model_pb2
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def gguf(path, entries):
    """Metadata alone: no tensors."""
    def text(s):
        data = s.encode()
        return struct.pack("<Q", len(data)) + data

    def value(v):
        if isinstance(v, bool):
            return struct.pack("<I?", 7, v)
        if isinstance(v, int):
            return struct.pack("<II", 4, v)
        if isinstance(v, str):
            return struct.pack("<I", 8) + text(v)
        if isinstance(v, bytes):
            return struct.pack("<IIQ", 9, 0, len(v)) + v
        kind, pack = ((8, text) if isinstance(v[0], str) else (6, lambda x: struct.pack("<f", x)) if isinstance(v[0], float)
                      else (5, lambda x: struct.pack("<i", x)))
        return struct.pack("<IIQ", 9, kind, len(v)) + b"".join(pack(x) for x in v)
    entries = {"general.architecture": "llama", "llama.block_count": 2} | {f"tokenizer.ggml.{k}": v for k, v in entries.items()}
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(entries)) + b"".join(text(k) + value(v) for k, v in entries.items()))


def of_bytes(path, tokenizer, pre):
    data = json.loads(tokenizer.to_str())
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    added = {t["id"]: CONTROL if t["special"] else USER for t in data["added_tokens"]}
    gguf(path, {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": [added.get(i, NORMAL) for i in range(len(tokens))],
                "merges": [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]], "add_bos_token": False,
                "bos_token_id": 1, "eos_token_id": 2})


def of_pieces(path, model, kind):
    m = sentencepiece_model_pb2.ModelProto.FromString(model)
    gguf(path, {"model": kind, "tokens": [p.piece for p in m.pieces], "scores": [p.score for p in m.pieces],
                "token_type": [p.type for p in m.pieces], "add_space_prefix": m.normalizer_spec.add_dummy_prefix,
                "remove_extra_whitespaces": m.normalizer_spec.remove_extra_whitespaces, "eos_token_id": m.trainer_spec.eos_id,
                "precompiled_charsmap": m.normalizer_spec.precompiled_charsmap}
         | ({"bos_token_id": m.trainer_spec.bos_id} if m.trainer_spec.bos_id >= 0 else {}))


def tekken(path):
    """In the order of its ranks: bytes by value, then what was merged. Two tokens more than the model has."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(TEKKEN), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])
    t.train_from_iterator(pieces.LANGUAGES + pieces.CODE, trainers.BpeTrainer(
        vocab_size=500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    alphabet = {c: b for b, c in enumerate(byte_characters())}
    tokens = sorted((bytes(alphabet[c] for c in t.id_to_token(i)) for i in range(500)), key=lambda x: x[0] if len(x) == 1 else 256)
    data = {"config": {"pattern": TEKKEN, "num_vocab_tokens": 500, "default_vocab_size": 518, "default_num_special_tokens": 20, "version": "v3"},
            "vocab": [{"rank": i, "token_bytes": base64.b64encode(x).decode(), "token_str": None} for i, x in enumerate(tokens)]}
    path.write_text(json.dumps(data, separators=(",", ":")) + "\n")


def byte_characters():
    """GPT-2's: a byte that cannot be seen has one of the characters from 256 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b if b in seen else next(others)) for b in range(256)]


def of_tekken(path, texts):
    t = Tekkenizer.from_file(path)
    special = {x["token_str"] for x in t._all_special_tokens}
    for text in texts:
        if not any(x in text for x in special):
            ids = t.encode(text, bos=True, eos=False)
            yield {"text": text, "ids": ids, "decoded": t._model.decode([i - t.num_special_tokens for i in ids[1:]])}


def write(folder, texts):
    """The files, and beside each a JSON with its cases."""
    out = []

    def cases(name, file, all_cases):
        path = folder / f"{name}.json"
        path.write_text(json.dumps({"file": file, "cases": list(all_cases)}, ensure_ascii=True, separators=(",", ":")) + "\n")
        out.append(path)
    tokenizers = dict(all_tokenizers())
    for name, source, pre in (("gguf-bytes", "bpe-bytes", "smollm"), ("gguf-llama3", "bpe-llama3", "llama-bpe")):
        of_bytes(folder / f"{name}.gguf", tokenizers[source], pre)
        cases(name, f"{name}.gguf", (case(tokenizers[source], x) for x in texts))
    for name, kind in (("bpe", "llama"), ("unigram", "t5"), ("small", "llama")):
        model = pieces.train(pieces.KINDS[name])
        of_pieces(folder / f"gguf-{name}.gguf", model, kind)
        cases(f"gguf-{name}", f"gguf-{name}.gguf", pieces.cases(model, texts))
    (folder / "tekken").mkdir(exist_ok=True)
    tekken(folder / "tekken" / "tekken.json")
    cases("tekken", "tekken/tekken.json", of_tekken(folder / "tekken" / "tekken.json", texts))
    return out


def main():
    if sys.argv[1:2] != ["--check"]:
        print(*write(HERE / "data", lines(60, 0)), sep="\n")
        return
    with tempfile.TemporaryDirectory() as scratch:
        texts = many_lines()
        files = write(Path(scratch), texts)
        for path in sorted((Path(mistral.__path__[0]).parent.parent / "data").glob("tekken*.json")):
            golden = Path(scratch) / f"{path.stem}-cases.json"
            golden.write_text(json.dumps({"file": str(path), "cases": list(of_tekken(path, texts))}))
            files.append(golden)
        print(len(files), "vocabularies")
        sys.exit(subprocess.run([sys.argv[2], *files]).returncode)


if __name__ == "__main__":
    main()
