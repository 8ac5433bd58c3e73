// SPDX-License-Identifier: Apache-2.0
// The text form: canonical text survives a round trip unchanged, other text becomes canonical,
// errors name their line.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <random>

#include "ir/ir.h"
#include "tests/ir/random_expr.h"

namespace tfcc::ir {
namespace {

constexpr const char* kCanonical =
    R"tfir(graph @all(%input_ids: i64[B,S], %mask: i64[B,S], %"a/b c": f32[B,S,64]) symbols(B = input_ids.0 in 1.. as batch, S = input_ids.1 in 1..128 as length, tokens = (B*S) in 1..4096 as tokens) {
  check S <= 128, "sequence_length must be at most 128"
  flag 0 "input_ids: a value lies outside [0, 4)"
  const @table : f32[4,64] = random(7)
  %x = pointwise(@table, %input_ids) {body = (i,j,k) => @table[bounded(%input_ids[i,j], 4, 0),k]} : f32[B,S,64]
  const @w.t : f16[64,64] = file("no such file.onnx", f32[64,64], 1234) |> transpose(1,0) |> cast(f16)
  %d = pointwise(@w.t) {body = (i,j) => @w.t[i,j]} : f32[64,64]
  const @b : f32[64] = f64[2,32] random(9) |> reshape(64) |> cast(f32)
  const @below : i8[2] = f32[2] random(9) |> cast(u8) |> add(-128, i8)
  %m = matmul(%x, %d, @b) {alpha = 0.5, epilogue = (s,i,j,k) => @b[k] + s, trans_a = false, trans_b = true} : f32[B,S,64]
  const @one : f32[64] = base64("AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/AACAPw==")
  const @eps : f32[] = [1e-05]
  const @odd : f64[5] = [nan, inf, -inf, -0.0, 1e+300]
  const @flags : bool[2] = [true, false]
  const @ints : i8[3] = [-128, 0, 127]
  const @none : f32[0] = []
  const @made : f16[3,2] = f32[2,3] graph @"made of two"() {
    const @a : f32[2,4] = random(1)
    const @b : f32[4,3] = file("no such file.onnx", f32[4,3], 0)
    %p = matmul(@a, @b) {alpha = 0.5, trans_a = false, trans_b = false} : f32[2,3]
    return made = %p
  } |> transpose(1,0) |> cast(f16)
  %h, %sum = norm(@one, @b, %m, %x, @b) {body = (i,j,k) => @b[k] + (%m[i,j,k] + %x[i,j,k]), eps = 1e-12, has_beta = true, kind = layer} : f32[B,S,64], f32[B,S,64]
  %e, %esum = norm(@one, @b, @table, %input_ids) {body = (i,j,k) => @table[bounded(%input_ids[i,j], 4, 0),k] * 2.0, eps = 1e-12, has_beta = true, kind = layer} : f32[B,S,64], f32[B,S,64]
  %ctx = attention(%h, %h, %h, %mask) {causal = false, heads = 4, key_padding = true, kv_heads = 4, score = (s,b,h,i,j) => s * 0.25, visible = (b,h,i,j) => %mask[b,j] == 1} : f32[B,S,64]
  %free = attention(%h, %h, %h) {causal = false, heads = 4, key_padding = false, kv_heads = 4, score = (s,b,h,i,j) => s, visible = none} : f32[B,S,64]
  %near = attention(%h, %h, %h) {causal = false, heads = 4, key_padding = false, kv_heads = 4, score = (s,b,h,i,j) => s, visible = (b,h,i,j) => j <= i + 2 and i <= j + 3, window_left = 3, window_right = 2} : f32[B,S,64]
  %turned = rope(%near, %free, %free) {heads = 1, interleaved = true, rotary = 64} : f32[B,S,64]
  %r = reduce(%ctx) {body = (i,j,k) => %ctx[i,j,k], extents = [64], kind = mean} : f32[B,S]
  %c = cumsum(%r) {axis = 1, exclusive = false, reverse = true} : f32[B,S]
  %p = softmax(%c) : f32[B,S]
  %n = norm(@one, %ctx) {body = (i,j,k) => %ctx[i,j,k], eps = 0.001, has_beta = false, kind = layer} : f32[B,S,64]
  %q = norm(@one, %n) {body = (i,j,k) => %n[i,j,k], eps = 0.0, has_beta = false, kind = rms} : f32[B,S,64]
  %g = pointwise(%q) {body = (i,j,k) => (1.0 + tanh(0.7978846 * (%q[i,j,k] + %q[i,j,k] * (%q[i,j,k] * (%q[i,j,k] * 0.044715))))) * (%q[i,j,k] * 0.5)} : f32[B,S,64]
  %"g/2" = pointwise(%g, @b) {body = (i,j,k) => let t0 = %g[i,j,k] + @b[k] in (1.0 + erf(0.70710677 * t0)) * (0.5 * t0)} : f32[B,S,64]
  return "last.hidden" = %"g/2", p = %p, w = @w.t, turned = %turned
}
)tfir";

