// SPDX-License-Identifier: Apache-2.0
// How products are described, which arm is chosen for them and why, and what plans of each class of
// target make of that.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>

#include "codegen/compile.h"
#include "codegen/matmul/matmul.h"
#include "codegen/nvrtc.h"
#include "ir/ir.h"

namespace tfcc::codegen {
namespace {

// A product of x [B,S,k] and a weight [k,n] or [n,k], with this epilogue.
std::string product(const std::string& dtype, int k, int n, const std::string& epilogue = "",
                    bool trans_b = false, const std::string& operands = "") {
  return fmt::format(
      R"(graph @g(%x: f32[B,S,{1}], %w: f32[{1},{2}]) symbols(B = x.0 in 1.. as batch, S = x.1 in 1.. as length, tokens = (B*S) in 1.. as tokens) {{
  const @weight : {0}[{3}] = f32[{3}] random(1) |> cast({0})
  const @bias : {0}[{2}] = f32[{2}] random(2) |> cast({0})
  %h = pointwise(%x) {{body = (i,j,k) => %x[i,j,k] * 0.5}} : {0}[B,S,{1}]
  %r = pointwise(%x) {{body = (i,j,k) => %x[i,j,0] * 0.25}} : {0}[B,S,{2}]
  %y = matmul(%h, @weight{4}) {{alpha = 1.0{5}, trans_a = false, trans_b = {6}}} : {0}[B,S,{2}]
  %z = pointwise(%y) {{body = (i,j,k) => tanh(%y[i,j,k])}} : f32[B,S,{2}]
  return z = %z
}})",
      dtype, k, n, trans_b ? fmt::format("{},{}", n, k) : fmt::format("{},{}", k, n), operands,
      epilogue.empty() ? "" : ", epilogue = (s,i,j,k) => " + epilogue, trans_b);
}

ir::Graph parsed(const std::string& text) {
  auto g = ir::parse(text, "test");
  EXPECT_TRUE(g) << (g ? "" : g.error().message);
  for (const ir::Violation& problem : ir::verify(*g)) ADD_FAILURE() << to_string(problem);
  return *std::move(g);
}

MatmulDesc described(const ir::Graph& g, int64_t most_tokens = 0) {
  return describe(g, g.value(g.find_value("y")).def, most_tokens);
}

MatmulConfig chosen(const std::string& text, const char* target, int64_t most_tokens = 0) {
  const ir::Graph g = parsed(text);
  return choose(described(g, most_tokens), class_of(target));
}

TEST(Matmul, SaysWhatAProductIs) {
  EXPECT_EQ(print(described(parsed(product("f16", 768, 3072)))),
            "f16 [B*S,768] x [768,3072] of a weight -> f16, epilogue none");
  EXPECT_EQ(print(described(parsed(product("f32", 32, 16, "s + @bias[k]", true, ", @bias")))),
            "f32 [B*S,32] x [16,32]^T of a weight -> f32, epilogue bias");
  EXPECT_EQ(print(described(parsed(
                product("f32", 32, 16, "max(s + @bias[k], %r[i,j,k])", false, ", @bias, %r")))),
            "f32 [B*S,32] x [32,16] of a weight -> f32, epilogue beside");
  EXPECT_EQ(print(described(parsed(product("f32", 32, 16, "s + %r[i,0,k]", false, ", %r")))),
            "f32 [B*S,32] x [32,16] of a weight -> f32, epilogue other");
  EXPECT_EQ(print(described(parsed(product("f32", 32, 16, "s * f32(k)")))),
            "f32 [B*S,32] x [32,16] of a weight -> f32, epilogue other");
}

TEST(Matmul, KnowsTheRowsOfABucket) {
  const ir::Graph g = parsed(product("f16", 64, 64));
  EXPECT_EQ(described(g, 128).most_rows, 128);
  EXPECT_EQ(described(g, 0).most_rows, std::nullopt);
}

TEST(Matmul, KnowsTheRowsOfSizesThatAreFixed) {
  const auto rows = [](const std::string& batch, const std::string& length, int64_t each,
                       int64_t most_tokens) {
    const bool fixed = batch != "B", sized = length == "S";
    const ir::Graph g = parsed(fmt::format(
        "graph @g(%x: i64[{0},{1}]) symbols({2}{3}tokens = ({0}*{1}) in 1.. as tokens) {{\n"
        "  %y = pointwise(%x) {{body = (i,j) => %x[i,j]}} : i64[{0},{1}]\n  return y = %y\n}}",
        batch, length, fixed ? "" : "B = x.0 in 1.. as batch, ",
        sized ? "S = x.1 in 1.. as length, " : ""));
    const std::vector<ir::ExprRef>& d = g.value(g.inputs()[0]).type.dims;
    return largest_rows(g, ir::mul(ir::mul(d[0], d[1]), g.pool().integer(each)), most_tokens);
  };
  EXPECT_EQ(rows("B", "S", 1, 256), 256);
  EXPECT_EQ(rows("B", "S", 8, 256), 2048) << "experts of a token";
  EXPECT_EQ(rows("B", "128", 1, 256), 256);
  EXPECT_EQ(rows("B", "128", 8, 256), 2048);
  EXPECT_EQ(rows("8", "S", 1, 256), 256);
  EXPECT_EQ(rows("8", "S", 3, 256), 768);
  EXPECT_EQ(rows("B", "128", 1, 0), std::nullopt);
  EXPECT_EQ(rows("B", "S", int64_t{1} << 40, 256), std::nullopt) << "more than can be";
  const ir::Graph g = parsed(product("f16", 64, 64));
  EXPECT_EQ(largest_rows(g, g.pool().symbol("B"), 256), std::nullopt);
  EXPECT_EQ(largest_rows(g, ir::mul(g.pool().symbol("B"), g.pool().integer(12)), 256),
            std::nullopt);
}

