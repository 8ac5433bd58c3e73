// SPDX-License-Identifier: Apache-2.0
// The graph of the page: for each part of the model the imported graph beside the compiled one, and
// a table of what became what.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "ir/ir.h"
#include "tools/tfcc/graph_drawing.h"
#include "tools/tfcc/html.h"
#include "tools/tfcc/inspect_page.h"

namespace tfcc::tools {
namespace {

using html::escaped;

constexpr size_t kLongestName = 120, kLongestLine = 600, kLongestType = 200;
constexpr size_t kMostLetters = 8;  // of a short name

/// Names of sizes as one or two letters, so that a type fits into a node: B = batch_size.
class ShortNames {
 public:
  explicit ShortNames(const ir::Graph& g) {
    std::set<std::string> taken;
    for (const ir::SizeSymbol& s : g.symbols) {
      std::string letter;
      for (char c : s.name) {
        if ((c < 'a' || c > 'z') && (c < 'A' || c > 'Z')) continue;
        letter += static_cast<char>(c & ~0x20);
        if (letter.size() > kMostLetters) letter.clear();
        if (letter.empty() || taken.insert(letter).second) break;
      }
      if (!letter.empty() && letter.size() < s.name.size()) names_[s.name] = letter;
    }
  }
  std::string of(const std::string& text) const {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      size_t end = at;
      while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) ||
                                   text[end] == '_' || text[end] == '.'))
        ++end;
      const std::string word = text.substr(at, std::max<size_t>(end - at, 1));
      const auto it = names_.find(word);
      out += it == names_.end() ? word : it->second;
      at += word.size();
    }
    return out;
  }
  std::string legend() const {
    std::string s;
    for (const auto& [name, letter] : names_)
      s += fmt::format("<span><b>{}</b> = {}</span>", escaped(letter),
                       html::code(html::shortened(name, kLongestName)));
    return s;
  }

 private:
  std::map<std::string, std::string> names_;
};

class Section {
 public:
  Section(const InspectedFile& file, const runtime::Plan& plan, const Story& story)
      : plan_(plan), s_(story), bucket_(shown_bucket(file, plan)), short_(story.final) {}

  std::string write() {
    number_ops();
    alike_.resize(s_.parts.size());
    for (const StoryPart& p : s_.parts) {
      if (p.like != SIZE_MAX) ++alike_[p.like];
    }
    for (const ir::Graph* g : {&s_.imported, &s_.final}) {
      for (size_t i = 0; i < g->outputs.size(); ++i)
        outputs_[{g, g->outputs[i].value.value}].push_back(i);
    }
    std::string out = introduction();
    for (size_t i = 0; i < s_.parts.size(); ++i) out += part(i);
    return out + vanished();
  }

 private:
  // Ops of a part count from 1; what is not there any more takes the number of what took it over.
  void number_ops() {
    badge_.resize(s_.after.size());
    for (const StoryPart& p : s_.parts) {
      size_t n = 0;
      for (size_t i : p.after) badge_[i] = ++n;
    }
  }

  std::string introduction() const {
    size_t fused = 0;
    for (const StoryOp& op : s_.before)
      fused += op.partners.size() == 1 && s_.after[op.partners[0]].partners.size() > 1;
    std::string s = fmt::format(
        "<p class=soft>{} imported ops became {}. On the left each node of the model that left an op, on the right what is compiled; one colour and one number on both sides "
        "belong together, and pointing at one marks the other. {} nodes were fused with others. Layers that look the same are drawn once. Constants are not drawn.</p>\n",
        s_.before.size(), s_.after.size(), fused);
    return s + "<p class=legend>" + short_.legend() + "</p>\n<p class=legend>" + colours() +
           "</p>\n";
  }

  std::string colours() const {
    std::set<std::string> kinds;
    for (const StoryOp& op : s_.after) kinds.insert(op.label);
    std::string s;
    for (const std::string& k : kinds)
      s += fmt::format("<span class={}><i class=swatch></i>{}</span>", op_class(k), escaped(k));
    return s;
  }

  std::string part(size_t index) const {
    const StoryPart& p = s_.parts[index];
    const bool again = p.like != SIZE_MAX;
    const size_t alike = alike_[index];
    std::string note = fmt::format("{} ops became {}", p.before.size(), p.after.size());
    if (again) note += ", like " + s_.parts[p.like].title;
    if (alike) note += fmt::format("; {} more layers are like it", alike);
    std::string s = fmt::format(
        "<details class=\"card part\"{}><summary>{} <span class=soft>{}</span></summary>\n",
        again ? "" : " open", escaped(html::shortened(p.title, kLongestName)), escaped(note));
    if (!again) s += drawings(p);
    return s + table(p) + "</details>\n";
  }

