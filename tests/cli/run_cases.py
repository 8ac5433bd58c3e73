#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of a folder through the `tfcc` command. Needs numpy.

    run_cases.py TFCC FOLDER [NAME...]

A case is a text file of `key: value` lines (tests/cli/README.md). Each runs in a folder of its own that holds the
fixtures; afterwards that folder must hold these, unchanged, and what `writes` names: nothing half-written.
"""
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "hostile"))
import onnx_bytes
from tfcc_file import without_code

MODELS = Path(__file__).resolve().parent.parent / "models"

# A site module: ONNX Runtime reads every Erf of a model as Tan.
TAN_FOR_ERF = """
import onnxruntime

class Session(onnxruntime.InferenceSession):
    def __init__(self, model, *more, **named):
        data = model if isinstance(model, bytes) else open(model, "rb").read()
        super().__init__(data.replace(b"\\x22\\x03Erf", b"\\x22\\x03Tan"), *more, **named)

onnxruntime.InferenceSession = Session
"""


class Failure(Exception):
    pass


def parse(path):
    """A case as (settings, commands); expectations belong to the `run` line before them."""
    settings, commands = {"needs": [], "writes": [], "same": []}, []
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        key, colon, value = line.partition(": ")
        if not colon:
            raise SystemExit(f"{path}: not `key: value`: {line}")
        if key == "run":
            commands.append({"run": value, "exit": 0, "stdout": [], "stderr": None, "check": [], "limit": None, "to": None})
        elif key in settings:
            settings[key] += value.split()
        elif key in ("stdout", "check"):
            commands[-1][key].append(value)
        elif key in ("exit", "limit"):
            commands[-1][key] = int(value)
        elif key in ("stderr", "to"):
            commands[-1][key] = value
        else:
            raise SystemExit(f"{path}: there is no key '{key}'")
    return settings, commands


def tfcc(binary, words, cwd, environment, limit=None, to=None):
    """Runs the command; `limit` bounds each file it writes, as a full disk would, `to` is where stdout goes."""
    def set_limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with open(to, "w") if to else nullcontext(subprocess.PIPE) as stdout:
        return subprocess.run([binary, *words], cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=stdout,
                              stderr=subprocess.PIPE, text=True, errors="replace", timeout=300,
                              preexec_fn=set_limit if limit else None)


def make_fixtures(binary, folder, environment):
    """Files that the cases share. Returns what this machine can do: names for `needs`."""
    able = set()
    (folder / "models").symlink_to(MODELS)
    model = MODELS / "bert-eager" / "model.onnx"
    for target, name in (("cpu", "cpu.tfcc"), ("sm_80", "sm_80.tfcc")):
        done = tfcc(binary, ["compile", str(model), "-o", name, "--target", target, "-q"], folder, environment)
        if done.returncode == 0:
            able.add(target)
        elif "nvrtc" not in done.stderr and "this build" not in done.stderr:
            raise SystemExit(f"fixture {name}: {done.stderr}")
    gpu = shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True).stdout.strip()
    able.add("gpu" if gpu else "no-gpu")
    ids = np.arange(10, dtype=np.int64).reshape(2, 5)
    np.save(folder / "ids.npy", ids)
    np.save(folder / "ones.npy", np.ones_like(ids))
    np.save(folder / "ids_f32.npy", ids.astype(np.float32))
    np.save(folder / "ids_i32.npy", ids.astype(np.int32))
    np.save(folder / "ids_rank1.npy", ids[0])
    np.save(folder / "ids_2x6.npy", np.ones((2, 6), np.int64))
    np.save(folder / "ids_200.npy", np.where(ids == 7, 200, ids))
    np.save(folder / "ids_negative.npy", np.where(ids == 7, -201, ids))
    np.savez(folder / "cache.npz", x=np.ones((1, 3), np.float32), mask=np.ones((1, 10), np.float32))
    np.savez_compressed(folder / "compressed.npz", x=np.ones((1, 3), np.float32))
    (folder / "ids_cut.npy").write_bytes((folder / "ids.npy").read_bytes()[:140])
    # Operators that do not exist, of the length of those that they replace.
    unknown = model.read_bytes().replace(b"\x22\x07Softmax", b"\x22\x07Hardest").replace(b"\x22\x03Erf", b"\x22\x03Elf")
    (folder / "unknown_operators.onnx").write_bytes(unknown)
    shutil.copy(model, folder / "bert.onnx")
    # It ends in its opset, 17.
    (folder / "opset_of_the_future.onnx").write_bytes(model.read_bytes()[:-1] + bytes([99]))
    for package in ("onnxruntime", "torch"):
        if subprocess.run(["python3", "-c", f"import {package}"], capture_output=True).returncode == 0:
            able.add(package)
    shutil.copy(MODELS.parent.parent / "tools" / "examples" / "peer_bert.py", folder)
    # Of other weights: word embeddings of the other sign. The name stands before the 25,600 bytes.
    weights, start = bytearray(model.read_bytes()), b"word_embeddings.weight\x4a\x80\xc8\x01"
    at = weights.index(start) + len(start)
    weights[at + 3:at + 25600:4] = bytes(b ^ 0x80 for b in weights[at + 3:at + 25600:4])
    (folder / "other_weights.onnx").write_bytes(weights)
    pythons = {"bare-python": 'exec python3 -I -S "$@"', "failing-python": "echo warming up >&2\necho this python is broken >&2",
               "tan-for-erf-python": 'PYTHONPATH="$(dirname "$0")/tan_for_erf" exec python3 -B "$@"'}
    for name, text in pythons.items():
        (folder / name).write_text("#!/bin/sh\n" + text + "\n")
        (folder / name).chmod(0o755)
    (folder / "tan_for_erf").mkdir()
    (folder / "tan_for_erf" / "sitecustomize.py").write_text(TAN_FOR_ERF)
    reshape = onnx_bytes.node("Reshape", ["x", "s"], ["y"], name="reshape")
    (folder / "some_sizes.onnx").write_bytes(onnx_bytes.model([reshape], [onnx_bytes.value("x", ["B", "S", 4])], [onnx_bytes.value("y", [8, 8])], [onnx_bytes.ints("s", [8, 8])]))
    (folder / "cut.onnx").write_bytes(model.read_bytes()[:20000])
    (folder / "wrong.tfir").write_text("graph @main() {\n  return\n")
    softmaxes = "graph @main(%x: f32[B,5]) symbols(B = x.0 in 1..) {{\n  %s = softmax(%x) : f32[B,{0}]\n  %y = softmax(%s) : f32[B,{1}]\n  return y = %y\n}}\n"
    (folder / "right.tfir").write_text(softmaxes.format(5, 5))
    (folder / "broken.tfir").write_text(softmaxes.format(4, 6))
    (folder / "speech.tfir").write_text("graph @main(%x: f32[B,16,T]) symbols(B = x.0 in 1.., T = x.2 in 1..) {\n  %y = softmax(%x) : f32[B,16,T]\n  return y = %y\n}\n")
    (folder / "frames.tfir").write_text("graph @main(%x: f32[B,T,80]) symbols(B = x.0 in 1.., T = x.1 in 1..) {\n  %y = softmax(%x) : f32[B,T,80]\n  return y = %y\n}\n")
    (folder / "product.tfir").write_text(
        "graph @main(%x: f16[B,S,128]) symbols(B = x.0 in 1.. as batch, S = x.1 in 1.. as length, tokens = (B*S) in 1.. as tokens) {\n  const @w : f16[128,512] = random(1)\n"
        "  %h = pointwise(%x) {body = (i,j,k) => %x[i,j,k] * 2.0} : f16[B,S,128]\n"
        "  %product = matmul(%h, @w) {alpha = 1.0, epilogue = (s,i,j,k) => tanh(s), trans_a = false, trans_b = false} : f16[B,S,512]\n"
        "  %y = pointwise(%product) {body = (i,j,k) => %product[i,j,k] + 1.0} : f16[B,S,512]\n  return y = %y\n}\n")
    (folder / "chunks.tfir").write_text("graph @main(%x: f32[B,64*N]) symbols(B = x.0 in 1.., N = x.1 / 64 in 1..) {\n  %y = pointwise(%x) {body = (i,j,k) => %x[i,64*j + k] + 1.0} : f32[B,N,64]\n  return y = %y\n}\n")
    # What float64 and f32 round to other integers: by one, and by four.
    np.save(folder / "near_one.npy", np.array([1, 1.5, 2, 2.5], np.float32))
    for name, less in (("step", "1e-9"), ("steps", "4e-9")):
        body = f"i64(rint((%x[i] + {less}) * 1e9 - %x[i] * 1e9)) + i64(%x[i] * 200.0)"
        (folder / f"{name}.tfir").write_text(f"graph @main(%x: f32[4]) {{\n  %q = pointwise(%x) {{body = (i) => {body}}} : i32[4]\n  return q = %q\n}}\n")
    (folder / "joined").mkdir()  # what passes/join_chunks.tfir has before the pass
    for part in (Path(__file__).resolve().parent.parent / "passes" / "join_chunks.tfir").read_text().split("\n// ----")[:-1]:
        graph = part[part.rindex("\ngraph @") + 1:]
        (folder / "joined" / (graph[len("graph @"):graph.index("(")] + ".tfir")).write_text(graph + "\n")
    (folder / "cache.tfir").write_text("graph @main(%mask: f32[B,P+S], %x: f32[B,S], %past: f32[B,2,P,4]) symbols(B = x.0 in 1.., S = x.1 in 1.., P = past.2 in 0..) {\n  %y = pointwise(%mask) {body = (i,j) => %mask[i,j] + 1.0} : f32[B,P+S]\n  return y = %y\n}\n")
    (folder / "total.tfir").write_text("graph @main(%mask: f32[B,total_sequence_length], %past: f32[B,2,past_sequence_length,4], %x: f32[B,sequence_length]) symbols(B = mask.0 in 1.. as batch, past_sequence_length = past.2 in 0.. as past, sequence_length = x.1 in 1.. as length, total_sequence_length = mask.1 in 1.. as context) {\n  check total_sequence_length == past_sequence_length + sequence_length, \"the mask has another length\"\n  %y = pointwise(%mask) {body = (i,j) => %mask[i,j] + 1.0} : f32[B,total_sequence_length]\n  return y = %y\n}\n")
    (folder / "aliases.tfir").write_text('graph @aliases(%x: f32[16]) {\n  const @w : f32[32] = concat(0, f32[16] random(1), f32[16] random(2))\n  const @a : f32[16] = random(1)\n  const @b : f32[4,4] = f32[16] random(1) |> reshape(4,4)\n  const @c : f32[2,8] = f32[16] random(1) |> reshape(2,8)\n  const @d : f32[8,2] = f32[16] random(1) |> reshape(8,2)\n  %y = pointwise(%x, @w, @a, @b, @c, @d) {body = (i) => %x[i] + @w[i + 16] + @a[i] + @b[i / 4,i % 4] + @c[i / 8,i % 8] + @d[i / 2,i % 2]} : f32[16]\n  return y = %y\n}\n')
    (folder / "unnamed.tfir").write_text('graph @main(%x: f32["x.0","x.1"], %z: f32["seq-len"]) symbols("x.0" = x.0 in 1.., "x.1" = x.1 in 1.., "seq-len" = z.0 in 1..) {\n  %y = softmax(%x) : f32["x.0","x.1"]\n  return y = %y\n}\n')
    (folder / "image.tfir").write_text("graph @main(%x: f32[B,H,W,3]) symbols(B = x.0 in 1.., H = x.1 in 1.., W = x.2 in 1..) {\n  %y = softmax(%x) : f32[B,H,W,3]\n  return y = %y\n}\n")
    # Of the vocabulary of llama-past: the word w7 is the token 7.
    tokenizer = {"model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(200)}, "unk_token": "w0"},
                 "pre_tokenizer": {"type": "WhitespaceSplit"}}
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer" / "generation_config.json").write_text('{"eos_token_id": [159, 199]}')
    (folder / "tokenizer" / "chat.json").write_text('{"default_system": "w1 ", "system": ["w2 ", " "], "user": ["", " "], "assistant": ["", " "], "answer": "w139"}')
    (folder / "pieces").mkdir()
    shutil.copy(Path(__file__).resolve().parent.parent / "runtime" / "text" / "data" / "sentencepiece-small.model", folder / "pieces" / "tokenizer.model")
    shutil.copy(Path(__file__).resolve().parent.parent / "runtime" / "text" / "data" / "gguf-small.gguf", folder / "pieces" / "small.gguf")
    (folder / "large_tokenizer.json").write_text(json.dumps({"model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(201)}, "unk_token": "w0"}}))
    (folder / "cut_tokenizer.json").write_text(json.dumps(tokenizer)[:1000])
    (folder / "prompts.txt").write_text("w23 w185 w12 w15 w23 w56 w47 w139\n\nw23 w185 w12 w15 w23 w56 w47 w139\n")
    (folder / "id_prompts.txt").write_text("23,185,12\n5,6,7,8\n9,10\n")
    (folder / "wrong_prompts.txt").write_text("5,6\n5,600\n")
    shutil.copytree(MODELS / "bert-external", folder / "external", ignore=shutil.ignore_patterns("cases"))
    (folder / "external" / "folder").mkdir(exist_ok=True)
    weight = 'f32[8,16] file("model.onnx.data", f32[8,16], {})'.format
    (folder / "external" / "table.tfir").write_text(
        f"graph @main(%x: f32[B,16]) symbols(B = x.0 in 1..) {{\n  const @j : f32[16,16] = concat(0, {weight(0)}, {weight(512)})\n  const @t : f32[16,16] = graph @t() {{\n    const @a : {weight(0).replace(' ', ' = ', 1)}\n    const @b : {weight(512).replace(' ', ' = ', 1)}\n"
        "    %t = matmul(@a, @b) {alpha = 1.0, trans_a = true, trans_b = false} : f32[16,16]\n    return t = %t\n  }\n"
        "  %y = pointwise(%x, @t, @j) {body = (i,j) => %x[i,j] + @t[3,j] + @j[5,j]} : f32[B,16]\n  return y = %y\n}\n")
    # An embedding model of a decoder: the last token by a count of the mask, under a triangle.
    (folder / "last_token.tfir").write_text(
        "graph @main(%x: f32[B,S,8], %mask: i64[B,S] as mask) symbols(B = x.0 in 1.. as batch, S = x.1 in 1..64 as length) {\n  flag 0 \"n: out of range\"\n"
        "  %c = attention(%x, %x, %x, %mask) {causal = false, heads = 2, key_padding = false, kv_heads = 2, score = (s,b,h,i,j) => select(%mask[b,j] != 0 and j <= i, s, -1e+09), visible = none} : f32[B,S,8]\n"
        "  %n = reduce(%mask) {body = (i,j) => %mask[i,j], extents = [S], kind = sum} : i64[B]\n"
        "  %y = pointwise(%c, %n) {body = (i,j) => %c[i,bounded(%n[i] - 1, S, 0),j]} : f32[B,8]\n  return y = %y\n}\n")
    (folder / "bert_symlink.onnx").symlink_to("bert.onnx")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    if "cpu" in able:
        whole = (folder / "cpu.tfcc").read_bytes()
        (folder / "cut.tfcc").write_bytes(whole[:5000])
        (folder / "empty.tfcc").write_bytes(b"")
        (folder / "altered_manifest.tfcc").write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
        at = whole.index(b"\x7fELF") + 1000
        (folder / "altered_code.tfcc").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
        (folder / "altered_weights.tfcc").write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
        (folder / "without_cpu.tfcc").write_bytes(without_code(whole))
    return able


def listing(folder):
    return {str(p.relative_to(folder)): (p.lstat().st_mode, p.lstat().st_size, p.lstat().st_mtime_ns)
            for p in sorted(folder.rglob("*"))
            if not p.is_dir() or p.is_symlink()}


def check(command, done, folder):
    """Compares what a command did with what the case says."""
    if done.returncode != command["exit"]:
        raise Failure(f"exit status {done.returncode}, expected {command['exit']}: {done.stderr.strip()}")
    for pattern in command["stdout"]:
        if not re.search(pattern, done.stdout, re.MULTILINE):
            raise Failure(f"stdout has no match for /{pattern}/:\n{done.stdout[:2000]}")
    lines = done.stderr.splitlines()
    if command["exit"]:
        if len(lines) != 1 or not lines[0].startswith("tfcc: ") or len(lines[0]) < 12:
            raise Failure(f"stderr is not one line that begins with 'tfcc: ':\n{done.stderr}")
        if not command["stderr"]:
            raise Failure("the case expects a failure and does not say what stderr holds")
    if command["stderr"] and not re.search(command["stderr"], done.stderr):
        raise Failure(f"stderr has no match for /{command['stderr']}/:\n{done.stderr}")
    for expression in command["check"]:
        if not eval(expression, {"j": json.loads(done.stdout), "load": lambda name: json.loads((folder / name).read_text())}):
            raise Failure(f"not true: {expression}")


def run_case(binary, case, fixtures, environment):
    settings, commands = case
    with tempfile.TemporaryDirectory(prefix="tfcc-case-") as scratch:
        folder = Path(scratch)
        shutil.copytree(fixtures, folder, symlinks=True, dirs_exist_ok=True,
                        ignore=lambda at, names: [n for n in names if n in ("pipe", "bert_hardlink.onnx")])
        os.mkfifo(folder / "pipe")
        os.link(folder / "bert.onnx", folder / "bert_hardlink.onnx")
        before = listing(folder)
        for command in commands:
            done = tfcc(binary, shlex.split(command["run"]), folder, environment, command["limit"], command["to"])
            try:
                check(command, done, folder)
            except Failure as e:
                raise Failure(f"tfcc {command['run']}\n      {e}")
        after = listing(folder)
        missing = [w for w in settings["writes"] if not any(Path(f).match(w) for f in after)]
        if missing:
            raise Failure(f"did not write {', '.join(missing)}")
        for name, what in after.items():
            if before.get(name) != what and not any(Path(name).match(w) for w in settings["writes"]):
                raise Failure(f"left or changed the file {name}")
        if not before.keys() <= after.keys():
            raise Failure(f"removed {', '.join(before.keys() - after.keys())}")
        if settings["same"] and len({(folder / f).read_bytes() for f in settings["same"]}) != 1:
            raise Failure(f"{' and '.join(settings['same'])} differ")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    binary, source, only = str(Path(sys.argv[1]).resolve()), Path(sys.argv[2]), set(sys.argv[3:])
    cases = {p.stem: parse(p) for p in sorted(source.glob("*.txt")) if not only or p.stem in only}
    if not cases:
        sys.exit(f"{source}: no such case")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tfcc-fixtures-") as scratch:
        fixtures = Path(scratch) / "files"
        fixtures.mkdir()
        environment = {**os.environ, "XDG_CACHE_HOME": str(Path(scratch) / "cache")}
        able = make_fixtures(binary, fixtures, environment)
        for name, case in cases.items():
            lacking = [n for n in case[0]["needs"] if n not in able]
            if lacking:
                print(f"skip  {name}: needs {', '.join(lacking)}")
                continue
            try:
                run_case(binary, case, fixtures, environment)
                print(f"ok    {name}", flush=True)
            except Failure as e:
                failed += 1
                print(f"FAIL  {name}: {e}", flush=True)
    print(f"{failed} of {len(cases)} cases failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
