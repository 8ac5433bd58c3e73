// SPDX-License-Identifier: Apache-2.0
// The verifier: a graph that keeps every rule passes, and for each label of ir/ops.md a graph that
// breaks it is refused.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "ir/ir.h"
#include "tests/ir/violations.h"

namespace tfcc::ir {
namespace {

/// Problems of a graph over standard inputs with these lines and nothing else.
std::vector<Violation> problems(const std::string& lines) {
  const std::string text = fmt::format(
      R"(graph @g(%x: f32[B,S,8], %k: i64[B,S], %v: f32[8], %h: f16[B,S,8], %c: bool[B]) symbols(B = x.0 in 1.., S = x.1 in 1..) {{
  flag 0 "out of range"
  {}
  return x = %x
}}
)",
      lines);
  const auto g = parse(text);
  EXPECT_TRUE(g) << g.error().message;
  if (!g) return {{"", {}, g.error().message}};
  return verify(*g);
}

void accepted(const std::string& lines) {
  const auto found = problems(lines);
  EXPECT_TRUE(found.empty()) << lines << "\n" << all(found);
}

void refused(const std::string& label, const std::string& lines) {
  const auto found = problems(lines);
  EXPECT_EQ(found.size(), 1u) << lines << "\n" << all(found);
  for (const Violation& v : found) EXPECT_EQ(v.rule, label) << lines << "\n" << all(found);
}

TEST(Verify, ViolationsNameRuleOpAndPlace) {
  const auto g = parse(
      "graph @g(%x: f32[4]) {\n  %a = pointwise(%x) {body = (i) => %x[i]} : f32[4]\n  %y = pointwise(%a) {body = (i) => %a[i + 1]} : f32[4]\n  return y = %y\n}\n");
  ASSERT_TRUE(g) << g.error().message;
  const auto found = verify(*g);
  ASSERT_EQ(found.size(), 1u) << all(found);
  EXPECT_EQ(found[0].rule, "E4");
  EXPECT_EQ(found[0].op, g->value(g->find_value("y")).def);
  EXPECT_EQ(
      to_string(found[0]),
      "%y = pointwise: body: load %0[i0 + 1] may leave %a : f32[4]; guard it with a select or bounded() (E4)");
}

TEST(Verify, Pointwise) {
  accepted("%y = pointwise(%x, %v) {body = (i,j,k) => %x[i,j,k] + %v[k]} : f32[B,S,8]");
  accepted("%y = pointwise(%x) {body = (i,j) => %x[j,i,3]} : f32[S,B]");
  refused("P2", "%y = pointwise(%k) {body = (i,j) => %k[i,j]} : f32[B,S]");
  refused("P2", "%y = pointwise(%k) {body = (i,j) => %k[i,j]} : bool[B,S]");
  refused("E3", "%y = pointwise(%k) {body = (i,j) => %k[i]} : i64[B,S]");
  refused("E6", "%y = pointwise(%v, %v) {body = (i) => %v[i]} : f32[8]");
  refused("G7", "%y = pointwise(%v, %k) {body = (i) => %v[bounded(%k[0,0], 8, 1)]} : f32[4]");
}

TEST(Verify, LoadsStayInside) {
  refused("E4", "%y = pointwise(%v) {body = (i) => %v[i + 1]} : f32[8]");
  refused("E4", "%y = pointwise(%v) {body = (i) => %v[i - 1]} : f32[8]");
  refused("E4", "%y = pointwise(%v) {body = (i) => %v[i]} : f32[9]");
  refused("E4", "%y = pointwise(%v) {body = (i) => %v[i]} : f32[B]");
  refused("E4", "%y = pointwise(%v, %k) {body = (i) => %v[%k[0,0]]} : f32[4]");
  accepted("%y = pointwise(%v, %k) {body = (i) => %v[bounded(%k[0,0], 8, 0)]} : f32[4]");
  refused("E4", "%y = pointwise(%v, %k) {body = (i) => %v[bounded(%k[0,0], 9, 0)]} : f32[4]");
  accepted("%y = pointwise(%v) {body = (i) => %v[7 - i]} : f32[8]");
  accepted("%y = pointwise(%v) {body = (i) => %v[i / 3]} : f32[24]");
  refused("E4", "%y = pointwise(%v) {body = (i) => %v[i / 3]} : f32[25]");
  accepted("%y = pointwise(%v) {body = (i) => %v[i % 8]} : f32[B*S]");
  accepted("%y = pointwise(%x) {body = (i,j) => %x[i / S,i % S,j]} : f32[B*S,8]");
}