TEST(Text, CanonicalTextComesBack) {
  std::string text = kCanonical;
  // 64 ones in base64, too long to write out above: 256 bytes are 86 groups.
  const size_t begin = text.find("base64(\"") + 8, end = text.find("\")", begin);
  std::string digits;
  for (int i = 0; i < 21; ++i) digits += "AACAPwAAgD8AAIA/";
  text.replace(begin, end - begin, digits + "AACAPw==");
  const auto g = parse(text);
  ASSERT_TRUE(g) << g.error().message;
  // @one has 64 elements, so its canonical form is the list.
  std::string list = "[1.0";
  for (int i = 1; i < 64; ++i) list += ", 1.0";
  const size_t from = text.find("base64("), to = text.find('\n', from);
  text.replace(from, to - from, list + "]");
  EXPECT_EQ(print(*g), text);
  const auto again = parse(print(*g));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(print(*again), text);
}

TEST(Text, LargeConstantsAreBase64) {
  for (int64_t n : {65, 66, 67}) {
    Graph g;
    std::vector<std::byte> bytes(static_cast<size_t>(n));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37);
    const ValueId v = g.add_constant("c", constant_from_bytes(DType::u8, {n}, bytes));
    g.outputs = {{"c", v}};
    const auto again = parse(print(g));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*again->constant(again->outputs[0].value)->bytes, bytes);
    EXPECT_EQ(print(*again), print(g));
  }
}

TEST(Text, FloatsReadBackExactly) {
  std::mt19937 random(1);
  Graph g;
  std::vector<std::byte> bytes(64 * 4), wide(64 * 8);
  for (auto& b : bytes) b = static_cast<std::byte>(random());
  for (auto& b : wide) b = static_cast<std::byte>(random());
  for (size_t i = 0; i < 64; ++i) {  // no NaN: its payload is not kept
    if (read_real(DType::f32, bytes.data(), i) != read_real(DType::f32, bytes.data(), i))
      write_real(DType::f32, bytes.data(), i, 0);
    if (read_real(DType::f64, wide.data(), i) != read_real(DType::f64, wide.data(), i))
      write_real(DType::f64, wide.data(), i, 0);
  }
  g.outputs = {{"a", g.add_constant("a", constant_from_bytes(DType::f32, {64}, bytes))},
               {"b", g.add_constant("b", constant_from_bytes(DType::f64, {64}, wide))}};
  const auto again = parse(print(g));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(*again->constant(again->outputs[0].value)->bytes, bytes);
  EXPECT_EQ(*again->constant(again->outputs[1].value)->bytes, wide);
}

TEST(Text, LooseTextBecomesCanonical) {
  const auto g = parse(R"(
    // a comment
    graph @g(%x: f32[2, 2*3]) {   // another
      %y = pointwise(%x) { body = (a , b) => let u = %x[a,b] + 1.0 in (u*u) }
         : f32[2,6]
      return y=%y }
  )");
  ASSERT_TRUE(g) << g.error().message;
  const std::string text = print(*g);
  EXPECT_NE(text.find("%x: f32[2,6]"), std::string::npos) << text;
  EXPECT_NE(text.find("(i,j) =>"), std::string::npos) << text;
  EXPECT_EQ(print(*parse(text)), text);
}

