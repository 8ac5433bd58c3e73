// SPDX-License-Identifier: Apache-2.0
// The page's frame: what the model is, what the passes did, one section per plan, what the file
// consists of.
#include "tools/tfcc/inspect_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tools/support/fold.h"
#include "tools/tfcc/html.h"

namespace tfcc::tools {
namespace {

using html::escaped;
using nlohmann::json;

constexpr size_t kLongestName = 160;
constexpr const char* kStripped =
    "<p class=note>This file holds no texts: it was compiled with <code>--strip</code>. The graphs, what fused into what and the kernels' sources are not in it; compile "
    "without <code>--strip</code> to see them here.</p>\n";

std::string tile(const std::string& value, const std::string& what) {
  return "<div class=tile><b>" + value + "</b><span>" + what + "</span></div>\n";
}
std::string arrow(const std::string& by) {
  return "<div class=arrow><b>&rarr;</b>" + by + "</div>\n";
}

std::string plural(size_t n, const std::string& what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : what.ends_with("ch") ? "es" : "s");
}

// Fields of the report, which is text in the file and may hold anything.
size_t number(const json& j, const char* key) {
  return j.is_object() && j.contains(key) && j[key].is_number_unsigned() ? j[key].get<size_t>() : 0;
}
size_t number(const json& j, const char* a, const char* b) {
  return j.is_object() && j.contains(a) ? number(j[a], b) : 0;
}
std::string text(const json& j, const char* key) {
  return j.is_object() && j.contains(key) && j[key].is_string() ? j[key].get<std::string>() : "";
}

class Page {
 public:
  Page(const InspectedFile& file)
      : f_(file), m_(file.manifest), report_(shallow_json(file.manifest.report)) {}

  Result<std::string> write() {
    out_ = navigation() + "<main>\n" + summary() + interface() + passes();
    for (const runtime::Plan& p : m_.plans) {
      TFCC_TRY(const std::string section, plan(p));
      out_ += section;
    }
    out_ += contents() + "</main>\n";
    return html::page(m_.model + " - tfcc inspect", out_, html::inspect_script());
  }

 private:
  std::string navigation() const {
    std::string s =
        "<nav><div><b>tfcc inspect</b><a href=\"#summary\">Summary</a><a href=\"#passes\">Passes</a>";
    const std::string first = m_.plans.empty() ? "" : m_.plans[0].name;
    for (const char* part : {"graph", "kernels", "launches", "memory"}) {
      s += fmt::format("<a data-part={0} href=\"#{0}-{1}\">{2}{3}</a>", part, escaped(first),
                       static_cast<char>(part[0] - 'a' + 'A'), part + 1);
    }
    s += "<a href=\"#file\">File</a><span class=fill></span>";
    for (const runtime::Plan& p : m_.plans) {
      if (m_.plans.size() > 1)
        s += fmt::format("<button hidden data-plan=\"{0}\">{0}</button>", escaped(p.name));
    }
    return s +
           "<button hidden id=fold>Unfold all</button><button hidden id=theme title=\"light or dark\">&#9681;</button></div></nav>\n";
  }

  std::string summary() const {
    std::string s = fmt::format(
        "<h1 id=summary>{}</h1>\n<p class=soft>{} &middot; {} &middot; made by {} &middot; format {}.{}</p>\n",
        escaped(html::shortened(m_.model, kLongestName)),
        html::code(html::shortened(f_.path, kLongestName)),
        html::bytes(static_cast<int64_t>(f_.artifact.file.size())), escaped(m_.producer),
        runtime::kMajorVersion, f_.artifact.minor);
    s += funnel();
    s += "<div class=tiles>\n" + tile(html::bytes(static_cast<int64_t>(f_.weight_bytes())),
                                      plural(m_.weights.size(), "weight"));
    for (const runtime::Plan& p : m_.plans) {
      s += tile(html::bytes(f_.arena_bytes(p)),
                fmt::format("memory of a run on {}, {}", escaped(p.name), escaped(p.precision)));
      if (const auto layers = f_.layers(p, shown_bucket(f_, p))) {
        s += tile(fmt::format("{} &times; {}", layers->count, layers->launches),
                  "layers &times; launches on " + escaped(p.name));
      }
    }
    return s + "</div>\n<p class=soft>Sizes, FLOP and bytes are given at " +
           escaped(sizes_text(f_)) + "; <code>--shapes</code> chooses others.</p>\n";
  }

  std::string funnel() const {
    const size_t nodes = number(report_, "import", "nodes"), ops = number(report_, "import", "ops"),
                 gone = number(report_, "import", "shape_nodes");
    std::string s = "<div class=funnel>\n";
    size_t left = ops, rewrites = 0;
    if (report_.is_object() && report_.contains("passes") && report_["passes"].is_array()) {
      for (const json& p : report_["passes"]) {
        rewrites += number(p, "rewrites");
        left = number(p, "ops");
      }
    }
    if (nodes > 0)
      s += tile(std::to_string(nodes), "ONNX nodes") +
           arrow(fmt::format("import; {} were arithmetic of sizes", gone));
    if (ops > 0)
      s += tile(std::to_string(ops), "ops") + arrow(plural(rewrites, "rewrite")) +
           tile(std::to_string(left), "ops after all passes") + arrow("codegen");
    for (const runtime::Plan& p : m_.plans) {
      s += tile(
          std::to_string(shown_bucket(f_, p).launches.size()),
          fmt::format("launches on {}, {}", escaped(p.name), plural(p.kernels.size(), "kernel")));
    }
    return s + "</div>\n";
  }