TEST(Verify, SelectsGuardLoads) {
  accepted(
      "%y = pointwise(%v) {body = (i,j) => select((i - j) / 3 >= 0, %v[(i - j) / 3], 0.0)} : f32[9,4]");
  accepted("%y = pointwise(%v) {body = (i) => select(i <= 7, %v[i], 0.0)} : f32[B]");
  accepted("%y = pointwise(%v) {body = (i) => select(i <= 7, 0.0, %v[i - 8])} : f32[16]");
  refused("E4", "%y = pointwise(%v) {body = (i) => select(i <= 8, %v[i], 0.0)} : f32[B]");
  refused("E4", "%y = pointwise(%v) {body = (i) => select(i <= 7, 0.0, %v[i])} : f32[16]");
  accepted(
      "%y = pointwise(%v, %k) {body = (i) => select(0 <= %k[0,0] and %k[0,0] < 8, %v[%k[0,0]], "
      "0.0)} : f32[4]");
  accepted(
      "%y = pointwise(%v, %k) {body = (i) => select(%k[0,0] < 0 or 8 <= %k[0,0], 0.0, "
      "%v[%k[0,0]])} : f32[4]");
  refused("E4",
          "%y = pointwise(%v, %k) {body = (i) => select(0 <= %k[0,0] or %k[0,0] < 8, %v[%k[0,0]], "
          "0.0)} : f32[4]");
  accepted(
      "%y = pointwise(%v, %k) {body = (i) => select(%k[0,0] == 3, %v[%k[0,0]], 0.0)} : f32[4]");
  // The half select of a rotary embedding: 8*B channels in heads of 8, and a constant number of
  // heads.
  accepted(
      "%y = pointwise(%x) {body = (i,j,k) => select(k % 8 <= 3, %x[i,j,k % 8 + 4], %x[i,j,k % 8 - 4])} : f32[B,S,16]");
  accepted("%y = pointwise(%v) {body = (i) => select(i % 4 <= 1, %v[i + 2], %v[i - 2])} : f32[8]");
  refused("E4",
          "%y = pointwise(%v) {body = (i) => select(i % 4 <= 2, %v[i + 2], %v[i - 2])} : f32[8]");
  refused("E4",
          "%y = pointwise(%v) {body = (i) => select(i % 4 <= 1, %v[i + 2], %v[i - 3])} : f32[8]");
  // Heads that share a key head: 16 channels of 4 heads of 4, two of each kind.
  accepted(
      "%y = pointwise(%v) {body = (i) => select(i % 4 <= 1, %v[4*(i / 8) + i % 4 + 2], %v[4*(i / 8) + i % 4 - 2])} : f32[16]");
  // Guarded on one path and not on the other.
  refused("E4", "%y = pointwise(%v) {body = (i) => select(i <= 7, %v[i], 0.0) + %v[i]} : f32[B]");
}

TEST(Verify, Reduce) {
  accepted("%y = reduce(%x) {body = (i,j,k) => %x[i,k,j], extents = [S], kind = mean} : f32[B,8]");
  accepted("%y = reduce(%x) {body = (i,j) => %x[0,i,j], extents = [S,8], kind = max} : f32[]");
  refused("R1",
          "%y = reduce(%x) {body = (i,j,k) => %x[i,j,k], extents = [], kind = sum} : f32[B,S,8]");
  refused("R2",
          "%y = reduce(%x) {body = (i,j,k) => %x[i,j,k], extents = [8], kind = sum} : i64[B,S]");
  refused("R2", "%y = reduce(%c) {body = (i) => %c[i], extents = [B], kind = max} : bool[]");
  refused("R3", "%y = reduce(%k) {body = (i,j) => %k[i,j], extents = [S], kind = mean} : i64[B]");
  refused("E4",
          "%y = reduce(%x) {body = (i,j,k) => %x[i,j,k], extents = [9], kind = sum} : f32[B,S]");
}

