#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when the names of ops, emitters, templates, sections, passes and tests disagree.

    check_names.py [ROOT]        ROOT is the repository; default: the one this file lies in

Each op of ir/ops.def needs a section in ir/ops.md, a test in tests/ir, an emitter in codegen, a template of its name
for both targets, a test of that template and a graph in tests/codegen/emit.
Each pass of passes/passes.def needs a file that shows "before:" and "after:", a section in docs/passes.md and a test in tests/passes. Each line of frontend/import/importers*.def
needs its function. The structs of runtime/core/manifest.h have the fields of runtime/core/manifest.proto. Relative links in documents must lead somewhere. One word for
each concept: docs/glossary.md.
"""
import re
import sys
from pathlib import Path

from make_operators import default_pipeline

# Ops without a template: constants are data.
NO_TEMPLATE = {"constant"}
# Templates that are no op: what kernels share, and the kernel that binds sizes and pointers.
BUILDING_BLOCKS = {"cuda": {"prelude", "codes", "coded_tile", "reduce", "running_sums", "bind", "attention_tile", "attention_softmax", "attention_additions", "attention_mma", "attention_fma", "attention_wgmma", "attention_decode", "sm80", "sm90", "matmul_end", "matmul_wgmma", "matmul_ordered", "matmul_tf32", "matmul_stream", "matmul_coded", "linear_attention_tile", "linear_attention_mma", "linear_attention_fma", "linear_attention_wgmma", "linear_attention_memory", "linear_attention_loader", "linear_attention_state", "linear_attention_results"},
                   "cpu": {"prelude", "reduce", "math", "vectors", "matmul_panel", "matmul_bytes", "matmul_heads"}}


def words(root, *patterns):
    """All identifiers of the files that match, with - and _ taken as letters."""
    text = "\n".join(p.read_text() for pattern in patterns for p in sorted(root.glob(pattern)) if p.is_file())
    return set(re.findall(r"[A-Za-z0-9_-]+", text))


def sections(path):
    """Names in the headings of a page: '## pointwise, reduce' has two."""
    lines = re.findall(r"^#+ (.*)$", path.read_text(), re.M) if path.exists() else []
    return {name for line in lines for name in re.findall(r"[a-z0-9_-]+", line)}


def check_ops(root, wrong):
    ops = re.findall(r"^TFCC_OP\((\w+),", (root / "ir/ops.def").read_text(), re.M)
    if not ops:
        wrong.append("ir/ops.def: no TFCC_OP line")
    documented = sections(root / "ir/ops.md")
    tested_ir = words(root, "tests/ir/*.cpp", "tests/ir/*.tfir")
    tested_kernels = words(root, "tests/codegen/**/*.cpp", "tests/templates/**/*.cpp")
    emitted = words(root, "tests/codegen/emit/*.tfir")
    code = "\n".join(p.read_text() for p in sorted((root / "codegen").glob("**/*.cpp")))
    emitters = set(re.findall(r"^Result<Emission> emit_(\w+)\(const EmitContext& \w+, OpId \w+\) \{", code, re.M))
    for op in ops:
        if op not in documented:
            wrong.append(f"{op}: no section in ir/ops.md")
        if op not in tested_ir:
            wrong.append(f"{op}: no test in tests/ir")
        if op in NO_TEMPLATE:
            continue
        if op not in emitters:
            wrong.append(f"{op}: no emit_{op} in codegen")
        for name in (f"templates/cuda/{op}.cuh", f"templates/cpu/{op}.h"):
            if not (root / name).exists():
                wrong.append(f"{op}: no {name}")
        if op not in tested_kernels:
            wrong.append(f"{op}: no test of its kernels in tests/codegen or tests/templates")
        if op not in emitted:
            wrong.append(f"{op}: no graph in tests/codegen/emit")
    for op in sorted(emitters - set(ops)):
        wrong.append(f"emit_{op}: no such op in ir/ops.def")
    for target, suffix in (("cuda", ".cuh"), ("cpu", ".h")):
        for path in sorted((root / "templates" / target).glob("*" + suffix)):
            if path.stem not in set(ops) | BUILDING_BLOCKS[target]:
                wrong.append(f"templates/{target}/{path.name}: no op and no building block of that name")
    return len(ops)


def check_passes(root, wrong):
    passes = re.findall(r'^TFCC_PASS\((\w+), "([a-z0-9-]+)"', (root / "passes/passes.def").read_text(), re.M)
    if not passes:
        wrong.append("passes/passes.def: no TFCC_PASS line")
    documented = sections(root / "docs/passes.md")
    tested = words(root, "tests/passes/**/*")
    for function, name in passes:
        if name != function.replace("_", "-"):
            wrong.append(f"{name}: its function is called {function}")
        texts = [p.read_text() for p in (root / "passes").glob("*.cpp")]
        if not any(f"PassReport {function}(" in t and "before:" in t and "after:" in t for t in texts):
            wrong.append(f"{name}: no file in passes that defines it and shows before: and after:")
        if name not in documented:
            wrong.append(f"{name}: no section in docs/passes.md")
        if (root / "tests/passes").is_dir() and name not in tested and function not in tested:
            wrong.append(f"{name}: no test in tests/passes")
    return len(passes)


def check_importers(root, wrong):
    count, code = 0, words(root, "frontend/**/*.cpp")
    for name in ("importers.def", "importers_microsoft.def"):
        table = re.findall(r"^TFCC_IMPORT\((\w+), (\w+),", (root / "frontend/import" / name).read_text(), re.M)
        if not table:
            wrong.append(f"frontend/import/{name}: no TFCC_IMPORT line")
        for op, function in table:
            if function not in code:
                wrong.append(f"{op}: no {function} in frontend")
        if [op for op, _ in table] != sorted(op for op, _ in table):
            wrong.append(f"frontend/import/{name}: not in alphabetical order")
        count += len(table)
    return count


def check_manifest(root, wrong):
    """The structs of the manifest have the fields of their messages in its schema, and the numbers."""
    schema, code = ((root / "runtime" / name).read_text() for name in ("core/manifest.proto", "core/manifest.h"))
    code += (root / "runtime/core/size_expr.h").read_text()
    numbers = {name: dict(re.findall(r"^  (?:  )?(?:repeated )?\w+ (\w+) = (\d+);", body, re.M)) for name, body in re.findall(r"^message (\w+) \{\n(.*?)^\}", schema, re.M | re.S)}
    for name, fields in numbers.items():
        struct = re.search(rf"^struct {name} (: Program )?\{{\n(.*?)^\}}", code, re.M | re.S)
        visited = {field: number for number, field in re.findall(r"\bv\((\d+), (?:\w+\{)?(\w+)\}?\);", struct[2] if struct else "")}
        visited |= {k: v for k, v in numbers["Program"].items() if struct and struct[1]}
        for field in sorted(set(fields) ^ set(visited)):
            wrong.append(f"manifest.proto: {name}.{field} is in one of schema and manifest.h alone")
        for field in sorted(set(fields) & set(visited)):
            if fields[field] != visited[field]:
                wrong.append(f"manifest.h: {name}.{field} has number {visited[field]}, in the schema {fields[field]}")
    if len(numbers) < 10:
        wrong.append("runtime/core/manifest.proto: no messages")


def check_links(root, wrong):
    """Relative links of the documents name files that exist."""
    for page in sorted([*root.glob("*.md"), *root.glob("*/*.md"), *root.glob("*/*/*.md")]):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            if not (page.parent / target).exists():
                wrong.append(f"{page.relative_to(root)}: no {target}")


def check_dumps(root, wrong):
    """Dumps that documents name are those of the default pipeline."""
    order = ["import", *default_pipeline(root)]
    for page in sorted([*root.glob("*.md"), *root.glob("*/*.md")]):
        for number, name in re.findall(r"\b(\d\d)-([a-z][a-z-]+)\.tfir", page.read_text()):
            if order[int(number):int(number) + 1] != [name]:
                wrong.append(f"{page.relative_to(root)}: no dump {number}-{name}.tfir")


def check_words(root, wrong):
    """No document, source or template has another word for what docs/glossary.md has one for."""
    page = root / "docs/glossary.md"
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", page.read_text(), re.M)[1:] if page.is_file() else []
    if not rows:
        wrong.append("docs/glossary.md: no table of words")
    instead = {other.strip(): word.strip() for word, others in rows for other in others.split(",")}
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, sorted(instead))) + r")s?\b", re.I)
    for folder in ("docs", "frontend", "ir", "passes", "codegen", "runtime", "templates", "tools"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".md", ".h", ".cpp", ".cuh", ".def") or path == page or path.name == "CHANGELOG.md":
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                for found in pattern.findall(line):
                    wrong.append(f"{path.relative_to(root)}:{number}: '{found}'; the word is '{instead.get(found.lower(), found)}'")


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    wrong = []
    counts = check_ops(root, wrong), check_passes(root, wrong), check_importers(root, wrong)
    check_manifest(root, wrong)
    check_links(root, wrong)
    check_dumps(root, wrong)
    check_words(root, wrong)
    print("\n".join(wrong) or "{} ops, {} passes and {} importers agree on their names".format(*counts))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
