// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as .tfir text. A graph that parses and is well formed prints as text that
// parses to the same graph.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "ir/ir.h"

namespace {

[[noreturn]] void broken(const char* what, const std::string& text) {
  std::fprintf(stderr, "%s:\n%s\n", what, text.c_str());
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto graph = tfcc::ir::parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!graph || !verify(*graph).empty()) return 0;
  const std::string text = print(*graph);
  const auto again = tfcc::ir::parse(text);
  if (!again) broken(again.error().message.c_str(), text);
  if (const auto problems = verify(*again); !problems.empty())
    broken(to_string(problems[0]).c_str(), text);
  if (print(*again) != text) broken("prints differently the second time", text + print(*again));
  return 0;
}