TEST(Text, NamesOfAllKindsSurvive) {
  Graph g("weird \"graph\"\n");
  const Type vec{DType::f32, {g.pool().integer(2)}};
  for (const char* name : {"a b", "x/y:0", "quote\"d", "back\\slash", "new\nline", "\x01", "0",
                           ".5", "%", "\xc3\xa9"}) {
    g.outputs.push_back({name, g.add_input(name, vec)});
  }
  const auto again = parse(print(g));
  ASSERT_TRUE(again) << again.error().message << print(g);
  EXPECT_EQ(again->name, g.name);
  for (size_t i = 0; i < g.outputs.size(); ++i) {
    EXPECT_EQ(again->outputs[i].name, g.outputs[i].name);
    EXPECT_EQ(again->value(again->inputs()[i]).name, g.value(g.inputs()[i]).name);
  }
}

TEST(Text, ErrorsNameTheLine) {
  const auto error = [](std::string_view body) {
    const auto g =
        parse(fmt::format("graph @g(%x: f32[4], %n: i64[4]) {{\n  {}\n  return y = %x\n}}\n", body),
              "t.tfir");
    EXPECT_FALSE(g) << body;
    if (g) return std::string();
    EXPECT_EQ(g.error().code, ErrorCode::bad_file);
    return g.error().message;
  };
  EXPECT_EQ(error("%y = frobnicate(%x) : f32[4]"),
            "t.tfir:2: expected the name of an op, found 'frobnicate'");
  EXPECT_EQ(error("%y = softmax(%z) : f32[4]"), "t.tfir:2: %z is not defined before this use");
  EXPECT_EQ(error("%x = softmax(%x) : f32[4]"), "t.tfir:2: %x is defined twice");
  EXPECT_EQ(error("%y = softmax(@x) : f32[4]"), "t.tfir:2: @x is not defined before this use");
  EXPECT_EQ(error("%y = norm(%x, %x) {body = (i) => %x[i], eps = 0.1, has_beta = false} : f32[4]"),
            "t.tfir:2: norm: attribute 'kind' is missing");
  EXPECT_EQ(
      error(
          "%y = norm(%x, %x) {body = (i) => %x[i], eps = 0.1, has_beta = false, kind = best} : f32[4]"),
      "t.tfir:2: expected layer, rms for 'kind', found 'best'");
  EXPECT_EQ(error("%y = softmax(%x) {axis = 1} : f32[4]"),
            "t.tfir:2: softmax: 1 attributes given, it has 0");
  EXPECT_EQ(error("%y = softmax(%x) : f32[K]"), "t.tfir:2: unknown name 'K'");
  EXPECT_EQ(error("%y = pointwise(%x) {body = (i) => %x[i] + 1} : f32[4]"),
            "t.tfir:2: '+' needs two numbers of one type, found f32 and i64");
  EXPECT_EQ(error("%y = pointwise(%x) {body = (i) => %n[i]} : i64[4]"),
            "t.tfir:2: %n is not an operand of this op");
  // A norm's gamma is its own, and no operand of the body.
  EXPECT_EQ(error("%y = norm(%n, %x) {body = (i) => f32(%n[i]), eps = 0.1, has_beta = false, "
                  "kind = layer} : f32[4]"),
            "t.tfir:2: %n is not an operand of this op");
  EXPECT_EQ(error("%y = pointwise(%x) {body = (i,j) => %x[i]} : f32[4]"),
            "t.tfir:2: 'body' has 2 parameters, 1 expected");
  EXPECT_EQ(error("%y = pointwise(%x) {body = (i) => foo(%x[i])} : f32[4]"),
            "t.tfir:2: unknown function 'foo' of one f32");
  EXPECT_EQ(error("const @c : f32[2] = [1.0]"), "t.tfir:2: 2 elements expected, 1 given");
  EXPECT_EQ(error("const @c : f32[2] = random(1) |> cast(f16)"),
            "t.tfir:2: the recipe does not give the type that the constant is declared with");
  EXPECT_EQ(error("const @c : i8[1] = [200]"), "t.tfir:2: 200 does not fit i8");
  EXPECT_EQ(error("%y = softmax(%x : f32[4]"), "t.tfir:2: expected ',', found ':'");
  EXPECT_EQ(error("?"), "t.tfir:2: '?' has no meaning here");
  const std::string inner = "graph @i() { const @a : f32[2] = random(1) ";
  EXPECT_EQ(error("const @c : f32[3] = " + inner + "return c = @a }"),
            "t.tfir:2: the graph does not make the constant");
  EXPECT_EQ(error("const @c : f32[2] = " + inner + "return }"),
            "t.tfir:2: the graph of a constant has not one output");
  EXPECT_EQ(error("const @c : f32[2] = graph @i(%a: f32[2]) { return c = %a }"),
            "t.tfir:2: the graph of a constant reads what only a run has");
  EXPECT_EQ(error("const @c : f32[2] = " + inner + "flag 0 \"no\" return c = @a }"),
            "t.tfir:2: the graph of a constant may refuse what it is given");
  EXPECT_EQ(error("const @c : f32[2] = " + inner + "const @d : f32[2] = " + inner +
                  "return d = @a } return c = @d }"),
            "t.tfir:2: a graph within the graph of a constant");
  EXPECT_EQ(error("const @c : f32[2] = " + inner +
                  "%s = cumsum(@a) {axis = 0, exclusive = false, reverse = false} : f32[2] "
                  "return c = %s }"),
            "t.tfir:2: the graph of a constant has an op cumsum");
  const std::string many = "%m = pointwise(@a) {body = (i,j) => @a[0]} : f32[65536,65536] ",
                    huge =
                        "%h = pointwise(@a) {body = (i,j) => @a[0]} : f32[4294967296,4294967296] ",
                    first = "%f = pointwise(@a) {body = (i) => @a[0]} : f32[2] return c = %f }";
  for (const std::string& value : {many, huge})
    EXPECT_EQ(error("const @c : f32[2] = " + inner + value + first),
              "t.tfir:2: the graph of a constant has a value of unknown size, or of too many "
              "elements");
  EXPECT_EQ(error("const @c : f32[2] = " + inner +
                  "%r = reduce(@a) {body = (i,j,k) => @a[i], extents = [1000000,1000000], kind = "
                  "sum} : f32[2] return c = %r }"),
            "t.tfir:2: the graph of a constant takes minutes to compute");
  EXPECT_EQ(error("const @c : f32[2] = " + inner +
                  "%r = reduce(@a) {body = (i,j) => @a[i], extents = [-1], kind = sum} : f32[2] "
                  "return c = %r }"),
            "t.tfir:2: the graph of a constant has a value of unknown size, or of too many "
            "elements");
  EXPECT_EQ(error("const @c : f32[2] = " + inner +
                  "const @n : f32[200000000] = random(1) const @o : f32[200000000] = random(1) "
                  "return c = @a }"),
            "t.tfir:2: the graph of a constant has values of too many elements together");
  EXPECT_EQ(error("flag 3 \"x\""), "t.tfir:2: flag 3 is out of order");
  EXPECT_EQ(error("check 1, \"x\""), "t.tfir:2: a check must be a condition");
}