TEST(Matmul, ChoosesByTargetTypeAndRows) {
  EXPECT_EQ(chosen(product("f32", 32, 48), "x86-64-v3").arm, Arm::panel);
  EXPECT_EQ(chosen(product("f32", 32, 48), "x86-64-v3").panel, 48);
  EXPECT_EQ(chosen(product("f32", 32, 40), "x86-64-v3").arm, Arm::heads);
  EXPECT_EQ(chosen(product("f32", 1024, 1032), "x86-64-v3").arm, Arm::library) << "a large factor";
  EXPECT_EQ(chosen(product("f16", 64, 64), "sm_90", 128).arm, Arm::wgmma);
  EXPECT_EQ(chosen(product("bf16", 768, 72), "sm_90", 128).arm, Arm::wgmma);
  EXPECT_EQ(chosen(product("f16", 64, 64), "sm_90", 0).arm, Arm::library);
  EXPECT_EQ(chosen(product("f16", 64, 64), "sm_80", 128).arm, Arm::library);
  EXPECT_EQ(chosen(product("f32", 64, 64), "sm_90", 128).arm, Arm::library);
  EXPECT_EQ(chosen(product("f16", 1032, 64), "sm_90", 128).arm, Arm::library);
  EXPECT_EQ(chosen(product("f16", 64, 68), "sm_90", 128).arm, Arm::library)
      << "rows of B are no multiple of 16 bytes";
  EXPECT_EQ(chosen(product("f16", 64, 56), "sm_90", 128).arm, Arm::library);
}

TEST(Matmul, TakesBytesOfWeightsWhoseSumHas32Bits) {
  const auto bytes = [](const char* a, const char* b, const char* d, int k, int n) {
    const ir::Graph g =
        parsed(fmt::format(R"(graph @g(%a: {}[N,{}], %x: {}[{},{}]) symbols(N = a.0 in 1..) {{
  const @w : {}[{},{}] = f32[{},{}] random(1) |> cast({})
  %y = matmul(%a, @w) {{alpha = 1.0, trans_a = false, trans_b = false}} : {}[N,{}]
  return y = %y
}})",
                           a, k, b, k, n, b, k, n, k, n, b, d, n));
    return choose(described(g), class_of("x86-64-v3")).arm;
  };
  EXPECT_EQ(bytes("u8", "i8", "i32", 64, 48), Arm::bytes);
  EXPECT_EQ(bytes("i8", "i8", "i32", 64, 48), Arm::bytes);
  EXPECT_EQ(bytes("u8", "i8", "i64", 64, 48), Arm::integer);
  EXPECT_EQ(bytes("u8", "u8", "i32", 64, 48), Arm::integer);
  EXPECT_EQ(bytes("i16", "i8", "i32", 64, 48), Arm::integer);
  EXPECT_EQ(bytes("u8", "i8", "i32", 66, 48), Arm::integer);
  EXPECT_EQ(bytes("u8", "i8", "i32", 64, 40), Arm::integer);
}

// By columns, so that what a multiprocessor takes are whole lines; as many of them that none has
// much more than the others.
TEST(Matmul, StreamsWeightsPastTheFewestRows) {
  const auto by_columns = [](const char* type, int k, int n) {
    return product(type, k, n, "", true);
  };
  EXPECT_EQ(chosen(by_columns("f16", 2048, 2048), "sm_90", 16).arm, Arm::stream);
  EXPECT_EQ(chosen(by_columns("bf16", 64, 64), "sm_90", 16).arm, Arm::stream);
  EXPECT_EQ(chosen(by_columns("f16", 2048, 2048), "sm_90", 17).arm, Arm::library);
  EXPECT_EQ(chosen(by_columns("f16", 2048, 2048), "sm_80", 16).arm, Arm::library);
  EXPECT_EQ(chosen(by_columns("f16", 2056, 2048), "sm_90", 16).arm, Arm::library);
  EXPECT_EQ(chosen(by_columns("f32", 64, 64), "sm_90", 16).arm, Arm::library);
  EXPECT_EQ(chosen(product("f16", 64, 64), "sm_90", 16).arm, Arm::wgmma) << "by rows";
  for (const auto& [n, block_n, block_k, stages] : {std::tuple{64, 16, 256, 7},
                                                    {2048, 16, 256, 7},
                                                    {2560, 24, 256, 5},
                                                    {4096, 32, 256, 4},
                                                    {11264, 48, 128, 7},
                                                    {12288, 48, 128, 7},
                                                    {22016, 56, 128, 6},
                                                    {32000, 64, 128, 5}}) {
    const ir::Graph g = parsed(by_columns("f16", 64, n));
    EXPECT_EQ(stream_tile(described(g), 132), (StreamTile{block_n, block_k, stages})) << n;
  }
}

