// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/inspect_story.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ir/ir.h"
#include "tools/tfcc/html.h"
#include "tools/compiler/trace.h"

namespace tfcc::tools {
namespace {

using nlohmann::json;

constexpr size_t kNone = SIZE_MAX;
constexpr size_t kLongestName = 1024;  // of a node: many ops may refer to one

/// A name as the stack of layers it belongs to and the number in it: "/encoder/layer.3/output/Add"
/// is layer 3 of "/encoder/layer."; nothing if no part of the name is a number, but the last.
std::optional<std::pair<std::string, size_t>> layer_in_name(const std::string& name) {
  size_t begin = 0;
  while (begin < name.size()) {
    const size_t end = name.find_first_of("/.", begin);
    if (end == std::string::npos) return std::nullopt;
    const bool number = end > begin && end - begin <= 4 && begin > 0 &&
                        name.find_first_not_of("0123456789", begin) == end;
    if (number)
      return std::pair(name.substr(0, begin),
                       static_cast<size_t>(std::stoul(name.substr(begin, end - begin))));
    begin = end + 1;
  }
  return std::nullopt;
}

/// Stacks of layers that most names agree on, and the layer of each name.
class NamedLayers {
 public:
  explicit NamedLayers(const std::vector<std::string>& names) {
    std::map<std::string, std::pair<std::set<size_t>, size_t>> stacks;  // numbers seen, names
    for (const std::string& name : names) {
      if (const auto layer = layer_in_name(name)) {
        stacks[layer->first].first.insert(layer->second);
        ++stacks[layer->first].second;
      }
    }
    size_t covered = 0;
    for (const auto& [stack, seen] : stacks) {
      if (seen.first.size() < 2 || seen.second < kLeastOps * seen.first.size()) continue;
      stacks_.insert(stack);
      covered += seen.second;
    }
    if (2 * covered < names.size()) stacks_.clear();
    for (const std::string& name : names)
      (void)of(name);  // layers get their numbers in the order of the graph
  }
  bool any() const { return !stacks_.empty(); }
  const std::vector<std::string>& titles() const { return titles_; }
  /// Index of the layer, kNone outside.
  size_t of(const std::string& name) {
    const auto layer = layer_in_name(name);
    if (!layer || !stacks_.count(layer->first)) return kNone;
    const auto [it, added] = index_.emplace(*layer, titles_.size());
    if (added) titles_.push_back(layer->first + std::to_string(layer->second));
    return it->second;
  }

 private:
  static constexpr size_t kLeastOps = 4;
  std::set<std::string> stacks_;
  std::map<std::pair<std::string, size_t>, size_t> index_;
  std::vector<std::string> titles_;
};

std::vector<std::string> launch_names(const runtime::Bucket& bucket) {
  std::vector<std::string> names;
  for (const runtime::Launch& l : bucket.launches) names.push_back(l.name);
  return names;
}

/// Layers of the launches: by their names, else by what comes again and again. Titles, and the
/// layer of each launch.
LaunchParts layers_of_launches(const InspectedFile& file, const runtime::Plan& plan,
                               const runtime::Bucket& bucket) {
  LaunchParts out;
  NamedLayers named(launch_names(bucket));
  const auto period = file.layers(plan, bucket);
  for (size_t t = 0; t < bucket.launches.size(); ++t) {
    const bool repeats =
        period && t >= period->first && (t - period->first) / period->launches < period->count;
    size_t layer = named.any() ? named.of(bucket.launches[t].name)
                   : repeats   ? (t - period->first) / period->launches
                               : kNone;
    // The last op of a model has the name of the output, and is its layer's all the same.
    if (named.any() && layer == kNone && repeats && t > 0) layer = out.part_of_launch.back();
    out.part_of_launch.push_back(layer);
  }
  out.titles = named.titles();
  for (size_t i = 0; !named.any() && period && i < period->count; ++i)
    out.titles.push_back(fmt::format("layer {}", i));
  return out;
}

class Reader {
 public:
  Reader(const InspectedFile& file, const runtime::Plan& plan)
      : file_(file), plan_(plan), bucket_(shown_bucket(file, plan)) {}