TEST(Text, AProductWithoutFactorsIsRead) {
  const auto g = parse(
      "graph @g(%x: f32[2,2]) {\n  %y = matmul() {alpha = 1.0, epilogue = (s,i,j) => s, trans_a = false, trans_b = false} : f32[2,2]\n  return y = %y\n}\n");
  ASSERT_TRUE(g) << g.error().message;
  ASSERT_FALSE(verify(*g).empty());
  EXPECT_EQ(verify(*g)[0].rule, "C1");
}

TEST(Text, ErrorsOfSymbols) {
  const auto error = [](std::string_view symbols) {
    const auto g =
        parse(fmt::format("graph @g(%x: f32[B,S]) symbols({}) {{\n  return y = %x\n}}\n", symbols),
              "t.tfir");
    EXPECT_FALSE(g) << symbols;
    return g ? std::string() : g.error().message;
  };
  EXPECT_EQ(error("B = x.0 in 1.. as rows, S = x.1 in 1.."),
            "t.tfir:1: expected batch, length, tokens, past, context or packed, found 'rows'");
  EXPECT_EQ(error("B = x.0 in 1.., S = x.1 in 1.., T = (B*R) in 1.."),
            "t.tfir:1: unknown name 'R'");
  EXPECT_EQ(error("B = x.0 in 1.., S = x.1 in 1.., T = (B < S) in 1.."),
            "t.tfir:1: a size must be an integer");
  EXPECT_EQ(error("B = x.0 in 1.., S = y.1 in 1.."), "t.tfir:1: symbol S: no input y with axis 1");
}