TEST(Verify, Cumsum) {
  accepted("%y = cumsum(%k) {axis = 1, exclusive = false, reverse = false} : i64[B,S]");
  refused("U1", "%y = cumsum(%k, %k) {axis = 1, exclusive = false, reverse = false} : i64[B,S]");
  accepted("%y = cumsum(%x) {axis = 1, exclusive = false, reverse = false} : f16[B,S,8]");
  refused("U2", "%y = cumsum(%k) {axis = 1, exclusive = false, reverse = false} : i32[B,S]");
  refused("U2", "%y = cumsum(%k) {axis = 1, exclusive = false, reverse = false} : f32[B,S]");
  refused("U2", "%y = cumsum(%x) {axis = 1, exclusive = false, reverse = false} : f16[B,S,4]");
  refused("U2", "%y = cumsum(%c) {axis = 0, exclusive = false, reverse = false} : bool[B]");
  refused("U3", "%y = cumsum(%k) {axis = 2, exclusive = false, reverse = false} : i64[B,S]");
}

TEST(Verify, Matmul) {
  const char* w = "const @w : f32[4,8] = random(1)\n  const @n : f32[4] = random(1)\n  ";
  const auto product = [&](const char* operands, const char* trans, const char* type,
                           const std::string& epilogue = "") {
    return fmt::format("{}%y = matmul({}) {{alpha = 1.0{}, trans_a = false, trans_b = {}}} : {}", w,
                       operands, epilogue.empty() ? "" : ", epilogue = (s,i,j,k) => " + epilogue,
                       trans, type);
  };
  accepted(product("%x, @w", "true", "f32[B,S,4]"));
  accepted(product("%x, @w, @n", "true", "f16[B,S,4]", "s + @n[k]"));
  accepted(product("%x, @w", "true", "f32[B,S,4]", "tanh(s)"));
  accepted(
      product("%x, @w, %x", "true", "f32[B,S,4]", "s + %x[i,j,k]"));  // a factor, read once more
  refused("C1", product("%x", "true", "f32[B,S,4]"));
  refused("C1", product("%x, @w, @n", "true", "f32[B,S,4]"));
  refused("C2", product("%h, @w", "true", "f32[B,S,4]"));
  refused("C3", product("%v, @w", "true", "f32[4]"));
  refused("C4", product("%x, @w", "false", "f32[B,S,8]"));
  refused("C5", product("%x, @w", "true", "f32[B,S,8]"));
  refused("C6", product("%x, @w", "true", "f32[S,4]"));
  refused("C7", product("%x, @w", "true", "f32[B,S,4]", "j"));
  refused("E4", product("%x, @w, @n", "true", "f32[B,S,4]", "s + @n[j]"));
  refused("E6", product("%x, @w, @n, @n", "true", "f32[B,S,4]", "s + @n[k]"));
  accepted("%y = matmul(%x, %x) {alpha = 1.0, trans_a = true, trans_b = false} : f32[B,8,8]");
}

TEST(Verify, MatmulOfIntegers) {
  accepted("%y = matmul(%k, %k) {alpha = 1.0, trans_a = false, trans_b = true} : i64[B,B]");
  accepted(
      "const @w : u8[1,4] = [1, 2, 3, 4]\n  "
      "%most = reduce(%k) {body = (i,j) => %k[i,j], extents = [S], kind = max} : i8[B]\n  "
      "%column = pointwise(%most) {body = (i,j) => %most[i]} : i8[B,1]\n  "
      "%y = matmul(%column, @w) {alpha = 1.0, trans_a = false, trans_b = false} : i32[B,4]");
  refused("C2", "%y = matmul(%k, %k) {alpha = 1.0, trans_a = false, trans_b = true} : i8[B,B]");
  refused("C2", "%y = matmul(%k, %k) {alpha = 1.0, trans_a = false, trans_b = true} : f32[B,B]");
  accepted(
      "%y = matmul(%k, %k) {alpha = 1.0, epilogue = (s,i,j) => f32(s) * 0.5, trans_a = false, trans_b = true} : f32[B,B]");
  refused(
      "C7",
      "%y = matmul(%k, %k) {alpha = 1.0, epilogue = (s,i,j) => s * 2, trans_a = false, trans_b = true} : f32[B,B]");
  refused(
      "C2",
      "%y = matmul(%k, %k) {alpha = 1.0, epilogue = (s,i,j) => s * 2, trans_a = false, trans_b = true} : i64[B,B]");
  refused("C8", "%y = matmul(%k, %k) {alpha = 2.0, trans_a = false, trans_b = true} : i64[B,B]");
}

