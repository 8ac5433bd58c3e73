// SPDX-License-Identifier: Apache-2.0
// fold-norm: a norm between two products, and the sum before it, become parts of the products, so
// that they have no launch.
//   before: %p = matmul(%a, @w);  %h = norm(@gamma, @beta, %p, %r) {body = (..) => %p[..] + %r[..]};  %q = matmul(%h, @u) {epilogue = (s,..) => E(s)}
//   after:  %h, %m = matmul(%a, @w, %r, @gamma) {epilogue = (s,..) => s + %r[..], scaled = (s,..,j) => s * @gamma[j]}
//           %q = matmul(%h, @u, @c, @d, %m) {norm, epilogue = (s,mean,rstd,..,j) => E(rstd * (s - mean * @c[j]) + @d[j])}
//   with c = sum over k of gamma[k] u[k, j] and d = sum over k of beta[k] u[k, j], by linearity of the product.
// A residual norm that adds %h to a product has rstd * (%h - mean * gamma) + beta in its place:
// that product takes the sum too, whether or not the norm after it is folded. Values keep their
// names, so that forms of a graph with and without share their buffers.
// Assumes nothing of the values but that the sum itself is in the range of 16 bits: moments of 32
// columns are merged with their means, and gamma is divided by the power of two that makes its
// largest 1 at most, by which rstd is multiplied: what is stored is no larger than v.
// Not in a step of generation: a norm that is not rounded before the product gives other bits, and
// a token's are the same in any chunk.
// Read by anything else, the norm stays. Only where the chosen arm of every product around it takes
// it (codegen/matmul/choose.cpp): on Hopper, for few rows, and for any number of rows without
// padding, so that a row has the same bits in each form of a plan. There it costs the ends of products
// about what a launch of its own does from some 1400 rows on (docs/performance.md).
#include "codegen/fold_norm.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <thread>
#include <utility>

#include "codegen/matmul/matmul.h"
#include "codegen/parallel.h"
#include "ir/constant.h"
#include "ir/matmul.h"
#include "ir/norm.h"

namespace tfcc::codegen {
namespace {

using Dims = std::vector<ExprRef>;

/// The norm after a product: out = norm(v), v = product (+ bias) (+ residual).
struct Norm {
  OpId op, product;
  ir::NormKind kind;
  double eps;
  ValueId gamma;
  std::optional<ValueId> beta, residual, bias;
  bool folded = false;
  double scale = 1;  // of rstd, if folded: gamma has been divided by it
};

/// A norm that is a part of the product before it, for its readers: what it gave is times gamma,
/// and not normalised.
struct Folded {
  ValueId scaled, moments;
  Norm norm;
};

/// c[j] = sum over k of gamma[k] w[k, j], and d[j] of beta, in float64.
struct ColumnSums {
  std::vector<double> gamma, beta;
};

Result<std::vector<double>> numbers(const Graph& g, ValueId v) {
  TFCC_TRY(const std::vector<std::byte> bytes, ir::materialize(*g.constant(v)));
  const DType type = g.value(v).type.dtype;
  std::vector<double> out(bytes.size() / size_of(type));
  for (size_t i = 0; i < out.size(); ++i) out[i] = ir::read_real(type, bytes.data(), i);
  return out;
}

/// The value of every number of 16 bits.
std::vector<float> all_values(DType type) {
  std::vector<float> values(1 << 16);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto bits = static_cast<uint16_t>(i);
    values[i] =
        static_cast<float>(ir::read_real(type, reinterpret_cast<const std::byte*>(&bits), 0));
  }
  return values;
}

Result<ColumnSums> column_sums(const Graph& g, ValueId weight, bool trans_b, const Norm& norm) {
  TFCC_TRY(const std::vector<double> gamma, numbers(g, norm.gamma));
  std::vector<double> beta;
  if (norm.beta) {
    TFCC_TRY(beta, numbers(g, *norm.beta));
  }
  TFCC_TRY(const std::vector<std::byte> bytes, ir::materialize(*g.constant(weight)));
  static const std::vector<float> f16 = all_values(DType::f16), bf16 = all_values(DType::bf16);
  const std::vector<float>& value = g.value(weight).type.dtype == DType::f16 ? f16 : bf16;
  const size_t k = gamma.size(), n = bytes.size() / 2 / k;
  const auto* w = reinterpret_cast<const uint16_t*>(bytes.data());
  ColumnSums sums{std::vector<double>(n), std::vector<double>(norm.beta ? n : 0)};
  for (size_t i = 0; i < (trans_b ? n : k); ++i) {  // as the weight lies
    for (size_t j = 0; j < (trans_b ? k : n); ++j) {
      const size_t row = trans_b ? j : i, column = trans_b ? i : j;
      const double x = value[*w++];
      sums.gamma[column] += gamma[row] * x;
      if (norm.beta) sums.beta[column] += beta[row] * x;
    }
  }
  return sums;
}

class FoldNorms {
 public:
  FoldNorms(Graph& g, const TargetClass& target, int64_t most_tokens)
      : g_(g), target_(target), most_tokens_(most_tokens) {
    for (size_t i = 0; i < g.order().size(); ++i) place_[g.order()[i]] = i;
  }

