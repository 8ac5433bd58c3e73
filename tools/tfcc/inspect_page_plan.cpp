// SPDX-License-Identifier: Apache-2.0
// A plan on the page: kernels with their source, launches of each bucket, and the arena over time.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "codegen/templates.h"
#include "runtime/core/binding.h"
#include "tools/tfcc/html.h"
#include "tools/tfcc/inspect_page.h"

namespace tfcc::tools {
namespace {

using html::escaped;
using runtime::Bucket;
using runtime::Launch;
using runtime::Plan;

constexpr size_t kLongestName = 120;

std::string_view what_runs(const Plan& p, const Launch& l) {
  return l.kernel ? std::string_view(p.kernels[l.kernel->kernel].name) : "product";
}
std::string ops_of(const Launch& l) { return fmt::format("{}", fmt::join(l.ops, " + ")); }

double flops_of(const InspectedFile& f, const Launch& l) {
  return static_cast<double>(std::max<int64_t>(f.at(l.flops).value_or(0), 0));
}

double all_flops(const InspectedFile& f, const Bucket& b) {
  double sum = 0;
  for (const Launch& l : b.launches) sum += flops_of(f, l);
  return std::max(sum, 1.0);
}

std::string share(double part, double width) {
  return fmt::format("<span class=share style=\"width:{:.1f}px\"></span> {:.1f}%",
                     std::min(part * width, 90.0), part * 100);
}

std::string conditions(const std::vector<runtime::Check>& list) {
  std::string s;
  for (const runtime::Check& c : list) s += (s.empty() ? "" : "; ") + c.message;
  return html::shortened(s, 400);
}

std::string product_text(const InspectedFile& f, const runtime::MatmulLaunch& g) {
  std::array<std::string, 4> v;
  const std::array<const runtime::SizeExpr*, 4> sizes = {&g.m, &g.n, &g.k, &g.batch};
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto n = f.at(*sizes[i]);
    v[i] = n ? std::to_string(*n) : "?";
  }
  return fmt::format("{}{} &times; {} &times; {}{}", v[3] == "1" ? "" : v[3] + " of ", v[0], v[1],
                     v[2], g.has_bias ? ", bias" : "");
}

std::string launch_row(const InspectedFile& f, const Plan& p, const Bucket& b, size_t t,
                       bool anchored, double all) {
  const Launch& l = b.launches[t];
  std::string what =
      "<span class=soft>library product</span> " + (l.matmul ? product_text(f, *l.matmul) : "");
  if (l.kernel)
    what = fmt::format("<a href=\"#kernel-{}-{}\">{}</a>", escaped(p.name), l.kernel->kernel,
                       html::code(html::shortened(what_runs(p, l), kLongestName)));
  const std::string id = anchored ? fmt::format(" id=\"launch-{}-{}\"", escaped(p.name), t) : "";
  return fmt::format(
      "<tr class=launch{}><td class=\"r soft\">{}<td class={}><i class=swatch></i>{}<br><span class=soft>{}</span><td>{}<td class=r title=\"{}\">{}<td class=r title=\"{}\">{}<td>{}</tr>\n",
      id, t, launch_class(l), escaped(ops_of(l)), html::code(html::shortened(l.name, kLongestName)),
      what, escaped(html::shortened(l.flops.print(), 300)), html::count(f.at(l.flops)),
      escaped(html::shortened(l.bytes.print(), 300)), html::bytes(f.at(l.bytes)),
      share(flops_of(f, l) / all, 600));
}

std::string launch_tables(const InspectedFile& f, const Plan& p, const Bucket& b, bool anchored) {
  const LaunchParts parts = launch_parts(f, p, b);
  const double all = all_flops(f, b);
  std::map<std::string, std::string> seen;  // what runs in a part, and the first part that ran it
  std::string s;
  for (size_t part = 0, t = 0; part < parts.titles.size(); ++part) {
    std::string rows, look;
    size_t n = 0;
    for (; t < b.launches.size() && parts.part_of_launch[t] == part;
         ++t, ++n) {  // the launches of a part follow each other
      rows += launch_row(f, p, b, t, anchored, all);
      look += std::string(what_runs(p, b.launches[t])) + ops_of(b.launches[t]) +
              b.launches[t].flops.print() + "\n";
    }
    const auto [it, first] = seen.emplace(look, parts.titles[part]);
    const std::string note =
        first ? "" : ", like " + escaped(html::shortened(it->second, kLongestName));
    s += fmt::format(
        "<details{}><summary>{} <span class=soft>{} {}{}</span></summary><div class=scroll><table class=launches><tr><th class=r>#<th>op<th>kernel<th class=r>FLOP<th class=r>least bytes<th>of all FLOP</tr>\n{}</table></div></details>\n",
        first ? " open" : "", escaped(html::shortened(parts.titles[part], kLongestName)), n,
        n == 1 ? "launch" : "launches", note, rows);
  }
  return s;
}

// Adds the templates that a source includes, and those that these include.
void add_included(std::string_view source, std::set<std::string_view>& found) {
  constexpr std::string_view kInclude = "#include \"";
  for (size_t at = 0; (at = source.find(kInclude, at)) != std::string_view::npos;) {
    at += kInclude.size();
    const std::string_view path = source.substr(at, source.find('"', at) - at);
    for (const codegen::TemplateFile& file : codegen::template_files()) {
      if (file.path == path && found.insert(file.path).second) add_included(file.text, found);
    }
  }
}

// The file does not hold the templates; the command that made it does.
std::string templates(const InspectedFile& f, const std::set<std::string_view>& included) {
  if (included.empty()) return "";
  if (f.manifest.producer != "tfcc " TFCC_VERSION)
    return "<p class=soft>The templates that they include are those of " +
           escaped(f.manifest.producer) + ".</p>\n";
  std::string s = fmt::format(
      "<details class=card><summary>{} templates <span class=soft>that the kernels include, as this tfcc has them</span></summary>\n",
      included.size());
  for (const codegen::TemplateFile& file : codegen::template_files()) {
    if (!included.count(file.path)) continue;
    s += "<details class=template><summary>" + html::code(file.path) + "</summary><pre>" +
         html::highlighted(file.text) + "</pre></details>\n";
  }
  return s + "</details>\n";
}

// What a bucket launches in place of the one that is shown, launch by launch.
std::string difference(const Plan& p, const Bucket& b, const Bucket& shown) {
  const auto kernel = [](const Launch& l) {
    return l.kernel ? int64_t{l.kernel->kernel} : -1;
  };  // names of kernels differ
  std::map<std::string_view, size_t> other;
  for (size_t t = 0; t < b.launches.size(); ++t) {
    if (t >= shown.launches.size() || kernel(b.launches[t]) != kernel(shown.launches[t]))
      ++other[what_runs(p, b.launches[t])];
  }
  std::string s;
  for (const auto& [name, n] : other)
    s += fmt::format("{}{} &times; {}", s.empty() ? "" : ", ", n,
                     html::code(html::shortened(name, kLongestName)));
  return s.empty() ? "the same kernels" : s;
}

}  // namespace

