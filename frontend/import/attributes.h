// SPDX-License-Identifier: Apache-2.0
// Attributes of nodes by name. Each name has one kind, so that a node is refused before it is
// imported when it gives another, and import functions read values without a thought to that.
#pragma once

#include <string_view>

#include "frontend/onnx/onnx_reader.h"
#include "runtime/result.h"

namespace tfcc::frontend {

struct ListedAttribute {
  std::string_view name;
  Attribute::Kind kind;
};
inline constexpr ListedAttribute kListedAttributes[] = {
#define TFCC_ATTRIBUTE(kind, name) {#name, Attribute::Kind::kind},
#include "frontend/import/attributes.def"
#undef TFCC_ATTRIBUTE
};

/// The listed attribute of this name, or null.
constexpr const ListedAttribute* listed_attribute(std::string_view name) {
  for (const ListedAttribute& a : kListedAttributes) {
    if (a.name == name) return &a;
  }
  return nullptr;
}

/// The name of an attribute of that kind, from a literal; one that is not listed as such does not
/// compile.
template <Attribute::Kind kind> struct AttributeName {
  consteval AttributeName(const char* text) : name(text) {
    const ListedAttribute* listed = listed_attribute(name);
    if (!listed || listed->kind != kind) throw "not an attribute of this kind in attributes.def";
  }
  std::string_view name;
};
using IntegerName = AttributeName<Attribute::Kind::integer>;
using IntegersName = AttributeName<Attribute::Kind::integers>;
using RealName = AttributeName<Attribute::Kind::real>;
using StringName = AttributeName<Attribute::Kind::string>;

/// What is wrong with the attributes of a node: one of another kind than its name has, or a number
/// that no operator means anything with (NaN, or an infinite epsilon). Empty if nothing is.
std::string attributes_problem(const Node& node);

}  // namespace tfcc::frontend
