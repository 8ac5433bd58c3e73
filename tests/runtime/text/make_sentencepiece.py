#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains small SentencePiece models and writes tests/runtime/text/data/sentencepiece-NAME.model with the ids and texts of the sentencepiece package.

    make_sentencepiece.py                     writes data/ beside this file; needs the packages sentencepiece and tokenizers
    make_sentencepiece.py --check TOKENIZE    compares TOKENIZE (a test program) on 10,000 more lines, and with the rules of T5 (nmt_nfkc)

Lines that spell a control piece are left out: here it is a special token, for sentencepiece it is letters. So are those with U+2581,
which both read as a space: of several that begin a text, decoding leaves out one here and all there.
"""
import io
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from make_golden import CODE, HERE, LANGUAGES, lines, many_lines

import sentencepiece

CONTROL = ("<s>", "</s>", "<unk>", "<pad>")
COMMON = dict(hard_vocab_limit=False, character_coverage=1.0, minloglevel=2, num_threads=1)
KINDS = {
    # As LLaMA's: spaces are kept, what is not known is bytes.
    "bpe": dict(model_type="bpe", vocab_size=800, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False),
    # As Gemma's: no space before a text, and pieces of the user's.
    "bpe-symbols": dict(model_type="bpe", vocab_size=800, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                        add_dummy_prefix=False, user_defined_symbols=["<turn>", "hello", "\n\n"]),
    # As T5's, but for the table of characters: spaces are cleaned, an end and no beginning.
    "unigram": dict(model_type="unigram", vocab_size=700, normalization_rule_name="identity", bos_id=-1, pad_id=0, eos_id=1, unk_id=2),
    "unigram-symbols": dict(model_type="unigram", vocab_size=700, normalization_rule_name="identity", user_defined_symbols=["TOK", "hello"]),
    # Of fewer pieces than the decoders of tests/models have.
    "small": dict(model_type="bpe", vocab_size=150, normalization_rule_name="identity", remove_extra_whitespaces=False),
}
LARGE = {
    "t5": dict(model_type="unigram", vocab_size=700, normalization_rule_name="nmt_nfkc", bos_id=-1, pad_id=0, eos_id=1, unk_id=2),
    "mistral": dict(model_type="bpe", vocab_size=800, byte_fallback=True, normalization_rule_name="nfkc", remove_extra_whitespaces=False),
}


def train(options):
    out = io.BytesIO()
    ascii_alone = options["vocab_size"] < 200
    text = [line for _ in range(3) for line in LANGUAGES + CODE + ["hello world, hello again <turn> TOK"] if "\u2581" not in line and (line.isascii() or not ascii_alone)]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text), model_writer=out, **(COMMON | options))
    return out.getvalue()


def cases(model, texts):
    sp = sentencepiece.SentencePieceProcessor(model_proto=model)
    begin, end, unknown = sp.bos_id(), sp.eos_id(), sp.unk_id()
    out = []
    for text in texts:
        if any(c in text for c in CONTROL) or "\0" in text or "<0x" in text or "\u2581" in text:
            continue
        ids = sp.encode(text)
        case = {"text": text, "ids": [begin] + ids if begin >= 0 else ids + [end]}
        if unknown not in ids:  # sentencepiece writes a mark for it
            case["decoded"] = sp.decode(ids)
        out.append(case)
    return out


def long_words():
    """Ways to cut them cost nearly the same: what is rounded where decides."""
    random.seed(5)
    spoken = "".join((HERE / "languages.txt").read_text().split())
    return ["".join(random.choice(of) for _ in range(70000)) for of in (spoken, "abcdefghijklmnopqrstuvwxyz", "helo wrd", spoken) for _ in range(3)]


def write(folder, name, options, texts):
    model = train(options)
    (folder / f"sentencepiece-{name}.model").write_bytes(model)
    path = folder / f"sentencepiece-{name}.json"
    path.write_text(json.dumps({"file": f"sentencepiece-{name}.model", "cases": cases(model, texts)}, ensure_ascii=True, indent=0) + "\n")
    return path


def main():
    if sys.argv[1:2] != ["--check"]:
        for name, options in KINDS.items():
            print(write(HERE / "data", name, options, lines(120, 0)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        texts = many_lines() + long_words()
        files = [write(Path(scratch), name, options, texts) for name, options in (KINDS | LARGE).items()]
        sys.exit(subprocess.run([sys.argv[2], *files]).returncode)


if __name__ == "__main__":
    main()
