# SPDX-License-Identifier: Apache-2.0
"""More cases for bad_models.py: quantised and com.microsoft operators with absurd parameters, control flow, functions, odd
declarations. Some are unusual but legal ONNX and must compile."""
import math
import struct

from cases import case, one, relu
from onnx_bytes import (BOOL, DOUBLE, FLOAT, FLOAT16, INT8, INT32, INT64, STRING, UINT8, attribute, block, floats, graph, graph_attribute,
                        ints, model, node, number, tensor, value, varint)

MS = "com.microsoft"
UINT32, UINT64, COMPLEX64, FLOAT8 = 12, 13, 14, 17


def nodes(*list_, **more):
    return model(list(list_), **more)


def raw(name, dims, dtype, code, *values):
    return tensor(name, dims, dtype, struct.pack(f"<{len(values)}{code}", *values))


def typed(name, content):
    return block(1, name) + block(2, content)


def branch(op, inputs, out):
    return graph([node(op, inputs, [out])], [], [value(out, ["B", 4])])


# ---- legal, if unusual: these compile ----
one("legal_no_nodes", "", model([], outputs=[value("x", ["B", 4])]), compiles=True)
one("legal_output_is_an_input_too", "", relu(outputs=[value("y", ["B", 4]), value("x", ["B", 4])]), compiles=True)
one("legal_output_is_an_initializer", "", model([], inputs=[], initializers=[floats("w", [4])], outputs=[value("w", [4])]), compiles=True)
one("legal_initializer_is_an_input_too", "", nodes(node("Add", ["x", "w"], ["y"]), inputs=[value("x", ["B", 4]), value("w", [4])],
    initializers=[floats("w", [4])]), compiles=True)
one("legal_unused_input", "", relu(inputs=[value("x", ["B", 4]), value("z", ["C", 7])]), compiles=True)
one("legal_unused_string_initializer", "", relu(initializers=[tensor("s", [1], STRING, None, None, block(6, "a"))]), compiles=True)
one("legal_output_without_type", "", relu(outputs=[block(1, "y")]), compiles=True)
one("legal_node_without_name", "", nodes(node("Relu", ["x"], ["y"], name="")), compiles=True)
one("legal_node_names_repeat", "", nodes(node("Relu", ["x"], ["a"]), node("Relu", ["a"], ["y"])), compiles=True)
one("legal_dim_of_0", "", nodes(node("Concat", ["x", "w"], ["y"], attribute("axis", 0)), initializers=[tensor("w", [0, 4], FLOAT, b"")]), compiles=True)
one("legal_metadata_and_value_infos", "", model([node("Relu", ["x"], ["y"])], more=block(14, block(1, "key") + block(2, "v\x1b[31m"))), compiles=True)
for position, text in enumerate(("a b", "1+", "", "日本", "0", "-1", "a + b", "max", "i0", "t0", "s", "x.0", "B" * 5000, "\x1b[31m", "a\nb", "%x", "{}", "'\"")):
    one(f"legal_dim_param_{position}", "", relu(inputs=[value("x", [text, 4])], outputs=[value("y", [text, 4])]), compiles=True)
one("dim_param_of_invalid_utf8", "", relu(inputs=[typed("x", block(1, number(1, FLOAT) + block(2, block(1, block(2, b"\xff\xfe")) + block(1, number(1, 4)))))]), compiles=None)

# ---- declarations ----
one("input_of_unknown_rank", "x", relu(inputs=[typed("x", block(1, number(1, FLOAT)))]))
one("input_that_is_optional", "x", relu(inputs=[typed("x", block(9, block(1, block(1, number(1, FLOAT)))))]))
one("input_that_is_a_map", "x", relu(inputs=[typed("x", block(5, number(1, INT64) + block(2, block(1, number(1, FLOAT)))))]))
one("input_that_is_sparse", "x", relu(inputs=[typed("x", block(8, number(1, FLOAT) + block(2, block(1, number(1, 4)))))]))
one("input_of_complex_numbers", "x.*COMPLEX64", relu(inputs=[value("x", ["B", 4], COMPLEX64)]))
one("input_of_uint64", "x.*UINT64", relu(inputs=[value("x", ["B", 4], UINT64)]))
one("input_of_uint32", "x.*UINT32", relu(inputs=[value("x", ["B", 4], UINT32)]))
one("input_of_float8", "x.*FLOAT8", relu(inputs=[value("x", ["B", 4], FLOAT8)]))
one("cast_to_uint64", "n.*UINT64", nodes(node("Cast", ["x"], ["y"], attribute("to", UINT64))))
one("output_of_type_string", "n.*STRING|y", nodes(node("Cast", ["x"], ["y"], attribute("to", STRING))))
one("empty_input_name", "", relu(inputs=[value("", ["B", 4]), value("x", ["B", 4])]))
one("input_of_100_dims", "x|rank", relu(inputs=[value("x", [1] * 100)], outputs=[value("y", [1] * 100)]))
one("input_of_9_dims", "x|rank", relu(inputs=[value("x", ["B"] + [2] * 8)], outputs=[value("y", ["B"] + [2] * 8)]), compiles=None)
one("input_of_2_to_31", "", relu(inputs=[value("x", [1 << 31, 4])]), compiles=None)
one("input_of_2_to_62", "x|fit|size", relu(inputs=[value("x", [1 << 62, 4])]))
one("input_of_least_dim", "x|negative", relu(inputs=[value("x", [-(1 << 63), 4])]))
one("ten_thousand_inputs", "", relu(inputs=[value("x", ["B", 4])] + [value(f"u{k}", [f"S{k}", 4]) for k in range(10000)]), compiles=None)
one("ten_thousand_outputs", "", nodes(*[node("Relu", ["x"], [f"y{k}"]) for k in range(10000)], outputs=[value(f"y{k}", ["B", 4]) for k in range(10000)]), compiles=None)
one("dims_that_clash", "n|broadcast|equal", nodes(node("Add", ["a", "b"], ["y"]), inputs=[value("a", ["B", 4]), value("b", ["B", 5])]))
one("dims_that_clash_by_name", "n|equal|settle|fit", nodes(node("Add", ["a", "b"], ["c"]), node("Concat", ["c", "c"], ["d"], attribute("axis", 0)), node("Add", ["d", "a"], ["y"]),
    inputs=[value("a", ["B", 4]), value("b", ["B", 4])]))