Result<std::string> kernels_section(const InspectedFile& f, const Plan& p) {
  const Bucket& b = shown_bucket(f, p);
  const double all = all_flops(f, b);
  std::map<size_t, std::pair<size_t, double>> use;  // launches and FLOP of each kernel
  for (const Launch& l : b.launches) {
    if (!l.kernel) continue;
    ++use[l.kernel->kernel].first;
    use[l.kernel->kernel].second += flops_of(f, l);
  }
  std::string s = fmt::format(
      "<h2 id=\"kernels-{0}\">Kernels <span class=soft>({0})</span></h2>\n<p class=soft>Compiled into the file; each is a template with the facts of its launches and functors made from the graph.</p>\n",
      escaped(p.name));
  bool stripped = false;
  std::set<std::string_view> included;
  for (size_t k = 0; k < p.kernels.size(); ++k) {
    const runtime::Kernel& kernel = p.kernels[k];
    const auto [launches, flops] = use[k];
    std::string facts = fmt::format("{} {}", launches, launches == 1 ? "launch" : "launches");
    if (p.has_bind && p.bind == k) facts = "writes sizes and addresses before each run";
    if (launches > 0) facts += fmt::format(", {:.1f}% of all FLOP", 100 * flops / all);
    if (kernel.threads)
      facts += fmt::format(", {} threads, {} bytes of shared memory", kernel.threads,
                           kernel.shared_bytes);
    for (const runtime::Target& t : f.manifest.targets) {
      const bool own = &f.manifest.plans[t.plan] == &p && t.images.size() == p.kernels.size() &&
                       p.family == Family::cuda;
      if (own)
        facts +=
            fmt::format(", {} for {}", html::bytes(static_cast<int64_t>(t.images[k].size)), t.name);
    }
    s += fmt::format(
        "<details class=\"card kernel {}\" id=\"kernel-{}-{}\"><summary><i class=swatch></i>{} <span class=soft>{}: {}</span></summary>\n",
        op_class(kernel.op), escaped(p.name), k,
        html::code(html::shortened(kernel.name, kLongestName)), escaped(kernel.op), escaped(facts));
    const auto source = f.text("kernels/" + runtime::source_file(p, kernel.name));
    if (source)
      s += "<pre class=source>" + html::highlighted(*source) + "</pre>",
          add_included(*source, included);
    else if (source.error().code != ErrorCode::invalid_argument) return source.error();
    else stripped = true, s += "<p class=soft>Its source is not in the file.</p>";
    s += "</details>\n";
  }
  if (stripped) s += "<p class=note>Sources are left out of a file by <code>--strip</code>.</p>\n";
  return s + templates(f, included);
}