// Two sums of columns eight apart: by the kernels of ours that have them side by side, where pairs
// that are not cut leave no multiprocessor with much more than the others.
TEST(Matmul, GatesWhereBothSumsAre) {
  const auto gated = [](int k, int n, const char* type = "f16") {
    return fmt::format(
        R"(graph @g(%x: f32[B,S,{1}]) symbols(B = x.0 in 1.. as batch, S = x.1 in 1.. as length, tokens = (B*S) in 1.. as tokens) {{
  const @w : {0}[{2},{1}] = f32[{2},{1}] random(1) |> cast({0})
  %h = pointwise(%x) {{body = (i,j,k) => %x[i,j,k] * 0.5}} : {0}[B,S,{1}]
  %y = matmul(%h, @w) {{alpha = 1.0, gate = (s,t,i,j,k) => max(s, 0.0) * t, trans_a = false, trans_b = true}} : {0}[B,S,{3}]
  %z = pointwise(%y) {{body = (i,j,k) => tanh(%y[i,j,k])}} : f32[B,S,{3}]
  return z = %z
}})",
        type, k, n, n / 2);
  };
  const auto takes_it = [&](const std::string& text, const char* target, int64_t most_tokens) {
    const ir::Graph g = parsed(text);
    const MatmulDesc desc = described(g, most_tokens);
    EXPECT_EQ(desc.epilogue, Epilogue::gate);
    return takes_epilogue(choose(desc, class_of(target)), desc);
  };
  EXPECT_TRUE(takes_it(gated(2048, 11264), "sm_90", 16));
  EXPECT_FALSE(takes_it(gated(2048, 22016), "sm_90", 16)) << "56 columns each become 16";
  EXPECT_TRUE(takes_it(gated(2048, 24576), "sm_90", 16));
  EXPECT_TRUE(takes_it(gated(64, 22016), "sm_90", 128));
  EXPECT_TRUE(takes_it(gated(1024, 4096), "sm_90", 0));
  EXPECT_FALSE(takes_it(gated(2048, 4096), "sm_90", 0)) << "cuBLASLt's";
  EXPECT_FALSE(takes_it(gated(2048, 11264), "sm_80", 16));
  EXPECT_FALSE(takes_it(gated(2048, 11264, "f32"), "sm_90", 16));
  const ir::Graph g = parsed(gated(64, 11264));
  EXPECT_EQ(stream_tile(described(g, 16), 132), (StreamTile{48, 128, 7}));
  EXPECT_NE(print(described(g)).find("[11264,64]^T of a weight -> f16, epilogue gate"),
            std::string::npos)
      << print(described(g));
}