TEST(Verify, GroupedMatmul) {
  const auto grouped = [](const std::string& type = "f32[B,S,2,6]",
                          const std::string& which = "(i,j,k) => (i + j + k) % 5",
                          const std::string& w = "f32[5,6,8]",
                          const std::string& operands = "%x, @w") {
    return "const @w : " + w + " = random(1)\n  %y = grouped_matmul(" + operands +
           ") {which = " + which + "} : " + type;
  };
  accepted(grouped());
  accepted(grouped("f16[B,S,6]", "(i,j) => 4"));
  accepted(
      grouped("f32[B,S,2,6]", "(i,j,k) => bounded(%k[i,j], 5, 0)", "f32[5,6,8]", "%x, @w, %k"));
  refused("M1", "%y = grouped_matmul(%x) {which = (i,j) => 0} : f32[B,S,6]");
  refused("M2", grouped("f32[B,S,6]", "(i,j) => 0", "f16[5,6,8]"));
  refused("M2", grouped("f64[B,S,6]", "(i,j) => 0"));
  refused("M2", grouped("i64[B,S,6]", "(i,j) => 0"));
  refused("M3", grouped("f32[B,S,7]", "(i,j) => 0"));
  refused("M3", grouped("f32[B,S,6]", "(i,j) => 0", "f32[5,6,9]"));
  refused("M3", grouped("f32[B,S,6]", "(i,j) => 0", "f32[6,8]"));
  refused("M4", grouped("f32[S,B,6]", "(i,j) => 0"));
  refused("M4", grouped("f32[B,6]", "(i) => 0"));
  refused("M5", grouped("f32[B,S,6]", "(i,j) => 5"));
  refused("M5", grouped("f32[B,S,6]", "(i,j) => i"));
  refused("M5", grouped("f32[B,S,6]", "(i,j) => -1"));
  refused("M5", grouped("f32[B,S,6]", "(i,j) => 0.0"));
  const auto computed = [](const std::string& weight, const std::string& groups = "groups = 5, ",
                           const std::string& type = "f32[B,S,6]",
                           const std::string& operands = "%x, @q") {
    return "const @q : f16[5,6,4] = random(1)\n  %y = grouped_matmul(" + operands + ") {" + groups +
           weight + "which = (i,j) => (i + j) % 5} : " + type;
  };
  const std::string halves = "weight = (i,j,k) => @q[i,j,k / 2], ";
  accepted(computed(halves));
  refused("M6", computed(halves, ""));
  refused("M6", computed("", "groups = 5, "));
  refused("M6", computed(halves, "groups = 0, "));
  refused("M6", computed("weight = (i,j,k) => i + j, "));
  refused("M6",
          computed("weight = (i,j,k) => f32(%k[0,0]), ", "groups = 5, ", "f32[B,S,6]", "%x, %k"));
  refused("M5", computed(halves, "groups = 4, "));
  refused("E4", computed("weight = (i,j,k) => @q[i,j,k], "));
}

TEST(Verify, MatmulOfHeads) {
  const auto heads = [](const std::string& of, const std::string& type = "f32[B,S,24]",
                        const std::string& n = "12", const std::string& more = "",
                        const std::string& operands = "%x, @w") {
    return "const @w : f32[8," + n +
           "] = random(1)\n  const @b : f32[24] = random(2)\n  %y = matmul(" + operands +
           ") {alpha = 0.5, " + more + "heads = " + of +
           ", trans_a = false, trans_b = false} : " + type;
  };
  accepted(heads("2"));
  accepted(heads("1", "f32[B,S,12]"));
  accepted(heads("8", "f16[B,S,96]"));
  refused("C13", heads("0", "f32[B,S,0]"));
  refused("C13", heads("3", "f32[B,S,36]"));
  refused("C13", heads("2", "f32[B,S,12]"));
  refused("C13", heads("2", "f32[S,B,24]"));
  refused("C13", heads("2", "f32[B,S,24]", "12", "epilogue = (s,i,j,k) => s, "));
  refused("C13",
          heads("2", "f32[B,S,24]", "12", "epilogue = (s,i,j,k) => s + @b[k], ", "%x, @w, @b"));
  refused("C13", heads("2", "f64[B,S,24]"));
  refused(
      "C13",
      "const @w : f32[12,8] = random(1)\n  %y = matmul(%x, @w) {alpha = 1.0, heads = 2, trans_a = false, trans_b = true} : f32[B,S,24]");
  refused(
      "C13",
      "const @w : f32[2,4,12] = random(1)\n  %y = matmul(%x, @w) {alpha = 1.0, heads = 2, trans_a = false, trans_b = false} : f32[B,S,24]");
  refused(
      "C13",
      "const @w : f32[4,12] = random(1)\n  %y = matmul(%x, @w) {alpha = 1.0, heads = 2, trans_a = false, trans_b = false} : f32[B,S,24]");
  refused(
      "C13",
      "%y = matmul(%k, %k) {alpha = 1.0, heads = 1, trans_a = false, trans_b = false} : i64[B,S]");
}