  Result<int> run() {
    for (OpId o : g_.order()) {
      if (const auto n = norm_of(o)) norms_.emplace(n->product, *n);
    }
    for (auto& [product, n] : norms_) norm_values_.emplace(g_.result(n.op), product);
    for (auto& [product, n] : norms_) n.folded = is_foldable(n);
    // A product has the moments of one norm, of its rows or of what is added to its result.
    for (bool again = true; std::exchange(again, false);) {
      for (auto& [product, n] : norms_) {
        const Norm* rows = folded_norm(g_.op(product).operands[0]);
        const Norm* residual = n.residual ? folded_norm(*n.residual) : nullptr;
        if (rows && residual && rows != residual)
          norms_.at(residual->product).folded = false, again = true;
      }
    }
    for (auto& [product, n] : norms_) {
      if (n.folded) TFCC_TRY_VOID(scale_gamma(n));
    }
    TFCC_TRY_VOID(sum_columns());
    int count = 0;
    std::vector<OpId> products = g_.order();
    std::erase_if(products, [&](OpId o) { return g_.op(o).kind != OpKind::matmul; });
    for (OpId o : products) {
      const auto n = norms_.find(o);
      TFCC_TRY_VOID(rebuild(o, n == norms_.end() ? nullptr : &n->second));
      count += n != norms_.end() && n->second.folded;
    }
    g_.clean();
    return count;
  }

 private:
  ExprPool& pool() const { return g_.pool(); }
  const ir::Type& type(ValueId v) const { return g_.value(v).type; }
  const Norm* folded_norm(ValueId v) const {
    const auto it = norm_values_.find(v);
    return it != norm_values_.end() && norms_.at(it->second).folded ? &norms_.at(it->second)
                                                                    : nullptr;
  }
  bool is_vector(ValueId v, ExprRef n) const {
    return g_.is_constant(v) && type(v).dims == Dims{n} && is_float(type(v).dtype);
  }

  // ---- which norms ----

  /// A product of rows of 16 bits by a weight, whose arm would take a norm.
  bool takes_norm(OpId o) const {
    const ir::Op& op = g_.op(o);
    if (op.kind != OpKind::matmul || op.as<ir::MatmulAttrs>().norm ||
        op.as<ir::MatmulAttrs>().scaled || op.as<ir::MatmulAttrs>().gate ||
        op.as<ir::MatmulAttrs>().heads || type(op.operands[0]).rank() != type(op.results[0]).rank())
      return false;
    MatmulDesc x = describe(g_, o, most_tokens_);
    if (x.epilogue == Epilogue::other || x.in_order || choose(x, target_).arm == Arm::stream)
      return false;
    x.epilogue = Epilogue::beside;
    x.norm = ir::NormKind::layer;
    x.scaled = x.body;
    return choose(x, target_).arm == Arm::wgmma;
  }

  /// The product that makes v, for one reader.
  std::optional<OpId> product_of(ValueId v) const {
    const ir::Value& value = g_.value(v);
    if (!g_.def(v) || g_.is_output(v) || value.users.size() != 1 || !takes_norm(value.def))
      return std::nullopt;
    return value.def;
  }

