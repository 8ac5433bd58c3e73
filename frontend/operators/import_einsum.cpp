// SPDX-License-Identifier: Apache-2.0
// Einsum: operands are taken together two at a time, each pair as a matrix product of views (or,
// where nothing is summed or the type is no float, as a product or a reduction).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "frontend/import/importer.h"

namespace tfcc::frontend {
namespace {

constexpr int kEllipsis = 256;  // labels from here on are the axes of "...", counted from the left

using Labels = std::vector<int>;

struct Factor {
  ValueId value;
  Labels labels;  // distinct, one per axis
};

bool contains(const Labels& labels, int l) {
  return std::find(labels.begin(), labels.end(), l) != labels.end();
}

struct Einsum {
  Importer& im;
  std::vector<Labels> terms;
  Labels output;
  std::map<int, ExprRef> size;
  int steps = 0;

  Dims dims_of(const Labels& labels) const {
    Dims d;
    for (int l : labels) d.push_back(size.at(l));
    return d;
  }
  std::string suffix() { return fmt::format(".step{}", steps++); }

  // The element of a factor where label l has index by[l].
  ExprRef element(const Factor& f, const std::map<int, ExprRef>& by) const {
    Indices at;
    for (int l : f.labels) at.push_back(by.at(l));
    return im.element(f.value, at);
  }

  std::map<int, ExprRef> numbered(const Labels& labels, size_t first = 0) const {
    std::map<int, ExprRef> by;
    for (size_t k = 0; k < labels.size(); ++k)
      by[labels[k]] = im.pool().index(static_cast<int64_t>(first + k), size.at(labels[k]));
    return by;
  }

  // The factor with one axis per group of labels; a group of several is merged, one of none has
  // size 1.
  ValueId arranged(const Factor& f, const std::vector<Labels>& groups) {
    Dims to;
    Labels flat;
    for (const Labels& g : groups) {
      to.push_back(ir::element_count(im.pool(), dims_of(g)));
      flat.insert(flat.end(), g.begin(), g.end());
    }
    if (flat == f.labels && groups.size() == flat.size()) return f.value;
    const Indices at = im.index_vars(to);
    std::map<int, ExprRef> by;
    for (size_t k = 0; k < groups.size(); ++k) {
      const Dims own = dims_of(groups[k]);
      const Indices parts =
          own.size() == 1 ? Indices{at[k]} : ir::reshape_indices(im.pool(), {at[k]}, {to[k]}, own);
      for (size_t i = 0; i < own.size(); ++i) by[groups[k][i]] = parts[i];
    }
    return im.pointwise(element(f, by), im.type(f.value).dtype, to, suffix());
  }

  Factor multiply(const Factor& a, const Factor& b, const Labels& kept) {
    Labels batch, rows, columns, inner;
    for (int l : a.labels)
      (contains(b.labels, l) ? (contains(kept, l) ? batch : inner) : rows).push_back(l);
    for (int l : b.labels) {
      if (!contains(a.labels, l)) columns.push_back(l);
    }
    Labels out = batch;
    out.insert(out.end(), rows.begin(), rows.end());
    out.insert(out.end(), columns.begin(), columns.end());
    const DType dtype = im.type(a.value).dtype;
    if (inner.empty() || !is_float(dtype)) {
      std::map<int, ExprRef> by = numbered(out);
      by.merge(numbered(inner, out.size()));
      const ExprRef body = ir::mul(element(a, by), element(b, by));
      if (inner.empty()) return {im.pointwise(body, dtype, dims_of(out), suffix()), out};
      return {
          reduction(im, ir::ReduceKind::sum, body, dims_of(inner), {dtype, dims_of(out)}, suffix()),
          out};
    }
    // Without a batch the rows stay axes of their own, against one matrix.
    std::vector<Labels> left, right;
    for (int l : batch) left.push_back({l});
    right = left;
    if (batch.empty() && !rows.empty()) {
      for (int l : rows) left.push_back({l});
    } else {
      left.push_back(rows);
    }
    left.push_back(inner);
    right.push_back(inner);
    right.push_back(columns);
    const ValueId x = arranged(a, left), y = arranged(b, right);
    Dims product(im.dims(x).begin(), im.dims(x).end() - 1);
    product.push_back(im.dims(y).back());
    const ValueId z = im.graph.add(ir::OpKind::matmul, {x, y}, ir::MatmulAttrs{}, {dtype, product},
                                   im.value_name(0) + suffix(), im.node->name);
    if (product.size() == out.size() && (rows.size() == 1 || batch.empty()) && columns.size() == 1)
      return {z, out};
    const auto by = numbered(out);
    const auto merged = [&](const Labels& labels) {
      Indices at;
      for (int l : labels) at.push_back(by.at(l));
      return ir::linear_index(im.pool(), at, dims_of(labels));
    };
    Indices at;
    for (int l : batch) at.push_back(by.at(l));
    if (batch.empty() && !rows.empty()) {
      for (int l : rows) at.push_back(by.at(l));
    } else {
      at.push_back(merged(rows));
    }
    at.push_back(merged(columns));
    return {im.pointwise(im.element(z, at), dtype, dims_of(out), suffix()), out};
  }

