// SPDX-License-Identifier: Apache-2.0
// Sizes that may be 0 with the rest of a model at work: the past of a decoder before its first
// token, an empty memory or prefix, no rows of features. Import takes every size to be at least 1
// at first, which is what most proofs need. Where that is settled, a size of 0 that leaves some
// output with elements is one to compute, and import goes again with such sizes from 0 on. Sizes of
// inputs of integers or truth values (ids, masks) are the tokens of a model and stay at 1: a run
// without any is an error of the runtime, unless no output has elements then.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "frontend/import/importer.h"

namespace tfcc::frontend {

/// The walk over all nodes, with these sizes from 0 on.
using Walk =
    std::function<Result<void>(Importer&, const Facts&, const std::set<std::string>& may_be_zero)>;

/// The name that a size goes by; names that are equal in turn may make a chain.
std::string resolved_size(const Facts& facts, std::string name);
/// The name of a size: the file's own where it has one, else input and axis.
std::string symbol_name(const ValueInfo& input, size_t axis);

class EmptySizes {
 public:
  const std::set<std::string>& allowed() const { return allowed_; }
  /// After an import that holds: whether more sizes are to be tried from 0 on.
  bool more(const Importer& im, const Facts& facts, const Walk& walk);
  /// Whether a walk for sizes from 0 on failed for good, or learned anything but smallest sizes:
  /// what is known of sizes from 1 on must do.
  bool contradicted(const Facts& before, const Facts& after, bool walked) const;
  /// Takes back what was tried last, and what was learned with it. False if nothing was.
  bool retreat(Facts& facts);

 private:
  std::set<std::string> allowed_, kept_;
  std::vector<std::string> waiting_;  // sizes to try one at a time, where all at once did not work
  Facts settled_;                     // for sizes from 1 on
  bool searched_ = false, one_by_one_ = false;
};

}  // namespace tfcc::frontend