  static std::string tensors(const char* title, const std::vector<runtime::TensorType>& list,
                             const char* row) {
    std::string s = fmt::format("<div><h3>{}</h3>", title), rows;
    std::vector<std::pair<std::string, std::string>> items;
    for (const runtime::TensorType& t : list) {
      items.emplace_back(t.name, std::string(to_string(t.dtype)) + dims_text(t.dims));
      rows += fmt::format("<tr class={}><td>{}<td>{}</tr>\n", row,
                          html::code(html::shortened(t.name, kLongestName)),
                          html::code(items.back().second));
    }
    constexpr size_t kManyTensors = 8;
    if (list.size() <= kManyTensors) return s + "<table>\n" + rows + "</table></div>\n";
    s += "<table>\n";  // of a cache that has tensors of every layer a line
    for (const Folded& f : fold(items))
      s += fmt::format("<tr><td>{}<td>{}</tr>\n", html::code(html::shortened(f.name, kLongestName)),
                       html::code(items[f.first].second));
    return s +
           fmt::format(
               "</table><details><summary>all {}</summary><table>\n{}</table></details></div>\n",
               list.size(), rows);
  }

  std::string interface() const {
    std::string s = "<div class=card><div class=columns>\n" +
                    tensors("Inputs", m_.inputs, "input") +
                    tensors("Outputs", m_.outputs, "output");
    s += "<div><h3>Sizes</h3><table>\n";
    for (size_t i = 0; i < m_.symbols.size(); ++i) {
      const runtime::Symbol& symbol = m_.symbols[i];
      std::string what =
          symbol.derived()
              ? (symbol.made ? "made by the run, at most " : "= ") + symbol.value.print()
              : fmt::format("axis {} of {}{}", symbol.axis, m_.inputs[symbol.input].name,
                            symbol.times() > 1 ? fmt::format(" / {}", symbol.times()) : "");
      const std::string range = symbol.max ? fmt::format("{} to {}", symbol.min, symbol.max)
                                           : fmt::format("{} or more", symbol.min);
      for (const std::string* from : {&symbol.min_from, &symbol.max_from})
        what += from->empty() ? "" : " (" + *from + ")";
      s += fmt::format("<tr class=symbol><td>{}<td>{}<td>{}</tr>\n",
                       html::code(html::shortened(symbol.name, kLongestName)),
                       symbol.derived() ? "" : range, escaped(html::shortened(what, kLongestName)));
    }
    s += "</table></div>\n<div><h3>Targets</h3><table>\n";
    for (const runtime::Target& t : m_.targets) {
      s += fmt::format("<tr class=target><td>{}<td>{} plan<td class=r>{} of code</tr>\n",
                       html::code(t.name), escaped(m_.plans[t.plan].name),
                       html::bytes(static_cast<int64_t>(f_.code_bytes(t))));
    }
    s += "</table></div></div>\n";
    if (!m_.checks.empty() || !m_.flags.empty()) s += "<h3>Tested on every run</h3><ul>\n";
    for (const runtime::Check& c : m_.checks)
      s += "<li class=check>" + escaped(html::shortened(c.message, 400)) + "\n";
    for (const runtime::Flag& c : m_.flags)
      s += "<li class=flag>" + escaped(html::shortened(c.message, 400)) + "\n";
    if (!m_.checks.empty() || !m_.flags.empty()) s += "</ul>\n";
    return s + "</div>\n";
  }

  static std::string misses(const json& pass) {
    if (!pass.is_object() || !pass.contains("misses") || !pass["misses"].is_array() ||
        pass["misses"].empty())
      return "";
    std::string s =
        fmt::format("<details><summary>{} left alone</summary><ul>\n", pass["misses"].size());
    for (const json& m : pass["misses"]) {
      s += fmt::format("<li class=miss>{}: {}\n",
                       html::code(html::shortened(text(m, "node"), kLongestName)),
                       escaped(html::shortened(text(m, "reason"), 400)));
    }
    return s + "</ul></details>";
  }

  std::string passes() const {
    std::string s =
        "<h2 id=passes>Passes</h2>\n<p class=soft>In the order in which they ran. A miss is something that a pass looked at and left alone, with the reason; it costs speed, never the result.</p>\n";
    if (!report_.is_object() || !report_.contains("passes") || !report_["passes"].is_array())
      return s + "<p class=note>The file holds no report of its passes.</p>\n";
    const size_t all = std::max<size_t>(number(report_, "import", "ops"), 1);
    s +=
        "<div class=\"card scroll\"><table class=passes><tr><th>pass<th class=r>rewrites<th class=r>ops after<th><th>misses</tr>\n";
    for (const json& p : report_["passes"]) {
      const size_t rewrites = number(p, "rewrites"), ops = number(p, "ops");
      s += fmt::format(
          "<tr class=\"pass-run{}\"><td>{}<td class=r>{}<td class=r>{}<td><span class=share style=\"width:{:.0f}px\"></span><td>{}</tr>\n",
          rewrites ? "" : " soft", escaped(text(p, "name")), rewrites, ops,
          200.0 * static_cast<double>(std::min(ops, all)) / static_cast<double>(all), misses(p));
    }
    return s + "</table></div>\n";
  }

