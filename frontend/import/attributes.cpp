// SPDX-License-Identifier: Apache-2.0
#include "frontend/import/attributes.h"

#include <fmt/format.h>

#include <cmath>

namespace tfcc::frontend {

std::string attributes_problem(const Node& node) {
  for (const Attribute& a : node.attributes) {
    const ListedAttribute* listed = listed_attribute(a.name);
    if (!listed) continue;
    if (a.kind != listed->kind)
      return fmt::format("attribute '{}' has a type that {} does not take", a.name,
                         escaped(node.op_type));
    if (a.kind == Attribute::Kind::real &&
        (std::isnan(a.f) || (std::isinf(a.f) && a.name == "epsilon")))
      return fmt::format("attribute '{}' is {}", a.name, a.f);
  }
  return {};
}

}  // namespace tfcc::frontend