  std::optional<Norm> norm_of(OpId o) const {
    const ir::Op& op = g_.op(o);
    Norm n{};
    n.op = o;
    ValueId product{};
    if (op.kind != OpKind::norm) return std::nullopt;
    const ir::NormOf norm = ir::norm_of(op);
    n.kind = norm.kind;
    n.eps = norm.eps;
    n.gamma = norm.gamma;
    n.beta = norm.beta;
    const auto sum = ir::normed_sum(g_, o);
    if (const auto value = ir::normed_value(g_, o); value && op.results.size() == 1) {
      product = *value;
    } else if (sum && sum->x != sum->residual) {
      const bool second = place(sum->residual) >
                          place(sum->x);  // the later of two: the other is there when it runs
      product = second ? sum->residual : sum->x;
      n.residual = second ? sum->x : sum->residual;
      n.bias = sum->bias;
    } else {
      return std::nullopt;
    }
    const ir::Type& t = type(op.results[0]);
    // A caller's memory is not known to an early product before the launches before it have ended.
    if ((n.residual && !g_.def(*n.residual)) || (n.bias && !g_.def(*n.bias))) return std::nullopt;
    if (type(product).dims != t.dims || (n.residual && type(*n.residual) != type(product)) ||
        !ir::as_int(t.dims.back()) || *ir::as_int(t.dims.back()) % ir::kMomentColumns != 0)
      return std::nullopt;
    if (!is_vector(n.gamma, t.dims.back()) || (n.beta && !is_vector(*n.beta, t.dims.back())))
      return std::nullopt;
    const auto p = product_of(product);
    if (!p) return std::nullopt;
    n.product = *p;
    return n;
  }
  size_t place(ValueId v) const { return g_.def(v) ? place_.at(g_.value(v).def) + 1 : 0; }

  /// Every reader can take the rows as they will be, and gamma leaves them in range.
  bool is_foldable(const Norm& n) const {
    const ValueId h = g_.result(n.op);
    const auto& users = g_.value(h).users;
    const bool reads = std::all_of(users.begin(), users.end(),
                                   [&](OpId u) { return reads_rows(u, h) || adds(u, h); });
    if (!reads || users.empty() || g_.is_output(h) || type(h) != type(g_.result(n.product)))
      return false;
    const auto gamma = numbers(g_, n.gamma);
    return gamma &&
           std::all_of(gamma->begin(), gamma->end(), [](double x) { return std::isfinite(x); });
  }
  bool reads_rows(OpId u, ValueId h) const {
    const auto& operands = g_.op(u).operands;
    return operands[0] == h && std::count(operands.begin(), operands.end(), h) == 1 &&
           takes_norm(u);
  }
  bool adds(OpId u, ValueId h) const {
    const auto it = norm_values_.find(g_.result(u));
    return it != norm_values_.end() && norms_.at(it->second).residual == h &&
           g_.op(u).results.size() == 1;
  }

  // ---- weights ----

  /// The largest of gamma becomes 1 at most, and more than a half.
  Result<void> scale_gamma(Norm& n) {
    TFCC_TRY(std::vector<double> gamma, numbers(g_, n.gamma));
    double largest = 0;
    for (double x : gamma) largest = std::max(largest, std::abs(x));
    if (largest == 0 || (largest <= 1 && largest > 0.5)) return {};
    n.scale = std::exp2(std::ceil(std::log2(largest)));
    for (double& x : gamma) x /= n.scale;
    n.gamma = vector(g_.value(n.gamma).name + ".scaled", gamma);
    return {};
  }

  Result<void> sum_columns() {
    std::vector<std::pair<OpId, const Norm*>> readers;
    for (OpId o : g_.order()) {
      if (g_.op(o).kind != OpKind::matmul) continue;
      const Norm* n = folded_norm(g_.op(o).operands[0]);
      if (n && n->kind == ir::NormKind::layer) readers.emplace_back(o, n);
    }
    std::vector<std::optional<Result<ColumnSums>>> sums(readers.size());
    parallel_for(
        readers.size(), static_cast<int>(std::max(1u, std::thread::hardware_concurrency())),
        [&](size_t i) {
          const ir::Op& op = g_.op(readers[i].first);
          sums[i] =
              column_sums(g_, op.operands[1], op.as<ir::MatmulAttrs>().trans_b, *readers[i].second);
        });
    for (size_t i = 0; i < readers.size(); ++i) {
      if (!*sums[i]) return sums[i]->error();
      sums_.emplace(readers[i].first, *std::move(*sums[i]));
    }
    return {};
  }

  ValueId vector(const std::string& name, const std::vector<double>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(float));
    for (size_t i = 0; i < values.size(); ++i)
      ir::write_real(DType::f32, bytes.data(), i, values[i]);
    return g_.add_constant(
        name, ir::constant_from_bytes(DType::f32, {static_cast<int64_t>(values.size())},
                                      std::move(bytes)));
  }

