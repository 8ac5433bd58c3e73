// SPDX-License-Identifier: Apache-2.0
// Which tokens a text starts with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tfcc::text {

/// Tokens by their bytes: node n's children are a sorted run of edges.
class Trie {
 public:
  /// The value of a token is its place, of equal tokens the last place.
  explicit Trie(const std::vector<std::string>& tokens) {
    std::vector<int32_t> order;
    for (size_t i = 0; i < tokens.size(); ++i)
      if (!tokens[i].empty()) order.push_back(static_cast<int32_t>(i));
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return tokens[static_cast<size_t>(a)] < tokens[static_cast<size_t>(b)];
    });
    struct Work {
      size_t begin, end, depth, node;
    };
    nodes_.emplace_back();
    std::vector<Work> work{{0, order.size(), 0, 0}};
    for (size_t w = 0; w < work.size(); ++w) {
      auto [begin, end, depth, node] = work[w];
      const auto token = [&](size_t i) -> const std::string& {
        return tokens[static_cast<size_t>(order[i])];
      };
      for (; begin < end && token(begin).size() == depth; ++begin)
        nodes_[node].value = order[begin];
      nodes_[node].first = static_cast<uint32_t>(edges_.size());
      while (begin < end) {
        size_t next = begin;
        while (next < end && token(next)[depth] == token(begin)[depth]) ++next;
        edges_.push_back({static_cast<unsigned char>(token(begin)[depth]),
                          static_cast<uint32_t>(nodes_.size())});
        work.push_back({begin, next, depth + 1, nodes_.size()});
        nodes_.emplace_back();
        begin = next;
      }
      nodes_[node].count = static_cast<uint32_t>(edges_.size()) - nodes_[node].first;
    }
  }

  /// Calls `found(size, value)` for each token that `text` starts with, shortest first.
  template <class F> void prefixes(std::string_view text, F found) const {
    size_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto begin = edges_.begin() + nodes_[node].first, end = begin + nodes_[node].count;
      const auto edge = std::lower_bound(begin, end, static_cast<unsigned char>(text[i]),
                                         [](const Edge& e, unsigned char c) { return e.byte < c; });
      if (edge == end || edge->byte != static_cast<unsigned char>(text[i])) return;
      node = edge->node;
      if (nodes_[node].value >= 0) found(i + 1, nodes_[node].value);
    }
  }

 private:
  struct Node {
    uint32_t first = 0, count = 0;
    int32_t value = -1;
  };
  struct Edge {
    unsigned char byte;
    uint32_t node;
  };
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
};

}  // namespace tfcc::text
