// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/verify_compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "ir/constant.h"

namespace tfcc::tools {
namespace {

constexpr double kMask = 1e30;

double value(const ir::HostTensor& t, int64_t i) {
  const auto at = static_cast<size_t>(i);
  return is_float(t.dtype) ? t.reals[at] : static_cast<double>(t.ints[at]);
}

// What a value becomes where it is stored.
double rounded(DType type, double v) {
  std::byte bytes[8];
  ir::write_real(type, bytes, 0, v);
  return ir::read_real(type, bytes, 0);
}

bool equal(const ir::HostTensor& got, double g, double w) {
  if (g == w || (std::isnan(g) && std::isnan(w))) return true;
  return std::isinf(g) && std::isfinite(w) && is_float(got.dtype) && rounded(got.dtype, w) == g;
}

}  // namespace

Difference compare(const ir::HostTensor& got, const ir::HostTensor& want, const Defined& defined) {
  Difference d;
  if (got.dims != want.dims) {
    d.problem = fmt::format("shape [{}], expected [{}]", fmt::join(got.dims, ","),
                            fmt::join(want.dims, ","));
    d.relative = INFINITY;
    return d;
  }
  double error = 0, norm = 0;
  for (int64_t i = 0; i < want.element_count(); ++i) {
    if (!defined.at(want.dims, i)) continue;
    const double w = value(want, i), g = value(got, i);
    const bool mask = std::abs(w) >= kMask;
    if (equal(got, g, w)) {
      norm += mask || !std::isfinite(w) ? 0 : w * w;
      continue;
    }
    if (!std::isfinite(g - w)) {
      if (d.problem.empty()) d.problem = fmt::format("{} at element {}, expected {}", g, i, w);
      continue;
    }
    const double apart = mask ? (g - w) / w : g - w;
    d.max_abs = std::max(d.max_abs, std::abs(apart));
    error += apart * apart;
    norm += mask ? 1 : w * w;
  }
  d.relative = !d.problem.empty() ? INFINITY
               : error == 0       ? 0
               : norm > 0         ? std::sqrt(error / norm)
                                  : std::sqrt(error);
  return d;
}

std::string to_string(const Difference& d) {
  return d.problem.empty()
             ? fmt::format("max abs error {:.1e}, relative L2 {:.1e}", d.max_abs, d.relative)
             : d.problem;
}

}  // namespace tfcc::tools