std::string launches_section(const InspectedFile& f, const Plan& p) {
  const Bucket& shown = shown_bucket(f, p);
  std::map<std::string, size_t> counts;
  for (const Launch& l : shown.launches) ++counts[ops_of(l)];
  std::string s = fmt::format(
      "<h2 id=\"launches-{0}\">Launches <span class=soft>({0})</span></h2>\n<p>", escaped(p.name));
  for (const auto& [ops, n] : counts)
    s += fmt::format("<span class=chip>{} &times; {}</span>", n, escaped(ops));
  s += "</p>\n";
  if (const auto layers = f.layers(p, shown))
    s += fmt::format("<p class=soft>{} layers of {} launches each.</p>\n", layers->count,
                     layers->launches);
  if (p.bucket_table) {
    for (size_t i = 0; i < p.bucket_table->sizes.size(); ++i) {
      s += fmt::format("<p class=soft>Graphs are captured for {} up to {}.</p>\n",
                       escaped(html::shortened(f.manifest.symbols[i].name, kLongestName)),
                       escaped(caps_text(p.bucket_table->sizes[i])));
    }
  } else if (!p.no_bucket_table.empty()) {
    s += fmt::format("<p class=soft>Launched one by one: {}.</p>\n",
                     escaped(html::shortened(p.no_bucket_table, kLongestName)));
  }
  if (p.buckets.size() > 1) {
    s +=
        "<div class=card><h3 style=\"margin-top:0\">Buckets</h3><p class=soft>The first whose limits hold runs.</p><table><tr><th>bucket<th>limits<th class=r>launches<th>beside the one below</tr>\n";
    for (const Bucket& b : p.buckets) {
      s +=
          fmt::format("<tr class=bucket><td>{}<td>{}<td class=r>{}<td>{}</tr>\n",
                      html::code(b.name), b.limits.empty() ? "none" : escaped(conditions(b.limits)),
                      b.launches.size(), &b == &shown ? "shown below" : difference(p, b, shown));
    }
    s += "</table></div>\n";
  }
  s += "<div class=card>" + launch_tables(f, p, shown, true) + "</div>\n";
  for (const Bucket& b : p.buckets) {
    if (&b != &shown)
      s += fmt::format(
          "<details class=card><summary>Bucket {} <span class=soft>{} launches</span></summary>{}</details>\n",
          html::code(b.name), b.launches.size(), launch_tables(f, p, b, false));
  }
  return s;
}