one("dim_named_as_a_sum_of_itself", "", relu(inputs=[value("x", ["B + B", 4]), value("z", ["B", 4])]), compiles=None)
one("dims_named_as_each_other", "", relu(inputs=[value("x", ["a + b", 4]), value("z", ["b + a", 4]), value("u", ["a"]), value("v", ["b"])]), compiles=None)
one("dim_named_as_deep_sum", "", relu(inputs=[value("x", [" + ".join(["B"] * 20000), 4]), value("z", ["B", 4])]), compiles=None)
one("dim_named_with_brackets", "", relu(inputs=[value("x", ["(" * 100000 + " + B", 4]), value("z", ["B", 4])]), compiles=None)
one("dim_named_as_division_by_zero", "", relu(inputs=[value("x", ["B + 1 / 0", 4]), value("z", ["B", 4])]), compiles=None)
one("outputs_of_one_name", "", nodes(node("TopK", ["x", "k"], ["y", "y"]), initializers=[ints("k", [1])]))
one("output_only_in_a_branch", "t", nodes(node("If", ["c"], ["y"], graph_attribute("then_branch", branch("Relu", ["x"], "t")), graph_attribute("else_branch", branch("Neg", ["x"], "e"))),
    initializers=[tensor("c", [], BOOL, b"\1")], outputs=[value("t", ["B", 4])]))
one("sparse_initializer", "w", number(1, 8) + block(8, block(1, "") + number(2, 17)) + block(7, graph([node("Add", ["x", "w"], ["y"])]) +
    block(15, block(1, floats("w", [2])) + block(2, ints("at", [0, 3])) + number(3, 4))))
one("sparse_value_of_constant", "n|Constant|sparse", nodes(node("Constant", [], ["c"], block(1, "sparse_value") + block(22, block(1, floats("w", [2])) + block(2, ints("at", [0, 3])) + number(3, 4)) + number(20, 11)), node("Add", ["x", "c"], ["y"])))
one("string_value_of_constant", "n|Constant", nodes(node("Constant", [], ["c"], attribute("value_string", "abc")), node("Add", ["x", "c"], ["y"])))
one("constant_without_value", "n|Constant", nodes(node("Constant", [], ["c"]), node("Add", ["x", "c"], ["y"])))
one("constant_of_10_to_18", "n|Constant", nodes(node("Constant", [], ["c"], block(1, "value") + block(5, tensor("", [10 ** 9, 10 ** 9], FLOAT, b"")) + number(20, 4)), node("Add", ["x", "c"], ["y"])))
one("training_info", "", relu(more=block(20, block(1, graph([node("Nope", ["x"], ["z"])])))), compiles=None)
one("quantization_annotation_of_nothing", "", number(1, 8) + block(8, block(1, "") + number(2, 17)) + block(7, graph([node("Relu", ["x"], ["y"])]) + block(14, block(1, "ghost"))), compiles=True)
one("bytes_for_float_data", "w", nodes(node("Add", ["x", "w"], ["y"]), initializers=[tensor("w", [4], FLOAT, None, None, b"".join(number(7, 1) for _ in range(4)))]))
one("raw_and_float_data", "w", nodes(node("Add", ["x", "w"], ["y"]), initializers=[tensor("w", [4], FLOAT, bytes(16), None, block(4, struct.pack("<4f", 1, 2, 3, 4)))]), compiles=None)
one("bool_of_7", "", nodes(node("Where", ["c", "x", "x"], ["y"]), initializers=[tensor("c", [4], BOOL, b"\x07\xff\x00\x80")]), compiles=None)
one("int4_with_odd_count", "", nodes(node("DequantizeLinear", ["w", "s"], ["y"]), opset=21, initializers=[tensor("w", [3], 22, b"\x21"), floats("s", [])], outputs=[value("y", [3])]))
one("graph_after_graph", "", number(1, 8) + block(8, block(1, "") + number(2, 17)) + block(7, graph([node("Relu", ["x"], ["y"])])) + block(7, graph([node("Relu", ["x"], ["y"])])), compiles=None)
one("opset_twice", "", number(1, 8) + block(8, block(1, "") + number(2, 17)) + block(8, block(1, "") + number(2, 11)) + block(7, graph([node("Relu", ["x"], ["y"])])), compiles=None)