// A weight that is an expression of bytes: chunks of 16 of them share all else.
TEST(Matmul, ComputesWeightsOfBytes) {
  const auto text = [](const char* type, const char* stored, int k, int per, const char* weight) {
    return fmt::format(R"(graph @g(%x: {0}[N,{2}]) symbols(N = x.0 in 1.. as tokens) {{
  const @q : {1}[64,{3}] = f32[64,{3}] random(1) |> cast({1})
  const @s : f32[64,8] = random(2)
  %y = matmul(%x, @q, @s) {{alpha = 1.0, trans_a = false, trans_b = true, weight = (i,j) => {4}}} : {0}[N,64]
  return y = %y
}})",
                       type, stored, k, k / per, weight);
  };
  const char* const nibble = "f32(@q[i,j / 2] % 16) * @s[i,j / 32]";
  std::deque<ir::Graph> graphs;  // whose expressions are looked at
  const auto packed = [&](const std::string& graph) {
    const ir::Graph& g = graphs.emplace_back(parsed(graph));
    return describe(g, g.value(g.find_value("y")).def, 0).packed;
  };
  const auto four = packed(text("f32", "u8", 256, 2, nibble));
  ASSERT_TRUE(four);
  EXPECT_EQ(four->per, 2);
  EXPECT_EQ(four->chunk, 32);
  EXPECT_EQ(four->slot, 1u);
  ASSERT_EQ(four->shared.size(), 1u);
  EXPECT_EQ(ir::print(four->shared[0]), "%2[i0,i1]");
  EXPECT_EQ(ir::print(four->value), "v0 * f32(i3 % 16)");
  EXPECT_FALSE(four->scale) << "no digits, and no half";
  const auto eight = packed(text("f32", "i8", 128, 1, "f32(@q[i,j]) * @s[i,j / 16]"));
  ASSERT_TRUE(eight);
  EXPECT_EQ(ir::print(eight->value), "v0 * f32(i3 - 128)");
  EXPECT_TRUE(packed(text("f32", "u8", 64, 1, "f32(@q[i,j]) * @s[i,j / 64]")));
  EXPECT_FALSE(packed(text("f32", "u8", 72, 1, "f32(@q[i,j]) * @s[i,j / 64]")))
      << "a part of a chunk";
  EXPECT_FALSE(packed(text("f32", "u8", 128, 2, "f32(@q[i,j / 2]) * @s[i,j / 16]")))
      << "two blocks";
  EXPECT_FALSE(packed(text("f32", "u8", 128, 2, "f32(@q[63 - i,j / 2]) * @s[i,j / 32]")))
      << "other bytes";
  EXPECT_FALSE(packed(text("f32", "i16", 64, 1, "f32(@q[i,j]) * @s[i,j / 64]"))) << "no bytes";
  const auto arm = [&](const char* type, const char* weight, const char* target, int64_t rows) {
    const ir::Graph g = parsed(text(type, "u8", 256, 2, weight));
    const MatmulDesc desc = describe(g, g.value(g.find_value("y")).def, rows);
    const Arm arm = choose(desc, class_of(target)).arm;
    return std::pair(arm, takes_factor(arm, desc));
  };
  // Digits of four bits by a half, less whole numbers: halves hold all but the last product.
  const auto digits = [&](const char* scale, const char* weight) {
    const auto p = packed(fmt::format(R"(graph @g(%x: f16[N,64]) symbols(N = x.0 in 1..) {{
  const @q : u8[64,32] = f32[64,32] random(1) |> cast(u8)
  const @z : u8[64,1] = f32[64,1] random(1) |> cast(u8)
  const @s : {0}[64,2] = f32[64,2] random(2) |> cast({0})
  %y = matmul(%x, @q, @s, @z) {{alpha = 1.0, trans_a = false, trans_b = true, weight = (i,j) => {1}}} : f16[N,64]
  return y = %y
}})",
                                      scale, weight));
    return p && p->scale ? ir::print(p->scale) + " " + ir::print(p->zero) : "none";
  };
  const std::string digit = "f32(select(j % 2 == 1, @q[i,j / 2] / 16, @q[i,j / 2]) % 16)";
  const auto of = [&](const std::string& rest) { return digit + rest; };
  EXPECT_EQ(digits("f16", ("(" + of(" - 8.0") + ") * f32(@s[i,j / 32])").c_str()), "v0 8.0");
  EXPECT_EQ(digits("f16", (of(" * f32(@s[i,j / 32])")).c_str()), "v0 0.0");
  EXPECT_EQ(digits("f16", ("(" + of(" - f32(@z[i,0] % 16)") + ") * f32(@s[i,j / 32])").c_str()),
            "v1 v0");
  EXPECT_EQ(digits("f16", ("(" + of(" - f32(@z[i,0])") + ") * f32(@s[i,j / 32])").c_str()), "none")
      << "up to 255";
  EXPECT_EQ(digits("f16", ("(" + of(" - 7.5") + ") * f32(@s[i,j / 32])").c_str()), "none");
  EXPECT_EQ(digits("f32", ("(" + of(" - 8.0") + ") * @s[i,j / 32]").c_str()), "none") << "no half";
  EXPECT_EQ(
      digits(
          "f16",
          "(f32(select(j % 2 == 0, @q[i,j / 2] / 16, @q[i,j / 2]) % 16) - 8.0) * f32(@s[i,j / 32])"),
      "none")
      << "the higher first";
  EXPECT_EQ(
      digits(
          "f16",
          "(f32(select(j % 2 == 1, @q[i,j / 2] / 16, @q[i,j / 2]) % 16 / (1 + j / 8 % 2)) - 8.0) * f32(@s[i,j / 32])"),
      "none")
      << "by the place";
  const char* const across = "f32(@q[63 - i,j / 2] % 16) * @s[i,j / 32]";
  EXPECT_EQ(arm("f32", nibble, "x86-64-v3", 0), std::pair(Arm::panel, true));
  EXPECT_EQ(arm("f32", across, "x86-64-v3", 0), std::pair(Arm::library, false));
  EXPECT_EQ(arm("f16", nibble, "sm_90", 16), std::pair(Arm::coded, true));
  EXPECT_EQ(arm("f16", nibble, "sm_90", 17), std::pair(Arm::library, false));
  EXPECT_EQ(arm("f16", nibble, "sm_80", 16), std::pair(Arm::coded, true));
  EXPECT_EQ(arm("f32", nibble, "sm_80", 16), std::pair(Arm::library, false));
  EXPECT_EQ(arm("f16", across, "sm_90", 16), std::pair(Arm::library, false));
  EXPECT_EQ(arm("bf16", nibble, "sm_120", 16), std::pair(Arm::coded, true));
}