  // Diagonals taken, sizes of 1 that broadcast dropped, labels that nobody else has summed.
  Factor prepared(ValueId v, const Labels& labels, const Labels& kept) {
    Labels own, summed;
    const Dims d = im.dims(v);
    bool plain = true;
    for (size_t k = 0; k < labels.size(); ++k) {
      const bool broadcast = ir::is_int(d[k], 1) && !ir::is_int(size.at(labels[k]), 1);
      plain = plain && !broadcast && !contains(own, labels[k]) && !contains(summed, labels[k]) &&
              contains(kept, labels[k]);
      if (broadcast || contains(own, labels[k]) || contains(summed, labels[k])) continue;
      (contains(kept, labels[k]) ? own : summed).push_back(labels[k]);
    }
    if (plain) return {v, labels};
    std::map<int, ExprRef> by = numbered(own);
    by.merge(numbered(summed, own.size()));
    Indices at;
    for (size_t k = 0; k < labels.size(); ++k)
      at.push_back(ir::is_int(d[k], 1) ? im.integer(0) : by.at(labels[k]));
    const ExprRef e = im.element(v, at);
    const Type type{im.type(v).dtype, dims_of(own)};
    if (summed.empty()) return {im.pointwise(e, type.dtype, type.dims, suffix()), own};
    return {reduction(im, ir::ReduceKind::sum, e, dims_of(summed), type, suffix()), own};
  }
};

bool is_label(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The labels of one term; "..." becomes the last `ellipsis` of `widest` anonymous axes.
std::optional<Labels> parse_term(std::string_view text, int ellipsis, int widest) {
  Labels out;
  bool seen = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_label(text[i])) {
      out.push_back(text[i]);
    } else if (text.substr(i, 3) == "..." && !seen) {
      seen = true;
      i += 2;
      for (int k = widest - ellipsis; k < widest; ++k) out.push_back(kEllipsis + k);
    } else {
      return std::nullopt;
    }
  }
  return out;
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> out(1);
  for (char c : text) {
    if (c == by) out.emplace_back();
    else out.back() += c;
  }
  return out;
}

Result<void> parse_equation(Einsum& e) {
  Importer& im = e.im;
  std::string text = im.attr_string("equation", "");
  std::erase(text, ' ');
  const auto bad = [&](const std::string& why) {
    return im.fail(ErrorCode::bad_file, fmt::format("equation \"{}\" {}", escaped(text), why));
  };
  const size_t arrow = text.find("->");
  const std::vector<std::string> terms = split(text.substr(0, arrow), ',');
  if (terms.size() != im.node->inputs.size())
    return bad(fmt::format("has {} terms for {} inputs", terms.size(), im.node->inputs.size()));
  std::vector<int> ellipsis;
  int widest = 0;
  for (size_t i = 0; i < terms.size(); ++i) {
    TFCC_TRY(ValueId v, im.input(i));
    const auto named = std::count_if(terms[i].begin(), terms[i].end(), is_label);
    ellipsis.push_back(static_cast<int>(im.rank(v)) - static_cast<int>(named));
    const bool dots = terms[i].find("...") != std::string::npos;
    if (ellipsis.back() < 0 || (!dots && ellipsis.back() > 0))
      return bad(fmt::format("does not fit input {} of rank {}", i, im.rank(v)));
    widest = std::max(widest, ellipsis.back());
  }
  std::map<int, int> seen;
  for (size_t i = 0; i < terms.size(); ++i) {
    const auto labels = parse_term(terms[i], ellipsis[i], widest);
    if (!labels) return bad("is not understood");
    e.terms.push_back(*labels);
    for (int l : *labels) ++seen[l];
  }
  if (arrow != std::string::npos) {
    const auto labels = parse_term(text.substr(arrow + 2), widest, widest);
    if (!labels) return bad("is not understood");
    e.output = *labels;
  } else {  // what occurs once, in alphabetical order, after the axes of "..."
    for (int k = 0; k < widest; ++k) e.output.push_back(kEllipsis + k);
    for (const auto& [l, count] : seen) {
      if (count == 1 && l < kEllipsis) e.output.push_back(l);
    }
  }
  for (size_t k = 0; k < e.output.size(); ++k) {
    if (!seen.count(e.output[k]) || std::count(e.output.begin(), e.output.end(), e.output[k]) > 1)
      return bad("names an output axis that is not there, or twice");
  }
  return {};
}

Result<void> find_sizes(Einsum& e) {
  for (size_t i = 0; i < e.terms.size(); ++i) {
    TFCC_TRY(ValueId v, e.im.input(i));
    const Dims d = e.im.dims(v);
    for (size_t k = 0; k < d.size(); ++k) {
      auto [it, added] = e.size.emplace(e.terms[i][k], d[k]);
      if (added || it->second == d[k] || ir::is_int(d[k], 1)) continue;
      if (ir::is_int(it->second, 1)) it->second = d[k];
      else {
        TFCC_TRY(it->second,
                 e.im.unify(it->second, d[k], fmt::format("input {} differs in axis {}", i, k)));
      }
    }
  }
  return {};
}

}  // namespace

