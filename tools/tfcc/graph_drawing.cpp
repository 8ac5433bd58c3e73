// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/graph_drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "tools/tfcc/html.h"

namespace tfcc::tools {
namespace {

constexpr double kHeight = 34, kLayerGap = 20, kNodeGap = 14, kMargin = 6;
constexpr double kLabelWidth = 7.1, kDetailWidth = 5.8, kBadgeWidth = 9, kDummyWidth = 10;
constexpr size_t kLongestLabel = 26, kMostSteps = 1 << 14;
constexpr int kOrderSweeps = 12, kPlaceSweeps = 24;

/// The layout after Sugiyama: layers by longest path, invisible nodes along edges that cross
/// layers, an order within each layer by the mean of the neighbours, places by the same mean with
/// room between nodes.
class Layout {
 public:
  explicit Layout(const std::vector<DrawnNode>& nodes) : nodes_(nodes) {
    for (const DrawnNode& n : nodes) items_.push_back({width_of(n), 0, 0, {}, {}, SIZE_MAX});
    find_layers();
    size_t steps = 0;  // from layer to layer, along all edges
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (size_t r : nodes_[i].reads) steps += items_[i].layer - items_[r].layer;
    }
    if (steps > kMostSteps) return;
    add_dummies();
    for (int sweep = 0; sweep < kOrderSweeps; ++sweep) order(sweep % 2 == 0);
    place();
  }