# ---- attributes ----
one("epsilon_is_nan", "", nodes(node("LayerNormalization", ["x", "w"], ["y"], attribute("epsilon", float("nan"))), initializers=[floats("w", [4])]), compiles=None)
one("alpha_is_infinite", "", nodes(node("LeakyRelu", ["x"], ["y"], attribute("alpha", float("inf")))), compiles=None)
one("attribute_twice", "", nodes(node("Softmax", ["x"], ["y"], attribute("axis", 0), attribute("axis", 1))), compiles=None)
one("attribute_without_name", "", nodes(node("Softmax", ["x"], ["y"], attribute("", 0))), compiles=None)
one("perm_is_a_string", "n|perm", nodes(node("Transpose", ["x"], ["y"], attribute("perm", "1,0"))))
one("perm_is_a_number", "n|perm", nodes(node("Transpose", ["x"], ["y"], attribute("perm", 1))))
one("axes_are_floats", "n|axes", nodes(node("ReduceSum", ["x"], ["y"], attribute("axes", 1.0)), opset=11))
one("axes_repeat", "n|ax", nodes(node("ReduceMean", ["x", "a"], ["y"]), opset=18, initializers=[ints("a", [1, 1])]))
one("axes_of_a_million", "n|ax", nodes(node("ReduceMean", ["x", "a"], ["y"]), opset=18, initializers=[ints("a", list(range(1000000)))]))
one("to_of_64_bits", "n|Cast", nodes(node("Cast", ["x"], ["y"], attribute("to", (1 << 32) + 1))))
one("equation_is_a_number", "n|equation", nodes(node("Einsum", ["x", "x"], ["y"], attribute("equation", 3))))
one("equation_of_a_megabyte", "n|Einsum", nodes(node("Einsum", ["x"], ["y"], attribute("equation", "a" * (1 << 20) + "->a"))))
one("equation_with_too_few_inputs", "n|Einsum", nodes(node("Einsum", ["x"], ["y"], attribute("equation", "ab,bc->ac"))))
one("reference_outside_a_function", "n|axis", nodes(node("Softmax", ["x"], ["y"], block(1, "axis") + block(21, "outer") + number(20, 2))), compiles=None)
one("kernel_of_0", "n|Conv", nodes(node("Conv", ["x", "w"], ["y"]), inputs=[value("x", [1, 2, 8])], outputs=[value("y", [1, 2, "N"])], initializers=[tensor("w", [2, 2, 0], FLOAT, b"")]))
one("group_of_0", "n|group", nodes(node("Conv", ["x", "w"], ["y"], attribute("group", 0)), inputs=[value("x", [1, 2, 8])], outputs=[value("y", [1, 2, "N"])], initializers=[floats("w", [2, 2, 1])]))
one("groups_of_a_norm", "n|group", nodes(node("GroupNormalization", ["x", "w", "w"], ["y"], attribute("num_groups", 3)), opset=21, inputs=[value("x", [1, 4, 8])], outputs=[value("y", [1, 4, 8])], initializers=[floats("w", [4])]))
one("stride_of_0", "n|stride", nodes(node("Conv", ["x", "w"], ["y"], attribute("strides", [0])), inputs=[value("x", [1, 2, 8])], outputs=[value("y", [1, 2, "N"])], initializers=[floats("w", [2, 2, 1])]))
one("pads_of_2_to_40", "n|pads|large|fit|size", nodes(node("Conv", ["x", "w"], ["y"], attribute("pads", [1 << 62, 1 << 62])), inputs=[value("x", [1, 2, 8])], outputs=[value("y", [1, 2, "N"])], initializers=[floats("w", [2, 2, 1])]))
one("tile_of_2_to_62", "n|fit|size|large", nodes(node("Tile", ["x", "r"], ["y"]), initializers=[ints("r", [1 << 62, 1 << 62])]))
one("tile_negative", "n", nodes(node("Tile", ["x", "r"], ["y"]), initializers=[ints("r", [-1, 1])]))
one("pad_negative_past_the_end", "n|pads", nodes(node("Pad", ["x", "p"], ["y"]), initializers=[ints("p", [0, -3, 0, -3])]))
one("pad_reflect_of_one", "n|Pad|pads|reflect", nodes(node("Pad", ["x", "p"], ["y"], attribute("mode", "reflect")), inputs=[value("x", [1, 1])], initializers=[ints("p", [0, 5, 0, 5])], outputs=[value("y", [1, 11])]), compiles=None)
one("depth_of_10_to_12", "", nodes(node("Cast", ["x"], ["i"], attribute("to", INT64)), node("OneHot", ["i", "d", "v"], ["y"]), initializers=[ints("d", [10 ** 12], []), floats("v", [2])], outputs=[value("y", ["B", 4, "D"])]), compiles=None)
one("depth_negative", "n|depth", nodes(node("Cast", ["x"], ["i"], attribute("to", INT64), name="c"), node("OneHot", ["i", "d", "v"], ["y"]), initializers=[ints("d", [-5], []), floats("v", [2])], outputs=[value("y", ["B", 4, "D"])]))
one("top_k_of_too_many", "n|K", nodes(node("TopK", ["x", "k"], ["y", "i"]), initializers=[ints("k", [9])]))
one("top_k_negative", "n|K", nodes(node("TopK", ["x", "k"], ["y", "i"]), initializers=[ints("k", [-1])]))
one("eye_of_a_vector", "n", nodes(node("EyeLike", ["x"], ["y"]), inputs=[value("x", [4])]))
one("range_of_nan", "n|Range", nodes(node("Range", ["a", "b", "c"], ["y"]), initializers=[floats("a", [], [0.0]), floats("b", [], [float("nan")]), floats("c", [], [1.0])], outputs=[value("y", ["N"])]))
one("range_of_infinity", "n|Range", nodes(node("Range", ["a", "b", "c"], ["y"]), initializers=[floats("a", [], [0.0]), floats("b", [], [float("inf")]), floats("c", [], [1.0])], outputs=[value("y", ["N"])]))
one("shift_by_64", "", nodes(node("BitShift", ["x", "s"], ["y"], attribute("direction", "LEFT")), inputs=[value("x", ["B", 4], UINT8)], initializers=[raw("s", [1], UINT8, "B", 200)], outputs=[value("y", ["B", 4], UINT8)]), compiles=None)
one("cumsum_axis", "n|axis", nodes(node("CumSum", ["x", "a"], ["y"]), initializers=[ints("a", [7], [])]))
one("scatter_of_ranks", "n", nodes(node("ScatterND", ["x", "i", "u"], ["y"]), initializers=[ints("i", [0, 0, 0], [1, 3]), floats("u", [1])]))
one("scatter_elements_of_ranks", "n", nodes(node("ScatterElements", ["x", "i", "u"], ["y"]), initializers=[ints("i", [0, 0]), floats("u", [2])]))
one("gather_nd_batch_dims", "n|batch_dims", nodes(node("GatherND", ["x", "i"], ["y"], attribute("batch_dims", 5)), initializers=[ints("i", [0, 0], [1, 2])]))
one("gather_elements_of_ranks", "n", nodes(node("GatherElements", ["x", "i"], ["y"]), initializers=[ints("i", [0])]))
one("space_to_depth_of_0", "n|block", nodes(node("SpaceToDepth", ["x"], ["y"], attribute("blocksize", 0)), inputs=[value("x", [1, 4, 4, 4])]))
one("einsum_that_repeats_an_output", "n|Einsum", nodes(node("Einsum", ["x"], ["y"], attribute("equation", "ab->aab"))), compiles=None)

# ---- quantised ----
X8 = [value("x", ["B", 4], UINT8)]
one("quantize_without_scale", "n", nodes(node("QuantizeLinear", ["x"], ["y"])))
one("scale_of_integers", "n|scale", nodes(node("QuantizeLinear", ["x", "s"], ["y"]), initializers=[ints("s", [1], [])]))
one("scale_of_wrong_length", "n|scale", nodes(node("DequantizeLinear", ["x", "s"], ["y"], attribute("axis", 1)), inputs=X8, initializers=[floats("s", [5])]))
one("scale_of_rank_2", "n|scale", nodes(node("DequantizeLinear", ["x", "s"], ["y"]), inputs=X8, initializers=[floats("s", [2, 2])]))
one("scale_and_zero_point_differ", "n|zero", nodes(node("DequantizeLinear", ["x", "s", "z"], ["y"], attribute("axis", 1)), inputs=X8, initializers=[floats("s", [4]), raw("z", [3], UINT8, "B", 1, 2, 3)]))
one("zero_point_of_another_type", "n|zero|type", nodes(node("DequantizeLinear", ["x", "s", "z"], ["y"]), inputs=X8, initializers=[floats("s", []), raw("z", [], INT8, "b", 1)]))
one("zero_point_of_floats", "n|zero|type|quantis", nodes(node("QuantizeLinear", ["x", "s", "z"], ["y"]), initializers=[floats("s", []), floats("z", [])]))
one("scale_of_0_and_nan", "", nodes(node("QuantizeLinear", ["x", "s"], ["y"], attribute("axis", 1)), initializers=[floats("s", [4], [0.0, float("nan"), -1.0, 1e-45])]), compiles=None)
one("block_size_negative", "n|block", nodes(node("DequantizeLinear", ["x", "s"], ["y"], attribute("axis", 1), attribute("block_size", -2)), opset=21, inputs=X8, initializers=[floats("s", [1, 2])]))
one("block_size_that_does_not_fit", "n|scale|block|fit", nodes(node("DequantizeLinear", ["w", "s"], ["y"], attribute("axis", 1), attribute("block_size", 3)), opset=21,
    initializers=[tensor("w", [2, 4], UINT8, bytes(8)), floats("s", [2, 4])]))
