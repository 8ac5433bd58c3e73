// SPDX-License-Identifier: Apache-2.0
#include "codegen/cpu_units.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <string_view>

namespace tfcc::codegen {
namespace {

// A kernel's names but its own are local to its unit; in one unit with others each has a namespace.
// Includes come first.
Unit joined(std::span<const KernelSource> kernels) {
  Unit unit;
  std::set<std::string, std::less<>> included;
  std::string includes, bodies;
  for (const KernelSource& k : kernels) {
    bodies += fmt::format("namespace unit{} {{\n", unit.kernels.size());
    for (std::string_view rest = k.text; !rest.empty();) {
      const std::string_view line = rest.substr(0, std::min(rest.find('\n'), rest.size() - 1) + 1);
      rest.remove_prefix(line.size());
      if (!line.starts_with("#include")) bodies += line;
      else if (included.insert(std::string(line)).second) includes += line;
    }
    bodies += "}\n";
    unit.kernels.push_back(k.name);
  }
  unit.source = {kernels.front().name, includes + bodies};
  return unit;
}

}  // namespace

std::vector<Unit> units_of(const std::vector<KernelSource>& kernels) {
  std::vector<Unit> units;
  for (const KernelSource& k : kernels) units.push_back({k, {k.name}});
  return units;
}

std::vector<Unit> cpu_units(const std::vector<KernelSource>& kernels) {
  constexpr size_t kMostAlone = 64, kMostTogether = 16;
  if (kernels.size() <= kMostAlone) return units_of(kernels);
  const size_t together = std::min(kernels.size() / (kMostAlone / 2), kMostTogether);
  std::vector<Unit> units;
  for (size_t i = 0; i < kernels.size(); i += together) {
    units.push_back(joined(std::span(kernels).subspan(i, std::min(together, kernels.size() - i))));
  }
  return units;
}

}  // namespace tfcc::codegen