TEST(Verify, GatedMatmul) {
  const auto gated = [](const std::string& gate, const std::string& type = "f32[B,S,8]",
                        const std::string& columns = "16", const std::string& more = "",
                        const std::string& operands = "%x, @w") {
    return "const @w : f32[8," + columns +
           "] = random(1)\n  const @b : f32[8] = random(2)\n  %y = matmul(" + operands +
           ") {alpha = 1.0, " + more + "gate = (s,t,i,j,k) => " + gate +
           ", trans_a = false, trans_b = false} : " + type;
  };
  accepted(gated("s * t"));
  refused("C5", gated("s * t", "f32[B,S,16]"));
  refused("C12", gated("s * t", "f32[B,S,12]", "24"));
  refused("C12", gated("s * f32(k)"));
  refused(
      "C12",
      "%e = pointwise(%x) {body = (i,j,k) => f64(%x[i,j,k])} : f64[B,S,8]\n"
      "  const @w : f64[8,16] = f32[8,16] random(1) |> cast(f64)\n  %y = matmul(%e, @w) {alpha = 1.0, gate = (s,t,i,j,k) => s * t, trans_a = false, trans_b = false} : f64[B,S,8]");
  refused("C12", gated("s < t"));
  refused("C12", gated("s * t", "f32[B,S,8]", "16", "epilogue = (s,i,j,k) => s, "));
  refused("C12",
          gated("s * t", "f32[B,S,8]", "16", "epilogue = (s,i,j,k) => s + @b[k], ", "%x, @w, @b"));
}

TEST(Verify, RowOps) {
  accepted("%y = softmax(%x) : f16[B,S,8]");
  refused("S1", "%y = softmax(%x, %x) : f32[B,S,8]");
  refused("S2", "%y = softmax(%x) : f32[S,B,8]");
}

TEST(Verify, Rope) {
  const auto rope = [](const std::string& table, const std::string& operands,
                       const std::string& attributes, const std::string& type = "f32[B,S,8]") {
    return fmt::format(
        "%t = pointwise(%v) {{body = (i,j,k) => %v[k]}} : {}\n  %y = rope({}) {{{}}} : {}", table,
        operands, attributes, type);
  };
  accepted(rope("f32[B,S,2]", "%x, %t, %t", "heads = 2, interleaved = false, rotary = 4"));
  accepted(rope("f32[1,S,4]", "%x, %t, %t", "heads = 2, interleaved = true, rotary = 4"));
  accepted(rope("f16[B,S,2]", "%x, %t, %t", "heads = 1, interleaved = true, rotary = 4"));
  refused("O1", rope("f32[B,S,2]", "%x, %t", "heads = 2, interleaved = false, rotary = 4"));
  refused("O1", rope("f32[B,S,2]", "%x, %t, %t",
                     "eps = 1.0, heads = 2, interleaved = false, rotary = 4"));
  refused("O1", rope("f32[B,S,2]", "%x, %t, %t, %v", "heads = 1, interleaved = false, rotary = 4"));
  accepted(rope("f32[B,S,2]", "%x, %t, %t, %v",
                "eps = 1.0, heads = 1, interleaved = false, rotary = 4"));
  refused("O5", rope("f32[B,S,2]", "%x, %t, %t, %v",
                     "eps = 1.0, heads = 2, interleaved = false, rotary = 4"));
  refused("O5", rope("f32[B,S,2]", "%x, %t, %t, %t",
                     "eps = 1.0, heads = 1, interleaved = false, rotary = 4"));
  refused("O2", rope("f32[B,S,2]", "%x, %t, %t", "heads = 2, interleaved = false, rotary = 4",
                     "f32[B,S,9]"));
  refused("O2", rope("f32[B,S,2]", "%x, %t, %t", "heads = 3, interleaved = false, rotary = 2"));
  refused("O2",
          rope("f32[B,S,2]", "%v, %t, %t", "heads = 1, interleaved = false, rotary = 2", "f32[8]"));
  refused("O3", rope("f32[B,S,2]", "%x, %t, %t", "heads = 2, interleaved = false, rotary = 6"));
  refused("O3", rope("f32[B,S,1]", "%x, %t, %t", "heads = 2, interleaved = false, rotary = 3"));
  refused("O3", rope("f32[B,S,1]", "%x, %t, %t", "heads = 2, interleaved = false, rotary = 0"));
  for (const char* table : {"f32[S,B,2]", "f32[B,S,3]", "f32[2,S,2]"}) {
    const auto found =
        problems(rope(table, "%x, %t, %t", "heads = 2, interleaved = false, rotary = 4"));
    EXPECT_NE(all(found).find("(O4)"), std::string::npos) << table << all(found);
  }
}