namespace {

constexpr double kLeft = 70, kRight = 14, kTop = 12, kBottom = 40, kChartWidth = 1160,
                 kChartHeight = 420;

constexpr int64_t kMostBytes = int64_t{1} << 61;  // sums of two stay in 64 bits

struct Block {
  const runtime::Buffer* buffer;
  int64_t offset, bytes;
};

/// Offset over launches. Slots lie above each other, as in the arena.
class MemoryChart {
 public:
  MemoryChart(const InspectedFile& f, const Plan& p)
      : f_(f), p_(p), b_(p.buckets.back()), parts_(launch_parts(f, p, b_)) {
    std::vector<int64_t> base;
    int64_t at = 0;
    for (const auto& slot : p.slots) {
      base.push_back(at);
      at += std::clamp<int64_t>(f.at(slot).value_or(0), 0, kMostBytes - at);
      at = std::min((at + 255) / 256 * 256, kMostBytes);
    }
    top_ = std::max<int64_t>(at, 1);
    for (const runtime::Buffer& b : p.buffers) {
      if (b.place != runtime::BufferClass::arena) continue;
      const auto offset = b.offset.code.empty() ? std::optional<int64_t>(0) : f.at(b.offset);
      const auto bytes = buffer_bytes(b);
      if (!offset || *offset < 0 || *offset > kMostBytes || !bytes || b.index >= base.size())
        continue;
      blocks_.push_back({&b, base[b.index] + *offset, *bytes});
    }
  }

  std::string svg() const {
    std::string s = fmt::format(
        "<svg class=memory viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" aria-label=\"memory over launches\">\n",
        kChartWidth, kChartHeight);
    s += axes();
    for (const Block& b : blocks_) s += rectangle(b);
    return s + "</svg>\n";
  }

  std::string table() const {
    std::string s = fmt::format(
        "<details><summary>{} buffers</summary><div class=scroll><table><tr><th>buffer<th>type<th class=r>bytes<th class=r>offset<th class=r>launches</tr>\n",
        blocks_.size());
    for (const Block& b : blocks_) {
      s += fmt::format(
          "<tr class=buffer><td>{}<td>{}<td class=r>{}<td class=r>{}<td class=r>{} to {}</tr>\n",
          html::code(html::shortened(b.buffer->name, kLongestName)), html::code(type(*b.buffer)),
          html::bytes(b.bytes), b.offset, b.buffer->first_use, b.buffer->last_use);
    }
    return s + "</table></div></details>\n";
  }

 private:
  std::optional<int64_t> buffer_bytes(const runtime::Buffer& b) const {
    std::vector<int64_t> dims;
    for (const auto& d : b.dims) {
      const auto v = f_.at(d);
      if (!v || *v < 0) return std::nullopt;
      dims.push_back(*v);
    }
    const auto n = runtime::checked_product(dims);
    int64_t bytes = 0;
    if (!n || __builtin_mul_overflow(*n, static_cast<int64_t>(size_of(b.dtype)), &bytes))
      return std::nullopt;
    return bytes;
  }
  static std::string type(const runtime::Buffer& b) {
    return html::shortened(std::string(to_string(b.dtype)) + dims_text(b.dims), 200);
  }

  double x(size_t launch) const {
    return kLeft + static_cast<double>(launch) /
                       static_cast<double>(std::max<size_t>(b_.launches.size(), 1)) *
                       (kChartWidth - kLeft - kRight);
  }
  double y(double bytes) const {
    return kChartHeight - kBottom -
           bytes / static_cast<double>(top_) * (kChartHeight - kTop - kBottom);
  }