// A block has the columns of its multiprocessor: few by two warps in turns, many by loaders of eight
// warps.
TEST(Matmul, SharesColumnsOfCodesOut) {
  ir::ExprPool pool;
  PackedFactor packed{1, DType::u8, 2, 32, {pool.real(1)}};
  packed.scale = pool.real(1);
  const auto tile = [&](int64_t n, const char* target, int64_t products = 1) {
    const TargetClass t = class_of(target);
    return coded_tile(DType::f16, packed, n, products, t, t.shared_bytes);
  };
  EXPECT_EQ(tile(2048, "sm_90"), (CodedTile{16, 2, 256, 8, 4, 4}));
  EXPECT_EQ(tile(4096, "sm_90"), (CodedTile{32, 2, 256, 7, 4, 4}));
  EXPECT_EQ(tile(12288, "sm_90"), (CodedTile{96, 1, 256, 4, 2, 4}));
  EXPECT_EQ(tile(22016, "sm_90"), (CodedTile{176, 1, 256, 4, 2, 8}));
  EXPECT_EQ(tile(32000, "sm_90"), (CodedTile{128, 1, 256, 4, 2, 4})) << "two blocks";
  EXPECT_EQ(tile(128256, "sm_90"), (CodedTile{176, 1, 256, 4, 2, 8})) << "six blocks";
  EXPECT_EQ(tile(22016, "sm_80"), (CodedTile{80, 1, 256, 4, 2, 4})) << "little memory";
  EXPECT_EQ(tile(2880, "sm_90", 4), (CodedTile{96, 1, 256, 4, 2, 4})) << "of four experts";
  EXPECT_EQ(tile(64, "sm_90"), (CodedTile{16, 2, 256, 8, 4, 4}));
  EXPECT_EQ(tile(4096, "sm_80").stages, 4) << "less memory";
  for (int64_t n = 8; n < 400000; n = n * 5 / 4 + 8) {
    for (const char* target : {"sm_80", "sm_90"}) {
      for (const DType type : {DType::f16, DType::bf16}) {
        for (const size_t shares : {1, 4}) {
          PackedFactor of = packed;
          of.shared.assign(shares, pool.real(1, ir::Scalar::f64));
          if (shares > 1) of.scale = nullptr;
          const TargetClass c = class_of(target);
          const CodedTile t = coded_tile(type, of, n, 1, c, c.shared_bytes);
          EXPECT_LE(t.threads(), CodedTile::kMostThreads) << n;
          EXPECT_LE(coded_shared_bytes(type, of, t), c.shared_bytes) << n;
          EXPECT_GE(t.stages, 3) << n;
        }
      }
    }
  }
}

// Steps of generation: kernels of ours for any number of rows, unless bits may differ.
std::string step_of(const char* type, int n, bool trans_b, const char* weight) {
  return fmt::format(
      R"(graph @g(%x: {0}[1,T,2048], %v: {0}[1,T,64], %slots: i32[T], %kc: {0}[P,1,64,64], %vc: {0}[P,1,64,64]) symbols(T = x.1 in 1.. as tokens, P = kc.0 in 1..) {{
  const @w : {0}[{1}] = f32[{1}] random(1) |> cast({0})
  %w2 = pointwise(@w) {{body = (i,j) => @w[i,j] * 2.0}} : {0}[{1}]
  %h = pointwise(%x) {{body = (i,j,k) => %x[0,j,k] * 2.0}} : {0}[1,T,2048]
  %y = matmul(%h, {4}) {{alpha = 1.0, trans_a = false, trans_b = {2}}} : {0}[1,T,{3}]
  %keys, %values = kv_append(%kc, %vc, %v, %v, %slots) : {0}[P,1,64,64], {0}[P,1,64,64]
  %z = pointwise(%y) {{body = (i,j,k) => %y[0,j,k] * 2.0}} : {0}[1,T,{3}]
  return z = %z, w = %w2, kc = %keys, vc = %values
}})",
      type, trans_b ? fmt::format("{},2048", n) : fmt::format("2048,{}", n), trans_b, n, weight);
}
MatmulConfig in_order(const char* type, const std::string& target, int64_t most_tokens,
                      bool any_order = false, bool trans_b = true, int n = 64,
                      const char* weight = "@w") {
  const ir::Graph g = parsed(step_of(type, n, trans_b, weight));
  return choose(describe(g, g.value(g.find_value("y")).def, most_tokens, {any_order}),
                class_of(target));
}

TEST(Matmul, ComputesGenerationInOrder) {
  EXPECT_EQ(in_order("f16", "sm_90", 16).arm, Arm::stream);
  EXPECT_EQ(in_order("f16", "sm_90", 128).arm, Arm::wgmma);
  EXPECT_EQ(in_order("f16", "sm_90", 0).arm, Arm::wgmma);
  EXPECT_EQ(in_order("f16", "sm_90", 16, true).arm, Arm::stream);
  EXPECT_EQ(in_order("f16", "sm_90", 128, true).arm, Arm::library);
  EXPECT_EQ(in_order("f16", "sm_90", 0, true).arm, Arm::library);
  for (int64_t rows : {16, 128, 0}) {  // of what a launch makes, say of a weight of 4 bits
    EXPECT_EQ(in_order("f16", "sm_90", rows, false, true, 64, "%w2").arm, Arm::wgmma);
    EXPECT_FALSE(in_order("f16", "sm_90", rows, false, true, 64, "%w2").early);
    EXPECT_EQ(in_order("f16", "sm_90", rows, true, true, 64, "%w2").arm, Arm::library);
    EXPECT_FALSE(in_order("f32", "sm_90", rows, false, true, 64, "%w2").early);
    EXPECT_TRUE(in_order("f32", "sm_90", rows).early);
  }
}