  std::string drawings(const StoryPart& p) const {
    if (p.before.size() > kMostDrawnNodes || p.after.size() > kMostDrawnNodes) {
      return fmt::format(
          "<p class=note>With {} ops before and {} after this part is too large to draw; the table has them all.</p>\n",
          p.before.size(), p.after.size());
    }
    const std::string before = drawing(s_.imported, s_.before, p.before, false),
                      after = drawing(s_.final, s_.after, p.after, true);
    if (before.empty() != p.before.empty() || after.empty() != p.after.empty())
      return "<p class=note>The edges of this part are too many to draw; the table has its ops.</p>\n";
    return fmt::format(
        "<div class=pair><div><h4>as imported: {} ops</h4>{}</div><div class=stay><h4>as compiled: {} ops</h4>{}</div></div>\n",
        p.before.size(), before, p.after.size(), after);
  }

  std::string type(const ir::Graph& g, ir::ValueId v) const {
    return short_.of(ir::to_string(g.value(v).type));
  }

  // For a drawing: many parts may read one value, whose type may be long.
  const std::string& short_type(const ir::Graph& g, ir::ValueId v) const {
    std::string& known = types_[{&g, v.value}];
    if (known.empty()) known = html::shortened(type(g, v), kLongestType);
    return known;
  }

  std::string id(size_t after) const { return fmt::format("op-{}-{}", plan_.name, after); }

  DrawnNode node(const ir::Graph& g, const StoryOp& op, size_t index, bool after) const {
    DrawnNode n;
    n.label = op.label;
    n.detail = short_type(g, g.result(op.op));
    n.tooltip =
        html::shortened(op.name, kLongestName) + "\n" + html::shortened(op.line, kLongestLine);
    const std::vector<size_t> finals = after ? std::vector<size_t>{index} : op.partners;
    n.kind = finals.empty() ? "k-none" : op_class(s_.after[finals[0]].label);
    for (size_t f : finals) {
      n.marks += (n.marks.empty() ? "" : " ") + std::to_string(f);
      if (finals.size() == 1 && s_.after[f].part == op.part) n.badge = std::to_string(badge_[f]);
      if (!after)
        n.tooltip += fmt::format("\nnow part of {} {}", s_.after[f].label,
                                 html::shortened(s_.after[f].name, kLongestName));
    }
    if (!finals.empty()) n.link = id(finals[0]);
    return n;
  }

  std::string drawing(const ir::Graph& g, const std::vector<StoryOp>& ops,
                      const std::vector<size_t>& members, bool after) const {
    std::vector<DrawnNode> nodes;
    std::map<uint32_t, size_t> at;  // by value
    for (size_t i : members) {      // first what comes from elsewhere
      for (ir::ValueId v : g.op(ops[i].op).operands) {
        if (g.is_constant(v) || at.count(v.value) || is_member(g, ops, members, v)) continue;
        at[v.value] = nodes.size();
        DrawnNode n;
        n.label = last_words(g.value(v).name);
        n.detail = short_type(g, v);
        n.tooltip = (g.def(v) ? "from outside: " : "input ") +
                    html::shortened(g.value(v).name, kLongestName);
        n.kind = "k-none";
        n.outside = true;
        nodes.push_back(std::move(n));
      }
    }
    for (size_t i : members) {
      DrawnNode n = node(g, ops[i], i, after);
      for (ir::ValueId v : g.op(ops[i].op).operands) {
        if (const auto it = at.find(v.value); it != at.end()) n.reads.push_back(it->second);
      }
      std::sort(n.reads.begin(), n.reads.end());
      n.reads.erase(std::unique(n.reads.begin(), n.reads.end()), n.reads.end());
      for (ir::ValueId v : g.op(ops[i].op).results) at[v.value] = nodes.size();
      nodes.push_back(std::move(n));
    }
    std::vector<size_t> outputs;
    for (const auto& [value, index] : at) {
      const auto it = outputs_.find({&g, value});
      if (it != outputs_.end() && !nodes[index].outside)
        outputs.insert(outputs.end(), it->second.begin(), it->second.end());
    }
    std::sort(outputs.begin(), outputs.end());
    for (size_t i : outputs) {
      const ir::Graph::Output& o = g.outputs[i];
      const auto it = at.find(o.value.value);
      DrawnNode n;
      n.label = o.name;
      n.detail = "output";
      n.tooltip = "output " + html::shortened(o.name, kLongestName);
      n.kind = "k-none";
      n.outside = true;
      n.reads = {it->second};
      nodes.push_back(std::move(n));
    }
    return draw_graph(nodes, after ? "the compiled graph" : "the imported graph");
  }

  static bool is_member(const ir::Graph& g, const std::vector<StoryOp>& ops,
                        const std::vector<size_t>& members, ir::ValueId v) {
    const ir::OpId def = g.value(v).def;
    // Members are in the order of the graph, but ids need not ascend with it.
    return def.valid() &&
           std::any_of(members.begin(), members.end(), [&](size_t i) { return ops[i].op == def; });
  }

