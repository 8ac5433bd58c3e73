// SPDX-License-Identifier: Apache-2.0
#include "tests/templates/cases.h"

#include <fmt/format.h>

namespace tfcc::test {

std::string graph_text(const std::string& inputs, const std::string& symbols,
                       const std::string& body, const std::vector<std::string>& outputs) {
  std::string s = fmt::format("graph @case({}){} {{\n{}\n  return ", inputs,
                              symbols.empty() ? "" : fmt::format(" symbols({})", symbols), body);
  for (size_t i = 0; i < outputs.size(); ++i)
    s += fmt::format("{}{} = %{}", i ? ", " : "", outputs[i], outputs[i]);
  return s + "\n}\n";
}

std::string codes(int64_t count, uint32_t seed, bool is_signed) {
  std::string text = "[";
  for (int64_t k = 0; k < count; ++k) {
    seed = seed * 1664525 + 1013904223;
    const int byte = static_cast<int>(seed >> 24);
    text += fmt::format("{}{}", k ? "," : "", is_signed ? byte - 128 : byte);
  }
  return text + "]";
}

const std::vector<Case>& all_cases() {
  static const std::vector<Case> kCases = [] {
    std::vector<Case> all;
    for (auto* part : {pointwise_cases, reduce_cases, matmul_cases, grouped_matmul_cases, row_cases,
                       attention_cases, linear_attention_cases, earlier_rows_cases, sample_cases}) {
      for (Case& c : part()) all.push_back(std::move(c));
    }
    return all;
  }();
  return kCases;
}

bool multiplies_reals(const Case& c) {
  return c.text.find(" = attention(") != std::string::npos ||
         c.text.find(" = matmul(") != std::string::npos;
}

bool same_bits_in_every_batch(const Case& c) {
  return c.name.starts_with("attention_packed_wide") && !c.name.ends_with("infinite");
}

}  // namespace tfcc::test
