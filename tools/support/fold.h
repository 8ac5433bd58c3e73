// SPDX-License-Identifier: Apache-2.0
// Lines that differ in numbers of their names alone, as one: what a model of 32 layers says 32
// times.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace tfcc::tools {

struct Folded {
  std::string name;  ///< "layers.0..31.key"; "*" where the numbers are no range
  size_t first = 0;  ///< the place of the first of them
  size_t count = 0;
  std::vector<size_t> members = {};  ///< their places, ascending
};

/// `items`: a name, and what else has to be equal. In the order of the first of each.
std::vector<Folded> fold(const std::vector<std::pair<std::string, std::string>>& items);

}  // namespace tfcc::tools