  Result<Story> read() {
    TFCC_TRY(s_.imported, graph(compiler::kImportText, s_.before));
    TFCC_TRY(s_.final, graph(fmt::format("ir/{}.tfir", to_string(plan_.family)), s_.after));
    TFCC_TRY(const std::string text, file_.text(compiler::kTraceText));
    const json trace = shallow_json(text);
    if (!read_nodes(trace) || !read_sources(trace)) {
      return Error{ErrorCode::bad_file, fmt::format("{}: text '{}' does not fit the graphs",
                                                    file_.path, compiler::kTraceText)};
    }
    find_launches();
    find_parts();
    return std::move(s_);
  }

 private:
  Result<ir::Graph> graph(const std::string& name, std::vector<StoryOp>& ops) const {
    TFCC_TRY(const std::string text, file_.text(name));
    TFCC_TRY(ir::Graph g, ir::parse(text, name));
    const std::vector<std::string> lines = op_lines(ir::print(g));
    size_t at = 0;
    for (ir::OpId o : g.order()) {
      const std::string line = at < lines.size() ? lines[at] : "";
      ++at;
      if (g.op(o).kind == ir::OpKind::constant) continue;
      StoryOp op;
      op.op = o;
      op.name = g.value(g.result(o)).name;
      op.line = line;
      op.label = std::string(ir::to_string(g.op(o).kind));
      ops.push_back(std::move(op));
    }
    return g;
  }

  // The lines of constants and ops: the printer writes one each, in order.
  static std::vector<std::string> op_lines(const std::string& text) {
    std::vector<std::string> lines;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      const std::string_view line(text.data() + at, end - at);
      if (line.starts_with("  %") || line.starts_with("  const "))
        lines.emplace_back(line.substr(2));
      at = end + 1;
    }
    return lines;
  }

  bool read_nodes(const json& trace) {
    if (!trace.is_object() || trace.value("schema", json()) != 1 || !trace.contains("nodes") ||
        !trace["nodes"].is_array())
      return false;
    for (const json& n : trace["nodes"]) {
      if (!n.is_object() || !text(n, "name") || !text(n, "op") || !n.contains("ops") ||
          !n["ops"].is_array())
        return false;
      Story::Node node{html::shortened(n["name"].get_ref<const std::string&>(), kLongestName),
                       html::shortened(n["op"].get_ref<const std::string&>(), kLongestName),
                       n["ops"].size()};
      for (const json& v : n["ops"]) {
        if (!index(v, s_.before.size())) return false;
        StoryOp& op = s_.before[v.get<size_t>()];
        op.label = node.op;
        op.nodes = {s_.nodes.size()};
      }
      s_.nodes.push_back(std::move(node));
    }
    return true;
  }

  static bool index(const json& j, size_t limit) {
    return j.is_number_unsigned() && j.get<size_t>() < limit;
  }
  static bool text(const json& j, const char* key) { return j.contains(key) && j[key].is_string(); }

  bool read_sources(const json& trace) {
    const json* list = trace.contains("graphs") && trace["graphs"].is_object() &&
                               trace["graphs"].contains(to_string(plan_.family))
                           ? &trace["graphs"][to_string(plan_.family)]
                           : nullptr;
    if (!list || !list->is_array() || list->size() != s_.after.size()) return false;
    for (size_t i = 0; i < list->size(); ++i) {
      const json& j = (*list)[i];
      StoryOp& op = s_.after[i];
      if (!j.is_object()) return false;
      for (const char* key : {"nodes", "ops", "passes"}) {
        if (!j.contains(key) || !j[key].is_array()) return false;
      }
      for (const json& n : j["nodes"]) {
        if (!index(n, s_.nodes.size())) return false;
        op.nodes.push_back(n);
      }
      for (const json& v : j["ops"]) {
        if (!index(v, s_.before.size())) return false;
        op.partners.push_back(v);
        s_.before[v.get<size_t>()].partners.push_back(i);
      }
      for (const json& p : j["passes"]) {
        if (!p.is_string()) return false;
        op.passes.push_back(p);
      }
    }
    return true;
  }