one("matmul_integer_of_floats", "n|MatMulInteger", nodes(node("MatMulInteger", ["x", "x"], ["y"]), inputs=[value("x", [4, 4])]))
one("matmul_integer_zero_point_per_row", "", nodes(node("MatMulInteger", ["x", "w", "a"], ["y"]), inputs=X8, initializers=[tensor("w", [4, 4], UINT8, bytes(16)), raw("a", [7], UINT8, "B", *range(7))]), compiles=None)
one("qlinear_matmul_without_output_scale", "n", nodes(node("QLinearMatMul", ["x", "s", "z", "x", "s", "z"], ["y"]), inputs=X8, initializers=[floats("s", []), raw("z", [], UINT8, "B", 1)]))
one("dynamic_quantize_of_integers", "n|DynamicQuantizeLinear", nodes(node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"]), inputs=[value("x", ["B", 4], INT64)]))

# ---- com.microsoft ----
QKV = [value("q", ["B", "S", 64])]
OUT = [value("y", ["B", "S", 64])]
for op, attributes in (("MultiHeadAttention", []), ("GroupQueryAttention", ["kv_num_heads"]), ("DecoderMaskedMultiHeadAttention", [])):
    inputs = {"GroupQueryAttention": ["q", "q", "q", "", "", "l", "t"]}.get(op, ["q", "q", "q"])
    constants = [ints("l", [1]), ints("t", [1], [])]
    for heads in (0, -4, 3, 1 << 40, -(1 << 63)):
        one(f"ms_{op}_heads_{heads}", "n|heads|split", model([node(op, inputs, ["y"], attribute("num_heads", heads), *[attribute(a, heads) for a in attributes], domain=MS)],
            domains=[MS], inputs=QKV, outputs=OUT, initializers=constants))


def ms_model(op, inputs, *attributes, more_inputs=(), initializers=(), outputs=("y",)):
    return model([node(op, inputs, list(outputs), *attributes, domain=MS)], domains=[MS], inputs=QKV + list(more_inputs), outputs=OUT, initializers=initializers)


one("ms_attention_without_heads", "n|num_heads", ms_model("Attention", ["q", "w"], initializers=[floats("w", [64, 192])]))
one("ms_attention_weights", "n|weights|multiply", ms_model("Attention", ["q", "w"], attribute("num_heads", 4), initializers=[floats("w", [63, 192])]))
one("ms_attention_hidden_sizes", "n|qkv_hidden_sizes|add up", ms_model("Attention", ["q", "w"], attribute("num_heads", 4), attribute("qkv_hidden_sizes", [1, 2, 3]), initializers=[floats("w", [64, 192])]))
one("ms_attention_hidden_sizes_negative", "n", ms_model("Attention", ["q", "w"], attribute("num_heads", 4), attribute("qkv_hidden_sizes", [-64, 128, 128]), initializers=[floats("w", [64, 192])]))
one("ms_attention_bias", "n|bias", ms_model("Attention", ["q", "w", "b"], attribute("num_heads", 4), initializers=[floats("w", [64, 192]), floats("b", [191])]))
one("ms_attention_mask_of_floats", "n|mask", ms_model("Attention", ["q", "w", "", "m"], attribute("num_heads", 4), initializers=[floats("w", [64, 192])], more_inputs=[value("m", ["B", "S"])]))
one("ms_attention_mask_of_5_dims", "n|mask", ms_model("Attention", ["q", "w", "", "m"], attribute("num_heads", 4), initializers=[floats("w", [64, 192])], more_inputs=[value("m", ["B", 1, 1, "S", "S"], INT32)]))
one("ms_attention_past", "n|past", ms_model("Attention", ["q", "w", "", "", "p"], attribute("num_heads", 4), initializers=[floats("w", [64, 192])], more_inputs=[value("p", [3, "B", 4, "P", 16])]))
one("ms_gqa_heads_do_not_divide", "n|heads", ms_model("GroupQueryAttention", ["q", "q", "q", "", "", "l", "t"], attribute("num_heads", 4), attribute("kv_num_heads", 3), initializers=[ints("l", [1]), ints("t", [1], [])]))
one("ms_gqa_window_negative", "", ms_model("GroupQueryAttention", ["q", "q", "q", "", "", "l", "t"], attribute("num_heads", 4), attribute("kv_num_heads", 4), attribute("local_window_size", -7), initializers=[tensor("l", [1], INT32, bytes(4)), tensor("t", [], INT32, bytes(4))]), compiles=None)
one("ms_skip_norm_of_ranks", "n", ms_model("SkipLayerNormalization", ["q", "s", "g"], initializers=[floats("s", [63]), floats("g", [64])]))
one("ms_skip_norm_gamma", "n", ms_model("SkipLayerNormalization", ["q", "q", "g"], initializers=[floats("g", [65])]))
one("ms_embed_of_floats", "n|ids|type", ms_model("EmbedLayerNormalization", ["q", "", "t", "t", "", "g", "g"], initializers=[floats("t", [10, 64]), floats("g", [64])]))
one("ms_bias_gelu_bias", "n|bias", ms_model("BiasGelu", ["q", "b"], initializers=[floats("b", [5])]))
one("ms_fused_matmul_sizes", "n", ms_model("FusedMatMul", ["q", "w"], attribute("transB", 1), initializers=[floats("w", [64, 32])]))
one("ms_matmul_n_bits_of_5", "n|bits", ms_model("MatMulNBits", ["q", "w", "s"], attribute("K", 64), attribute("N", 64), attribute("bits", 5), attribute("block_size", 32),
    initializers=[tensor("w", [64, 2, 20], UINT8, bytes(2560)), floats("s", [128])]))
one("ms_matmul_n_bits_block_of_0", "n|block", ms_model("MatMulNBits", ["q", "w", "s"], attribute("K", 64), attribute("N", 64), attribute("bits", 4), attribute("block_size", 0),
    initializers=[tensor("w", [64, 2, 16], UINT8, bytes(2048)), floats("s", [128])]))
one("ms_matmul_n_bits_huge", "n|N|fit|K|large|size", ms_model("MatMulNBits", ["q", "w", "s"], attribute("K", 1 << 62), attribute("N", 1 << 62), attribute("bits", 4), attribute("block_size", 32),
    initializers=[tensor("w", [64, 2, 16], UINT8, bytes(2048)), floats("s", [128])]))
one("ms_matmul_n_bits_weights", "n", ms_model("MatMulNBits", ["q", "w", "s"], attribute("K", 64), attribute("N", 64), attribute("bits", 4), attribute("block_size", 32),
    initializers=[tensor("w", [64, 2, 15], UINT8, bytes(1920)), floats("s", [128])]))
one("ms_gather_quantized_of_3_bits", "n|bits", ms_model("GatherBlockQuantized", ["w", "i", "s"], attribute("bits", 3), attribute("block_size", 32),
    initializers=[tensor("w", [10, 32], UINT8, bytes(320)), ints("i", [1]), floats("s", [10, 2])]))
one("ms_gather_quantized_block_of_0", "n|block", ms_model("GatherBlockQuantized", ["w", "i", "s"], attribute("bits", 4), attribute("block_size", 0),
    initializers=[tensor("w", [10, 32], UINT8, bytes(320)), ints("i", [1]), floats("s", [10, 2])]))
one("ms_gather_quantized_huge_block", "n|block|fit|scales", ms_model("GatherBlockQuantized", ["w", "i", "s"], attribute("bits", 4), attribute("block_size", (1 << 63) - 1),
    initializers=[tensor("w", [10, 32], UINT8, bytes(320)), ints("i", [1]), floats("s", [10, 2])]))
one("ms_gather_quantized_scales", "n|scales", ms_model("GatherBlockQuantized", ["w", "i", "s"], attribute("bits", 4), attribute("block_size", 32),
    initializers=[tensor("w", [10, 32], UINT8, bytes(320)), ints("i", [1]), floats("s", [10, 3])]))
one("ms_gather_quantized_one_axis", "n|axis", ms_model("GatherBlockQuantized", ["w", "i", "s"], attribute("bits", 4), attribute("block_size", 32), attribute("gather_axis", 1),
    initializers=[tensor("w", [10, 32], UINT8, bytes(320)), ints("i", [1]), floats("s", [10, 2])]))
one("ms_gather_quantized_axis", "n|axis", ms_model("GatherBlockQuantized", ["w", "i", "s"], attribute("bits", 4), attribute("block_size", 32), attribute("quantize_axis", 7),
    initializers=[tensor("w", [10, 32], UINT8, bytes(320)), ints("i", [1]), floats("s", [10, 2])]))
one("ms_gather_quantized_vector", "n|axis|scales", ms_model("GatherBlockQuantized", ["w", "i", "s"], attribute("bits", 4), attribute("block_size", 32),
    initializers=[tensor("w", [320], UINT8, bytes(320)), ints("i", [1]), floats("s", [20])]))
for name, words, attributes, dims in [
        ("of_more_than_there_are", "n|k", {"k": 4}, {}),
        ("of_none", "n|k", {"k": 0}, {}),
        ("of_unknown_activation", "n|activation_type", {"activation_type": "softplus"}, {}),
        ("of_a_sparse_mixer", "n|use_sparse_mixer", {"use_sparse_mixer": 1}, {}),
        ("swiglu_of_odd_rows", "n|even", {"activation_type": "swiglu", "swiglu_fusion": 1}, {"w1": [3, 5, 64], "b1": [3, 5]}),
        ("swiglu_of_one_matrix", "n|fc3_experts_weights", {"activation_type": "swiglu"}, {}),
        ("swiglu_of_another_fusion", "n|swiglu_fusion", {"activation_type": "swiglu", "swiglu_fusion": 3}, {}),
        ("router_of_other_rows", "n|router_probs", {}, {"r": [5, 7, 3]}),
        ("router_without_experts", "n|router_probs", {}, {"r": []}),
        ("of_no_matrices", "n|matrices", {}, {"w1": [18, 64]}),
        ("of_other_matrices", "n|matrices", {}, {"w1": [3, 6, 63]}),
        ("of_fewer_experts", "n|matrices", {}, {"w1": [2, 6, 64]}),
        ("of_another_second_matrix", "n|matrices", {}, {"w2": [3, 64, 7]}),
        ("of_another_bias", "n|input 3", {}, {"b1": [6, 3]})]:
    given = {"r": [1, 3], "w1": [3, 6, 64], "b1": [3, 6], "w2": [3, 64, 6]} | dims
    one("ms_moe_" + name, words, ms_model("MoE", ["q", *given], *(attribute(a, v) for a, v in attributes.items()), initializers=[floats(n, d) for n, d in given.items()]))
for name, words, attributes, dims in [
        ("of_fp4", "n|quant_type", {"quant_type": "fp4"}, {}),
        ("prepacked", "n|weights_prepacked", {"weights_prepacked": 1}, {}),
        ("of_3_bits", "n|bits", {"expert_weight_bits": 3}, {}),
        ("of_no_bits", "n|bits", {"expert_weight_bits": 0}, {}),
        ("of_negative_bits", "n|bits", {"fc2_expert_weight_bits": -4}, {}),
        ("of_a_negative_block", "n|block_size", {"block_size": -16}, {}),
        ("of_a_huge_block", "n|block_size", {"block_size": 1 << 40}, {}),
        ("of_blocks_of_48", "n|block_size", {"block_size": 48}, {}),
        ("of_scales_without_blocks", "n|input 3", {"block_size": 128}, {}),
        ("of_half_bytes", "n|bytes", {"fc2_expert_weight_bits": 4}, {"w1": [3, 5, 32], "s1": [3, 5], "w2": [3, 64, 3]}),
        ("of_8_bits_in_half", "n|input 2", {"expert_weight_bits": 8}, {}),
        ("of_other_codes", "n|input 2", {}, {"w1": [3, 6, 31]}),
        ("of_flat_codes", "n|matrices", {}, {"w1": [18, 32]}),
        ("of_scales_of_blocks", "n|input 3", {}, {"s1": [3, 6, 2]}),
        ("of_other_scales", "n|input 6", {}, {"s2": [3, 63]}),
        ("of_other_zero_points", "n|input 11", {}, {"z1": [3, 4]}),
        ("with_mixing_weights_of_others", "n|router_weights", {}, {"m": [1, 4]}),
        ("clamped_later", "n|swiglu_limit_after_activation", {"swiglu_limit_after_activation": 1}, {}),
        ("of_more_than_there_are", "n|k", {"k": 4}, {})]:
    given = {"r": [1, 3], "w1": [3, 6, 32], "s1": [3, 6], "w2": [3, 64, 3], "s2": [3, 64]} | dims
    order = ["q", "r", "w1", "s1", "", "w2", "s2", "", "", "", "", "z1" if "z1" in given else "", "", "", "m" if "m" in given else ""]
    one("ms_qmoe_" + name, words, ms_model("QMoE", order, *(attribute(a, v) for a, v in attributes.items()), initializers=[
        tensor(n, d, UINT8, bytes(math.prod(d))) if n[0] in "wz" else floats(n, d) for n, d in given.items()]))
one("ms_qmoe_without_scales", "n|input 3", ms_model("QMoE", ["q", "r", "w1", "", "", "w2", "s2"], initializers=[
    floats("r", [1, 3]), tensor("w1", [3, 6, 32], UINT8, bytes(576)), tensor("w2", [3, 64, 3], UINT8, bytes(576)), floats("s2", [3, 64])]))
one("ms_rotary_of_odd_size", "n", ms_model("RotaryEmbedding", ["q", "p", "c", "c"], attribute("num_heads", 4), attribute("rotary_embedding_dim", 3), initializers=[ints("p", [0]), floats("c", [8, 1])]))
one("ms_rotary_without_caches", "n", ms_model("RotaryEmbedding", ["q", "p"], initializers=[ints("p", [0])]))
one("ms_remove_padding_of_ranks", "n", ms_model("RemovePadding", ["q", "c"], outputs=["y", "a", "b", "d"], initializers=[tensor("c", [2, 2], INT32, bytes(16))]))
one("ms_restore_padding_of_ranks", "n", ms_model("RestorePadding", ["q", "c"], initializers=[tensor("c", [2], INT32, bytes(8))]))
one("ms_unknown_operator", "com.microsoft.NoSuchThing", ms_model("NoSuchThing", ["q"]))

# ---- Attention of ONNX ----
for title, inputs, attributes, more in (
        ("of_rank_2", ["a", "a", "a"], [], [value("a", ["S", 64])]),
        ("of_rank_5", ["a", "a", "a"], [], [value("a", [1, 1, 1, "S", 64])]),
        ("of_mixed_ranks", ["a", "q", "q"], [("q_num_heads", 4), ("kv_num_heads", 4)], [value("a", ["B", 4, "S", 16])]),
        ("without_heads", ["q", "q", "q"], [], []),
        ("heads_do_not_divide", ["q", "q", "q"], [("q_num_heads", 4), ("kv_num_heads", 3)], []),
        ("mask_does_not_broadcast", ["q", "q", "q", "m"], [("q_num_heads", 4), ("kv_num_heads", 4)], [value("m", [3, 5, 7, 11])]),
        ("mask_of_strings", ["q", "q", "q", "m"], [("q_num_heads", 4), ("kv_num_heads", 4)], [value("m", ["S", "S"], STRING)]),
        ("mask_of_integers", ["q", "q", "q", "m"], [("q_num_heads", 4), ("kv_num_heads", 4)], [value("m", ["S", "S"], INT64)]),
        ("past_key_alone", ["q", "q", "q", "", "p"], [("q_num_heads", 4), ("kv_num_heads", 4)], [value("p", ["B", 4, "P", 16])]),
        ("qk_mode_of_9", ["q", "q", "q"], [("q_num_heads", 4), ("kv_num_heads", 4), ("qk_matmul_output_mode", 9)], [])):
    outputs = ["y", "", "", "qk"] if title == "qk_mode_of_9" else ["y"]
    one(f"attention_{title}", "n|mask|m", model([node("Attention", inputs, outputs, *[attribute(k, v) for k, v in attributes])], opset=23, inputs=QKV + more, outputs=OUT),
        compiles=None if title == "mask_of_integers" else False)

# ---- control flow and functions ----
one("if_without_else", "n|else_branch", nodes(node("If", ["c"], ["y"], graph_attribute("then_branch", branch("Relu", ["x"], "t"))), initializers=[tensor("c", [], BOOL, b"\0")]))
one("if_with_numbers_for_branches", "n|branch", nodes(node("If", ["c"], ["y"], attribute("then_branch", 1), attribute("else_branch", 2)), initializers=[tensor("c", [], BOOL, b"\1")]))
one("if_on_a_vector", "n|condition|If", nodes(node("If", ["c"], ["y"], graph_attribute("then_branch", branch("Relu", ["x"], "t")), graph_attribute("else_branch", branch("Neg", ["x"], "e"))), initializers=[tensor("c", [2], BOOL, b"\0\1")]))
one("if_on_a_float", "n|condition|If|bool", nodes(node("If", ["c"], ["y"], graph_attribute("then_branch", branch("Relu", ["x"], "t")), graph_attribute("else_branch", branch("Neg", ["x"], "e"))), initializers=[floats("c", [])]))
one("if_branch_of_two_outputs", "n|If|output", nodes(node("If", ["c"], ["y"], graph_attribute("then_branch", graph([node("Relu", ["x"], ["t"])], [], [value("t", ["B", 4]), value("t", ["B", 4])])),
    graph_attribute("else_branch", branch("Neg", ["x"], "e"))), initializers=[tensor("c", [], BOOL, b"\1")]))
one("if_branch_without_outputs", "n|If|output", nodes(node("If", ["c"], ["y"], graph_attribute("then_branch", graph([], [], [])), graph_attribute("else_branch", branch("Neg", ["x"], "e"))), initializers=[tensor("c", [], BOOL, b"\1")]))
one("if_branch_of_unknown_operators", "Nope", nodes(node("If", ["c"], ["y"], graph_attribute("then_branch", branch("Nope", ["x"], "t")), graph_attribute("else_branch", branch("Neg", ["x"], "e"))), initializers=[tensor("c", [], BOOL, b"\1")]))
one("if_branch_reads_a_ghost", "ghost", nodes(node("If", ["c"], ["y"], graph_attribute("then_branch", branch("Relu", ["ghost"], "t")), graph_attribute("else_branch", branch("Neg", ["x"], "e"))), initializers=[tensor("c", [], BOOL, b"\1")]))


def function(name, inner, inputs=("a",), outputs=("b",), domain="local"):
    return block(25, block(1, name) + b"".join(block(4, i) for i in inputs) + b"".join(block(5, o) for o in outputs) + b"".join(block(7, n) for n in inner) +
                 block(9, block(1, "") + number(2, 17)) + block(10, domain))


def call(name, *more, **options):
    return model([node(name, ["x"], ["y"], domain="local")], domains=["local"], more=b"".join(more), **options)


one("functions_that_call_each_other", "F|G|recurs|itself", call("F", function("F", [node("G", ["a"], ["b"], domain="local")]), function("G", [node("F", ["a"], ["b"], domain="local")])))
one("functions_that_double_40_times", "F|too|many|nodes", call("F0", *[function(f"F{k}", [node(f"F{k + 1}", ["a"], ["m"], domain="local"), node(f"F{k + 1}", ["m"], ["b"], domain="local")]) for k in range(40)],
    function("F40", [node("Relu", ["a"], ["b"])])))
one("function_of_missing_output", "F|b|y", call("F", function("F", [node("Relu", ["a"], ["c"])])))
one("function_of_too_many_inputs", "F|a2|input", call("F", function("F", [node("Add", ["a", "a2"], ["b"])], inputs=("a", "a2"))))
one("function_twice", "", call("F", function("F", [node("Relu", ["a"], ["b"])]), function("F", [node("Neg", ["a"], ["b"])])), compiles=None)
one("function_named_as_an_operator", "", model([node("Relu", ["x"], ["y"])], more=function("Relu", [node("Nope", ["a"], ["b"])], domain="")), compiles=None)
one("function_without_nodes", "F|b|y", call("F", function("F", [])))
one("function_of_unknown_operators", "Nope", call("F", function("F", [node("Nope", ["a"], ["b"])])))

# ---- folding ----
one("product_that_overflows", "", nodes(node("Mul", ["a", "a"], ["m"]), node("ConstantOfShape", ["m"], ["c"]), node("Add", ["x", "c"], ["y"]), initializers=[ints("a", [1 << 40])]))
one("negation_of_the_least", "", nodes(node("Neg", ["a"], ["m"]), node("ConstantOfShape", ["m"], ["c"]), node("Add", ["x", "c"], ["y"]), initializers=[ints("a", [-(1 << 63)])]))
one("absolute_of_the_least", "", nodes(node("Abs", ["a"], ["m"]), node("ConstantOfShape", ["m"], ["c"]), node("Add", ["x", "c"], ["y"]), initializers=[ints("a", [-(1 << 63)])]))
one("remainder_of_the_least", "", nodes(node("Mod", ["a", "b"], ["m"]), node("Reshape", ["x", "m"], ["y"]), initializers=[ints("a", [-(1 << 63)]), ints("b", [-1])]), compiles=None)
one("division_by_a_size_less_itself", "", nodes(node("Shape", ["x"], ["s"]), node("Sub", ["s", "s"], ["z"]), node("Div", ["s", "z"], ["d"]), node("Reshape", ["x", "d"], ["y"])))
one("shape_of_a_shape_of_a_shape", "", nodes(node("Shape", ["x"], ["a"]), node("Shape", ["a"], ["b"]), node("Shape", ["b"], ["c"]), node("Reshape", ["x", "c"], ["y"]), inputs=[value("x", [1])], outputs=[value("y", [1])]), compiles=True)
one("power_of_a_size", "", nodes(node("Shape", ["x"], ["s"]), node("Pow", ["s", "e"], ["p"]), node("ConstantOfShape", ["p"], ["y"]), initializers=[ints("e", [60])], outputs=[value("y", ["N", "M"])]), compiles=None)
one("sizes_that_multiply_50_times", "", nodes(node("Shape", ["x"], ["s0"]), *[node("Mul", [f"s{k}", f"s{k}"], [f"s{k + 1}"]) for k in range(50)], node("ConstantOfShape", ["s50"], ["y"]), outputs=[value("y", ["N", "M"])]))
one("sum_of_100_sizes_to_the_16th", "", nodes(*[node("Shape", [f"u{k}"], [f"s{k}"], name=f"h{k}") for k in range(100)], node("Sum", [f"s{k}" for k in range(100)], ["p0"]),
    *[node("Mul", [f"p{k}", f"p{k}"], [f"p{k + 1}"], name=f"m{k}") for k in range(4)], node("ConstantOfShape", ["p4"], ["y"]), inputs=[value(f"u{k}", [f"S{k}"]) for k in range(100)], outputs=[value("y", ["N"])]))
one("sum_of_100_sizes_squared", "", nodes(*[node("Shape", [f"u{k}"], [f"s{k}"], name=f"h{k}") for k in range(100)], *[node("Add", ["s0" if k == 1 else f"t{k - 1}", f"s{k}"], [f"t{k}"], name=f"a{k}") for k in range(1, 100)],
    *[node("Mul", [f"p{k}" if k else "t99"] * 2, [f"p{k + 1}"], name=f"m{k}") for k in range(4)], node("ConstantOfShape", ["p4"], ["y"]), inputs=[value(f"u{k}", [f"S{k}"]) for k in range(100)], outputs=[value("y", ["N"])]))
one("sum_of_sizes_10000_times", "", nodes(node("Shape", ["x"], ["s0"]), *[node("Add", [f"s{k}", "s0"], [f"s{k + 1}"]) for k in range(10000)], node("Expand", ["one", "s10000"], ["y"]), initializers=[floats("one", [1])], outputs=[value("y", ["N", "M"])]), compiles=None)


def sums_of_sizes(op, sizes, count, squared):
    """`count` results of op on sums of `sizes` sizes, or on their square, all added up."""
    list_ = [node("Shape", [f"u{k}"], [f"s{k}"], name=f"h{k}") for k in range(sizes)]
    list_ += [node("Add", ["s0" if k == 1 else f"t{k - 1}", f"s{k}"], [f"t{k}"], name=f"t{k}") for k in range(1, sizes)]
    last = base = f"t{sizes - 1}"
    if squared:
        list_.append(node("Mul", [last, last], ["q"], name="q"))
        base = "q"
    for k in range(count):
        list_ += [node("Add", [last, f"k{k}"], [f"a{k}"], name=f"a{k}"), node("Add", [base, f"k{k}"], [f"e{k}"], name=f"e{k}"),
                  node(op, [f"e{k}", f"a{k}"], [f"p{k}"], name=f"p{k}")]
        if k > 0:
            list_.append(node("Add", ["p0" if k == 1 else f"z{k - 1}", f"p{k}"], [f"z{k}"], name=f"z{k}"))
    return nodes(*list_, node("ConstantOfShape", [f"z{count - 1}"], ["y"]), inputs=[value(f"u{k}", [f"S{k}"]) for k in range(sizes)],
                 initializers=[ints(f"k{k}", [k + 1]) for k in range(count)], outputs=[value("y", ["N"])])


for operator in ("Mul", "Div", "Mod", "Min", "Max", "Sub"):
    one(f"{operator.lower()}_of_sums_of_sizes", "", sums_of_sizes(operator, 15, 200, True), compiles=None)
    one(f"{operator.lower()}_of_sums_of_many_sizes", "", sums_of_sizes(operator, 60, 100, False), compiles=None)


@case("does not fit 64 bits")
def remainders_in_remainders(_):
    list_ = [node("Shape", ["x"], ["s"], attribute("end", 1), name="s"), node("Shape", ["x"], ["m"], attribute("start", 1), name="m")]
    for k in range(200):
        list_ += [node("Add", [f"m{k - 1}" if k else "m", f"k{k}"], [f"n{k}"], name=f"n{k}"), node("Mod", ["s", f"n{k}"], [f"m{k}"], name=f"m{k}")]
    odd = "y\x1b[31m" + "z" * 100000  # as the name of what is refused
    return nodes(*list_, node("ConstantOfShape", ["m199"], [odd]), initializers=[ints(f"k{k}", [k + 1]) for k in range(200)], outputs=[value(odd, ["N"])])


def if_whose_branch_overflows():
    """The branch that is never taken at large sizes asks for a size that has no value."""
    bad = graph([node("Mul", ["s", "c"], ["m"], name="b1"), node("Mul", ["m", "c"], ["o"], name="b2"), node("Expand", ["x", "o"], ["t"], name="b3")], [], [value("t", ["K"])])
    good = graph([node("Relu", ["x"], ["e"], name="g1")], [], [value("e", ["N"])])
    return nodes(node("Shape", ["x"], ["s"], name="s"), node("Squeeze", ["s"], ["q"], name="q"), node("Less", ["q", "five"], ["cond"], name="less"),
                 node("If", ["cond"], ["y"], graph_attribute("then_branch", bad), graph_attribute("else_branch", good), name="if"),
                 inputs=[value("x", ["N"])], initializers=[ints("c", [2**40]), tensor("five", [], INT64, struct.pack("<q", 5))], outputs=[value("y", ["N"])])


one("if_whose_untaken_branch_overflows", "", if_whose_branch_overflows(), compiles=True)


@case("wraps to fewer bits|too large")
def sum_of_larger_sizes_in_32_bits(_):
    """What bounds such a sum has more terms than an expression may have."""
    list_ = []
    for k in range(258):
        list_ += [node("Shape", [f"u{k}"], [f"h{k}"], name=f"h{k}"), node("Cast", [f"h{k}"], [f"s{k}"], attribute("to", INT32), name=f"c{k}")]
    for k in range(129):
        list_.append(node("Max", [f"s{2 * k}", f"s{2 * k + 1}"], [f"m{k}"], name=f"m{k}"))
        if k:
            list_.append(node("Add", ["m0" if k == 1 else f"t{k - 1}", f"m{k}"], [f"t{k}"], name=f"t{k}"))
    return nodes(*list_, node("Cast", ["t128"], ["z"], attribute("to", INT64), name="z"), node("ConstantOfShape", ["z"], ["y"], name="y"),
                 inputs=[value(f"u{k}", [f"S{k}"]) for k in range(258)], outputs=[value("y", ["N"])])


one("bytes_that_do_not_fit_64_bits", "bytes of 'y'.*64 bits", nodes(node("Shape", ["x"], ["s"], name="s"), node("Mul", ["s", "c"], ["m"], name="m"), node("ConstantOfShape", ["m"], ["y"], name="y"),
    inputs=[value("x", ["N"])], initializers=[ints("c", [2**62])], outputs=[value("y", ["K"])]))


# ---- files around the model ----
def external(title, pattern, pairs, prepare, compiles=False):
    def write(folder):
        prepare(folder)
        return model([node("Add", ["x", "w"], ["y"])], initializers=[tensor("w", [4], FLOAT, None, pairs)])
    case(pattern, compiles)(type(write)(write.__code__, write.__globals__, f"external_{title}", write.__defaults__, write.__closure__))


def data(name, size=16):
    return lambda folder: (folder / name).write_bytes(bytes(size))


external("in_a_folder_is_right", "", [("location", "d/w.bin")], lambda f: ((f / "d").mkdir(), (f / "d" / "w.bin").write_bytes(bytes(16))), compiles=True)
external("twice_located", "", [("location", "w.bin"), ("location", "none.bin")], data("w.bin"), compiles=None)
external("offset_beyond_the_end", "w", [("location", "w.bin"), ("offset", "17")], data("w.bin"))
external("offset_and_length_wrap", "w|offset", [("location", "w.bin"), ("offset", "18446744073709551608"), ("length", "16")], data("w.bin"))
external("length_negative", "length|w", [("location", "w.bin"), ("length", "-1")], data("w.bin"))
external("length_of_0", "length|w", [("location", "w.bin"), ("length", "0")], data("w.bin"))
external("offset_unaligned_is_right", "", [("location", "w.bin"), ("offset", "3")], data("w.bin", 32), compiles=True)
external("is_the_model_itself", "", [("location", "model.onnx"), ("length", "16")], lambda f: None, compiles=None)
external("is_the_output", "w|out.tfcc", [("location", "out.tfcc"), ("length", "16")], lambda f: None)
external("of_a_long_name", "w", [("location", "a/" * 5000 + "w.bin")], lambda f: None)
external("of_a_backslash", "w", [("location", "..\\secret.bin")], lambda f: None)
external("of_a_url", "w", [("location", "https://example.com/w.bin")], lambda f: None)
external("of_proc", "w|absolute|outside", [("location", "/proc/self/mem")], lambda f: None)
external("link_to_itself", "w", [("location", "loop")], lambda f: (f / "loop").symlink_to("loop"))
external("not_readable", "w", [("location", "w.bin"), ("length", "64")], data("w.bin"))


@case("w")
def external_of_10_to_15_bytes(folder):
    (folder / "w.bin").write_bytes(bytes(16))
    return model([node("MatMul", ["x", "w"], ["y"])], initializers=[tensor("w", [4, 10 ** 14], FLOAT, None, [("location", "w.bin")])], outputs=[value("y", ["B", 10 ** 14])])


@case("")
def protobuf_of_many_small_tensors(_):
    """A million empty initializers."""
    return number(1, 8) + block(8, block(1, "") + number(2, 17)) + block(7, graph([node("Relu", ["x"], ["y"])]) + b"\x2a\x00" * 1000000)


@case("", compiles=None)
def hundred_thousand_initializers(_):
    return model([node("Relu", ["x"], ["y"])], initializers=[ints(f"w{k}", [k]) for k in range(100000)])


@case("")
def ten_thousand_branches_deep(_):
    inner = branch("Relu", ["x"], "y")
    for _ in range(500):
        inner = graph([node("If", ["c"], ["y"], graph_attribute("then_branch", inner), graph_attribute("else_branch", branch("Neg", ["x"], "y")))], [], [value("y", ["B", 4])])
    return number(1, 8) + block(8, block(1, "") + number(2, 17)) + block(7, inner + block(11, value("x", ["B", 4])) + block(5, tensor("c", [], BOOL, b"\1")))


@case("", compiles=None)
def wide_sum_of_5000(_):
    return nodes(*[node("Mul", ["x", f"w{k}"], [f"v{k}"], name=f"m{k}") for k in range(5000)], node("Sum", [f"v{k}" for k in range(5000)], ["y"]),
                 initializers=[floats(f"w{k}", [1], [float(k)]) for k in range(5000)])


@case("", compiles=None)
def transposes_10000(_):
    return nodes(*[node("Transpose", [f"v{k}" if k else "x"], [f"v{k + 1}"], name=f"t{k}") for k in range(10000)], node("Relu", ["v10000"], ["y"]))


@case("", compiles=None)
def wheres_2000(_):
    """Conditions that nest."""
    return nodes(node("Greater", ["x", "z"], ["c"]), *[node("Where", ["c", f"v{k}" if k else "x", "z"], [f"v{k + 1}"], name=f"w{k}") for k in range(2000)], node("Relu", ["v2000"], ["y"]),
                 initializers=[floats("z", [1], [0.0])])


@case("", compiles=None)
def reshapes_with_symbols_2000(_):
    return nodes(node("Shape", ["x"], ["s"]), *[node("Reshape", [f"v{k}" if k else "x", "r" if k % 2 else "f"], [f"v{k + 1}"], name=f"r{k}") for k in range(2000)], node("Reshape", ["v2000", "s"], ["y"]),
                 initializers=[ints("f", [-1]), ints("r", [4, -1])])


@case("", compiles=None)
def einsum_of_20_letters(_):
    letters = "abcdefghijklmnopqrst"
    return nodes(node("Einsum", ["x", "x"], ["y"], attribute("equation", f"{letters},{letters}->")), inputs=[value("x", [2] * 20)], outputs=[value("y", [])])