  // ---- the products ----

  ExprRef element(ValueId v, const std::vector<ExprRef>& at) const {
    return ir::convert(ir::load_of(g_, v, at), Scalar::f32);
  }
  ExprRef param(const char* name) const { return pool().param(name, Scalar::f32); }
  ExprRef rstd(const Norm& n) const {
    return n.scale == 1 ? param("rstd") : ir::mul(param("rstd"), pool().real(n.scale, Scalar::f32));
  }

  /// The vector of constants b of an epilogue that is a function of s + b[j].
  std::optional<ValueId> added_vector(OpId o, ExprRef epilogue, ExprRef column) const {
    const auto& operands = g_.op(o).operands;
    for (size_t i = 2; i < operands.size(); ++i) {
      if (!is_vector(operands[i], type(g_.result(o)).dims.back())) continue;
      ExprRef s = param("s"), b = element(operands[i], {column}), both = ir::add(s, b);
      const auto is_part = [&](ExprRef e) { return e == s || e == b; };
      bool found = false, alone = false;
      ir::for_each_node(epilogue, [&](ExprRef n) {
        found |= n == both;
        alone |= n != both && n != b && std::any_of(n->args.begin(), n->args.end(), is_part);
        for (const ir::Term& t : n->terms)
          alone |= n != both && std::any_of(t.atoms.begin(), t.atoms.end(), is_part);
      });
      if (found && !alone) return operands[i];
    }
    return std::nullopt;
  }

  /// The epilogue of a product of normalised rows, over the sum of those that are not.
  Result<ExprRef> of_rows(OpId o, const Norm& n, ExprRef epilogue, ExprRef column) {
    if (n.kind == ir::NormKind::rms) return ir::with_sum(epilogue, ir::mul(rstd(n), param("s")));
    ColumnSums& sums = sums_.at(o);
    const double alpha = g_.op(o).as<ir::MatmulAttrs>().alpha;
    for (auto* v : {&sums.gamma, &sums.beta}) {
      for (double& x : *v) x *= alpha;
    }
    const std::string& name = g_.value(g_.result(o)).name;
    ExprRef s = ir::mul(
        rstd(n),
        ir::sub(param("s"),
                ir::mul(param("mean"), element(vector(name + ".gamma", sums.gamma), {column}))));
    if (!n.beta) return ir::with_sum(epilogue, s);
    const auto bias = added_vector(o, epilogue, column);
    if (bias) TFCC_TRY_VOID(add_to(sums.beta, *bias));
    ExprRef beta = element(vector(name + ".beta", sums.beta), {column});
    if (!bias) return ir::with_sum(epilogue, ir::add(s, beta));
    return ir::rewrite(epilogue, [&](ExprRef e) -> ExprRef {
      if (e->kind == ir::ExprKind::param && e->name == "s") return s;
      return e->kind == ir::ExprKind::load && e == ir::load_of(g_, *bias, {column}) ? beta
                                                                                    : nullptr;
    });
  }
  Result<void> add_to(std::vector<double>& values, ValueId other) const {
    TFCC_TRY(const std::vector<double> more, numbers(g_, other));
    for (size_t i = 0; i < values.size(); ++i) values[i] += more[i];
    return {};
  }

  /// An element of what a folded norm gives, without its beta.
  ExprRef normalised(const Folded& f, const std::vector<ExprRef>& at) const {
    ExprRef x = element(f.scaled, at);
    if (f.norm.kind == ir::NormKind::layer)
      x = ir::sub(x, ir::mul(param("mean"), element(f.norm.gamma, {at.back()})));
    return ir::mul(rstd(f.norm), x);
  }
  const Folded* folded(ValueId v) const {
    const auto it = folded_.find(v);
    return it == folded_.end() ? nullptr : &it->second;
  }

  Result<void> rebuild(OpId o, const Norm* after) {
    const ir::Op op = g_.op(o);
    const Folded* rows = folded(op.operands[0]);
    const Folded* residual = after && after->residual ? folded(*after->residual) : nullptr;
    const bool takes_sum = after && (after->folded || residual);
    if (!rows && !takes_sum) return {};
    const ValueId y = op.results[0];
    const auto at = ir::indices_of(g_, y);
    ExprRef v = ir::free_epilogue(g_, o, at);
    if (rows) {
      TFCC_TRY(v, of_rows(o, rows->norm, v, at.back()));
    }
    if (takes_sum) {
      TFCC_TRY(ExprRef beside, added_after(*after, residual, at));
      if (beside) v = ir::add(v, beside);
    }
    const Folded* norm = rows ? rows : residual;
    if (takes_sum && after->folded) {
      fold(op, norm, v, *after);
    } else {
      product(o, op, norm, v, nullptr);
      if (takes_sum) norm_of_sum(y, *after);
    }
    return {};
  }