TEST(Text, NoTextCrashes) {
  const std::string text = kCanonical;
  std::mt19937 random(3);
  for (size_t i = 0; i < text.size(); i += 7) EXPECT_FALSE(parse(text.substr(0, i)));
  for (int i = 0; i < 3000; ++i) {
    std::string changed = text;
    changed[random() % text.size()] = static_cast<char>(" (){}[],%@\"0a-=.:"[random() % 17]);
    if (const auto g = parse(changed)) verify(*g);
  }
}

TEST(Text, DeepExpressionsAreAnErrorNotACrash) {
  ExprPool pool;
  const auto parse_text = [&](const std::string& s) {
    return parse_expr(
        s, pool, [&](std::string_view n) -> ExprRef { return n == "N" ? pool.symbol(n) : nullptr; },
        nullptr);
  };
  EXPECT_TRUE(parse_text(std::string(100, '(') + "N" + std::string(100, ')')));
  EXPECT_FALSE(parse_text(std::string(100000, '(') + "N" + std::string(100000, ')')));
  EXPECT_FALSE(parse_text(""));
  EXPECT_FALSE(parse_text("N N"));
  EXPECT_FALSE(parse_text("N < N < N"));
  EXPECT_FALSE(parse_text("99999999999999999999"));
}

TEST(Text, ExpressionsReadBackAsTheSameNode) {
  ExprPool pool;
  ExprRef n = pool.symbol("N");
  const auto name = [&](std::string_view s) -> ExprRef {
    if (s == "i0") return pool.index(0, n);
    if (s == "i1") return pool.index(1, pool.integer(5));
    return s == "N" ? n : nullptr;
  };
  const auto slot = [&](std::string_view s) -> std::optional<std::pair<int64_t, DType>> {
    if (s == "0") return std::pair(int64_t{0}, DType::f32);
    if (s == "1") return std::pair(int64_t{1}, DType::i64);
    if (s == "2") return std::pair(int64_t{2}, DType::boolean);
    return std::nullopt;
  };
  int failures = 0;
  for (uint32_t seed = 0; seed < 20000 && failures < 10; ++seed) {
    RandomExpr random(pool, seed);
    const int depth = 1 + static_cast<int>(seed % 5);
    ExprRef e = seed % 3 == 0   ? random.integer(depth)
                : seed % 3 == 1 ? random.real(depth)
                                : random.condition(depth);
    if (poison_of(e) != Poison::none) continue;
    const std::string text = print(e);
    const auto again = parse_expr(text, pool, name, slot);
    if (!again) {
      ADD_FAILURE() << again.error().message << "\n" << text;
      ++failures;
    } else if (*again != e) {
      ADD_FAILURE() << seed << ": " << text << "\n" << print(*again);
      ++failures;
    }
  }
}

}  // namespace
}  // namespace tfcc::ir
