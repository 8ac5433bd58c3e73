// SPDX-License-Identifier: Apache-2.0
// Products of one input that become one product, of which each is a slice: q, k and v of an
// attention, gate and up of a feed-forward block.
#pragma once

#include "passes/match.h"

namespace tfcc::passes {

/// The product that makes v, if `reader` alone reads it and it may be joined with others: its weight
/// is a constant matrix, or one that is computed from constants with a row for each of its columns;
/// its epilogue is at most a constant bias. Else `reason` says why not of `what`.
std::optional<OpId> joinable_product(const Graph& graph, ValueId v, OpId reader,
                                     const std::string& what, std::string& reason);

/// Have they one input, and attributes, biases and types that go together?
bool are_siblings(const Graph& graph, OpId a, OpId b);

/// One product of joinable siblings, called `name`; `starts` gets the first column of each.
ValueId join_products(Graph& graph, const std::vector<OpId>& products, const std::string& name,
                      std::vector<ExprRef>& starts);

}  // namespace tfcc::passes
