// SPDX-License-Identifier: Apache-2.0
// Layouts of heads, shared by fuse-attention and raise-rope: index variables 0 to 3 stand for
// batch, head, token and channel.
#pragma once

#include <string>

#include "passes/match.h"

namespace tfcc::passes {

/// Of an attention. Passes try how many of them share a key.
inline constexpr int64_t kMostHeads = 65535;

/// A tensor of batch * heads matrices, in any number of leading dims.
struct HeadDims {
  ExprRef batch = nullptr;
  int64_t heads = 0;
};

/// Batch and heads behind the leading dims of scores: [B, H], [B, G, H / G], [B * H], none. For one
/// dim of a known size `among` are expressions whose divisions of index variable 0 tell the heads.
/// Nothing if heads are not known.
std::optional<HeadDims> head_dims(const Graph& graph, const std::vector<ExprRef>& leading,
                                  const std::vector<ExprRef>& among);

/// A tensor [B, S, heads * size] to be: the element (b, s, h * size + c) of `body`, or a value that
/// is it already.
struct TokenMajor {
  ir::Type type;
  ExprRef body = nullptr;
  std::optional<ValueId> existing;
};
/// From an element over (b, h, s, c) with these extents.
TokenMajor token_major(const Graph& graph, ExprRef element, const std::vector<ExprRef>& extents,
                       DType dtype);
ValueId add_token_major(Graph& graph, const TokenMajor& t, const std::string& name,
                        const std::string& origin);

}  // namespace tfcc::passes
