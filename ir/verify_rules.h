// SPDX-License-Identifier: Apache-2.0
// What the rules of ops are written with; internal to the verifier.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "ir/elements.h"
#include "ir/ir.h"
#include "ir/rules.h"

namespace tfcc::ir {

using Dims = std::vector<ExprRef>;

/// Short words for the rules of one op.
struct Rules {
  const Graph& graph;
  const Op& op;
  std::vector<Violation>& problems;

  const Type& in(size_t i) const { return graph.value(op.operands[i]).type; }
  const Type& out(size_t i = 0) const { return graph.value(op.results[i]).type; }
  ExprRef last(const Type& t) const { return t.dims.back(); }

  bool require(bool condition, std::string_view rule, std::string_view text) {
    if (!condition) problems.push_back({rule, {}, std::string(text)});
    return condition;
  }
  bool counts(size_t least, size_t most, std::string_view label) {
    const bool ok =
        op.operands.size() >= least && op.operands.size() <= most && op.results.size() == 1;
    return require(
        ok, label,
        fmt::format("has {} operands and {} results", op.operands.size(), op.results.size()));
  }
  /// Operand i is a vector of reals over the last axis of the result.
  void vector_operand(size_t i, std::string_view label) {
    const bool ok = is_float(in(i).dtype) && in(i).dims == Dims{last(out())};
    require(ok, label,
            fmt::format("operand {} is {}, not a vector of reals over {}", i, to_string(in(i)),
                        print(last(out()))));
  }
};

/// Operands from `first` on are a row and its two tables, as of rope.
void check_rotation(Rules r, size_t first);
/// Operand `gamma` is what the heads of q or x, operand `x` of `heads` heads, are multiplied by.
void check_head_gamma(Rules r, size_t x, size_t gamma);
/// A state is an input that the op alone reads, and its result an output of that name.
void check_states(Rules r);
/// The rules of one op, of its name.
#define TFCC_OP(name, attrs, summary) void check_##name(Rules r);
#include "ir/ops.def"
#undef TFCC_OP

}  // namespace tfcc::ir