  // Lines at round numbers of bytes, and where a layer begins.
  std::string axes() const {
    std::string s;
    const double most = static_cast<double>(top_);
    double step = std::pow(10, std::max(0.0, std::floor(std::log10(most / 5))));
    while (most / step > 7) step *= 2;
    for (double v = 0; v <= most; v += step) {
      s += fmt::format(
          "<line class=grid x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text class=axis x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
          kLeft, kChartWidth - kRight, y(v), y(v), kLeft - 6, y(v) + 4,
          v == 0 ? "0" : html::bytes(static_cast<int64_t>(v)));
    }
    double written = 0;
    for (size_t t = 0; t < parts_.part_of_launch.size(); ++t) {
      if (t > 0 && parts_.part_of_launch[t] == parts_.part_of_launch[t - 1]) continue;
      s += fmt::format("<line class=grid x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>\n",
                       x(t), kTop, kChartHeight - kBottom + 5);
      if (t > 0 && x(t) < written) continue;
      const std::string label =
          html::shortened(last_word(parts_.titles[parts_.part_of_launch[t]]), 18);
      if (x(t) + 7 * static_cast<double>(label.size()) > kChartWidth) continue;
      s += fmt::format("<text class=axis x=\"{:.1f}\" y=\"{}\">{}</text>\n", x(t) + 2,
                       kChartHeight - kBottom + 16, escaped(label));
      written = x(t) + 7 * static_cast<double>(label.size()) + 8;
    }
    return s +
           fmt::format(
               "<text class=axis x=\"{}\" y=\"{}\" text-anchor=\"middle\">{} launches in order</text>\n",
               (kLeft + kChartWidth) / 2, kChartHeight - 6, b_.launches.size());
  }

  static std::string last_word(const std::string& title) {
    const size_t at = title.rfind('/');
    if (title.ends_with(" the layers")) return title.substr(0, title.find(' '));
    return at == std::string::npos || at + 1 == title.size() ? title : title.substr(at + 1);
  }

  std::string rectangle(const Block& b) const {
    const double bottom = y(static_cast<double>(b.offset)),
                 top = y(static_cast<double>(b.offset) + static_cast<double>(b.bytes));
    const size_t first = b.buffer->first_use, last = b.buffer->last_use;
    const std::string kind =
        first < b_.launches.size() ? launch_class(b_.launches[first]) : "k-other";
    const std::string tip = fmt::format(
        "{}\n{}\n{} at {}\nlaunches {} to {}", html::shortened(b.buffer->name, kLongestName),
        type(*b.buffer), html::bytes(b.bytes), b.offset, first, last);
    return fmt::format(
        "<g class=\"buffer {}\"><title>{}</title><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"2\"/></g>\n",
        kind, escaped(tip), x(first), top, std::max(x(last + 1) - x(first), 1.0),
        std::max(bottom - top, 1.0));
  }

  const InspectedFile& f_;
  const Plan& p_;
  const Bucket& b_;
  const LaunchParts parts_;
  int64_t top_ = 1;
  std::vector<Block> blocks_;
};

}  // namespace

std::string memory_section(const InspectedFile& f, const Plan& p) {
  std::string s =
      fmt::format("<h2 id=\"memory-{0}\">Memory over time <span class=soft>({0})</span></h2>\n",
                  escaped(p.name));
  const auto ratio = f.arena_ratio(p);
  s += fmt::format(
      "<p class=soft>The arena at {}: {} held, {} live at once at most{}. A box is a buffer: from the launch that writes it to the last that reads it, at its place in the arena, in the colour of the op that writes it.</p>\n",
      escaped(sizes_text(f)), html::bytes(f.arena_bytes(p)), html::bytes(f.live_bytes(p)),
      ratio ? fmt::format(" (ratio {:.2f})", *ratio) : "");
  const auto squares = f.quadratic_buffers(p);
  if (!squares.empty())
    s += fmt::format(
        "<p class=note>{} of them grow with the square of a size: an attention that is not fused, or a mask that is kept.</p>\n",
        squares.size());
  const MemoryChart chart(f, p);
  return s + "<div class=card><div class=scroll>" + chart.svg() + "</div>" + chart.table() +
         "</div>\n";
}

}  // namespace tfcc::tools
