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
    """Each public header compiles by itself, without warnings, with the standard library alone."""
    headers = sorted((prefix / "include/tfcc").rglob("*.h"))
    if [h.name for h in headers] != ["dtype.h", "generate.h", "result.h", "tokenizer.h", "tfcc.h", "tfcc_c.h"]:
        fail(f"installed headers are {headers}")
    for header in headers:
        source = folder / "alone.cpp"
        source.write_text(f'#include "{header.relative_to(prefix / "include/tfcc")}"\n')
        run(compiler, *flags, "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only",
            "-I", prefix / "include/tfcc", source)
    run(compiler, "-x", "c", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only",
        prefix / "include/tfcc/runtime/tfcc_c.h")


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


def check_deb(build):
    with tempfile.TemporaryDirectory() as temporary:
        run("cpack", "--config", build / "CPackConfig.cmake", "-B", temporary, cwd=build)
        package, = Path(temporary).glob("*.deb")
        expect(rf"^tfcc_{VERSION}_\w+\.deb$", package.name, "name of the package")
        content = run("dpkg-deb", "--contents", package)
        files = ["bin/tfcc", "bin/tfcc-embed", "include/tfcc/runtime/tfcc.h"]
        for name in files:
            expect(rf" \./usr/{name}\n", content, package.name)
        for name in ("libtfcc.so", r"cmake/tfcc/tfcc-config.cmake", "pkgconfig/tfcc.pc"):
            expect(rf" \./usr/lib\S*/{name}( ->.*)?\n", content, package.name)
        expect(r"libc6 \(", run("dpkg-deb", "--field", package, "Depends"), "dependencies")
        print(f"ok: {package.name}, {package.stat().st_size >> 10} KB")


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
