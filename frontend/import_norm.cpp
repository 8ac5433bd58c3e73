// SPDX-License-Identifier: Apache-2.0
// Softmax, normalisations, reductions and running sums.
#include <fmt/format.h>

#include <algorithm>

#include "frontend/importer.h"

namespace tfcc::frontend {
namespace {

// x with the axes from `axis` on merged into one; the same value if there is nothing to merge.
ValueId merge_from(Importer& im, ValueId x, size_t axis) {
  const Dims d = im.dims(x);
  if (axis + 1 == d.size()) return x;
  Dims to(d.begin(), d.begin() + axis);
  to.push_back(ir::element_count(im.pool(), Dims(d.begin() + axis, d.end())));
  return reshape(im, x, to, ".merged");
}

ValueId softmax_last(Importer& im, ValueId x, const std::string& name) {
  return im.graph.add(ir::OpKind::softmax, {x}, ir::SoftmaxAttrs{}, im.type(x), name, im.node->name);
}

}  // namespace

Result<void> import_softmax(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  const Dims d = im.dims(x);
  const bool coerced = im.opset < 13;  // before 13: softmax over all axes from `axis` on
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", coerced ? 1 : -1), d.size()));
  if (axis + 1 == d.size()) {
    im.define(0, softmax_last(im, x, im.value_name(0)));
  } else if (coerced) {
    ValueId y = softmax_last(im, merge_from(im, x, axis), im.value_name(0) + ".rows");
    im.define(0, reshape(im, y, d, ""));
  } else {
    std::vector<size_t> perm;
    for (size_t k = 0; k < d.size(); ++k) perm.push_back(k);
    std::swap(perm[axis], perm.back());  // its own inverse
    ValueId y = softmax_last(im, transpose(im, x, perm, ".last"), im.value_name(0) + ".rows");
    im.define(0, transpose(im, y, perm, ""));
  }
  return {};
}

Result<void> import_layer_normalization(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId gamma, im.input(1));
  for (size_t i = 1; i < im.node->outputs.size(); ++i) {
    if (!im.node->outputs[i].empty()) return im.fail(ErrorCode::unsupported, "outputs Mean and InvStdDev are not supported");
  }
  const Dims d = im.dims(x);
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", -1), d.size()));
  std::vector<ValueId> operands{merge_from(im, x, axis), merge_from(im, gamma, 0)};
  if (im.has_input(2)) {
    TFCC_TRY(ValueId beta, im.input(2));
    operands.push_back(merge_from(im, beta, 0));
  }
  const Type type = im.type(operands[0]);
  for (size_t i = 1; i < operands.size(); ++i) {
    if (im.rank(operands[i]) != 1) return im.fail(ErrorCode::unsupported, "scale and bias must have the shape of the normalised axes");
    TFCC_TRY([[maybe_unused]] ExprRef n, im.unify(im.dims(operands[i])[0], type.dims.back(),
             fmt::format("scale {} does not fit {}", ir::to_string(im.type(operands[i])), ir::to_string(type))));
  }
  const bool merged = axis + 1 != d.size();
  ValueId y = im.graph.add(ir::OpKind::layer_norm, operands, ir::NormAttrs{im.attr_float("epsilon", 1e-5f)}, type,
                           im.value_name(0) + (merged ? ".rows" : ""), im.node->name);
  im.define(0, merged ? reshape(im, y, d, "") : y);
  return {};
}