  // A launch has the name of its last op; the ops fused with it are what that one reads first.
  void find_launches() {
    std::map<ir::OpId, size_t> index;
    for (size_t i = 0; i < s_.after.size(); ++i) index[s_.after[i].op] = i;
    for (size_t t = 0; t < bucket_.launches.size(); ++t) {
      const runtime::Launch& l = bucket_.launches[t];
      ir::ValueId v = s_.final.find_value(l.name);
      for (size_t k = l.ops.size(); k-- > 0 && v.valid();) {
        const ir::Op* def = s_.final.def(v);
        if (!def || ir::to_string(def->kind) != l.ops[k]) break;
        const auto it = index.find(s_.final.value(v).def);
        if (it != index.end() && !s_.after[it->second].launch) s_.after[it->second].launch = t;
        v = def->operands.empty() ? ir::ValueId{} : def->operands[0];
      }
    }
  }

  void find_parts() {
    std::vector<std::string> names;
    for (const StoryOp& op : s_.after) names.push_back(op.name);
    NamedLayers named(names);
    std::vector<std::string> titles;
    std::vector<size_t> after(s_.after.size(), kNone), before(s_.before.size(), kNone);
    if (named.any()) {
      for (size_t i = 0; i < after.size(); ++i) after[i] = layer_of_names(s_.after[i], named);
      for (size_t i = 0; i < before.size(); ++i) before[i] = layer_of_names(s_.before[i], named);
      titles = named.titles();
    }
    const LaunchParts launches = layers_of_launches(file_, plan_, bucket_);
    if (!named.any() || launches.titles == titles) {
      titles = launches.titles;
      for (size_t i = 0; i < after.size(); ++i) {
        if (s_.after[i].launch && after[i] == kNone)
          after[i] = launches.part_of_launch[*s_.after[i].launch];
      }
      give_views_a_layer(after);
      for (size_t i = 0; i < before.size(); ++i) {
        if (before[i] == kNone) before[i] = layer_of_partners(s_.before[i], after);
      }
    }
    const size_t layers = titles.size();
    place_the_rest(s_.final, s_.after, after, layers);
    place_the_rest(s_.imported, s_.before, before, layers);
    make_parts(titles, before, after);
  }

  // By its own name, or what it stands for where that names one layer: "present.0.key" has no layer
  // in its name.
  size_t layer_of_names(const StoryOp& op, NamedLayers& named) const {
    size_t layer = named.of(op.name);
    if (layer != kNone) return layer;
    for (size_t n : op.nodes) {
      const size_t of_node = named.of(s_.nodes[n].name);
      if (of_node == kNone) continue;
      if (layer != kNone && layer != of_node) return kNone;
      layer = of_node;
    }
    return layer;
  }

  // What has no launch of its own is read in place: it belongs to what it is a view of.
  void give_views_a_layer(std::vector<size_t>& layer) const {
    std::map<ir::OpId, size_t> index;
    for (size_t i = 0; i < s_.after.size(); ++i) {
      index[s_.after[i].op] = i;
      if (s_.after[i].launch || layer[i] != kNone) continue;
      for (ir::ValueId v : s_.final.op(s_.after[i].op).operands) {
        const auto it = index.find(s_.final.value(v).def);
        if (it != index.end() && layer[i] == kNone) layer[i] = layer[it->second];
      }
    }
  }

  static size_t layer_of_partners(const StoryOp& op, const std::vector<size_t>& after) {
    size_t layer = kNone;
    for (size_t p : op.partners) {
      if (layer != kNone && after[p] != layer) return kNone;  // shared by layers
      layer = after[p];
    }
    return layer;
  }

  // kNone becomes `layers` for what a layer needs, `layers` + 1 for what comes after.
  static void place_the_rest(const ir::Graph& g, const std::vector<StoryOp>& ops,
                             std::vector<size_t>& layer, size_t layers) {
    std::map<ir::OpId, size_t> index;
    for (size_t i = 0; i < ops.size(); ++i) index[ops[i].op] = i;
    std::vector<bool> needed(ops.size());
    for (size_t i = ops.size(); i-- > 0;) {
      if (layer[i] == kNone && !needed[i]) continue;
      for (ir::ValueId v : g.op(ops[i].op).operands) {
        if (const auto it = index.find(g.value(v).def); it != index.end())
          needed[it->second] = true;
      }
    }
    for (size_t i = 0; i < ops.size(); ++i) {
      if (layer[i] == kNone) layer[i] = needed[i] || layers == 0 ? layers : layers + 1;
    }
  }

