#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what the fuzz targets start from: a folder of seeds and a dictionary for each target.

    make_seeds.py OUT [ONNX_FROM_TEXT] [TFCC]

importer, compiler (but for the largest): the models of tests/hostile, tests/models, and with ONNX_FROM_TEXT those of tests/frontend/import and tests/frontend/operators;
graph_text: the graphs of tests/passes and tests/frontend/import, and the texts in graph_text that once failed; tokenizer: those of tests, whole
and cut at every 1000th byte, each with a text; artifact: with TFCC, files compiled from a few small graphs, in the form of artifact_input.h.
"""
import hashlib
import json
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "hostile"))
import bad_models  # noqa: E402

LARGEST = 1 << 18
TEXT = 3  # kind of a section
ROOT = TESTS.parent


def save(folder, data):
    if len(data) <= LARGEST:
        (folder / hashlib.sha1(data).hexdigest()[:16]).write_bytes(data)


def hostile_models(folder, largest=True):
    for name, (function, _, _) in bad_models.CASES.items():
        if not largest and ("thousand" in name or name.startswith("quotients_")):
            continue
        with tempfile.TemporaryDirectory() as temporary:
            data = function(Path(temporary))
            path = Path(temporary) / "model.onnx"
            if data is None and path.is_file() and path.stat().st_size <= LARGEST:
                data = path.read_bytes()
        if data:
            save(folder, data)


def text_models(folder, converter):
    """The converter's file: name, size and bytes of each model."""
    for text in sorted([*TESTS.glob("frontend/import/*.onnxtxt"), *TESTS.glob("frontend/operators/*.onnxtxt")]):
        with tempfile.NamedTemporaryFile() as out:
            if subprocess.run([converter, text, out.name], stderr=subprocess.DEVNULL, check=False).returncode:
                continue
            data, at = Path(out.name).read_bytes(), 0
        while at < len(data):
            line = data.index(b"\n", at)
            size = int(data[at:line].split()[1])
            save(folder, data[line + 1:line + 1 + size])
            at = line + 2 + size


def graphs(folder):
    for path in sorted([*TESTS.glob("passes/*.tfir"), *TESTS.glob("frontend/import/*.tfir")]):
        for graph in re.findall(r"^graph .*?^}$", path.read_text(), re.M | re.S):
            save(folder, (graph + "\n").encode())
    for path in sorted(TESTS.glob("fuzz/graph_text/*.tfir")):
        save(folder, path.read_bytes())


def artifact_input(file):
    """A .tfcc file in the form of artifact_input.h: kinds of sections, texts, manifest."""
    offset, size = struct.unpack_from("<QQ", file, 24)
    count, = struct.unpack_from("<I", file, 48)
    kinds, texts = bytearray(), b""
    for i in range(count):
        kind, _, begin, length = struct.unpack_from("<IIQQ", file, 64 + 32 * i)
        kinds.append(kind)
        if kind == TEXT:
            texts = file[begin:begin + length]
    # Of another version, so that the page leaves out the templates that a kernel includes: they would be most of it.
    manifest = re.sub(rb"^(\x0a.tfcc \d+\.\d+\.)\d", rb"\1x", file[offset:offset + size])
    return bytes([count]) + kinds + struct.pack("<I", len(texts)) + texts + manifest


def artifacts(folder, tfcc):
    """Small graphs, so that many files can be looked at in a second."""
    with tempfile.TemporaryDirectory() as temporary:
        sources = []
        for name in ("fuse_attention", "fuse_embedding", "fuse_gated_mlp", "fuse_qkv", "raise_softmax"):
            source = Path(temporary) / (name + ".tfir")
            source.write_text(re.search(r"^graph .*?^}$", (TESTS / "passes" / (name + ".tfir")).read_text(), re.M | re.S)[0] + "\n")
            sources.append(source)
        out = Path(temporary) / "model.tfcc"
        for source in sources:
            for target in ("cpu", "sm_80", "cpu,sm_80"):
                command = [tfcc, "compile", source, "-o", out, "--target", target, "-q", "--max-tokens", "512"]
                if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                    save(folder, artifact_input(out.read_bytes()))


TEXTS = ("The quick brown fox jumps over 13 lazy dogs.  It's <s>  [CLS] done</s>\n\tfin", "w23 w185 \u00e9\u0301\u4e2d\u6587 \U0001f600\u200d", "", "\udcff\udc80 x" * 9)


def tokenizers(folder):
    for path in sorted([*TESTS.glob("runtime/text/data/*.*"), *TESTS.glob("runtime/text/data/tekken/*")]):
        file = path.read_bytes()
        if path.suffix == ".json" and path.parent.name == "data":
            wanted = json.loads(file)
            if "tokenizer" not in wanted:
                continue
            file = json.dumps(wanted["tokenizer"]).encode()
        for n, cut in enumerate([len(file), *range(0, len(file), 1000)]):
            text = TEXTS[n % len(TEXTS)].encode("utf-8", "surrogateescape")
            save(folder, struct.pack("<BI", path.suffix != ".json", cut) + file[:cut] + text)


def dictionary(path, words):
    quoted = (re.sub(r'[^ -~]|["\\]', lambda c: "\\x%02x" % ord(c[0]), w) for w in sorted(words))
    path.write_text("".join(f'"{w}"\n' for w in quoted if w))


def main():
    out = Path(sys.argv[1])
    for name in ("importer", "compiler", "graph_text", "artifact", "tokenizer"):
        (out / name).mkdir(parents=True, exist_ok=True)
    # Under sanitizers the compiler takes minutes for a graph of 250 sizes and 200 quotients.
    for name in ("importer", "compiler"):
        hostile_models(out / name, largest=name == "importer")
        for path in TESTS.glob("models/*/model.onnx"):
            save(out / name, path.read_bytes())
        if len(sys.argv) > 2 and sys.argv[2]:
            text_models(out / name, sys.argv[2])
    graphs(out / "graph_text")
    tokenizers(out / "tokenizer")
    if len(sys.argv) > 3 and sys.argv[3]:
        artifacts(out / "artifact", sys.argv[3])

    operators = re.findall(r"TFCC_IMPORT\((\w+)", "".join(p.read_text() for p in ROOT.glob("frontend/import/importers*.def")))
    listed = re.findall(r"TFCC_ATTRIBUTE\(\w+, (\w+)", (ROOT / "frontend/import/attributes.def").read_text())
    attributes = listed + re.findall(r'"([a-z_]{3,24})"', "".join(p.read_text() for p in ROOT.glob("frontend/**/*.cpp")))
    for name in ("importer", "compiler"):
        dictionary(out / f"{name}.dict", {*operators, *attributes, "com.microsoft", "\xff" * 9 + "\x01", "\x80" * 9 + "\x01"})
    words = Counter(re.findall(r"[A-Za-z_][\w.]*|[<>=]=|->", "".join(p.read_text() for p in TESTS.glob("passes/*.tfir"))))
    dictionary(out / "graph_text.dict", {w for w, n in words.items() if n > 20} | {"9223372036854775807", "-9223372036854775808"})
    parts = re.findall(r'"([A-Za-z_]{3,24})"', "".join(p.read_text() for p in ROOT.glob("runtime/text/*.cpp")))
    dictionary(out / "tokenizer.dict", {*parts, "\\p{L}", "<0x0A>", "\xe2\x96\x81"})
    dictionary(out / "artifact.dict", {"TFCC", "cuda", "cpu", "x86-64", "\xff" * 9 + "\x01", "\x80" * 9 + "\x01", "\xff" * 8})


if __name__ == "__main__":
    main()
