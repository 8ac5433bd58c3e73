#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on an #include that breaks the dependency table of docs/architecture.md, and on a unit test in a folder that is
none of the code's; warns about files over 450 lines.

    check_layers.py [ROOT]        ROOT is the repository; default: the one this file lies in
"""
import re
import sys
from pathlib import Path

FOLDERS = ("frontend", "ir", "passes", "codegen", "templates", "runtime", "tools", "tests")
SHARED = {"runtime/result.h", "runtime/dtype.h", "runtime/input_role.h", "runtime/size_role.h", "runtime/wire.h"}  # header-only, for everybody

# Folder -> folders it may include, beside itself and SHARED.
MAY_USE = {
    "ir": set(),
    "frontend": {"ir"},
    "passes": {"ir"},
    "codegen": {"ir", "runtime"},
    "runtime": set(),
    "tools": {"frontend", "ir", "passes", "codegen", "runtime"},
    "tests": set(FOLDERS) - {"tests"},
}

# What is not tfcc's own, by prefix -> who may include it.
EXTERNAL = {
    "fmt/": {"frontend", "ir", "passes", "codegen", "tools", "tests"},
    "google/": {"frontend", "tests"},
    "onnx/": {"frontend", "tools", "tests"}, "xxhash.h": {"runtime", "codegen"}, "nvtx3/": {"runtime", "tests"},
    "clang/": {"codegen"}, "llvm/": {"codegen"}, "lld/": {"codegen"},
    "nlohmann/": {"tools", "tests", "runtime/text"}, "CLI/": {"tools"}, "pcre2.h": {"runtime/text"}, "utf8proc.h": {"runtime/text"},
    "oneapi/": {"runtime/cpu"}, "omp.h": {"runtime/cpu"},
    "cuda": {"runtime", "tests"}, "cublas": {"runtime", "tests"}, "nvrtc": {"tests"},
    "gtest/": {"tests"}, "gmock/": {"tests"},
}
LONGEST = 450
SOURCES = {".h", ".cpp", ".cuh", ".def", ".inc", ".py"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def place(path):
    """Folder of a file; the libraries beside the runtime proper are apart."""
    two = "/".join(path.parts[:2])
    return two if two in ("runtime/cpu", "runtime/text") else path.parts[0]


def check_own(path, folder, target):
    """A quoted include, relative to the repository; returns what is wrong with it."""
    if folder == "templates":
        return "" if re.match(r"(cuda/|cpu/|(expr|sampling|sequences)\.h$)", target) else "templates include each other alone"
    first = target.split("/")[0]
    if first not in FOLDERS:
        return "" if folder == "tests" or external_ok(folder, target) else "not a path from the repository's root"
    own = folder.split("/")[0]
    if target == "runtime/core/manifest.pb.h":
        return "" if folder == "tests" else "tests alone use Protobuf's manifest"
    if first == own or target in SHARED or first in MAY_USE[own]:
        return ""
    return f"{own} may not use {first}"


def external_ok(folder, target):
    return any(target.startswith(prefix) and folder in users for prefix, users in EXTERNAL.items())


def check_angled(folder, target):
    if folder == "templates":
        return "templates include nothing from outside"
    for prefix, users in EXTERNAL.items():
        if target.startswith(prefix) and folder not in users:
            return f"{folder} may not use {prefix}"
    return ""


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    broken, files = [], 0
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SOURCES or not path.is_file():
                continue
            name, text = path.relative_to(root), path.read_text()
            files += 1
            lines = text.count("\n")
            if lines > LONGEST and path.suffix != ".inc":
                print(f"warning: {name}: {lines} lines; over {LONGEST}, split it")
            if path.suffix == ".py":
                continue
            for kind, target in INCLUDE.findall(text):
                where = place(name)
                wrong = check_own(name, where, target) if kind == '"' else check_angled(where, target)
                if wrong:
                    broken.append(f'{name}: #include {target}: {wrong}')
    for test in sorted((root / "tests").rglob("*_test.cpp")):
        folder = test.parent.relative_to(root / "tests")
        if folder.name != "emulator" and not (root / folder).is_dir():
            broken.append(f"tests/{folder}/{test.name}: the code has no folder {folder}")
    if files == 0:
        broken.append(f"{root}: no source files")
    print("\n".join(broken) or f"{files} files, every include follows the table, every test mirrors a folder")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