namespace {

constexpr int64_t kLargestUnrolled = 64;

// A reduction of sizes alone (the product of a shape) as one expression, so that no op of it stays; null if it is none.
ExprRef unrolled(Importer& im, ExprRef e, const ir::ReduceAttrs& attrs, int64_t first_index) {
  if (ir::has_loads(e) || e->type != Scalar::i64) return nullptr;
  std::vector<ExprRef> terms{e};
  for (size_t k = 0; k < attrs.extents.size(); ++k) {
    auto n = ir::as_int(attrs.extents[k]);
    if (!n || *n < 1 || *n * static_cast<int64_t>(terms.size()) > kLargestUnrolled) return nullptr;
    std::vector<ExprRef> next;
    for (ExprRef term : terms) {
      std::vector<ExprRef> by(first_index + k + 1);
      for (int64_t i = 0; i < *n; ++i) {
        by.back() = im.integer(i);
        next.push_back(ir::substitute_indices(term, by));
      }
    }
    terms = std::move(next);
  }
  ExprRef total = terms[0];
  for (size_t i = 1; i < terms.size(); ++i) {
    switch (attrs.kind) {
      case ir::ReduceKind::sum: total = ir::add(total, terms[i]); break;
      case ir::ReduceKind::prod: total = ir::mul(total, terms[i]); break;
      case ir::ReduceKind::max: total = ir::max(total, terms[i]); break;
      case ir::ReduceKind::min: total = ir::min(total, terms[i]); break;
      case ir::ReduceKind::mean: return nullptr;
    }
  }
  return total;
}

Result<void> reduce(Importer& im, ir::ReduceKind kind, int64_t axes_input_from) {
  TFCC_TRY(ValueId x, im.input(0));
  const Dims d = im.dims(x);
  std::vector<int64_t> axes;
  if (im.opset >= axes_input_from && im.has_input(1)) {
    TFCC_TRY(ValueId v, im.input(1));
    TFCC_TRY(axes, im.numbers(v, "axes"));
  } else {
    axes = im.attr_ints("axes").value_or(std::vector<int64_t>{});
  }
  std::vector<bool> reduced(d.size(), false);
  for (int64_t a : axes) {
    TFCC_TRY(size_t axis, im.axis_of(a, d.size()));
    reduced[axis] = true;
  }
  if (axes.empty()) {
    if (im.attr_int("noop_with_empty_axes", 0)) {
      im.define(0, x);
      return {};
    }
    reduced.assign(d.size(), true);
  }
  const bool keep = im.attr_int("keepdims", 1) != 0;
  Dims out;
  ir::ReduceAttrs attrs;
  attrs.kind = kind;
  for (size_t k = 0; k < d.size(); ++k) {
    if (!reduced[k]) out.push_back(d[k]);
    else if (keep) out.push_back(im.integer(1));
    if (reduced[k]) attrs.extents.push_back(d[k]);
  }
  // Index variables: the result's first, then one per reduced axis.
  const Indices result = im.index_vars(out);
  Indices at;
  size_t next_result = 0, next_reduced = out.size();
  for (size_t k = 0; k < d.size(); ++k) {
    if (reduced[k]) {
      at.push_back(im.pool().index(static_cast<int64_t>(next_reduced++), d[k]));
      next_result += keep;
    } else {
      at.push_back(result[next_result++]);
    }
  }
  const ExprRef element = im.element(x, at);
  if (ExprRef sizes = unrolled(im, element, attrs, static_cast<int64_t>(out.size()))) {
    im.define(0, sizes, im.type(x).dtype, out);
    return {};
  }
  ir::Captured c = ir::capture(element);
  attrs.body = c.body;
  im.define(0, im.graph.add(ir::OpKind::reduce, c.operands, attrs, {im.type(x).dtype, out}, im.value_name(0), im.node->name));
  return {};
}

}  // namespace

Result<void> import_reduce_mean(Importer& im) { return reduce(im, ir::ReduceKind::mean, 18); }
Result<void> import_reduce_max(Importer& im) { return reduce(im, ir::ReduceKind::max, 18); }
Result<void> import_reduce_min(Importer& im) { return reduce(im, ir::ReduceKind::min, 18); }
Result<void> import_reduce_prod(Importer& im) { return reduce(im, ir::ReduceKind::prod, 18); }
Result<void> import_reduce_sum(Importer& im) { return reduce(im, ir::ReduceKind::sum, 13); }

Result<void> import_cumsum(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId a, im.input(1));
  TFCC_TRY(auto axes, im.numbers(a, "axis"));
  if (axes.size() != 1) return im.fail(ErrorCode::bad_file, "axis must be a scalar");
  TFCC_TRY(size_t axis, im.axis_of(axes[0], im.rank(x)));
  ir::CumsumAttrs attrs;
  attrs.axis = static_cast<int64_t>(axis);
  attrs.exclusive = im.attr_int("exclusive", 0) != 0;
  attrs.reverse = im.attr_int("reverse", 0) != 0;
  im.define(0, im.graph.add(ir::OpKind::cumsum, {x}, attrs, im.type(x), im.value_name(0), im.node->name));
  return {};
}

}  // namespace tfcc::frontend
