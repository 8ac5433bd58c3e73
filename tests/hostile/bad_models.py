#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Broken and hostile ONNX files through `tfcc compile`: each must be refused well.

    bad_models.py TFCC [NAME...]       runs the cases (or those whose name contains NAME), one line per failure

Refused well: exit status 1, one to twenty lines on stderr that match the case's pattern and hold no control characters,
nothing left on disk, at most 10 seconds of CPU time (20 for a graph of 100,000 nodes) and 2 GiB. A case may also say that the file must compile.
"""
import os
import re
import resource
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import further_models  # noqa: F401 (declares cases)
from cases import CASES, case, one, relu
from onnx_bytes import (BOOL, DOUBLE, FLOAT, FLOAT16, INT32, INT64, STRING, attribute, block, floats, graph, graph_attribute, ints, model,
                        node, number, tensor, value, varint)

SECONDS, BYTES = 20, 2 << 30  # a quarter of it on a fast machine, half on one at half of its speed
MORE_SECONDS = {"chain_of_100_000": 40, "chain_of_100_000_mixed": 40}

# ---- not an ONNX file ----
one("empty", "empty|no graph|not an ONNX", b"")
one("text", "no ONNX|not an ONNX|no graph", b"hello, this is a text file\n" * 50)
one("zeros", "no ONNX|not an ONNX|no graph", bytes(4096))
one("random_bytes", "no ONNX|not an ONNX|no graph", bytes((k * 7919 + k * k * 31) % 251 for k in range(65536)))
one("only_opsets", "graph", number(1, 8) + block(8, block(1, "") + number(2, 17)))
one("graph_is_a_number", "", number(1, 8) + number(7, 3))
one("nested_groups", "", b"\x3b" * 100000)
one("length_beyond_the_end", "", number(1, 8) + varint(7 << 3 | 2) + varint(1 << 40) + b"abc")
one("length_of_64_bits", "", number(1, 8) + varint(7 << 3 | 2) + varint((1 << 64) - 1) + b"abc")
one("varint_without_end", "", b"\x08" + b"\xff" * 200)
one("field_number_0", "", b"\x02\x01a")


@case("no ONNX|not an ONNX|no graph")
def zip_file(folder):
    with zipfile.ZipFile(folder / "model.onnx", "w") as z:
        z.writestr("model.txt", "x" * 1000)


@case("folder|directory")
def folder_instead_of_file(folder):
    (folder / "model.onnx").mkdir()


@case("")
def deeply_nested_graphs(_):
    inner = graph([node("Relu", ["x"], ["y"])])
    for _ in range(20000):
        inner = graph([block(4, "If") + block(5, block(1, "then_branch") + block(6, inner) + number(20, 5))])
        if len(inner) > 4 << 20:
            break
    return number(1, 8) + block(8, block(1, "") + number(2, 17)) + block(7, inner)


@case("")
def many_empty_nodes(_):
    return number(1, 8) + block(8, block(1, "") + number(2, 17)) + block(7, b"\x0a\x00" * 2000000)


# ---- names ----
one("cycle", "a|b", model([node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])]))
one("self_loop", "a", model([node("Add", ["x", "a"], ["a"]), node("Relu", ["a"], ["y"])]))
one("dangling_input", "ghost", model([node("Add", ["x", "ghost"], ["y"])]))
one("nodes_out_of_order", "", model([node("Relu", ["later"], ["y"]), node("Relu", ["x"], ["later"])]), compiles=True)
one("duplicate_output", "'y'.*twice|twice.*'y'", model([node("Relu", ["x"], ["y"]), node("Relu", ["x"], ["y"])]))
one("output_overwrites_input", "x", model([node("Relu", ["x"], ["x"]), node("Relu", ["x"], ["y"])]))
one("duplicate_input", "x.*twice|twice.*x", relu(inputs=[value("x", ["B", 4]), value("x", ["B", 4])]))
one("duplicate_initializer", "w", model([node("Add", ["x", "w"], ["y"])], initializers=[floats("w", [4]), floats("w", [4])]))
one("output_not_computed", "nothing", relu(outputs=[value("nothing", ["B", 4])]))
one("no_outputs", "output", relu(outputs=[]))
one("output_listed_twice", "y", relu(outputs=[value("y", ["B", 4]), value("y", ["B", 4])]))
one("empty_output_name", "", relu(outputs=[value("", ["B", 4])]))
one("too_few_inputs", "n|Add", model([node("Add", ["x"], ["y"])]))
one("no_inputs_at_all", "MatMul|n", model([node("MatMul", [], ["y"])]))
one("required_input_empty", "MatMul|n", model([node("MatMul", ["x", ""], ["y"])]))
one("op_type_empty", "", model([node("", ["x"], ["y"])]))
one("megabyte_name", "", model([node("Nope", ["x"], ["y"], name="n" * (1 << 20))]))
one("megabyte_operator", "", model([node("N" * (1 << 20), ["x"], ["y"])]))
one("control_characters", r"\\x1b|\\e|\\u001b|\\033", model([node("Nope\x1b[31m\n\r\0", ["x"], ["y"], name="bad\x1b]0;t\x07\nname")]))
one("name_of_invalid_utf8", "", model([block(1, "x") + block(2, "y") + block(3, b"\xff\xfe\xc0") + block(4, b"N\xff\xfeo")]))
one("unknown_operator", "Nope", model([node("Nope", ["x"], ["y"])]))
one("unknown_operators_all_named", "(?s)Nope.*Never|Never.*Nope", model([node("Nope", ["x"], ["a"]), node("Never", ["a"], ["y"])]))
one("unknown_domain", "com.example", model([node("Relu", ["x"], ["y"], domain="com.example")], domains=["com.example"]))
one("domain_not_imported", "com.example|opset", model([node("Foo", ["x"], ["y"], domain="com.example")]))
one("thousand_unknown_operators", "Op999|Op1|more", model([node(f"Op{k}", ["x"], [f"y{k}"]) for k in range(1000)] + [node("Relu", ["x"], ["y"])]))
one("loop_without_end", "Loop", model([node("Loop", ["", ""], ["y"], graph_attribute("body", graph([node("Identity", ["c"], ["d"])],
    [value("i", [], INT64), value("c", [], BOOL)], [value("d", [], BOOL)])))]))
one("scan", "Scan", model([node("Scan", ["x"], ["y"], graph_attribute("body", graph([node("Relu", ["a"], ["b"])],
    [value("a", [4])], [value("b", [4])])), attribute("num_scan_inputs", 1))]))
one("if_on_data", "If|n", model([node("If", ["c"], ["y"], graph_attribute("then_branch", graph([node("Relu", ["x"], ["t"])], [], [value("t", ["B", 4])])),
    graph_attribute("else_branch", graph([node("Neg", ["x"], ["e"])], [], [value("e", ["B", 4])])))], inputs=[value("x", ["B", 4]), value("c", [], BOOL)]), compiles=None)
one("recursive_function", "", model([node("F", ["x"], ["y"], domain="local")], domains=["local"],
    more=block(25, block(1, "F") + block(4, "a") + block(5, "b") + block(7, node("F", ["a"], ["b"], domain="local")) + block(10, "local"))))

# ---- types ----
one("string_input", "string|x", relu(inputs=[value("x", ["B"], STRING)]))
one("unknown_dtype_of_input", "x|type", relu(inputs=[value("x", ["B", 4], 77)]))
one("unknown_dtype_of_initializer", "w|type", model([node("Add", ["x", "w"], ["y"])], initializers=[tensor("w", [4], 99, bytes(16))]))
one("string_initializer", "w|string", model([node("Add", ["x", "w"], ["y"])], initializers=[tensor("w", [1], STRING, None, None, block(6, "a"))]))
one("sequence_input", "x", relu(inputs=[block(1, "x") + block(2, block(4, block(1, block(1, number(1, 1)))))]))
one("input_without_type", "x", relu(inputs=[block(1, "x")]))
one("input_without_shape", "x", relu(inputs=[block(1, "x") + block(2, block(1, number(1, FLOAT)))]))
one("mixed_types", "n|Add|type", model([node("Add", ["x", "i"], ["y"])], inputs=[value("x", ["B", 4]), value("i", ["B", 4], INT64)]))
one("and_on_floats", "n|And|type", model([node("And", ["x", "x"], ["y"])]))
one("matmul_of_bool", "n|MatMul|type", model([node("MatMul", ["x", "x"], ["y"])], inputs=[value("x", [4, 4], BOOL)]))
one("gather_by_floats", "n|Gather|type|indices", model([node("Gather", ["x", "x"], ["y"])]))
one("where_without_bool", "n|Where|type|condition", model([node("Where", ["x", "x", "x"], ["y"])]))
one("cast_to_nothing", "n|Cast|type", model([node("Cast", ["x"], ["y"], attribute("to", 0))]))
one("cast_to_unknown", "n|Cast|type", model([node("Cast", ["x"], ["y"], attribute("to", 12345))]))
one("cast_without_to", "n|Cast|to", model([node("Cast", ["x"], ["y"])]))
one("attribute_of_wrong_type", "n|axis", model([node("Softmax", ["x"], ["y"], attribute("axis", "one"))]))
one("attribute_of_unknown_type", "n|axis", model([node("Softmax", ["x"], ["y"], attribute("axis", 1, kind=99))]), compiles=None)
one("attribute_ints_for_int", "n|axis", model([node("Softmax", ["x"], ["y"], attribute("axis", [1, 2]))]))

# ---- sizes and data ----
one("negative_dim_of_input", "x|negative", relu(inputs=[value("x", [-3, 4])]))
one("huge_dims_of_input", "x|fit|large|size", relu(inputs=[value("x", [1 << 62, 1 << 62])]))
one("negative_dim_of_initializer", "w|negative", model([node("Add", ["x", "w"], ["y"])], initializers=[tensor("w", [-4], FLOAT, bytes(16))]))
one("dims_overflow", "w|overflow|large|fit|size", model([node("Add", ["x", "w"], ["y"])], initializers=[tensor("w", [1 << 62, 1 << 62, 4], FLOAT, bytes(16))]))
one("raw_data_too_short", "w", model([node("Add", ["x", "w"], ["y"])], initializers=[tensor("w", [4], FLOAT, bytes(15))]))
one("raw_data_too_long", "w", model([node("Add", ["x", "w"], ["y"])], initializers=[tensor("w", [4], FLOAT, bytes(64))]))
one("no_data", "w", model([node("Add", ["x", "w"], ["y"])], initializers=[tensor("w", [4], FLOAT)]))
one("float_data_disagrees", "w", model([node("Add", ["x", "w"], ["y"])], initializers=[tensor("w", [4], FLOAT, None, None, block(4, struct.pack("<2f", 1, 2)))]))
one("constant_of_10_to_12", "", model([node("ConstantOfShape", ["s"], ["c"]), node("Add", ["x", "c"], ["y"])], initializers=[ints("s", [1000000, 1000000])],
    outputs=[value("y", [1000000, 1000000])]))
one("constant_of_10_to_12_in_a_product", "", model([node("ConstantOfShape", ["s"], ["c"]), node("MatMul", ["x", "c"], ["y"])], initializers=[ints("s", [4, 10 ** 12])]), compiles=None)
one("initializer_of_10_to_12_without_data", "w", model([node("Add", ["x", "w"], ["y"])], initializers=[tensor("w", [10 ** 12], FLOAT)]))
one("range_of_10_to_12", "", model([node("Range", ["a", "b", "c"], ["r"]), node("Cast", ["r"], ["f"], attribute("to", FLOAT)), node("ReduceSum", ["f"], ["s"], attribute("keepdims", 0)),
    node("Add", ["x", "s"], ["y"])], initializers=[ints("a", [0], []), ints("b", [10 ** 12], []), ints("c", [1], [])]), compiles=None)
one("range_of_step_0", "n|Range|step|delta", model([node("Range", ["a", "b", "c"], ["r"]), node("Cast", ["r"], ["y"], attribute("to", FLOAT))],
    initializers=[ints("a", [0], []), ints("b", [5], []), ints("c", [0], [])]))
one("matmul_sizes", "n", model([node("MatMul", ["x", "w"], ["y"])], initializers=[floats("w", [5, 3])]))
one("matmul_of_scalar", "n|MatMul", model([node("MatMul", ["x", "w"], ["y"])], initializers=[floats("w", [])]))
one("gemm_rank_3", "n|Gemm", model([node("Gemm", ["x", "w"], ["y"])], initializers=[floats("w", [2, 4, 3])]))
one("broadcast", "n", model([node("Add", ["x", "w"], ["y"])], initializers=[floats("w", [5])]))
one("reshape_count", "n", model([node("Reshape", ["x", "s"], ["y"])], initializers=[ints("s", [3, 7])], inputs=[value("x", [4, 4])]))
one("reshape_two_open", "n", model([node("Reshape", ["x", "s"], ["y"])], initializers=[ints("s", [-1, -1])]))
one("reshape_negative", "n", model([node("Reshape", ["x", "s"], ["y"])], initializers=[ints("s", [-5, 4])]))
one("reshape_zero_beyond_rank", "n", model([node("Reshape", ["x", "s"], ["y"])], initializers=[ints("s", [0, 4, 0])]))
one("reshape_to_a_matrix", "n", model([node("Reshape", ["x", "s"], ["y"])], initializers=[ints("s", [4, 4], [2, 1])]))
one("reshape_by_an_input", "n|s", model([node("Reshape", ["x", "s"], ["y"])], inputs=[value("x", ["B", 4]), value("s", [2], INT64)]))
one("reshape_of_overflow", "n|fit|overflow|size", model([node("Reshape", ["x", "s"], ["y"])], initializers=[ints("s", [1 << 40, 1 << 40])]))
one("expand_of_overflow", "", model([node("Expand", ["x", "s"], ["a"]), node("Expand", ["a", "t"], ["y"])], initializers=[ints("s", [1 << 40, 1, 4]), ints("t", [1 << 40, 1, 1, 4])]))
one("split_sum", "n", model([node("Split", ["x", "s"], ["y", "z"], attribute("axis", 1))], initializers=[ints("s", [3, 3])]))
one("split_negative", "n", model([node("Split", ["x", "s"], ["y", "z"], attribute("axis", 1))], initializers=[ints("s", [-1, 5])]))
one("split_outputs", "n", model([node("Split", ["x", "s"], ["y"], attribute("axis", 1))], initializers=[ints("s", [2, 2])]))
one("concat_ranks", "n", model([node("Concat", ["x", "w"], ["y"], attribute("axis", 0))], initializers=[floats("w", [4])]))
one("concat_sizes", "n", model([node("Concat", ["x", "w"], ["y"], attribute("axis", 0))], initializers=[floats("w", [1, 5])]))
one("concat_without_axis", "n|axis", model([node("Concat", ["x", "x"], ["y"])]))
one("axis_beyond_rank", "n|axis", model([node("Softmax", ["x"], ["y"], attribute("axis", 2))]))
one("axis_of_64_bits", "n|axis", model([node("Softmax", ["x"], ["y"], attribute("axis", -(1 << 63)))]))
one("gather_constant_index", "n", model([node("Gather", ["x", "i"], ["y"], attribute("axis", 1))], initializers=[ints("i", [4])]))
one("perm_of_wrong_length", "n", model([node("Transpose", ["x"], ["y"], attribute("perm", [0]))]))
one("perm_repeats", "n", model([node("Transpose", ["x"], ["y"], attribute("perm", [0, 0]))]))
one("perm_beyond_rank", "n", model([node("Transpose", ["x"], ["y"], attribute("perm", [0, 9]))]))
one("squeeze_of_4", "n", model([node("Squeeze", ["x", "a"], ["y"])], initializers=[ints("a", [1])]))
one("unsqueeze_twice", "n", model([node("Unsqueeze", ["x", "a"], ["y"])], initializers=[ints("a", [0, 0])]))
one("slice_step_0", "n|step", model([node("Slice", ["x", "a", "b", "c", "d"], ["y"])], initializers=[ints("a", [0]), ints("b", [1]), ints("c", [1]), ints("d", [0])]))
one("slice_axes_repeat", "n|axis|axes", model([node("Slice", ["x", "a", "b", "c"], ["y"])], initializers=[ints("a", [0, 0]), ints("b", [1, 1]), ints("c", [1, 1])]))
one("slice_counts", "n", model([node("Slice", ["x", "a", "b"], ["y"])], initializers=[ints("a", [0, 0]), ints("b", [1])]))
one("division_by_zero", "n|zero|d", model([node("Div", ["a", "b"], ["d"]), node("ConstantOfShape", ["d"], ["c"]), node("Add", ["x", "c"], ["y"])],
    initializers=[ints("a", [4]), ints("b", [0])]))
one("least_integer_by_minus_1", "", model([node("Div", ["a", "b"], ["d"]), node("ConstantOfShape", ["d"], ["c"]), node("Add", ["x", "c"], ["y"])],
    initializers=[ints("a", [-(1 << 63)]), ints("b", [-1])]))
one("modulus_by_zero", "n|zero|d", model([node("Mod", ["a", "b"], ["d"]), node("ConstantOfShape", ["d"], ["c"]), node("Add", ["x", "c"], ["y"])],
    initializers=[ints("a", [4]), ints("b", [0])]))
one("negative_constant_of_shape", "n", model([node("ConstantOfShape", ["s"], ["c"]), node("Add", ["x", "c"], ["y"])], initializers=[ints("s", [-4])]))
one("layer_norm_scale", "n|scale", model([node("LayerNormalization", ["x", "w"], ["y"])], initializers=[floats("w", [5])]))
one("attention_heads", "n", model([node("Attention", ["q", "q", "q"], ["y"], attribute("q_num_heads", 3), attribute("kv_num_heads", 3))], opset=23,
    inputs=[value("q", ["B", "S", 64])], outputs=[value("y", ["B", "S", 64])]))
one("attention_no_heads", "n|heads", model([node("Attention", ["q", "q", "q"], ["y"], attribute("q_num_heads", 0), attribute("kv_num_heads", 0))], opset=23,
    inputs=[value("q", ["B", "S", 64])], outputs=[value("y", ["B", "S", 64])]))
one("einsum_of_nonsense", "n|Einsum", model([node("Einsum", ["x", "x"], ["y"], attribute("equation", "ab,,->>?"))]))

# ---- external data ----
for title, pattern, pairs in (
        ("missing_file", "none.bin", [("location", "none.bin")]),
        ("too_short", "w.bin|w", [("location", "w.bin"), ("length", "4096")]),
        ("offset_negative", "offset|w", [("location", "w.bin"), ("offset", "-4")]),
        ("offset_huge", "offset|w", [("location", "w.bin"), ("offset", "9223372036854775800"), ("length", "16")]),
        ("offset_is_text", "offset|w", [("location", "w.bin"), ("offset", "here")]),
        ("length_disagrees", "length|w", [("location", "w.bin"), ("length", "12")]),
        ("absolute", "absolute|outside|folder|w", [("location", "/etc/passwd")]),
        ("outside", "outside|folder|w", [("location", "../secret.bin")]),
        ("hidden_outside", "outside|folder|w", [("location", "a/../../secret.bin")]),
        ("through_a_link", "link|outside|folder|w", [("location", "link/secret.bin")]),
        ("a_link", "link|outside|folder|w", [("location", "linked.bin")]),
        ("a_folder", "w.dir|folder|directory", [("location", "w.dir")]),
        ("a_device", "", [("location", "pipe")]),
        ("nul_in_name", r"\\x00|\\0|w", [("location", "w.bin\0.txt")]),
        ("no_location", "location|w", [("offset", "0")]),
        ("empty_location", "location|w", [("location", "")])):
    def external(folder, pairs=pairs):
        (folder / "w.bin").write_bytes(bytes(16))
        (folder / "w.dir").mkdir()
        secret = folder.parent / "outside"
        secret.mkdir(exist_ok=True)
        (secret / "secret.bin").write_bytes(bytes(64))
        (folder / "link").symlink_to(secret)
        (folder / "linked.bin").symlink_to(secret / "secret.bin")
        os.mkfifo(folder / "pipe")
        return model([node("Add", ["x", "w"], ["y"])], initializers=[tensor("w", [4], FLOAT, None, pairs)])
    CASES["external_" + title] = (external, pattern, False)


# ---- size of the graph, versions ----
# Absurd and legal: these must compile, within the same seconds and bytes.
def chain(steps):
    """Nodes of (operator, more inputs), each of the one before."""
    nodes = [node(op, [f"v{k}" if k else "x", *more], [f"v{k + 1}"], name=f"n{k}") for k, (op, more) in enumerate(steps)]
    return model([*nodes, node("Identity", [f"v{len(nodes)}"], ["y"])], initializers=[floats(f"c{k}", [], [1 + k / 16]) for k in range(4)])


@case("", compiles=True)
def chain_of_100_000(_):
    return chain([("Relu", [])] * 100000)


@case("", compiles=True)
def chain_of_100_000_mixed(_):
    return chain([("Add", ["c0"]), ("Mul", ["c1"]), ("Tanh", []), ("Sub", ["c2"])] * 25000)


@case("", compiles=True)
def chain_of_20_000_that_read_two(_):
    """Each reads the two before it, so that no part of the chain is a chain to fuse-pointwise."""
    nodes = [node("Add", [f"v{k}", f"v{k + 1}"], [f"v{k + 2}"], name=f"n{k}") for k in range(20000)]
    return model([node("Relu", ["x"], ["v0"]), node("Tanh", ["x"], ["v1"]), *nodes, node("Identity", ["v20001"], ["y"])])


@case("", compiles=True)
def quotients_of_a_sum_of_250_sizes(_):
    nodes = [node("Shape", [f"x{k}"], [f"s{k}"]) for k in range(250)] + [node("Gather", [f"s{k}", "zero"], [f"d{k}"]) for k in range(250)]
    nodes += [node("Add", [f"t{k}" if k else "d0", f"d{k + 1}"], [f"t{k + 1}"]) for k in range(249)]
    for k in range(60):
        nodes += [node("Div", ["t249", f"n{k}"], [f"q{k}"]), node("Expand", ["one", f"q{k}"], [f"y{k}"])]
    return model(nodes, inputs=[value(f"x{k}", [f"S{k}", 4]) for k in range(250)], outputs=[value(f"y{k}", [f"N{k}"]) for k in range(60)],
                 initializers=[ints("zero", [0]), floats("one", [1]), *(ints(f"n{k}", [k + 2]) for k in range(60))])


@case("", compiles=None)
def doubling_60_times(_):
    nodes = [node("Add", [f"v{k}" if k else "x"] * 2, [f"v{k + 1}"], name=f"a{k}") for k in range(60)]
    return model([*nodes, node("Relu", ["v60"], ["y"])])


@case("", compiles=None)
def concat_doubling_40_times(_):
    nodes = [node("Concat", [f"v{k}" if k else "x"] * 2, [f"v{k + 1}"], attribute("axis", 1), name=f"c{k}") for k in range(40)]
    return model([*nodes, node("Identity", ["v40"], ["y"])], outputs=[value("y", ["B", "N"])])


one("opset_0", "opset", relu(opset=0))
one("opset_negative", "opset", relu(opset=-1))
one("opset_3", "opset|Relu", relu(opset=3))
one("no_opset", "opset", number(1, 8) + block(7, graph([node("Relu", ["x"], ["y"])])))
one("opset_of_the_future", "warning.*opset|opset.*newer", relu(opset=99), compiles=True)
one("ir_of_the_future", "warning.*IR|IR.*newer", relu(ir=99), compiles=True)


@case("")
def truncated_everywhere(folder):
    """Not one file but one for each length of a small model; judged by judge_truncated()."""


def good():
    return model([node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "b"], ["y"])], initializers=[floats("w", [4, 4]), floats("b", [4])])


def compile_model(tfcc, path, folder):
    """Status, stderr, CPU seconds and resident bytes of one `tfcc compile`."""
    def limit():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    start = time.monotonic()
    with tempfile.TemporaryFile() as err:
        child = subprocess.Popen([tfcc, "compile", path, "-o", folder / "out.tfcc", "--target", "cpu", "--cpu", "native"], cwd=folder, preexec_fn=limit,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err)
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() - start > 6 * SECONDS:
                child.kill()
                _, status, usage = os.wait4(child.pid, 0)
                break
            time.sleep(0.002)
        child.returncode = 0  # reaped by wait4
        err.seek(0)
        text = err.read(1 << 22).decode(errors="replace")
    seconds = usage.ru_utime + usage.ru_stime  # of its own: the machine may be busy with other tests
    return os.waitstatus_to_exitcode(status), text, seconds, usage.ru_maxrss * 1024


def complaint(code, text, seconds, resident, pattern, compiles, allowed=SECONDS):
    """What is wrong with an answer, or ""."""
    lines = text.splitlines()
    if seconds > allowed:
        return f"took {seconds:.1f} s"
    if code < 0 or code >= 128:
        return f"ended by signal {-code}: {text[:200]!r}"
    if resident > BYTES:
        return f"took {resident >> 20} MiB"
    wanted = {True: (0,), False: (1,), None: (0, 1)}[compiles]
    if code not in wanted:
        return f"exit status {code}: {text[:300]!r}"
    if code == 1 and not 1 <= len(lines) <= 20:
        return f"{len(lines)} lines on stderr"
    if any(len(line) > 65536 for line in lines):
        return "a line of more than 64 KiB"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text):
        return f"control characters on stderr: {text[:200]!r}"
    if "internal" in text:
        return f"calls itself internal: {text[:300]!r}"
    if code == 1 and "model.onnx" not in text:
        return f"does not name the file: {text[:300]!r}"
    if (code == 1 or compiles) and not re.search(pattern, text):
        return f"no match for {pattern!r}: {text[:300]!r}"
    return ""


def judge(tfcc, name):
    function, pattern, compiles = CASES[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        folder.mkdir()
        data = function(folder)
        if data is not None:
            (folder / "model.onnx").write_bytes(data)
        before = sorted(folder.iterdir())
        answer = compile_model(tfcc, folder / "model.onnx", folder)
        said = complaint(*answer, pattern, compiles, MORE_SECONDS.get(name, SECONDS))
        left = [p.name for p in sorted(folder.iterdir()) if p not in before and not (answer[0] == 0 and p.name == "out.tfcc")]
        return said or (f"left {', '.join(left)} behind" if left else ""), answer[1]


def judge_truncated(tfcc):
    """A model cut at any byte is refused (or, cut between two fields, may still be one)."""
    data = good()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for length in range(0, len(data), max(1, len(data) // 60)):
            (folder / "model.onnx").write_bytes(data[:length])
            said = complaint(*compile_model(tfcc, folder / "model.onnx", folder), "", None)
            if said:
                return f"cut at byte {length}: {said}", ""
    return "", ""


def main():
    sys.stdout.reconfigure(line_buffering=True)
    tfcc, only, shown = os.path.abspath(sys.argv[1]), [a for a in sys.argv[2:] if a != "--show"], "--show" in sys.argv
    names = [n for n in CASES if not only or any(o in n for o in only)]
    failed = 0
    for name in names:
        said, text = judge_truncated(tfcc) if name == "truncated_everywhere" else judge(tfcc, name)
        failed += bool(said)
        if said:
            print(f"FAIL {name}: {said}")
        elif shown:
            print(f"ok   {name}: {text.strip()[:240]}")
    print(f"{len(names) - failed} of {len(names)} bad models refused well")
    return 1 if failed or not names else 0


if __name__ == "__main__":
    sys.exit(main())
