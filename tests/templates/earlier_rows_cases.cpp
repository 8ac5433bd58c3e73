// SPDX-License-Identifier: Apache-2.0
// earlier_rows: one to many rows that are kept, widths on and off a vector, sequences of no, few and
// many rows, some with no state before them, some that keep none.
#include <fmt/format.h>

#include "tests/templates/cases.h"

namespace tfcc::test {
namespace {

// Rows of B sequences: every fifth has none, the last has what is left.
Case make(int kept, int width, bool of_caller = false) {
  const std::string rows = fmt::format("f32[1,B*S,{}]", width),
                    state = fmt::format("f32[P,1,{},{}]", kept, width);
  const std::string text = fmt::format(
      "graph @rows(%x: f32[B,S,{width}], %s: {state}) symbols(B = x.0 in 1.., S = x.1 in 1.., P = s.0 in 1.., tokens = (B*S) in 1.. as tokens) {{\n"
      "  %first = pointwise() {{body = (i) => select(i == B, B*S, i*S - select(i % 5 == 0, 0, i*7 % S))}} : i32[B + 1]\n"
      "  %from = pointwise() {{body = (i) => select(i % 3 == 2, -1, 2*i)}} : i32[B]\n"
      "  %to = pointwise() {{body = (i) => select(i % 4 == 3, P, 2*i + 1)}} : i32[B]\n"
      "  %xa = pointwise(%x) {{body = (i,j,k) => %x[j / S,j % S,k] * 0.5}} : {rows}\n"
      "  %y1, %after = earlier_rows(%xa, %first, %from, %to, %s) : f32[1,B*S,{kept},{width}], {state}\n"
      "  %y = pointwise(%y1) {{body = (i,j,k,l) => %y1[i,j,k,l] * {factor}}} : f32[1,B*S,{kept},{width}]\n"
      "  return y = %{y}, s = %after\n}}\n",
      fmt::arg("width", width), fmt::arg("kept", kept), fmt::arg("state", state),
      fmt::arg("rows", rows), fmt::arg("factor", "2.0"), fmt::arg("y", of_caller ? "y1" : "y"));
  Case c{fmt::format("earlier_rows_{}_{}{}", kept, width, of_caller ? "_output" : ""),
         text,
         {{1, 1, 2}, {2, 9, 4}, {7, 3, 15}, {4, 33, 8}, {130, 2, 261}}};
  c.bf16 = true;
  return c;
}

}  // namespace

std::vector<Case> earlier_rows_cases() {
  std::vector<Case> cases;
  for (int kept : {1, 2, 3, 10}) {
    for (int width : {1, 6, 20, 64, 1000}) cases.push_back(make(kept, width));
  }
  cases.push_back(make(2, 64, true));
  return cases;
}

}  // namespace tfcc::test
