// SPDX-License-Identifier: Apache-2.0
// A layered drawing of a graph as SVG: every node below all that it reads, edges around the nodes
// between.
#pragma once

#include <string>
#include <vector>

namespace tfcc::tools {

struct DrawnNode {
  std::string label, detail, tooltip;  // not escaped
  std::string badge;                   // a number at the label's left
  std::string kind;                    // CSS class that gives the colour
  std::string marks;                   // data-op: names of what is marked together with it
  std::string link;                    // an id on this page, or empty
  bool outside = false;                // an input or a reader that is not part of what is drawn
  std::vector<size_t> reads;           // nodes before this one
};

/// The largest graph that is worth drawing.
inline constexpr size_t kMostDrawnNodes = 300;

/// Nodes in an order that respects `reads`. Empty where there is nothing to draw, or too much:
/// nodes around a part and edges over many layers count as well.
std::string draw_graph(const std::vector<DrawnNode>& nodes, const std::string& title);

}  // namespace tfcc::tools
