// SPDX-License-Identifier: Apache-2.0
// The roofline page of `tfcc bench --html`: intensity against rate, both logarithmic, under the
// limits measured.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/tfcc/bench_profile.h"
#include "tools/tfcc/html.h"

namespace tfcc::tools {
namespace {

constexpr double kWidth = 960, kHeight = 540, kLeft = 70, kRight = 20, kTop = 20, kBottom = 50;
using html::escaped;

/// Logarithmic axes over whole decades.
struct Axes {
  double x0 = 0, x1 = 1, y0 = 0, y1 = 1;  // exponents

  double x(double v) const {
    return kLeft + (std::log10(v) - x0) / (x1 - x0) * (kWidth - kLeft - kRight);
  }
  double y(double v) const {
    return kHeight - kBottom - (std::log10(v) - y0) / (y1 - y0) * (kHeight - kTop - kBottom);
  }
};

// Copies and views have no FLOP: they stand at a thousandth of the intensity of a sum.
double intensity(const ProfileRow& r) {
  return std::max(static_cast<double>(r.flops), 1e-3 * static_cast<double>(r.bytes)) /
         std::max<double>(1, static_cast<double>(r.bytes));
}
double height(const ProfileRow& r) { return intensity(r) * r.bytes_per_s; }
bool drawn(const ProfileRow& r) { return r.ms > 0 && r.bytes > 0; }

Axes axes_for(const ProfileReport& report) {
  double low_x = 0.1, high_x = 1000, low_y = 1e9, high_y = 1e10;
  for (const ProfileRow& r : report.groups) {
    if (!drawn(r)) continue;
    low_x = std::min(low_x, intensity(r));
    high_x = std::max(high_x, intensity(r));
    low_y = std::min(low_y, height(r));
    high_y = std::max(high_y, height(r));
  }
  for (auto [type, rate] : report.limits.flops_per_s) high_y = std::max(high_y, rate);
  return {std::floor(std::log10(low_x)), std::ceil(std::log10(high_x)),
          std::floor(std::log10(low_y)), std::ceil(std::log10(high_y) + 0.05)};
}

std::string grid(const Axes& a) {
  std::string out;
  for (double e = a.x0; e <= a.x1; ++e) {
    const double v = std::pow(10, e), x = a.x(v);
    out += fmt::format(
        "<line class=grid x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/><text x=\"{0:.1f}\" y=\"{3}\" "
        "text-anchor=\"middle\">{4:g}</text>\n",
        x, kTop, kHeight - kBottom, kHeight - kBottom + 16, v);
  }
  for (double e = a.y0; e <= a.y1; ++e) {
    const double v = std::pow(10, e), y = a.y(v);
    out += fmt::format(
        "<line class=grid x1=\"{1}\" x2=\"{2}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\"/><text x=\"{3}\" y=\"{4:.1f}\" "
        "text-anchor=\"end\">{5}</text>\n",
        y, kLeft, kWidth - kRight, kLeft - 6, y + 4, with_prefix(v));
  }
  out += fmt::format(
      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">FLOP per byte</text><text x=\"{}\" y=\"{}\">FLOP/s</text>\n",
      (kLeft + kWidth) / 2, kHeight - 12, kLeft + 8, kTop + 14);
  return out;
}

// The slope of the copy up to the ridge, then the flat of the products.
std::string roof(const Axes& a, DType type, double flops, double bytes) {
  if (flops <= 0 || bytes <= 0) return "";
  const double right = std::pow(10, a.x1),
               left = std::min(right, std::max(std::pow(10, a.x0), std::pow(10, a.y0) / bytes));
  const double ridge = std::clamp(flops / bytes, left, right);
  return fmt::format(
      "<polyline class=mark points=\"{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}\"/>"
      "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{} products {}FLOP/s, copies {}B/s</text>\n",
      a.x(left), a.y(left * bytes), a.x(ridge), a.y(std::min(flops, ridge * bytes)), a.x(right),
      a.y(flops), kWidth - kRight, a.y(flops) - 6, to_string(type), with_prefix(flops),
      with_prefix(bytes));
}

/// A colour per kind of launch, in order of time.
class Colours {
 public:
  const char* of(const ProfileRow& r) {
    constexpr std::array kColours = {"#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b",
                                     "#e377c2", "#17becf", "#bcbd22", "#7f7f7f"};
    const std::string kind = r.kernel.empty() ? "product" : r.op;
    const size_t at =
        static_cast<size_t>(std::find(kinds_.begin(), kinds_.end(), kind) - kinds_.begin());
    const char* colour = kColours[std::min(at, kColours.size() - 1)];
    if (at == kinds_.size()) {
      const double y = kTop + 34 + 16 * static_cast<double>(at);
      kinds_.push_back(kind);
      legend_ += fmt::format(
          "<circle cx=\"{}\" cy=\"{}\" r=\"5\" fill=\"{}\"/><text x=\"{}\" y=\"{}\">{}</text>\n",
          kLeft + 14, y - 4, colour, kLeft + 24, y, escaped(kind));
    }
    return colour;
  }
  const std::string& legend() const { return legend_; }