std::string norm(const std::string& operands, const std::string& body, bool beta, const char* kind,
                 const std::string& types, const char* names = "%y") {
  return fmt::format(
      "{} = norm({}) {{body = (i,j,k) => {}, eps = 0.1, has_beta = {}, kind = {}}} : {}", names,
      operands, body, beta, kind, types);
}

TEST(Verify, Norm) {
  const std::string t = "f32[B,S,8]", x = "%x[i,j,k] * 2.0";
  accepted(norm("%v, %x", x, false, "rms", t));
  accepted(norm("%v, %x", "%x[i,j,k]", false, "layer", t));
  accepted(norm("%v, %x, %h, %v", "%x[i,j,k] + %h[i,j,k] + %v[k]", false, "rms", "f16[B,S,8]"));
  accepted(norm("%v, %v, %x", x, true, "layer", t + ", " + t, "%y, %s"));
  refused("N1", norm("%v", "1.0", true, "layer", t));
  refused("N2", norm("%v, %x", x, false, "layer", t + ", f32[B,S]", "%y, %s"));
  refused("N2", norm("%v, %x", x, false, "layer", "i64[B,S,8]"));
  refused("N2", norm("%v, %x", x, false, "layer", "f64[B,S,8]"));
  refused("N3", norm("%x", "1.0", false, "layer", t));
  refused("N4", norm("%v, %v, %x", x, true, "rms", t));
}

std::string attention(const std::string& operands, const std::string& attributes,
                      const std::string& type = "f32[B,S,8]") {
  return fmt::format("%y = attention({}) {{{}}} : {}", operands, attributes, type);
}

std::string attributes(const char* causal, const char* padding, const char* heads,
                       const char* kv_heads, const char* score, const char* visible) {
  return fmt::format(
      "causal = {}, heads = {}, key_padding = {}, kv_heads = {}, score = {}, visible = {}", causal,
      heads, padding, kv_heads, score, visible);
}