// By one kernel for all rows where the two above do not serve: in f32, and on other GPUs.
TEST(Matmul, KeepsSumsInOrderOnEveryGpu) {
  for (int64_t rows : {2, 16, 128, 0}) {
    EXPECT_EQ(in_order("f32", "sm_90", rows).arm, Arm::ordered);
    EXPECT_EQ(in_order("f32", "sm_90", rows, true).arm, Arm::library);
    for (const char* target : {"sm_80", "sm_100", "sm_120"}) {
      for (const char* type : {"f32", "f16", "bf16"}) {
        EXPECT_EQ(in_order(type, target, rows).arm, Arm::ordered);
        EXPECT_EQ(in_order(type, target, rows, true).arm, Arm::library);
      }
    }
    EXPECT_EQ(in_order("f16", "sm_90", rows, false, true, 60).arm, Arm::ordered);
    EXPECT_EQ(in_order("f32", "x86-64-v3", rows).arm, Arm::panel);
  }
  EXPECT_EQ(in_order("f32", "sm_90", 0, false, false).arm, Arm::library) << "by rows";
  EXPECT_EQ(in_order("f32", "sm_90", 2).ordered.tile.block_m, 4);
  EXPECT_EQ(in_order("f32", "sm_90", 16).ordered.tile.block_m, 16);
  EXPECT_EQ(in_order("f32", "sm_90", 128).ordered.tile.block_m, 32);
  EXPECT_EQ(in_order("f32", "sm_90", 0).ordered.tile.block_m, 64);
  EXPECT_EQ(in_order("f16", "sm_80", 0).ordered.large.block_m, 128);
  EXPECT_NE(print(in_order("f16", "sm_80", 0))
                .find("ordered of 64 x 64, or 128 x 128 where those fill the multiprocessors"),
            std::string::npos);
  EXPECT_NE(print(in_order("f32", "sm_90", 0)).find("not library: sums in an order that changes"),
            std::string::npos);
}

TEST(Matmul, SaysWhy) {
  EXPECT_EQ(
      print(chosen(product("f32", 32, 40), "x86-64-v3")),
      "heads: each sum in order\nnot panel: n is no multiple of 16\nnot library: sums few rows "
      "in another order than many");
  EXPECT_EQ(
      print(chosen(product("f16", 64, 64), "sm_80", 128)),
      "library: no kernel of ours takes this product\nnot wgmma: the GPU has no products of warpgroups");
  EXPECT_NE(print(chosen(product("f16", 64, 64), "sm_90", 128)).find("wgmma of 64 x 64, 8 stages"),
            std::string::npos);
}

Lowered lowered(const std::string& text, const char* target, WeightPool& weights) {
  auto made = lower(parsed(text), class_of(target), weights);
  EXPECT_TRUE(made) << (made ? "" : made.error().message);
  return *std::move(made);
}

std::vector<std::string> launches(const runtime::Bucket& b) {
  std::vector<std::string> out;
  for (const runtime::Launch& l : b.launches)
    out.push_back(fmt::format("{}", fmt::join(l.ops, "+")));
  return out;
}

// What is in TF32 where that is asked for: products of f32 by the library whose sums may have any
// order. A plan that has none says that it is of f32.
TEST(MatmulPlan, IsInTf32WhereThatIsAskedFor) {
  const auto made = [](const std::string& text, const char* target, bool tf32, bool any_order) {
    WeightPool weights;
    LowerOptions options;
    options.batch_variance = any_order;
    if (tf32) options.precision = runtime::kTf32;
    auto l = lower(parsed(text), class_of(target), weights, options);
    EXPECT_TRUE(l) << (l ? "" : l.error().message);
    std::pair<std::string, int> out{l->plan.precision, 0};
    for (const runtime::Bucket& b : l->plan.buckets)
      for (const runtime::Launch& launch : b.launches)
        out.second += launch.matmul && launch.matmul->tf32;
    return out;
  };
  using Found = std::pair<std::string, int>;
  const std::string f32 = product("f32", 64, 64);
  EXPECT_EQ(made(f32, "sm_80", true, false), (Found{"tf32", 1}));
  EXPECT_EQ(made(f32, "sm_80", false, false), (Found{"f32", 0}));
  EXPECT_EQ(made(f32, "x86-64-v3", true, false).second, 0);
  EXPECT_EQ(made(product("f16", 64, 64), "sm_80", true, false), (Found{"f32", 0}));
  // A weight by rows: no kernel of ours adds in order there, and the library is told to.
  const std::string step = step_of("f32", 64, false, "@w");
  EXPECT_EQ(made(step, "sm_80", true, false), (Found{"f32", 0}));
  EXPECT_EQ(made(step, "sm_80", true, true), (Found{"tf32", 1}));
}