  /// What is added to a product before the norm after it; null: nothing.
  Result<ExprRef> added_after(const Norm& after, const Folded* residual,
                              const std::vector<ExprRef>& at) {
    std::optional<ValueId> bias = after.bias, beta;
    if (residual) beta = residual->norm.beta;
    if (bias && beta && is_vector(*bias, at.back()->args[0])) {  // one vector for both
      TFCC_TRY(std::vector<double> both, numbers(g_, *bias));
      TFCC_TRY_VOID(add_to(both, *beta));
      bias = vector(g_.value(*bias).name + ".and_beta", both);
      beta.reset();
    }
    ExprRef sum = nullptr;
    const auto add = [&](ExprRef e) { sum = sum ? ir::add(sum, e) : e; };
    if (bias) add(element(*bias, {at.back()}));
    if (residual) add(normalised(*residual, at));
    else if (after.residual) add(element(*after.residual, at));
    if (beta) add(element(*beta, {at.back()}));
    return sum;
  }

  /// Op `o` becomes the product `old` with another end.
  void product(OpId o, const ir::Op& old, const Folded* norm, ExprRef epilogue, ExprRef scaled) {
    std::vector<ValueId> operands = {old.operands[0], old.operands[1]};
    auto attrs = old.as<ir::MatmulAttrs>();
    const std::vector<ExprRef> bodies = ir::capture({epilogue, scaled}, operands);
    attrs.epilogue = bodies[0];
    attrs.scaled = bodies[1];
    if (norm) {
      attrs.norm = norm->norm.kind;
      attrs.eps = norm->norm.eps;
      operands.push_back(norm->moments);
    }
    become(o, OpKind::matmul, attrs, std::move(operands));
  }
  void become(OpId o, OpKind kind, ir::Attrs attrs, std::vector<ValueId> operands) {
    g_.op(o).kind = kind;
    g_.op(o).attrs = std::move(attrs);
    g_.set_operands(o, std::move(operands));
  }

  /// The norm after a product becomes that product: the sum times gamma, and the moments of its
  /// rows.
  void fold(const ir::Op& old, const Folded* norm, ExprRef v, const Norm& after) {
    const ValueId h = g_.result(after.op);
    const ir::Type t = type(h);
    Dims moments = {pool().integer(*ir::as_int(t.dims.back()) / ir::kMomentColumns)};
    moments.insert(moments.end(), t.dims.begin(), t.dims.end() - 1);
    moments.push_back(pool().integer(2));
    product(after.op, old, norm, v,
            ir::mul(param("s"), element(after.gamma, {ir::indices_of(g_, h).back()})));
    folded_.emplace(h, Folded{h,
                              g_.insert_result(after.op, 1, {DType::f32, moments},
                                               g_.value(h).name + ".moments"),
                              after});
  }

  /// The norm of a sum that the product before it has made.
  void norm_of_sum(ValueId v, const Norm& after) {
    const auto at = ir::indices_of(g_, g_.result(after.op));
    ir::NormParts parts =
        ir::norm_parts({after.kind, after.eps, after.gamma, after.beta}, element(v, at));
    become(after.op, OpKind::norm, std::move(parts.attrs), std::move(parts.operands));
  }

  Graph& g_;
  const TargetClass& target_;
  const int64_t most_tokens_;
  std::map<OpId, size_t> place_;
  std::map<OpId, Norm> norms_;           // by the product before it
  std::map<ValueId, OpId> norm_values_;  // a norm's result, and that product
  std::map<OpId, ColumnSums> sums_;      // of the weights of readers
  std::map<ValueId, Folded> folded_;     // by the norm's result
};

}  // namespace

Result<int> fold_norms(Graph& graph, const TargetClass& target, int64_t most_tokens) {
  return target.has_wgmma ? FoldNorms(graph, target, most_tokens).run() : Result<int>(0);
}

}  // namespace tfcc::codegen
