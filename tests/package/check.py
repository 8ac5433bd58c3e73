#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs a build into an empty prefix, moves it, and uses it from outside as a user would.

    check.py BUILD CXX [--flags FLAGS] [--no-cpu]      a build folder, the compiler that built it and its flags
    check.py --deb BUILD                               packs the .deb and looks into it (needs dpkg-deb)

Builds tools/examples with find_package(tfcc), one example with pkg-config, and runs them on tests/models/bert-eager
compiled by the installed command for the cpu; with --no-cpu they are built and start, but have no model to run.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/models/bert-eager/model.onnx"
DECODER = ROOT / "tests/models/llama-past"
VERSION = r"\d+\.\d+\.\d+"


def fail(message):
    sys.exit(f"FAIL {message}")


def run(*command, cwd=None, env=None, status=0):
    """Runs a command that must end with `status`; returns what it wrote."""
    words = [str(c) for c in command]
    done = subprocess.run(words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", timeout=600)
    if done.returncode != status:
        fail(f"{' '.join(words)}: exit status {done.returncode}, expected {status}\n{done.stdout}")
    return done.stdout


def expect(pattern, text, what):
    if not re.search(pattern, text):
        fail(f"{what}: no match for {pattern} in\n{text}")


def check_compiler_exports(library):
    """libtfcc_compiler.so exports the functions of tfcc_compiler.h, and nothing of tfcc's or of what it links."""
    symbols = run("nm", "-DC", "--defined-only", library)
    declared = set(re.findall(r"^TFCC_COMPILER_API .*?\b(tfcc_\w+)\(", (ROOT / "tools/compiler/tfcc_compiler.h").read_text(), re.MULTILINE))
    exported = set(re.findall(r" T (\w+)$", symbols, re.MULTILINE)) - {"_init", "_fini"}
    if exported != declared:
        fail(f"{library.name}: declared in tfcc_compiler.h or exported, but not both: {sorted(exported ^ declared)}")
    for word in ("tfcc::", "google::protobuf", "onnx::", "lld::"):
        if re.search(rf" [TWV] .*\b{word}", symbols):
            fail(f"{library.name} exports names of {word}")


def check_exports(library):
    """libtfcc.so exports the functions of tfcc.h and tfcc_c.h, and nothing else of tfcc's."""
    symbols = run("nm", "-DC", "--defined-only", library)
    expect(r" T tfcc::v1::Model::load\(", symbols, "exports")
    declared = set(re.findall(r"\b(tfcc_\w+)\(", (ROOT / "runtime/tfcc_c.h").read_text()))
    exported = set(re.findall(r" T (tfcc_\w+)$", symbols, re.MULTILINE))
    if exported != declared:
        fail(f"{library.name}: declared in tfcc_c.h or exported, but not both: {sorted(exported ^ declared)}")
    for line in symbols.splitlines():
        name = line.split(" ", 2)[2]
        if "tfcc::" in name and not re.match(r"tfcc::v1::(Model|Memory|Executor)::(?!Impl)", name):
            fail(f"{library.name} exports {name}; only what tfcc.h marks TFCC_API should be")


def check_headers(prefix, compiler, flags, folder):
    """Each public header compiles by itself, without warnings, with the standard library alone, nvtx.h where nvtx3 is there."""
    headers = sorted((prefix / "include/tfcc").rglob("*.h"))
    if [h.name for h in headers] != ["tfcc_compiler.h", "dtype.h", "generate.h", "input_role.h", "nvtx.h", "result.h", "size_role.h", "tokenizer.h", "tfcc.h", "tfcc_c.h"]:
        fail(f"installed headers are {headers}")
    for header in headers:
        source = folder / "alone.cpp"
        if header.name == "nvtx.h":  # the one that needs more: nvtx3 of the CUDA Toolkit
            source.write_text("#include <nvtx3/nvToolsExt.h>\n")
            if subprocess.run([compiler, "-std=c++20", "-fsyntax-only", source], stderr=subprocess.DEVNULL, check=False).returncode != 0:
                continue
        source.write_text(f'#include "{header.relative_to(prefix / "include/tfcc")}"\n')
        run(compiler, *flags, "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only",
            "-I", prefix / "include/tfcc", source)
    for name in ("runtime/tfcc_c.h", "compiler/tfcc_compiler.h"):
        run(compiler, "-x", "c", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", prefix / "include/tfcc" / name)


def build_with_cmake(prefix, compiler, flags, c_flags, folder):
    run("cmake", "-S", ROOT / "tools/examples", "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}",
        *(f"-DCMAKE_{word}" for word in (f"CXX_COMPILER={compiler}", f"CXX_FLAGS={' '.join(flags)}", f"C_FLAGS={c_flags}")))
    found = (folder / "CMakeCache.txt").read_text()
    expect(re.escape(f"tfcc_DIR:PATH={prefix}/"), found, "find_package found another tfcc")
    run("cmake", "--build", folder)


def build_with_pkg_config(prefix, compiler, flags, program):
    folders = ":".join(str(p.parent) for p in prefix.rglob("tfcc.pc"))
    env = dict(os.environ, PKG_CONFIG_PATH=folders)
    expect(VERSION, run("pkg-config", "--modversion", "tfcc", env=env), "pkg-config --modversion")
    words = run("pkg-config", "--cflags", "--libs", "tfcc", env=env).split()
    libraries = run("pkg-config", "--variable=libdir", "tfcc", env=env).strip()
    run(compiler, *flags, "-std=c++20", ROOT / "tools/examples/minimal.cpp", "-o", program, *words,
        f"-Wl,-rpath,{libraries}")


def check_installed(build, compiler, flags, c_flags, cpu):
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary).resolve()
        run("cmake", "--install", build, "--prefix", top / "first")
        prefix = top / "moved"  # nothing in the tree may know where it was installed
        (top / "first").rename(prefix)
        library, = prefix.rglob("libtfcc.so")
        expect(rf"SONAME.*\[libtfcc\.so\.\d+\]", run("readelf", "-d", library), "soname")
        check_exports(library)
        library, = prefix.rglob("libtfcc_compiler.so")
        check_compiler_exports(library)
        check_headers(prefix, compiler, flags, top)
        build_with_cmake(prefix, compiler, flags, c_flags, top / "build")
        build_with_pkg_config(prefix, compiler, flags, top / "minimal")
        expect(VERSION, run(prefix / "bin/tfcc", "--version"), "tfcc --version")
        run(prefix / "bin/tfcc-embed", "--help")
        programs = [top / "minimal", top / "build/minimal", top / "build/minimal_c"]
        if not cpu:
            for program in programs:
                expect("none.tfcc", run(program, "none.tfcc", cwd=top, status=1), "a missing model")
            print("ok: installed, built by find_package and pkg-config; without the CPU target nothing was run")
            return
        model = top / "model.tfcc"
        run(prefix / "bin/tfcc", "compile", MODEL, "-o", model, "--target", "cpu")
        compiled = top / "by-c.tfcc"
        expect(r"^wrote .*by-c\.tfcc: \d+ kernels", run(top / "build/compile_c", MODEL, compiled), "compile_c")
        if compiled.read_bytes() != model.read_bytes():
            fail("the C API and the command compile one model to different files")
        said = {run(program, model) for program in programs}
        if len(said) != 1:
            fail(f"one program, three builds, several results: {said}")
        expect(r"^cpu: f32, first value -?\d", said.pop(), "minimal")
        expect("100 requests on 4 threads", run(top / "build/serve_threads", model), "serve_threads")
        decoder = DECODER / "model.onnx"
        golden = json.loads((DECODER / "generate.json").read_text())
        prompt = ",".join(map(str, golden["prompt"]))
        run(prefix / "bin/tfcc", "compile", decoder, "-o", model, "--target", "cpu")
        wanted = " ".join(map(str, golden["tokens"][:12])) + " \n"
        said = run(top / "build/generate", model, prompt, prompt)
        if said != 2 * wanted:
            fail(f"generate: {said!r}, expected twice {wanted!r}")
    print("ok: installed, built by find_package and pkg-config, and run")


# Package -> files that it holds, words of Depends that it has and has not.
PACKAGES = {
    "libtfcc0": (["lib/libtfcc.so.0", "lib/tfcc/libtfcc_cpu.so"], ["libc6 ("], ["llvm", "protobuf", "fmt"]),
    "libtfcc-dev": (["include/tfcc/runtime/tfcc.h", "include/tfcc/compiler/tfcc_compiler.h", "lib/libtfcc.so", "lib/cmake/tfcc/tfcc-config.cmake",
                     "lib/pkgconfig/tfcc.pc", "share/doc/libtfcc-dev/examples/minimal.cpp"], ["libtfcc0 (="], []),
    "libtfcc-compiler0": (["lib/libtfcc_compiler.so.0"], ["libc6 ("], ["libtfcc0"]),
    "tfcc": (["bin/tfcc", "bin/tfcc-embed", "share/doc/tfcc/README.md", "share/doc/tfcc/docs/api.md",
              "share/bash-completion/completions/tfcc"], ["libtfcc0 (="], []),
    "python3-tfcc": (["lib/python3/dist-packages/tfcc/__init__.py", "lib/python3/dist-packages/tfcc/py.typed"], ["python3-numpy", "libtfcc0 (="], []),
}


def check_deb(build):
    with tempfile.TemporaryDirectory() as temporary:
        run("cpack", "--config", build / "CPackConfig.cmake", "-B", temporary, cwd=build)
        made = {p.name.split("_")[0]: p for p in Path(temporary).glob("*.deb")}
        if set(made) != set(PACKAGES):
            fail(f"packages {sorted(made)}, expected {sorted(PACKAGES)}")
        for name, (files, depends, not_depends) in PACKAGES.items():
            package = made[name]
            expect(rf"^{name}_{VERSION}_(amd64|all)\.deb$", package.name, "name of the package")
            content = run("dpkg-deb", "--contents", package)
            if not list(build.rglob("libtfcc_cpu.so")):
                files = [f for f in files if "libtfcc_cpu" not in f]
            for file in [*files, f"share/doc/{name}/copyright", f"share/doc/{name}/changelog.gz"]:
                folder, _, rest = file.partition("/")
                expect(rf" \./usr/{folder}/(\S*/)?{re.escape(rest)}( ->.*)?\n", content, package.name)
            said = run("dpkg-deb", "--field", package, "Depends")
            for word in depends:
                expect(re.escape(word), said, f"dependencies of {name}")
            for word in not_depends:
                if word in said:
                    fail(f"{name} depends on {word}: {said}")
        lintian = shutil.which("lintian")
        if lintian:
            run(lintian, "--allow-root", "--fail-on", "error", *made.values())
        print(f"ok: {', '.join(f'{n} {p.stat().st_size >> 10} KB' for n, p in sorted(made.items()))}{'' if lintian else '; no lintian here'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("compiler", nargs="?")
    parser.add_argument("--flags", default="")
    parser.add_argument("--c-flags", default="")
    parser.add_argument("--no-cpu", action="store_true")
    parser.add_argument("--deb", action="store_true")
    a = parser.parse_args()
    if a.deb:
        check_deb(a.build.resolve())
    elif a.compiler:
        check_installed(a.build.resolve(), a.compiler, a.flags.split(), a.c_flags, not a.no_cpu)
    else:
        parser.error("CXX is missing")


if __name__ == "__main__":
    main()
