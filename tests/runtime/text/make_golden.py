#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/runtime/text/data/NAME.json: small tokenizers of every kind with the ids that Hugging Face's library gives.

    make_golden.py            writes data/ beside this file; needs the packages tokenizers and sentencepiece
    make_golden.py --check TOKENIZE [FILE..]   compares TOKENIZE (a test program) on 10,000 more lines, also by these tokenizer.json; exit 77
                          without the packages

The lines are made here: languages (147 in languages.txt), emoji, combining marks, random code points that all of Unicode's versions since 8
have, code, spaces, special tokens inside of text, 100 kB without a space, bytes that are no UTF-8. What the libraries differ in is said in docs/tokenizers.md.
"""
import io
import json
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

try:
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

HERE = Path(__file__).resolve().parent
LANGUAGES = [
    "The quick brown fox jumps over the lazy dog; it's what we've always said, and they'll say it again.",
    "Größere Flüsse überqueren, daß die Straße schließt.", "L'été dernier, où étaient-ils à Noël ?",
    "El niño pequeño comió piñas mañana.", "Съешь же ещё этих мягких французских булок.", "Η γρήγορη αλεπού πηδά ΠΆΝΩ από τον σκύλο ΣΑΣ.",
    "İstanbul'da ışık ılık, IĞDIR.", "مرحبا بالعالم، كيف حالك؟", "שלום עולם, מה שלומך?", "नमस्ते दुनिया, क्षत्रिय ज्ञान", "สวัสดีชาวโลก",
    "你好,世界。今天天气很好!", "こんにちは、世界。カタカナとひらがな", "안녕하세요 세계 한국어", "Xin chào thế giới, tiếng Việt",
    "ሰላም ዓለም", "გამარჯობა მსოფლიო", "Բարեւ աշխարհ", "ಕನ್ನಡ ಗಣರಾಜ್ಯ", "ﬁrst ligature ½ ① Ⅷ ﷺ ﾊﾟ ㍿",
]
CODE = [
    "for (int i = 0; i < n; ++i) sum += a[i] * b[i];  // dot", "def f(x):\n    return x ** 2 + 1\n", "\tif a != b:\r\n\t\tpass",
    "https://example.com/a?b=c&d=%20e#f", "0x1F 3.14159 1e-5 1,234,567 2026-11-23T13:16:14Z", "<0x0A> <0xE2> \u2581x a\u2581b",
]
SPECIAL = ["<s>", "</s>", "<unk>", "[MASK]", "[CLS]", "<|im_start|>", "TOK", "hello"]
TOO_LARGE = {"unigram-t5"}  # SentencePiece's table of characters alone is 300 kB: made for --check only
PIECES = list("aZ09.,'\"!?-_ \t\n") + ["  ", "don't", "We'LL", "é", "e\u0301", "ä\u0323", "👍🏽", "👩‍👩‍👧", "🇩🇪", "❤️", "ß", "İ", "Σ", "한", "中", "\u00a0", "\u3000", "\u200b"]


def lines(count, seed):
    random.seed(seed)
    fixed = LANGUAGES + CODE + ["", " ", "   ", "\n\n", "a" * 150, "ab " * 40]
    out = [] if seed else list(fixed)
    old = [c for c in range(32, 0x2fa20) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")
           and unicodedata.ucd_3_2_0.category(chr(c)) == unicodedata.category(chr(c))]
    while len(out) < count:
        kind = random.randrange(4)
        if kind == 0:
            out.append("".join(random.choice(PIECES) for _ in range(random.randint(1, 25))))
        elif kind == 1:
            out.append("".join(random.choice(SPECIAL + PIECES + ["hello", " world", "hellos"]) for _ in range(random.randint(1, 8))))
        elif kind == 2:
            out.append("".join(chr(random.choice(old)) for _ in range(random.randint(1, 20))))
        else:
            words = " ".join(fixed).split(" ")
            out.append(" ".join(random.choice(words) for _ in range(random.randint(1, 12))))
    return out


def many_lines():
    """10,000, of which one has 100 kB without a space."""
    spoken = (HERE / "languages.txt").read_text().splitlines()
    out = lines(8000, 1) + spoken + ["".join(random.choice("abcdefghijklmnopqrstuvwxyzäß中한9-") for _ in range(70000))]
    words = " ".join(spoken).split(" ")
    while len(out) < 9500:
        out.append(" ".join(random.choice(words) for _ in range(random.randint(1, 12))))
    return out


def broken_lines(count):
    """Bytes with places that are no UTF-8: each longest beginning of a character is one U+FFFD."""
    random.seed(2)
    good = [x.encode() for x in lines(count, 2)]
    out = []
    for line in good:
        data = bytearray(line)
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(data) + 1)
            data[at:at + random.randint(0, 1)] = bytes(random.choice((0x80, 0xbf, 0xc0, 0xc3, 0xe2, 0xed, 0xf0, 0xf4, 0xff, 0x41)) for _ in range(random.randint(0, 2)))
        out.append(bytes(data))
    return out


def trained(model, trainer, normalizer=None, pre=None, decoder=None, post=None, added=(), **options):
    t = Tokenizer(model)
    for name, part in (("normalizer", normalizer), ("pre_tokenizer", pre), ("decoder", decoder)):
        if part:
            setattr(t, name, part)
    t.train_from_iterator(LANGUAGES + CODE, trainer(show_progress=False, **options))
    t.add_tokens(list(added))
    if post:
        t.post_processor = post
    return t


def bpe(added=(), post=None, normalizer=None, pre=None, decoder=None, train=None, **model):
    return trained(models.BPE(**model), trainers.BpeTrainer, normalizer, pre, decoder, post, added, vocab_size=450,
                   special_tokens=["<unk>", "<s>", "</s>"], **(train or {}))


def edited(tokenizer, edit):
    data = json.loads(tokenizer.to_str())
    edit(data)
    return Tokenizer.from_str(json.dumps(data))


def charsmap_like_t5():
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LANGUAGES + CODE[:1]), model_writer=out, vocab_size=270, minloglevel=2,
                                             normalization_rule_name="nmt_nfkc_cf")
    model = sentencepiece_model_pb2.ModelProto.FromString(out.getvalue())
    t = Tokenizer(models.Unigram([(p.piece, p.score) for p in model.pieces], 0, False))
    t.normalizer = normalizers.Sequence([normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap),
                                         normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    t.decoder = decoders.Metaspace()
    return t


def llama_like():
    def edit(data):
        model = data["model"]
        for b in range(256):
            model["vocab"].setdefault(f"<0x{b:02X}>", len(model["vocab"]))
        model.update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    n, d = normalizers, decoders
    t = edited(bpe(normalizer=n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")]), train=dict(limit_alphabet=80)), edit)
    t.decoder = d.Sequence([d.Replace("▁", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return t


def all_tokenizers():
    n, p, d = normalizers, pre_tokenizers, decoders
    alphabet = dict(initial_alphabet=p.ByteLevel.alphabet())
    special = [AddedToken("<|im_start|>", special=True, normalized=False)]
    wide = [AddedToken("TOK", normalized=True), AddedToken("[MASK]", lstrip=True, rstrip=True, normalized=False), AddedToken("hello", single_word=True)]
    newer = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    bert_post = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))

    def bert(**options):
        return trained(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer, n.BertNormalizer(**options), p.BertPreTokenizer(),
                       d.WordPiece(), bert_post, vocab_size=450, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])

    yield "bpe-bytes", bpe(special, pre=p.Sequence([p.Digits(True), p.ByteLevel(add_prefix_space=False)]), decoder=d.ByteLevel(), train=alphabet)
    yield "bpe-roberta", bpe(wide, processors.RobertaProcessing(("</s>", 2), ("<s>", 1)), pre=p.ByteLevel(), decoder=d.ByteLevel(), train=alphabet)
    yield "bpe-llama3", bpe(special, pre=p.Sequence([p.Split(Regex(newer), "isolated"), p.ByteLevel(add_prefix_space=False, use_regex=False)]),
                            decoder=d.ByteLevel(), train=alphabet, ignore_merges=True)
    yield "bpe-llama", llama_like()
    yield "bpe-suffix", bpe(normalizer=n.Lowercase(), pre=p.Whitespace(), decoder=d.BPEDecoder(), train=dict(end_of_word_suffix="</w>"),
                            end_of_word_suffix="</w>", unk_token="<unk>", fuse_unk=True)
    yield "bpe-prefix", bpe(normalizer=n.NFKD(), pre=p.WhitespaceSplit(), decoder=d.WordPiece(), train=dict(continuing_subword_prefix="##"),
                            continuing_subword_prefix="##", unk_token="<unk>")
    yield "bpe-metaspace", bpe(wide, normalizer=n.NFC(), pre=p.Metaspace(prepend_scheme="first"), decoder=d.Metaspace(prepend_scheme="first"),
                               unk_token="<unk>")
    for behaviour in ("removed", "merged_with_previous", "merged_with_next", "contiguous"):
        yield "split-" + behaviour.replace("_", "-"), bpe(pre=p.Sequence([p.Split(Regex(r"[aeiou]|\d+"), behaviour), p.Punctuation(behaviour)]))
    yield "strips", bpe(normalizer=n.Sequence([n.NFD(), n.StripAccents(), n.Strip(True, False)]), pre=p.Sequence([p.CharDelimiterSplit("e"), p.Digits(False)]))
    yield "bert-uncased", bert()
    yield "bert-cased", bert(lowercase=False)
    yield "unigram-t5", charsmap_like_t5()
    yield "unigram-bytes", edited(trained(models.Unigram(), trainers.UnigramTrainer, n.Nmt(), p.Metaspace(), d.Sequence([d.ByteFallback(), d.Metaspace()]),
                                          vocab_size=450, unk_token="<unk>", special_tokens=["<unk>"] + [f"<0x{i:02X}>" for i in range(256)]),
                                  lambda data: (data["model"].update(byte_fallback=True), data.update(added_tokens=[])))
    yield "word-level", trained(models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer, n.NFC(), p.Whitespace(), special_tokens=["<unk>"])


def case(tokenizer, text):
    ids = tokenizer.encode(text).ids
    return {"text": text, "ids": ids, "decoded": tokenizer.decode(ids)}


def check_one(program, name, tokenizer):
    """Whether the ids and texts of 10,000 lines are the same."""
    cases = [case(tokenizer, x) for x in many_lines()]
    cases += [{"bytes": list(x)} | case(tokenizer, x.decode("utf-8", "replace")) for x in broken_lines(500)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "golden.json"
        path.write_text(json.dumps({"tokenizer": json.loads(tokenizer.to_str()), "cases": cases}))
        done = subprocess.run([program, path], capture_output=True, text=True)
    print(f"{name:28} {'ok' if done.returncode == 0 else done.stdout[-600:] + done.stderr[-600:]}", flush=True)
    return done.returncode == 0


def write():
    for name, tokenizer in all_tokenizers():
        if name in TOO_LARGE:
            continue
        out = {"tokenizer": json.loads(tokenizer.to_str()), "cases": [case(tokenizer, x) for x in lines(52, 0)]}
        (HERE / "data" / f"{name}.json").write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n")
        print(name, (HERE / "data" / f"{name}.json").stat().st_size)


def check(program, files):
    tokenizers = list(all_tokenizers()) + [(f, Tokenizer.from_file(f)) for f in files]
    right = [check_one(program, name, t) for name, t in tokenizers]
    sys.exit(not all(right))


if __name__ == "__main__":
    check(sys.argv[2], sys.argv[3:]) if sys.argv[1:2] == ["--check"] else write()