  Result<std::string> plan(const runtime::Plan& p) const {
    const std::string family = escaped(p.name);
    std::string s = fmt::format(
        "<section class=plan data-family=\"{0}\">\n<h2 id=\"graph-{0}\">Graph: before and after <span class=soft>({0})</span></h2>\n",
        family);
    Result<Story> story = Story::read(f_, p);
    if (story) s += graph_section(f_, p, *story);
    else if (story.error().code != ErrorCode::invalid_argument) return story.error();
    else if (std::none_of(m_.texts.begin(), m_.texts.end(),
                          [](const auto& t) { return t.name.starts_with("ir/"); }))
      s += kStripped;
    else
      s +=
          "<p class=note>This file does not say what became of the model's nodes: an older tfcc made it. <code>tfcc inspect --ir</code> prints its graph.</p>\n";
    TFCC_TRY(const std::string kernels, kernels_section(f_, p));
    return s + kernels + launches_section(f_, p) + memory_section(f_, p) + "</section>\n";
  }

  std::string contents() const {
    constexpr std::array kKinds = {"other", "weights", "code", "text"};
    constexpr std::array kColours = {"other", "matmul", "gelu", "norm"};
    const double all = std::max(1.0, static_cast<double>(f_.artifact.file.size()));
    std::string bar = "<div class=bar>", legend = "<p class=legend>";
    for (const runtime::Section& section : f_.artifact.sections) {
      const size_t kind = std::min<size_t>(static_cast<size_t>(section.kind), 3) % kKinds.size();
      bar += fmt::format("<span class=k-{} style=\"width:{:.3f}%\" title=\"{}: {}\"></span>",
                         kColours[kind], 100 * static_cast<double>(section.size) / all,
                         kKinds[kind], html::bytes(static_cast<int64_t>(section.size)));
      legend += fmt::format("<span class=\"section k-{}\"><i class=swatch></i>{} {}</span>",
                            kColours[kind], kKinds[kind],
                            html::bytes(static_cast<int64_t>(section.size)));
    }
    std::string s = "<h2 id=file>File</h2>\n<div class=card>" + bar + "</div>" + legend +
                    fmt::format("<span>manifest {}</span></p>\n",
                                html::bytes(static_cast<int64_t>(f_.artifact.manifest.size())));
    s += fmt::format(
        "<details><summary>{}</summary><table><tr><th>name<th>type<th class=r>bytes</tr>\n",
        plural(m_.weights.size(), "weight"));
    std::vector<const runtime::Weight*> weights;
    for (const runtime::Weight& w : m_.weights) weights.push_back(&w);
    std::stable_sort(weights.begin(), weights.end(),
                     [](auto* a, auto* b) { return a->size > b->size; });
    for (const runtime::Weight* w : weights) {
      s += fmt::format(
          "<tr class=weight><td>{}<td>{}<td class=r>{}</tr>\n",
          html::code(html::shortened(w->name, kLongestName)),
          html::code(fmt::format("{}[{}]", to_string(w->dtype), fmt::join(w->shape, ","))),
          html::bytes(static_cast<int64_t>(w->size)));
    }
    s += fmt::format("</table></details>\n<details><summary>{}</summary><ul>\n",
                     plural(m_.texts.size(), "text"));
    for (const runtime::Text& t : m_.texts) {
      s += fmt::format("<li class=text>{} {}\n", html::code(html::shortened(t.name, kLongestName)),
                       html::bytes(static_cast<int64_t>(t.size)));
    }
    return s + "</ul></details></div>\n";
  }

  const InspectedFile& f_;
  const runtime::Manifest& m_;
  const json report_;
  std::string out_;
};

}  // namespace

std::string op_class(std::string_view op) {
  if (op == "reduce" || op == "cumsum") return "k-reduce";
  for (const char* own : {"attention", "matmul", "norm", "pointwise", "softmax", "rope"}) {
    if (op == own) return fmt::format("k-{}", own);
  }
  return "k-other";
}

std::string launch_class(const runtime::Launch& launch) {
  return op_class(launch.ops.empty() ? "" : launch.ops[0]);
}

std::string sizes_text(const InspectedFile& file) {
  std::string s;
  for (size_t i = 0; i < file.sizes.size(); ++i) {
    s += fmt::format("{}{} = {}", s.empty() ? "" : ", ",
                     html::shortened(file.manifest.symbols[i].name, kLongestName), file.sizes[i]);
  }
  return s.empty() ? "its fixed sizes" : s;
}

Result<std::string> inspect_page(const InspectedFile& file) { return Page(file).write(); }

}  // namespace tfcc::tools
