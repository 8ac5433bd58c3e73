// SPDX-License-Identifier: Apache-2.0
// RMSNormalization (ONNX 23 on) and SimplifiedLayerNormalization, its older name in ONNX Runtime's
// graphs.
#include <fmt/format.h>

#include "frontend/operators/norm.h"

namespace tfcc::frontend {
namespace {

// Does the scale have exactly the sizes of the normalised axes?
bool is_plain_scale(Importer& im, ValueId scale, const Dims& d, size_t axis) {
  const Dims& s = im.dims(scale);
  return s.size() == d.size() - axis &&
         std::equal(s.begin(), s.end(), d.begin() + static_cast<std::ptrdiff_t>(axis));
}

ValueId merged(Importer& im, ValueId x, size_t axis, const char* suffix) {
  const Dims d = im.dims(x);
  if (axis + 1 == d.size()) return x;
  Dims to(d.begin(), d.begin() + static_cast<std::ptrdiff_t>(axis));
  to.push_back(
      ir::element_count(im.pool(), Dims(d.begin() + static_cast<std::ptrdiff_t>(axis), d.end())));
  return reshape(im, x, to, suffix);
}

}  // namespace

Result<void> import_rms_normalization(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId scale, im.input(1));
  if (!is_float(im.type(x).dtype) || im.type(scale).dtype != im.type(x).dtype) {
    return im.fail(ErrorCode::unsupported, "X and scale must have one float type");
  }
  const Dims d = im.dims(x);
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", -1), d.size()));
  const float eps = im.attr_float("epsilon", 1e-5f);
  const ValueId rows = merged(im, x, axis, ".rows");
  const bool is_merged = axis + 1 != d.size();
  const bool plain = is_plain_scale(im, scale, d, axis) ||
                     (im.rank(scale) == 1 && !is_merged && !ir::is_int(im.dims(scale)[0], 1));
  if (wants_output(im, 1) || !plain) {
    const RowStatistics s = row_statistics(im, rows, eps, false);
    if (wants_output(im, 1)) {
      Dims kept = d;
      for (size_t k = axis; k < d.size(); ++k) kept[k] = im.integer(1);
      im.define(
          1, is_merged ? reshape(im, s.inverse_deviation, kept, ".inverse") : s.inverse_deviation);
    }
    if (!plain) {  // a scale that broadcasts
      TFCC_TRY(Dims all, im.broadcast(d, im.dims(scale)));
      if (all != d)
        return im.fail(ErrorCode::shape, fmt::format("scale {} does not broadcast to the input",
                                                     ir::to_string(im.type(scale))));
      const Indices at = im.index_vars(d);
      Indices row(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(axis));
      row.push_back(im.integer(0));
      im.define(0,
                ir::mul(ir::mul(im.element(x, at), im.element(s.inverse_deviation, row)),
                        im.broadcast_element(scale, at)),
                im.type(x).dtype, d);
      return {};
    }
  }
  TFCC_TRY(ValueId y, norm_op(im, ir::NormKind::rms, rows, merged(im, scale, 0, ".scale"),
                              std::nullopt, eps, im.value_name(0) + (is_merged ? ".normed" : "")));
  im.define(0, is_merged ? reshape(im, y, d, "") : y);
  return {};
}

}  // namespace tfcc::frontend