  std::string look(const StoryPart& part) const {
    std::string s;
    for (size_t i : part.before)
      s += s_.before[i].label + " " + std::to_string(s_.before[i].partners.size()) + "\n";
    for (size_t i : part.after) {
      s += s_.after[i].label;
      for (ir::ValueId v : s_.final.op(s_.after[i].op).results)
        s += " " + ir::to_string(s_.final.value(v).type);
      for (const std::string& p : s_.after[i].passes) s += " " + p;
      s += "\n";
    }
    return s;
  }

  void make_parts(const std::vector<std::string>& titles, const std::vector<size_t>& before,
                  const std::vector<size_t>& after) {
    const size_t layers = titles.size();
    std::vector<StoryPart> by_layer(layers + 2);
    for (size_t i = 0; i < before.size(); ++i) by_layer[before[i]].before.push_back(i);
    for (size_t i = 0; i < after.size(); ++i) by_layer[after[i]].after.push_back(i);
    std::vector<size_t> order{layers};
    for (size_t i = 0; i < layers; ++i) order.push_back(i);
    order.push_back(layers + 1);
    std::map<std::string, size_t> looks;
    for (size_t l : order) {
      StoryPart& part = by_layer[l];
      if (part.before.empty() && part.after.empty()) continue;
      part.title = l < layers    ? titles[l]
                   : layers == 0 ? "The whole graph"
                   : l == layers ? "Before the layers"
                                 : "After the layers";
      for (size_t i : part.before) s_.before[i].part = s_.parts.size();
      for (size_t i : part.after) s_.after[i].part = s_.parts.size();
      const auto [it, added] = looks.emplace(look(part), s_.parts.size());
      if (!added) part.like = it->second;
      s_.parts.push_back(std::move(part));
    }
  }

  const InspectedFile& file_;
  const runtime::Plan& plan_;
  const runtime::Bucket& bucket_;
  Story s_;
};

}  // namespace

const runtime::Bucket& shown_bucket(const InspectedFile& file, const runtime::Plan& plan) {
  const runtime::Bucket* b = file.bucket(plan);
  return b ? *b : plan.buckets.back();
}

LaunchParts launch_parts(const InspectedFile& file, const runtime::Plan& plan,
                         const runtime::Bucket& bucket) {
  LaunchParts found = layers_of_launches(file, plan, bucket), out;
  // Before, the layers in the order in which they begin, after; a launch between two layers belongs
  // to the one before it.
  const auto first = std::find_if(found.part_of_launch.begin(), found.part_of_launch.end(),
                                  [](size_t l) { return l != kNone; });
  const auto last = std::find_if(found.part_of_launch.rbegin(), found.part_of_launch.rend(),
                                 [](size_t l) { return l != kNone; });
  const size_t begin = static_cast<size_t>(first - found.part_of_launch.begin());
  const size_t end =
      found.part_of_launch.size() - static_cast<size_t>(last - found.part_of_launch.rbegin());
  const size_t before = found.titles.size(), after = before + 1, all = before + 2;
  size_t current = kNone, previous = kNone;
  for (size_t t = 0; t < found.part_of_launch.size(); ++t) {
    size_t layer = found.part_of_launch[t];
    if (layer == kNone && t > begin && t < end) layer = current;
    const size_t part = layer != kNone ? layer : begin >= end ? all : t < begin ? before : after;
    if (part != previous)
      out.titles.push_back(part < before    ? found.titles[part]
                           : part == all    ? "All launches"
                           : part == before ? "Before the layers"
                                            : "After the layers");
    out.part_of_launch.push_back(out.titles.size() - 1);
    current = layer;
    previous = part;
  }
  return out;
}

Result<Story> Story::read(const InspectedFile& file, const runtime::Plan& plan) {
  return Reader(file, plan).read();
}

}  // namespace tfcc::tools