TEST(MatmulPlan, SaysThatItIsOfThreeProductsInTf32) {
  const auto of = [](const std::string& text, const char* target) {
    WeightPool weights;
    LowerOptions options;
    options.precision = runtime::kTf32x3;
    auto l = lower(parsed(text), class_of(target), weights, options);
    EXPECT_TRUE(l) << (l ? "" : l.error().message);
    return *std::move(l);
  };
  const std::string by_columns = product("f32", 64, 64, "", true);
  for (const char* target : {"sm_80", "sm_90"}) {
    const Lowered l = of(by_columns, target);
    EXPECT_EQ(l.plan.precision, "tf32x3") << target;
    EXPECT_EQ(l.plan.buckets.size(), 2u) << target;  // few rows, and many
  }
  EXPECT_EQ(of(product("f16", 64, 64, "", true), "sm_90").plan.precision, "f32");
  // Maps of f32, which a reader must know.
  const Lowered maps = of(by_columns, "sm_90");
  const runtime::Launch& launch = maps.plan.buckets[0].launches[1];
  ASSERT_TRUE(launch.kernel);
  EXPECT_EQ(launch.kernel->maps.size(), 2u);
}

// By three products in TF32: warpgroups where a GPU has them; elsewhere many rows alone, for few wait
// for their weight. Steps of generation, and weights by rows, stay as they are.
TEST(Matmul, MultipliesF32ByThreeProductsInTf32) {
  const auto three = [](const std::string& text, const char* target, int64_t most_tokens = 0) {
    const ir::Graph g = parsed(text);
    return choose(
        describe(g, g.value(g.find_value("y")).def, most_tokens, {false, F32Products::tf32x3}),
        class_of(target));
  };
  const std::string by_columns = product("f32", 768, 3072, "tanh(s + @bias[k])", true, ", @bias");
  const MatmulConfig many = three(by_columns, "sm_90"), few = three(by_columns, "sm_90", 128);
  EXPECT_EQ(many.arm, Arm::tf32);
  EXPECT_EQ(many.tf32, (std::vector<Tf32Tile>{{128, 128}, {128, 64}, {64, 64}}));
  EXPECT_FALSE(many.early);
  EXPECT_EQ(few.arm, Arm::tf32);
  EXPECT_EQ(few.tf32, (std::vector<Tf32Tile>{{64, 64}}));
  EXPECT_TRUE(few.early);
  EXPECT_EQ(three(by_columns, "sm_80").arm, Arm::ordered);
  EXPECT_EQ(three(by_columns, "sm_80").ordered.tf32, 3);
  EXPECT_LE(ordered_shared_bytes(DType::f32, three(by_columns, "sm_86").ordered),
            class_of("sm_86").shared_bytes);
  EXPECT_EQ(three(by_columns, "sm_80", 128).arm, Arm::library);
  EXPECT_EQ(three(by_columns, "x86-64-v3").arm, Arm::panel);
  EXPECT_EQ(three(product("f32", 768, 3072), "sm_90").arm, Arm::library);
  EXPECT_EQ(three(product("f32", 767, 3072, "", true), "sm_90").arm, Arm::ordered);
  EXPECT_EQ(three(product("f16", 768, 3072, "", true), "sm_90").ordered.tf32, 0);
  EXPECT_EQ(three(step_of("f32", 64, true, "@w"), "sm_90").ordered.tf32, 0);
  EXPECT_EQ(chosen(by_columns, "sm_90").arm, Arm::library);
}

// Few tokens and many have forms of their own in one plan: tiles for them, and arms.
TEST(MatmulPlan, HasAFormForFewTokens) {
  WeightPool weights;
  const Lowered l =
      lowered(product("f16", 64, 64, "max(s + @bias[k], 0.0)", false, ", @bias"), "sm_90", weights);
  using Names = std::vector<std::string>;
  ASSERT_EQ(l.plan.buckets.size(), 2u);
  EXPECT_EQ(l.plan.buckets[0].name, "t128");
  EXPECT_EQ(l.plan.buckets[1].name, "any");
  for (const runtime::Bucket& b : l.plan.buckets) {
    EXPECT_EQ(launches(b), (Names{"pointwise", "matmul+epilogue", "pointwise"})) << b.name;
    EXPECT_EQ(b.launches[1].kernel->maps.size(), 2u) << b.name;
  }
  // What both forms compute lies in one buffer.
  EXPECT_EQ(l.plan.buckets[0].launches[1].kernel->args.back(),
            l.plan.buckets[1].launches[1].kernel->args.back());
  // A library's epilogue is a bias: many rows of such a product stay with it.
  EXPECT_EQ(lowered(product("f16", 64, 64, "s + @bias[k]", false, ", @bias"), "sm_90", weights)
                .plan.buckets.size(),
            2u);
  const Lowered old =
      lowered(product("f16", 64, 64, "max(s + @bias[k], 0.0)", false, ", @bias"), "sm_80", weights);
  EXPECT_EQ(launches(old.plan.buckets[0]),
            (Names{"pointwise", "matmul", "pointwise", "pointwise"}));
}

