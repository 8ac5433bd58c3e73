// SPDX-License-Identifier: Apache-2.0
// Products of a graph in text form, for tables of cases.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/templates/cases.h"

namespace tfcc::test {

/// Sizes of a graph over an input x of tokens [B,S,width].
inline constexpr const char* kOfTokens =
    "B = x.0 in 1.. as batch, S = x.1 in 1.. as length, tokens = (B*S) in 1.. as tokens";

struct Ops {
  std::string body;
  std::vector<std::string> outputs;
  void matmul(const std::string& name, const std::string& operands, const std::string& type,
              double alpha = 1, bool trans_a = false, bool trans_b = false) {
    // A third operand is a bias.
    const bool biased = std::count(operands.begin(), operands.end(), ',') == 2;
    product(name, operands,
            biased
                ? "s + " + operands.substr(operands.rfind(',') + 2) + "[" + last_index(type) + "]"
                : "",
            type, alpha, trans_a, trans_b);
  }
  void product(const std::string& name, const std::string& operands, const std::string& epilogue,
               const std::string& type, double alpha = 1, bool trans_a = false,
               bool trans_b = false) {
    std::string parameters = "s";
    for (char k = 'i'; k <= last_index(type)[0]; ++k) parameters += fmt::format(",{}", k);
    body += fmt::format(
        "  %{} = matmul({}) {{alpha = {:#}{}, trans_a = {}, trans_b = {}}} : {}\n", name, operands,
        alpha, epilogue.empty() ? "" : fmt::format(", epilogue = ({}) => {}", parameters, epilogue),
        trans_a, trans_b, type);
    outputs.push_back(name);
  }
  static std::string last_index(const std::string& type) {
    return std::string(1, static_cast<char>('i' + std::count(type.begin(), type.end(), ',')));
  }
};

/// Of inputs [B,S,64] with at most 16 rows.
inline Case of_few_rows(const std::string& name, const Ops& o) {
  return {
      name,
      graph_text(
          "%x: f32[B,S,64]",
          "B = x.0 in 1..4 as batch, S = x.1 in 1..16 as length, tokens = (B*S) in 1..16 as tokens",
          o.body, o.outputs),
      {{1, 1}, {1, 3}, {2, 4}, {3, 3}, {1, 15}, {4, 4}},
      {},
      1e-5,
      9e-4};
}

/// Products [k, n] of which each width of a tile of warpgroups is the cheapest at some of these
/// rows, on a GPU of 132 multiprocessors (kWidths of codegen/matmul/choose.cpp).
struct SizesOfProduct {
  int k, n;
};
inline constexpr SizesOfProduct kEveryWidth[] = {{72, 1424}, {136, 2040}, {392, 2488}, {264, 1312}};
inline constexpr int kRowsOfEveryWidth[] = {420, 700, 900, 1100, 1458, 2328};

}  // namespace tfcc::test
