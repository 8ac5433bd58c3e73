// SPDX-License-Identifier: Apache-2.0
// Stable topological order: a queue of ready nodes by their place in the file.
#include "frontend/onnx/node_order.h"

#include <functional>
#include <queue>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace tfcc::frontend {
namespace {

using Makers =
    std::unordered_map<std::string_view, size_t>;  // value -> place of the node that makes it
using Visit = std::function<void(std::string_view)>;

void for_each_read(const Node& n, const Visit& visit);

// What a body takes from around it: not what it makes itself.
void for_each_read(const Body& body, const Visit& visit) {
  std::unordered_set<std::string_view> own;
  for (const auto& initializer : body.initializers) own.insert(initializer.first);
  for (const Node& n : body.nodes) own.insert(n.outputs.begin(), n.outputs.end());
  const Visit from_outside = [&](std::string_view name) {
    if (!own.contains(name)) visit(name);
  };
  for (const Node& n : body.nodes) for_each_read(n, from_outside);
  for (const std::string& name : body.outputs) from_outside(name);
}

void for_each_read(const Node& n, const Visit& visit) {
  for (const std::string& name : n.inputs) {
    if (!name.empty()) visit(name);
  }
  for (const Attribute& a : n.attributes) {
    if (a.graph) for_each_read(*a.graph, visit);
  }
}

// Of two nodes that make one value the first; the walk refuses the second.
Makers makers_of(const std::vector<Node>& nodes) {
  Makers makers;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const std::string& out : nodes[i].outputs) {
      if (!out.empty()) makers.emplace(out, i);
    }
  }
  return makers;
}

bool in_order(const std::vector<Node>& nodes, const Makers& makers) {
  bool ordered = true;
  for (size_t i = 0; i < nodes.size() && ordered; ++i) {
    for_each_read(nodes[i], [&](std::string_view name) {
      const auto maker = makers.find(name);
      ordered = ordered && (maker == makers.end() || maker->second < i);
    });
  }
  return ordered;
}

// Places of the nodes in an order that fits; what waits for a cycle last.
std::vector<size_t> sorted_places(const std::vector<Node>& nodes, const Makers& makers) {
  std::vector<std::vector<size_t>> readers(nodes.size());
  std::vector<size_t> waits(nodes.size(), 0), order;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for_each_read(nodes[i], [&](std::string_view name) {
      const auto maker = makers.find(name);
      if (maker == makers.end()) return;
      readers[maker->second].push_back(i);
      ++waits[i];
    });
  }
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (waits[i] == 0) ready.push(i);
  }
  while (!ready.empty()) {
    const size_t i = ready.top();
    ready.pop();
    order.push_back(i);
    for (size_t reader : readers[i]) {
      if (--waits[reader] == 0) ready.push(reader);
    }
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (waits[i] != 0) order.push_back(i);
  }
  return order;
}

}  // namespace

bool order_nodes(std::vector<Node>& nodes) {
  const Makers makers = makers_of(nodes);
  if (in_order(nodes, makers)) return false;
  std::vector<Node> sorted;
  sorted.reserve(nodes.size());
  for (size_t i : sorted_places(nodes, makers)) sorted.push_back(std::move(nodes[i]));
  nodes = std::move(sorted);
  return true;
}

}  // namespace tfcc::frontend