// Where reading a weight is what a product of few rows costs, it streams past them; a smaller one has
// the form of up to 128 rows alone.
TEST(MatmulPlan, StreamsLargeWeightsPastTheFewestRows) {
  WeightPool weights;
  const auto buckets = [&](int n, bool by_columns) {
    std::vector<std::string> names;
    const Lowered l = lowered(product("f16", 2048, n, "", by_columns), "sm_90", weights);
    for (const runtime::Bucket& b : l.plan.buckets)
      names.push_back(b.name + " " +
                      l.plan.kernels[b.launches[1].kernel ? b.launches[1].kernel->kernel : 0].op);
    return names;
  };
  EXPECT_EQ(buckets(2048, true)[0], "t16 matmul_stream");
  EXPECT_EQ(buckets(2040, true)[0].find("t16"), std::string::npos);
  EXPECT_EQ(buckets(2048, false)[0].find("t16"), std::string::npos);
}

TEST(MatmulPlan, GeluIsPointwiseWhereItIsSplitOff) {
  WeightPool weights;
  const std::string gelu = "let t = s + @bias[k] in 0.5 * t * (1.0 + erf(t * 0.70710677))";
  using Names = std::vector<std::string>;
  const Lowered split = lowered(product("f16", 64, 64, gelu, false, ", @bias"), "sm_80", weights);
  EXPECT_EQ(launches(split.plan.buckets[0]),
            (Names{"pointwise", "matmul", "pointwise", "pointwise"}));
  EXPECT_EQ(split.plan.kernels[split.plan.buckets[0].launches[2].kernel->kernel].name,
            "pointwise__f16_r3_1");
  EXPECT_EQ(launches(lowered(product("f32", 64, 64, gelu, false, ", @bias"), "x86-64-v2", weights)
                         .plan.buckets[0]),
            (Names{"pointwise", "matmul+epilogue", "pointwise"}));
}

// A kernel of ours writes rows of 16 bytes, which the caller's memory need not allow: an output
// that one form computes as a product is copied in the other too.
TEST(MatmulPlan, OutputsOfProductsAreNeverTheCallers) {
  std::string text = product("f16", 64, 64, "max(s + @bias[k], 0.0)", false, ", @bias");
  text.replace(text.find("return z = %z"), 13, "return z = %z, y = %y");
  WeightPool weights;
  const Lowered l = lowered(text, "sm_90", weights);
  for (const runtime::Bucket& b : l.plan.buckets) {
    for (const runtime::Launch& launch : b.launches) {
      if (!launch.kernel || launch.ops[0] != "matmul") continue;
      for (uint32_t arg : launch.kernel->args)
        EXPECT_NE(l.plan.buffers[arg].place, runtime::BufferClass::output) << b.name;
    }
    EXPECT_EQ(b.launches.back().name, "y") << "the copy";
  }
}

TEST(MatmulPlan, AResultOfAnotherTypeIsNarrowedBehindItsEpilogue) {
  const auto other = [](const std::string& factors, const std::string& result) {
    std::string text = product(factors, 64, 64, "s + @bias[k]", false, ", @bias");
    const size_t at = text.find(factors + "[B,S,64]\n  %z");
    text.replace(at, factors.size(), result);
    text.replace(text.find("const @bias : " + factors), 14 + factors.size(),
                 "const @bias : " + result);
    text.replace(text.find("random(2) |> cast(" + factors), 18 + factors.size(),
                 "random(2) |> cast(" + result);
    return text;
  };
  WeightPool weights;
  for (const auto& [a, d] : {std::pair{"bf16", "f16"}, {"f16", "bf16"}, {"f32", "f16"}}) {
    for (const char* target : {"sm_80", "sm_90"}) {
      const Lowered l = lowered(other(a, d), target, weights);
      for (const runtime::Launch& launch : l.plan.buckets[0].launches) {
        if (!launch.matmul) continue;
        EXPECT_EQ(l.plan.buffers[launch.matmul->d].dtype, DType::f32) << a << " to " << d;
      }
    }
  }
}

// Plans that are equal are one, and are called after their family.
TEST(Plans, AreSharedByClassesWhereTheyAreEqual) {
  if (!cuda_compiler_version()) GTEST_SKIP() << cuda_compiler_version().error().message;
  const auto names = [](const std::string& dtype, std::vector<std::string> targets) {
    CompileOptions options;
    options.targets = *parse_targets(targets);
    const std::string file = testing::TempDir() + "/matmul_test.tfcc";
    auto made = compile({{Family::cuda, parsed(product(dtype, 64, 64)), {}}}, file, options);
    EXPECT_TRUE(made) << (made ? "" : made.error().message);
    std::vector<std::string> out;
    for (const Lowered& l : made->plans) out.push_back(l.plan.name);
    std::remove(file.c_str());
    return out;
  };
  EXPECT_EQ(names("f32", {"sm_90", "sm_80"}), (std::vector<std::string>{"cuda"}));
  EXPECT_EQ(names("f16", {"sm_90", "sm_86"}), (std::vector<std::string>{"sm_90a", "sm_80"}));
  EXPECT_EQ(names("f16", {"sm_86", "sm_89"}), (std::vector<std::string>{"cuda"}));
}

}  // namespace
}  // namespace tfcc::codegen