TEST(Verify, Attention) {
  const char* plain = "(s,b,h,i,j) => s";
  const char* mask = "(b,h,i,j) => %k[b,j] == 1";
  accepted(attention("%x, %x, %x", attributes("false", "false", "2", "2", plain, "none")));
  accepted(attention("%x, %x, %x, %k", attributes("false", "true", "2", "2", plain, mask)));
  accepted(
      attention("%x, %x, %x", attributes("true", "false", "4", "4", plain, "(b,h,i,j) => j <= i")));
  accepted(attention("%x, %x, %x, %k", attributes("true", "true", "4", "4", plain,
                                                  "(b,h,i,j) => j <= i and %k[b,j] == 1")));
  accepted(attention("%x, %x, %x",
                     attributes("false", "false", "4", "4", plain, "(b,h,i,j) => i <= j + 3") +
                         ", window_left = 3"));
  refused("A7", attention("%x, %x, %x", attributes("false", "false", "4", "4", plain, "none") +
                                            ", window_right = 3"));
  refused("A7", attention("%x, %x, %x",
                          attributes("false", "false", "4", "4", plain, "(b,h,i,j) => j < i") +
                              ", window_right = -1"));
  refused("A1", "%y, %z = attention(%x, %x, %x) {" +
                    attributes("false", "false", "2", "2", plain, "none") +
                    "} : f32[B,S,8], f32[B,S,8]");
  refused("A2", attention("%x, %h, %x", attributes("false", "false", "2", "2", plain, "none")));
  refused("A2", attention("%x, %x, %v", attributes("false", "false", "2", "2", plain, "none")));
  refused("A3", "%t = pointwise(%x) {body = (i,j,k) => %x[j,i,k]} : f32[S,B,8]\n  " +
                    attention("%x, %x, %t", attributes("false", "false", "2", "2", plain, "none")));
  refused("A4", attention("%x, %x, %x", attributes("false", "false", "3", "3", plain, "none")));
  refused("A4", attention("%x, %x, %x", attributes("false", "false", "4", "2", plain, "none")));
  refused("A5", attention("%x, %x, %x", attributes("false", "false", "2", "2", plain, "none"),
                          "f32[B,S,4]"));
  refused("A6", attention("%x, %x, %x", attributes("false", "false", "2", "2", "none", "none")));
  refused("A6", attention("%x, %x, %x",
                          attributes("false", "false", "2", "2", "(s,b,h,i,j) => i", "none")));
  refused("A6",
          attention("%x, %x, %x", attributes("false", "false", "2", "2", plain, "(b,h,i,j) => 1")));
  const std::string open = attributes("false", "false", "2", "2", plain, "none");
  accepted(attention("%x, %x, %x, %k", open + ", sink = (b,h) => f32(%k[b,0] + h)"));
  refused("A6", attention("%x, %x, %x", open + ", sink = (b,h) => h"));
  refused("E4", attention("%x, %x, %x, %k", open + ", sink = (b,h) => f32(%k[b,h])"));
  refused("A7", attention("%x, %x, %x", attributes("true", "false", "2", "2", plain, "none")));
  refused("A7", attention("%x, %x, %x",
                          attributes("false", "true", "2", "2", plain, "(b,h,i,j) => j <= i")));
  accepted(attention("%x, %x, %x, %x",
                     attributes("false", "false", "2", "2", "(s,b,h,i,j) => %x[b,i,0]", "none")));
  refused("E4", attention("%x, %x, %x, %k", attributes("false", "true", "2", "2", plain,
                                                       "(b,h,i,j) => %k[b,j + 1] == 1")));
  refused("E6",
          attention("%x, %x, %x, %k, %k", attributes("false", "false", "2", "2", plain, "none")));
}

// A builder that gets operands of the wrong types returns a poison, which breaks the graph that it is
// in.
TEST(Verify, IllTypedExpressions) {
  using Build = ExprRef (*)(ExprPool&);
  const Build builds[] = {
      [](ExprPool& p) { return add(p.real(1), p.symbol("B")); },
      [](ExprPool& p) { return add(p.symbol("B"), p.real(1)); },
      [](ExprPool& p) { return mul(p.real(2, Scalar::f64), p.load(0, Scalar::f32, {})); },
      [](ExprPool& p) { return div(p.symbol("B"), p.boolean(true)); },
      [](ExprPool& p) { return max(p.boolean(true), p.boolean(false)); },
      [](ExprPool& p) { return pow(p.symbol("B"), p.symbol("B")); },
      [](ExprPool& p) { return bit_and(p.real(1), p.integer(1)); },
      [](ExprPool& p) { return unary(ExprKind::exp, p.symbol("B")); },
      [](ExprPool& p) { return lt(p.real(1), p.integer(1)); },
      [](ExprPool& p) { return logical_and(p.boolean(true), p.symbol("B")); },
      [](ExprPool& p) { return logical_not(p.real(0)); },
      [](ExprPool& p) { return is_nan(p.symbol("B")); },
      [](ExprPool& p) { return select(p.symbol("B"), p.real(1), p.real(2)); },
      [](ExprPool& p) { return select(p.boolean(true), p.real(1), p.integer(2)); },
      [](ExprPool& p) { return p.load(0, Scalar::f32, {p.real(0)}); },
  };
  for (size_t k = 0; k < std::size(builds); ++k) {
    auto g = parse("graph @g(%x: f32[B]) symbols(B = x.0 in 1..) {\n  return x = %x\n}\n");
    ASSERT_TRUE(g);
    const ExprRef e = builds[k](g->pool());
    EXPECT_EQ(poison_of(e), Poison::ill_typed) << k;
    g->checks.push_back({e->type == Scalar::boolean ? e : eq(e, e), "as wanted"});
    EXPECT_NE(all(verify(*g)).find("(E7)"), std::string::npos) << k;
  }
}

}  // namespace
}  // namespace tfcc::ir