Result<void> import_einsum(Importer& im) {
  Einsum e{im, {}, {}, {}, 0};
  TFCC_TRY_VOID(parse_equation(e));
  TFCC_TRY_VOID(find_sizes(e));
  TFCC_TRY(ValueId first, im.input(0));
  const DType dtype = im.type(first).dtype;
  // What each input really has: an axis of size 1 that broadcasts is none.
  std::vector<Labels> present;
  for (size_t i = 0; i < e.terms.size(); ++i) {
    TFCC_TRY(ValueId v, im.input(i));
    present.emplace_back();
    for (size_t k = 0; k < e.terms[i].size(); ++k) {
      const int l = e.terms[i][k];
      if (!ir::is_int(im.dims(v)[k], 1) || ir::is_int(e.size.at(l), 1)) present.back().push_back(l);
    }
  }
  std::vector<Factor> factors;
  for (size_t i = 0; i < e.terms.size(); ++i) {
    TFCC_TRY(ValueId v, im.input(i));
    if (im.type(v).dtype != dtype || dtype == DType::boolean)
      return im.fail(ErrorCode::bad_file, "inputs must be numbers of one type");
    Labels kept = e.output;
    for (size_t j = 0; j < e.terms.size(); ++j) {
      if (j != i) kept.insert(kept.end(), present[j].begin(), present[j].end());
    }
    factors.push_back(e.prepared(v, e.terms[i], kept));
  }
  Factor all = factors[0];
  for (size_t i = 1; i < factors.size(); ++i) {
    Labels kept = e.output;
    for (size_t j = i + 1; j < factors.size(); ++j)
      kept.insert(kept.end(), factors[j].labels.begin(), factors[j].labels.end());
    all = e.multiply(all, factors[i], kept);
  }
  if (all.labels == e.output) {
    im.define(0, all.value);
    return {};
  }
  // An axis that only sizes of 1 had is not in the product.
  auto by = e.numbered(e.output);
  im.define(0, e.element(all, by), dtype, e.dims_of(e.output));
  return {};
}

}  // namespace tfcc::frontend
