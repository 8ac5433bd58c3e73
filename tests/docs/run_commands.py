#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of README and docs as they are written, each document in a folder that has the files it names. Needs numpy.

    run_commands.py TFCC [DOCUMENT...]        documents as "README.md", "docs/verify.md"; default: all

A command is a line of an indented block that begins with `tfcc`, `python3`, `g++`, `cat >` or `./`, perhaps behind `$ `, with the lines up to
END if it has `<<'END'`. What this machine cannot run (SKIPPED) is named with its reason; everything else must end with status 0.
"""
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GPU = Path("/dev/nvidia0").exists()

ENCODER, DECODER = HERE / "model.onnx", ROOT / "tests/models/llama-past/model.onnx"
# Documents that take tokens without padding, whose model.onnx has no other inputs over them.
RAGGED, OF_TOKENS = {"docs/ragged.md"}, ROOT / "tests/models/distilbert/model.onnx"
# Documents whose model.onnx answers.
DECODERS = {"docs/generate.md"}
# Commands before those of the document, which says itself that something else made these files.
BEFORE = {
    "README.md": ["tfcc compile decoder.onnx -o llama.tfcc --target cpu -q --tokenizer model"],
    "docs/bench.md": ["tfcc compile bert.onnx --target cpu -q", "tfcc compile decoder.onnx -o llama.tfcc --target cpu -q"],
    "docs/inspect-json.md": ["tfcc compile model.onnx -o m.tfcc --target cpu -q"],
    "docs/verify.md": ["tfcc compile model.onnx -o model.tfcc --target cpu -q"],
    "docs/passes.md": ["tfcc opt model.onnx -o in.tfir -q"],
    "docs/timing-cache.md": ["tfcc compile model.onnx -o m.tfcc --target sm_90 --fp16 -q"],
}
# A word of a command, and why it does not run here; None: it does.
SKIPPED = [
    (r"tools/(quickstart|test)\b", lambda: "builds everything; CI runs it"),
    (r"^pip ", lambda: "python.wheels builds and installs the wheels"),
    (r"tfcc verify.*sm_\d+|--timing-cache", lambda: None if GPU else "needs a GPU"),
    (r"sm_\d+", lambda: None if any(Path("/usr/local/cuda").glob("lib64/libnvrtc.so*")) or shutil.which("nvcc") else "needs NVRTC"),
    (r"onnxruntime", lambda: None if importlib.util.find_spec("onnxruntime") else "needs the Python package onnxruntime"),
    (r"--ragged --shapes input_ids:16x512", lambda: "the model here has a table of 48 positions; cli.ragged runs it"),
    (r"--peer torch", lambda: None if importlib.util.find_spec("torch") and GPU else "needs the Python package torch and a GPU"),
    (r"jq ", lambda: None if shutil.which("jq") else "needs jq"),
    (r"tests/models/bert-eager/model.onnx --target cpu --tolerance 1e-10", lambda: "is there to fail; cli.verify_finds runs it"),
]
# Of documents that show what was measured on a GPU.
MEASURED = {"docs/performance.md": "tells what was measured on a GPU"}


def commands(text):
    """The commands of a document, in order."""
    lines = iter(text.splitlines())
    for line in lines:
        found = re.match(r"    (?:\$ )?((?:tfcc |python3 |g\+\+ |\./|pip |cat > ).*)", line)
        if not found:
            continue
        command = found[1]
        end = re.search(r"<<'(\w+)'", command)
        while end:
            line = next(lines).removeprefix("    ")
            command += "\n" + line
            if line == end[1]:
                break
        yield command


def cpp_example(text):
    """README's program."""
    return re.search(r"```cpp\n(.*?)```", text, re.DOTALL)[1]


def make_files(folder, document, text):
    decoder = document in DECODERS
    for name in ("model.onnx", "bert.onnx", "m.onnx"):
        shutil.copy(DECODER if decoder else OF_TOKENS if document in RAGGED else ENCODER, folder / name)
    shutil.copy(DECODER, folder / "decoder.onnx")
    for name in ("tests", "tools", "build", "runtime"):
        (folder / name).symlink_to(ROOT / name if name != "build" else BUILD)
    ids = np.arange(14, dtype=np.int64).reshape(2, 7) + 1
    np.save(folder / "ids.npy", ids.flatten() if document in RAGGED else ids)
    np.save(folder / "cu.npy", np.array([0, 5, 14]))
    np.savez(folder / "inputs.npz", input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=np.zeros_like(ids))
    (folder / "prompts.txt").write_text("w23 w185\nw12\n")
    (folder / "model").mkdir()
    (folder / "model/tokenizer.json").write_text(json.dumps({"model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(200)}, "unk_token": "w0"},
                                                             "pre_tokenizer": {"type": "WhitespaceSplit"}}))
    (folder / "model/chat.json").write_text('{"default_system": "w1 ", "system": ["w2 ", " "], "user": ["", " "], "assistant": ["", " "], "answer": "w139"}')
    if document == "README.md":
        (folder / "example.cpp").write_text(cpp_example(text))


def run(command, folder, environment):
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", timeout=300, check=False)
    return None if done.returncode == 0 else f"status {done.returncode}: " + " | ".join(done.stdout.strip().splitlines()[-3:])


def check(document, environment):
    """How many commands ran, were skipped, and failed."""
    text = (ROOT / document).read_text()
    ran, skipped, failed = 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="tfcc-docs-") as scratch:
        folder = Path(scratch)
        (folder / "bin").mkdir()
        (folder / "bin/python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')  # the one that has numpy
        (folder / "bin/python3").chmod(0o755)
        environment = dict(environment, PATH=f"{folder}/bin:{environment['PATH']}")
        make_files(folder, document, text)
        for command in BEFORE.get(document, []):
            if problem := run(command, folder, environment):
                sys.exit(f"FAIL {document}, before its commands: {command}: {problem}")
        for command in commands(text):
            shown = command.splitlines()[0][:110]
            words = re.sub(r"\s#.*", "", command)  # without what it says of itself
            reason = MEASURED.get(document) or next((r for pattern, why in SKIPPED if re.search(pattern, words) and (r := why())), None)
            if reason:
                print(f"skip  {document}: {shown}  ({reason})")
                skipped += 1
                continue
            if problem := run(command, folder, environment):
                print(f"FAIL  {document}: {shown}\n      {problem}")
                failed += 1
            else:
                ran += 1
    print(f"{document}: {ran} commands ran, {skipped} skipped, {failed} failed")
    return failed


def main():
    global BUILD
    tfcc = Path(sys.argv[1]).resolve()
    BUILD = tfcc.parent
    documents = sys.argv[2:] or ["README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")), "tools/python/README.md"]
    environment = dict(os.environ, PATH=f"{BUILD}:{os.environ['PATH']}", PYTHONPATH=str(ROOT / "tools/python"), PYTHONDONTWRITEBYTECODE="1",
                       TFCC_LIBRARY=str(BUILD / "runtime/libtfcc.so"), TFCC_COMPILER=str(BUILD / "tools/libtfcc_compiler.so"), TFCC_COMMAND=str(tfcc))
    return 1 if sum(check(d, environment) for d in documents) else 0


if __name__ == "__main__":
    sys.exit(main())