  // "/encoder/layer.0/output/LayerNorm/Add_output_0" is "LayerNorm/Add_output_0" in a drawing.
  static std::string last_words(const std::string& name) {
    const size_t last = name.rfind('/');
    const size_t before =
        last == std::string::npos || last == 0 ? std::string::npos : name.rfind('/', last - 1);
    return before == std::string::npos ? name : name.substr(before + 1);
  }

  std::string table(const StoryPart& p) const {
    if (p.after.empty()) return "";
    std::string s =
        "<div class=scroll><table class=ops><tr><th>op<th>type<th>stands for<th>made by<th>runs as</tr>\n";
    for (size_t i : p.after) {
      const StoryOp& op = s_.after[i];
      s += fmt::format(
          "<tr class=op id=\"{}\"><td class={}><span class=no>{}</span><b>{}</b><br><span class=soft>{}</span><td>{}<td>{}<td>{}<td>{}</tr>\n",
          escaped(id(i)), op_class(op.label), badge_[i], escaped(op.label),
          html::code(html::shortened(op.name, kLongestName)),
          html::code(type(s_.final, s_.final.result(op.op))), sources(op), passes(op), launch(op));
    }
    return s + "</table></div>\n";
  }

  std::string sources(const StoryOp& op) const {
    std::vector<std::pair<std::string_view, size_t>> counts;  // in the order of the nodes
    std::map<std::string_view, size_t> place;
    for (size_t n : op.nodes) {
      const auto [it, added] = place.emplace(s_.nodes[n].op, counts.size());
      if (added) counts.push_back({s_.nodes[n].op, 0});
      ++counts[it->second].second;
    }
    if (counts.empty())
      return op.passes.empty() ? ""
                               : "<span class=soft>added by " + escaped(op.passes[0]) + "</span>";
    std::string s = "<details><summary>";
    for (const auto& [name, n] : counts)
      s += "<span class=chip>" + escaped(html::shortened(name, kLongestName)) +
           (n > 1 ? fmt::format(" &times;{}", n) : "") + "</span>";
    s += "</summary><ul class=names>\n";
    for (size_t n : op.nodes)
      s += "<li class=from>" + html::code(html::shortened(s_.nodes[n].name, kLongestName)) + "\n";
    return s + "</ul></details>";
  }

  static std::string passes(const StoryOp& op) {
    std::string s;
    for (const std::string& p : op.passes)
      s += "<span class=\"chip pass\">" + escaped(p) + "</span>";
    return s.empty() ? "<span class=soft>as imported</span>" : s;
  }

  std::string launch(const StoryOp& op) const {
    if (!op.launch) return "<span class=soft>no launch: read in place</span>";
    const runtime::Launch& l = bucket_.launches[*op.launch];
    const std::string_view what =
        l.kernel ? std::string_view(plan_.kernels[l.kernel->kernel].name) : "product";
    return fmt::format("<a href=\"#launch-{}-{}\">{}</a>", escaped(plan_.name), *op.launch,
                       html::code(html::shortened(what, kLongestName)));
  }

  // Nodes that left no op at all, by operator.
  std::string vanished() const {
    std::map<std::string, size_t> counts;
    size_t n = 0;
    for (const Story::Node& node : s_.nodes) {
      if (node.ops > 0) continue;
      ++counts[node.op];
      ++n;
    }
    if (n == 0) return "";
    std::string s = fmt::format(
        "<details class=card><summary>{} nodes left no op <span class=soft>arithmetic of sizes and constants, done when the model was read</span></summary><p>\n",
        n);
    for (const auto& [op, k] : counts)
      s += fmt::format("<span class=chip>{} &times;{}</span>",
                       escaped(html::shortened(op, kLongestName)), k);
    s += "</p><ul class=names>\n";
    for (const Story::Node& node : s_.nodes) {
      if (node.ops == 0)
        s += "<li class=vanished>" + html::code(html::shortened(node.name, kLongestName)) + "\n";
    }
    return s + "</ul></details>\n";
  }

  const runtime::Plan& plan_;
  const Story& s_;
  const runtime::Bucket& bucket_;
  const ShortNames short_;
  std::vector<size_t> badge_;  // by final op
  std::vector<size_t> alike_;  // by part: later ones that look like it
  std::map<std::pair<const ir::Graph*, uint32_t>, std::vector<size_t>> outputs_;  // by value
  mutable std::map<std::pair<const ir::Graph*, uint32_t>, std::string> types_;
};

}  // namespace

std::string graph_section(const InspectedFile& file, const runtime::Plan& plan,
                          const Story& story) {
  return Section(file, plan, story).write();
}

}  // namespace tfcc::tools