  /// Empty if there are too many edges to draw.
  std::string svg(const std::string& title) const {
    if (layers_.empty()) return "";
    double width = 0;
    for (const Item& i : items_) width = std::max(width, i.x + i.width / 2);
    const double w = width + kMargin, h = y(layers_.size()) - kLayerGap + kMargin;
    std::string out = fmt::format(
        "<svg viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\" aria-label=\"{2}\">\n",
        w, h, html::escaped(title));
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const auto& path : paths_[i]) out += edge(path);
    }
    for (size_t i = 0; i < nodes_.size(); ++i) out += node(i);
    return out + "</svg>\n";
  }

 private:
  struct Item {
    double width, x;  // x of the middle
    size_t layer;
    std::vector<size_t> up, down;
    size_t chain = SIZE_MAX;  // of an invisible node: all along one edge
  };

  static double width_of(const DrawnNode& n) {
    const double label =
        kLabelWidth * static_cast<double>(std::min(n.label.size(), kLongestLabel)) +
        (n.badge.empty() ? 0 : kBadgeWidth + 6);
    const double detail =
        kDetailWidth * static_cast<double>(std::min(n.detail.size(), kLongestLabel));
    return std::max({label, detail, 34.0}) + 18;
  }

  void find_layers() {
    std::vector<size_t> first_reader(nodes_.size(), SIZE_MAX);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (size_t r : nodes_[i].reads)
        items_[i].layer = std::max(items_[i].layer, items_[r].layer + 1);
    }
    for (size_t i = nodes_.size();
         i-- > 0;) {  // what reads nothing stands right above its first reader
      if (nodes_[i].reads.empty() && first_reader[i] != SIZE_MAX)
        items_[i].layer = first_reader[i] - 1;
      for (size_t r : nodes_[i].reads) first_reader[r] = std::min(first_reader[r], items_[i].layer);
    }
  }

  void add_dummies() {
    paths_.resize(nodes_.size());
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (size_t r : nodes_[i].reads) {
        std::vector<size_t> path{r};
        for (size_t layer = items_[r].layer + 1; layer < items_[i].layer; ++layer) {
          path.push_back(items_.size());
          items_.push_back({kDummyWidth, 0, layer, {}, {}, chains_.size()});
        }
        if (path.size() > 1) chains_.emplace_back(path.begin() + 1, path.end());
        path.push_back(i);
        for (size_t k = 1; k < path.size(); ++k) {
          items_[path[k - 1]].down.push_back(path[k]);
          items_[path[k]].up.push_back(path[k - 1]);
        }
        paths_[i].push_back(std::move(path));
      }
    }
    for (size_t i = 0; i < items_.size(); ++i) {
      layers_.resize(std::max(layers_.size(), items_[i].layer + 1));
      items_[i].x = static_cast<double>(layers_[items_[i].layer].size());
      layers_[items_[i].layer].push_back(i);
    }
  }

  std::optional<double> mean(const std::vector<size_t>& of) const {
    if (of.empty()) return std::nullopt;
    double sum = 0;
    for (size_t i : of) sum += items_[i].x;
    return sum / static_cast<double>(of.size());
  }

  void order(bool down) {
    for (size_t k = 0; k < layers_.size(); ++k) {
      auto& layer = layers_[down ? k : layers_.size() - 1 - k];
      std::vector<std::pair<double, size_t>> keyed;
      for (size_t i : layer)
        keyed.push_back({mean(down ? items_[i].up : items_[i].down).value_or(items_[i].x), i});
      std::stable_sort(keyed.begin(), keyed.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      for (size_t at = 0; at < layer.size(); ++at) {
        layer[at] = keyed[at].second;
        items_[layer[at]].x = static_cast<double>(at);
      }
    }
  }

  double room(size_t a, size_t b) const {
    return (items_[a].width + items_[b].width) / 2 + kNodeGap;
  }

  // Where the neighbours of a node are, long edges left aside if there are others: these go around
  // and are straight.
  double wanted(size_t i, int sweep) const {
    if (items_[i].chain != SIZE_MAX) {
      double most = items_[i].x;
      for (size_t k : chains_[items_[i].chain]) most = std::max(most, items_[k].x);
      return most;
    }
    const auto near = [&](const std::vector<size_t>& all) {
      std::vector<size_t> nodes;
      for (size_t k : all) {
        if (k < nodes_.size()) nodes.push_back(k);
      }
      return mean(nodes.empty() ? all : nodes);
    };
    const auto up = near(items_[i].up), down = near(items_[i].down);
    if (up && down && sweep + 4 >= kPlaceSweeps) return (*up + *down) / 2;
    return (sweep % 2 == 0 ? up : down).value_or(items_[i].x);
  }

  // Each layer where its neighbours are, pushed apart from the left and from the right, and the
  // middle of the two.
  void place_layer(const std::vector<size_t>& layer, int sweep) {
    std::vector<double> left, right;
    for (size_t i : layer) left.push_back(wanted(i, sweep));
    right = left;
    for (size_t k = 1; k < layer.size(); ++k)
      left[k] = std::max(left[k], left[k - 1] + room(layer[k - 1], layer[k]));
    for (size_t k = layer.size() - 1; k-- > 0;)
      right[k] = std::min(right[k], right[k + 1] - room(layer[k], layer[k + 1]));
    for (size_t k = 0; k < layer.size(); ++k) items_[layer[k]].x = (left[k] + right[k]) / 2;
  }

  void place() {
    for (const auto& layer : layers_) {
      double x = 0;
      for (size_t i : layer) {
        items_[i].x = x + items_[i].width / 2;
        x += items_[i].width + kNodeGap;
      }
    }
    for (int sweep = 0; sweep < kPlaceSweeps; ++sweep) {
      for (size_t k = 0; k < layers_.size(); ++k)
        place_layer(layers_[sweep % 2 == 0 ? k : layers_.size() - 1 - k], sweep);
    }
    pull_chains();
    double least = 1e30;
    for (const Item& i : items_) least = std::min(least, i.x - i.width / 2);
    for (Item& i : items_) i.x += kMargin - least;
  }

  // Long edges come as close as what is left of them allows, the leftmost first.
  void pull_chains() {
    std::vector<size_t> left_of(items_.size(), SIZE_MAX);
    for (const auto& layer : layers_) {
      for (size_t k = 1; k < layer.size(); ++k) left_of[layer[k]] = layer[k - 1];
    }
    std::vector<const std::vector<size_t>*> chains;
    for (const auto& c : chains_) chains.push_back(&c);
    std::stable_sort(chains.begin(), chains.end(),
                     [&](auto* a, auto* b) { return items_[a->front()].x < items_[b->front()].x; });
    for (const auto* chain : chains) {
      double x = std::min(items_[items_[chain->front()].up[0]].x,
                          items_[items_[chain->back()].down[0]].x),
             now = 1e30;
      for (size_t i : *chain) {
        if (left_of[i] != SIZE_MAX) x = std::max(x, items_[left_of[i]].x + room(left_of[i], i));
        now = std::min(now, items_[i].x);
      }
      for (size_t i : *chain) items_[i].x = std::min(x, std::max(items_[i].x, now));
    }
  }

  static double y(size_t layer) {
    return kMargin + static_cast<double>(layer) * (kHeight + kLayerGap);
  }

  std::string edge(const std::vector<size_t>& path) const {
    std::string d =
        fmt::format("M{:.1f} {:.1f}", items_[path[0]].x, y(items_[path[0]].layer) + kHeight);
    for (size_t k = 1; k < path.size(); ++k) {
      const Item &a = items_[path[k - 1]], &b = items_[path[k]];
      const double y0 = y(a.layer) + kHeight, y1 = y(b.layer), middle = (y0 + y1) / 2;
      d += fmt::format("C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}", a.x, middle, b.x, middle, b.x,
                       y1);
      if (k + 1 < path.size()) d += fmt::format("V{:.1f}", y1 + kHeight);
    }
    return "<path class=edge d=\"" + d + "\"/>\n";
  }

  std::string node(size_t i) const {
    const DrawnNode& n = nodes_[i];
    const Item& at = items_[i];
    const double x = at.x - at.width / 2, top = y(at.layer),
                 text = top + (n.detail.empty() ? 21 : 15);
    std::string out = fmt::format(
        "<g class=\"node {}{}\"{}><title>{}</title><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" rx=\"7\"/>",
        n.kind, n.outside ? " outside" : "",
        n.marks.empty() ? "" : " data-op=\"" + html::escaped(n.marks) + "\"",
        html::escaped(html::shortened(n.tooltip, 1500)), x, top, at.width, kHeight);
    if (!n.badge.empty())
      out += fmt::format("<text class=badge x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x + 7, top + 13,
                         html::escaped(n.badge));
    const double middle = at.x + (n.badge.empty() ? 0 : kBadgeWidth / 2);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>", middle,
                       text, html::escaped(html::shortened(n.label, kLongestLabel)));
    if (!n.detail.empty()) {
      out += fmt::format("<text class=d x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
                         at.x, top + 28, html::escaped(html::shortened(n.detail, kLongestLabel)));
    }
    out += "</g>";
    return (n.link.empty() ? out : "<a href=\"#" + html::escaped(n.link) + "\">" + out + "</a>") +
           "\n";
  }

  const std::vector<DrawnNode>& nodes_;
  std::vector<Item> items_;  // the nodes, then the invisible ones
  std::vector<std::vector<std::vector<size_t>>>
      paths_;                                // by node and read: from the read node down to it
  std::vector<std::vector<size_t>> chains_;  // invisible nodes of each long edge
  std::vector<std::vector<size_t>> layers_;
};

}  // namespace

std::string draw_graph(const std::vector<DrawnNode>& nodes, const std::string& title) {
  constexpr size_t kMostNodes = 4 * kMostDrawnNodes;
  return nodes.empty() || nodes.size() > kMostNodes ? "" : Layout(nodes).svg(title);
}

}  // namespace tfcc::tools
