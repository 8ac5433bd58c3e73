// SPDX-License-Identifier: Apache-2.0
// Which ops of an earlier graph each op of the present one stands for, and the passes that made it
// so. Passes say nothing of it themselves: it is read off the graph before and after each of them,
// and off what replace_uses put in whose place.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace tfcc::passes {

class Provenance {
 public:
  /// What an op stands for: ops of the graph at the start, ascending, and passes in the order in
  /// which they had a part.
  struct Source {
    std::vector<ir::OpId> ops;
    std::vector<std::string> passes;
  };

  /// Every op of `start` but constants stands for itself.
  explicit Provenance(const ir::Graph& start);
  /// Accounts for a pass: `now` is `before` after it, cleaned. An op that is gone is taken over by
  /// the op that replaced it, or else by those that took over its readers.
  void update(std::string_view pass, const ir::Graph& before, const ir::Graph& now);
  /// Of an op that is live in the graph last seen; empty for a constant, or what a pass added
  /// without taking anything away.
  const Source& of(ir::OpId op) const;

 private:
  std::vector<Source> sources_;  // by op
};

}  // namespace tfcc::passes