 private:
  std::vector<std::string> kinds_;
  std::string legend_;
};

// The area of a point is its share of the time.
std::string point(const Axes& a, const ProfileRow& r, const char* colour) {
  return fmt::format(
      "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"{}\" fill-opacity=\"0.65\" stroke=\"#333\"><title>{} "
      "({}x)&#10;{}&#10;{:.4f} ms, {:.1f}%&#10;{}FLOP/s, {}B/s</title></circle>\n",
      a.x(intensity(r)), a.y(height(r)), 3 + 22 * std::sqrt(r.share), colour,
      escaped(what_it_is(r)), r.count, escaped(r.name), r.ms, r.share * 100,
      with_prefix(r.flops_per_s), with_prefix(r.bytes_per_s));
}

std::string table(const ProfileReport& report) {
  std::string out =
      "<table><tr><th class=r>ms</th><th class=r>share</th><th class=r>count</th><th class=r>FLOP/s</th><th class=r>B/s</th><th class=r>of limit</th><th>launch</th></tr>\n";
  for (const ProfileRow& r : report.groups) {
    out += fmt::format(
        "<tr><td class=r>{:.4f}</td><td class=r>{:.1f}%</td><td class=r>{}</td><td class=r>{}</td><td class=r>{}</td><td class=r>{}</td><td>{} {}</td></tr>\n",
        r.ms, r.share * 100, r.count, with_prefix(r.flops_per_s), with_prefix(r.bytes_per_s),
        r.of_limit > 0
            ? fmt::format("{:.0f}% {}", r.of_limit * 100, r.by_compute ? "compute" : "memory")
            : "-",
        escaped(what_it_is(r)), escaped(r.name));
  }
  return out + "</table>\n";
}

}  // namespace

std::string roofline_page(const ProfileReport& report, const std::string& title) {
  const Axes axes = axes_for(report);
  Colours colours;
  std::string out = fmt::format(
      "<main><h1>Roofline</h1><p>{}</p><p>{} launches, {:.4f} ms one by one. A point is a kind of launch, its area the share of the time; point "
      "at it for its name. Above the slope: operands came from a cache.</p>\n<svg viewBox=\"0 0 {} {}\" xmlns=\"http://www.w3.org/2000/svg\">\n",
      escaped(title), report.launches.size(), report.total_ms, kWidth, kHeight);
  out += grid(axes);
  for (auto [type, rate] : report.limits.flops_per_s)
    out += roof(axes, type, rate, report.limits.bytes_per_s);
  for (const ProfileRow& r : report.groups) {
    if (drawn(r)) out += point(axes, r, colours.of(r));
  }
  out += colours.legend() + "</svg>\n" + table(report) + "</main>\n";
  return html::page("tfcc bench", out);
}

}  // namespace tfcc::tools
