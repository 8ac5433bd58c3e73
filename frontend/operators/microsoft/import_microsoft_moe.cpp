// SPDX-License-Identifier: Apache-2.0
// MoE and QMoE of com.microsoft, mixtures of experts: softmax of the router, the best experts of each
// token, and the sum of what these make of it. The products are grouped_matmul. Matrices of QMoE are
// codes of 2, 4 or 8 bits, dequantised by an expression.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "frontend/operators/elementwise.h"
#include "frontend/operators/select.h"
#include "ir/gelu.h"

namespace tfcc::frontend {
namespace {

ExprRef real(ExprRef like, double v) { return like->pool->real(v, like->type); }
ExprRef swish(ExprRef x, double alpha) {
  return ir::mul(
      x, ir::div(real(x, 1), ir::add(real(x, 1), ir::unary(ir::ExprKind::exp,
                                                           ir::neg(ir::mul(real(x, alpha), x))))));
}

// Inputs of one of the products.
struct Layer {
  int number;
  size_t weights, bias, scales, zeros;  // scales, zeros: of codes
  std::optional<IntegerName> bits;      // of its own
};
constexpr size_t kNone = SIZE_MAX;
constexpr Layer kStored[] = {
    {1, 2, 3, kNone, kNone, {}}, {2, 4, 5, kNone, kNone, {}}, {3, 6, 7, kNone, kNone, {}}};
const Layer kCoded[] = {{1, 2, 4, 3, 11, IntegerName("fc1_expert_weight_bits")},
                        {2, 5, 7, 6, 12, IntegerName("fc2_expert_weight_bits")},
                        {3, 8, 10, 9, 13, IntegerName("fc3_expert_weight_bits")}};
constexpr size_t kMixingWeights = 14;
constexpr double kLeastWeight = 1e-8;  // ONNX Runtime leaves out what has no more

class Mixture {
 public:
  Mixture(Importer& im, bool coded) : im_(im), coded_(coded), layers_(coded ? kCoded : kStored) {}

  Result<void> import() {
    TFCC_TRY_VOID(read());
    TFCC_TRY_VOID(choose());
    TFCC_TRY(ValueId hidden, activated());
    TFCC_TRY(ValueId made, expert(hidden, layers_[1], width_));
    // What the experts of a token make of it, each times its share.
    const Indices at = im_.index_vars(im_.dims(x_));
    Indices each(at.begin(), at.end() - 1), of_expert;
    each.push_back(im_.pool().index(static_cast<int64_t>(at.size()), im_.integer(count_)));
    of_expert = each;
    of_expert.push_back(at.back());
    ExprRef part = im_.element(made, of_expert);
    part = ir::mul(ir::convert(im_.element(share_, each), part->type), part);
    im_.define(
        0, reduction(im_, ir::ReduceKind::sum, part, {im_.integer(count_)}, im_.type(x_), ".sum"));
    return {};
  }

 private:
  // ---- what there is ----

  Result<void> read() {
    TFCC_TRY(x_, im_.input(0));
    const Dims& d = im_.dims(x_);
    TFCC_TRY_VOID(require_float(im_, x_));
    if ((d.size() != 2 && d.size() != 3) || !ir::as_int(d.back()))
      return im_.fail(ErrorCode::unsupported,
                      fmt::format("input {} is no batch of tokens of a known width",
                                  ir::to_string(im_.type(x_))));
    width_ = *ir::as_int(d.back());
    rows_.assign(d.begin(), d.end() - 1);
    count_ = im_.attr_int("k", 1);
    activation_ = im_.attr_string("activation_type", "relu");
    fused_ = im_.attr_int("swiglu_fusion", 0);
    if (activation_ != "relu" && activation_ != "gelu" && activation_ != "silu" &&
        activation_ != "identity" && activation_ != "swiglu")
      return im_.fail(ErrorCode::unsupported,
                      fmt::format("activation_type '{}' is not supported; relu, gelu, silu, "
                                  "swiglu and identity are",
                                  activation_));
    if (im_.attr_int("use_sparse_mixer", 0))
      return im_.fail(ErrorCode::unsupported, "use_sparse_mixer is not supported");
    if (activation_ != "swiglu") fused_ = 0;  // ONNX Runtime does not look at it then
    if (fused_ < 0 || fused_ > 2)
      return im_.fail(ErrorCode::bad_file, fmt::format("swiglu_fusion = {}", fused_));
    const Layer& third = layers_[2];
    if (im_.has_input(fused_ ? third.weights : third.bias) && !(fused_ == 0 && has_third()))
      return im_.fail(ErrorCode::bad_file, fused_
                                               ? "fc3_experts_weights beside a swiglu that is fused"
                                               : "fc3_experts_bias without fc3_experts_weights");
    if (activation_ == "swiglu" && fused_ == 0 && !has_third())
      return im_.fail(ErrorCode::bad_file, "a swiglu that is not fused needs fc3_experts_weights");
    return coded_ ? read_coding() : Result<void>{};
  }
  bool has_third() const { return im_.has_input(layers_[2].weights); }

  Result<void> read_coding() {
    if (const std::string kind = im_.attr_string("quant_type", "int"); kind != "int")
      return im_.fail(ErrorCode::unsupported,
                      fmt::format("quant_type = {} is not supported; int is", escaped(kind)));
    // -1, the default, is what the CPU of ONNX Runtime takes for 0.
    if (im_.attr_int("weights_prepacked", -1) > 0)
      return im_.fail(ErrorCode::unsupported,
                      "weights_prepacked = 1 is a layout of one GPU's kernels; export with 0");
    if (im_.attr_int("swiglu_limit_after_activation", 0))
      return im_.fail(ErrorCode::unsupported, "swiglu_limit_after_activation is not supported");
    block_ = im_.attr_int("block_size", 0);
    if (block_ != 0 && (block_ < 8 || block_ > (1 << 30) || (block_ & (block_ - 1)) != 0))
      return im_.fail(ErrorCode::bad_file,
                      fmt::format("block_size = {} is no power of two from 8 on", block_));
    return {};
  }

  // ---- which experts, and their shares ----

  Result<void> choose() {
    TFCC_TRY(ValueId router, im_.input(1));
    const Dims given = im_.dims(router);
    if (given.empty() || !ir::as_int(given.back()) || !is_float(im_.type(router).dtype))
      return im_.fail(ErrorCode::shape, fmt::format("router_probs {} name no number of experts",
                                                    ir::to_string(im_.type(router))));
    experts_ = *ir::as_int(given.back());
    if (count_ < 1 || count_ > experts_)
      return im_.fail(ErrorCode::bad_file, fmt::format("k = {} of {} experts", count_, experts_));
    const Dims listed(given.begin(), given.end() - 1);
    TFCC_TRY_VOID(im_.unify(ir::element_count(im_.pool(), listed),
                            ir::element_count(im_.pool(), rows_), "router_probs"));
    Dims dims = rows_;
    dims.push_back(given.back());
    router = reshape(im_, router, dims, ".router");
    router = im_.pointwise(ir::convert(im_.element(router, im_.index_vars(dims)), Scalar::f32),
                           DType::f32, dims, ".router_f32");
    const size_t axis = dims.size() - 1;
    if (coded_) return choose_by_logits(router, axis, dims);
    const ValueId shares =
        softmax_along(im_, router, axis, false, im_.value_name(0) + ".probabilities");
    const Best best = best_of(im_, shares, axis, im_.integer(count_), true);
    places_ = best.places;
    share_ = best.values;
    if (!im_.attr_int("normalize_routing_weights", 0)) return {};
    share_ = divided_by_sum(best.values);
    return {};
  }

  // As ONNX Runtime has it for QMoE: a softmax of those that are chosen alone, whatever it is told,
  // or what another tensor has for them.
  Result<void> choose_by_logits(ValueId router, size_t axis, const Dims& dims) {
    const Best best = best_of(im_, router, axis, im_.integer(count_), true);
    places_ = best.places;
    if (!im_.has_input(kMixingWeights)) {
      share_ = softmax_along(im_, best.values, axis, false, im_.value_name(0) + ".shares");
      return {};
    }
    TFCC_TRY(share_, mixing_weights(dims));
    if (im_.attr_int("normalize_routing_weights", 0)) share_ = divided_by_sum(share_);
    return {};
  }

  // Values [rows.., k] over the sum of those of a row; 0 where that is 0.
  ValueId divided_by_sum(ValueId values) {
    Dims chosen = rows_;
    chosen.push_back(im_.integer(count_));
    const Indices at = im_.index_vars(chosen);
    Indices any(at.begin(), at.end() - 1);
    any.push_back(im_.pool().index(static_cast<int64_t>(any.size()), im_.integer(count_)));
    const ValueId sum = reduction(im_, ir::ReduceKind::sum, im_.element(values, any),
                                  {im_.integer(count_)}, {DType::f32, rows_}, ".best.sum");
    ExprRef all = im_.element(sum, {at.begin(), at.end() - 1}), value = im_.element(values, at);
    if (coded_) value = ir::select(ir::eq(all, real(all, 0)), real(all, 0), ir::div(value, all));
    else value = ir::div(value, all);
    return im_.pointwise(value, DType::f32, chosen, ".shares");
  }

  // What mixes the results of those that are chosen, [rows.., k], of a tensor over all experts.
  Result<ValueId> mixing_weights(const Dims& dims) {
    TFCC_TRY(ValueId given, im_.input(kMixingWeights));
    const Dims own = im_.dims(given);
    if (own.empty() || !ir::is_int(own.back(), experts_) || !is_float(im_.type(given).dtype))
      return im_.fail(ErrorCode::shape, fmt::format("router_weights are {}, not of each expert",
                                                    ir::to_string(im_.type(given))));
    TFCC_TRY_VOID(im_.unify(ir::element_count(im_.pool(), {own.begin(), own.end() - 1}),
                            ir::element_count(im_.pool(), rows_), "router_weights"));
    given = reshape(im_, given, dims, ".router_weights");
    Dims chosen = rows_;
    chosen.push_back(im_.integer(count_));
    const Indices at = im_.index_vars(chosen);
    Indices from = at;
    from.back() = place_of(at);
    ExprRef weight = ir::convert(im_.element(given, from), Scalar::f32);
    weight = ir::select(ir::lt(real(weight, kLeastWeight), weight), weight, real(weight, 0));
    return im_.pointwise(weight, DType::f32, chosen, ".mixing");
  }

  // ---- what an expert computes ----

  // [rows.., k, n] by matrices [experts, n, width of x], and a bias.
  Result<ValueId> expert(ValueId x, const Layer& layer, int64_t n) {
    const Dims want = {im_.integer(experts_), im_.integer(n), im_.dims(x).back()};
    TFCC_TRY(ValueId w, coded_ ? decoded(layer, n, *ir::as_int(want[2])) : stored(layer, want));
    Dims dims = rows_;
    dims.push_back(im_.integer(count_));
    dims.push_back(im_.integer(n));
    const ValueId y = product(x, w, dims, fmt::format(".fc{}", layer.number));
    if (!im_.has_input(layer.bias)) return y;
    TFCC_TRY(ValueId b, im_.input(layer.bias));
    if (im_.dims(b) != Dims{want[0], want[1]} || im_.type(b).dtype != im_.type(x_).dtype)
      return im_.fail(ErrorCode::shape,
                      fmt::format("input {} is {}, not {} x {} of the type of the tokens",
                                  layer.bias, ir::to_string(im_.type(b)), experts_, n));
    const Indices own = im_.index_vars(dims);
    ExprRef sum = im_.element(y, own);
    sum = ir::add(sum, ir::convert(im_.element(b, {place_of(own), own.back()}), sum->type));
    return im_.pointwise(sum, im_.type(x_).dtype, dims, fmt::format(".fc{}.biased", layer.number));
  }

  Result<ValueId> stored(const Layer& layer, const Dims& want) {
    TFCC_TRY(ValueId w, im_.input(layer.weights));
    if (im_.dims(w) == want && im_.type(w).dtype == im_.type(x_).dtype) return w;
    return im_.fail(ErrorCode::shape,
                    fmt::format("input {} is {}, not {} matrices of {} x {} of the type of the "
                                "tokens",
                                layer.weights, ir::to_string(im_.type(w)), experts_,
                                ir::print(want[1]), ir::print(want[2])));
  }

  // Input i, which must have these dims.
  Result<ValueId> part(size_t i, const std::vector<int64_t>& dims, bool reals) {
    TFCC_TRY(ValueId v, im_.input(i));
    Dims want;
    for (int64_t d : dims) want.push_back(im_.integer(d));
    const DType type = im_.type(v).dtype;
    if (im_.dims(v) == want && (reals ? is_float(type) : type == DType::u8)) return v;
    return im_.fail(ErrorCode::shape,
                    fmt::format("input {} is {}, not {}[{}]", i, ir::to_string(im_.type(v)),
                                reals ? "reals " : "u8", fmt::join(dims, ",")));
  }

  // (code - zero point) * scale, with a scale of each column of a matrix, or of blocks along its rows.
  Result<ValueId> decoded(const Layer& layer, int64_t n, int64_t k) {
    const int64_t bits = im_.attr_int(*layer.bits, im_.attr_int("expert_weight_bits", 4));
    if (bits != 2 && bits != 4 && bits != 8)
      return im_.fail(ErrorCode::unsupported,
                      fmt::format("{} bits are not supported; 2, 4 and 8 are", bits));
    constexpr int64_t kMost = int64_t{1} << 31;
    if (k % (8 / bits) != 0 || k >= kMost || n >= kMost)
      return im_.fail(ErrorCode::bad_file,
                      fmt::format("matrices of {} columns have no whole bytes, or too many", k));
    const int64_t blocks = block_ ? (k + block_ - 1) / block_ : n;  // along the last axis of scales
    const auto all = [&](int64_t last) {
      return block_ ? std::vector{experts_, n, last} : std::vector{experts_, last};
    };
    TFCC_TRY(ValueId codes, part(layer.weights, {experts_, n, k * bits / 8}, false));
    TFCC_TRY(ValueId scales, part(layer.scales, all(blocks), true));
    const Dims dims = {im_.integer(experts_), im_.integer(n), im_.integer(k)};
    const Indices at = im_.index_vars(dims);
    const Indices of_block =
        block_ ? Indices{at[0], at[1], ir::div(at[2], im_.integer(block_))} : Indices{at[0], at[1]};
    const Scalar scalar = ir::scalar_of(im_.type(x_).dtype);
    ExprRef zero = im_.integer(int64_t{1} << (bits - 1));
    if (im_.has_input(layer.zeros)) {
      TFCC_TRY(ValueId zeros, part(layer.zeros, all((blocks * bits + 7) / 8), false));
      zero = packed_bits(im_, zeros, of_block, static_cast<int>(bits));
    }
    ExprRef code = packed_bits(im_, codes, at, static_cast<int>(bits));
    ExprRef value = ir::mul(ir::sub(ir::convert(code, scalar), ir::convert(zero, scalar)),
                            ir::convert(im_.element(scales, of_block), scalar));
    return im_.pointwise(value, im_.type(x_).dtype, dims, fmt::format(".fc{}.w", layer.number));
  }

  // The number of the expert of a row, by indices that begin with the row's.
  ExprRef place_of(const Indices& at) const {
    const Indices row(at.begin(), at.begin() + std::ssize(rows_) + 1);
    return clamped(im_.element(places_, row), im_.integer(experts_));
  }

  // Of rows of x, or of x [rows.., k, width], by the matrices that they chose; of doubles spelled out.
  ValueId product(ValueId x, ValueId w, const Dims& dims, const std::string& suffix) const {
    const Type type{im_.type(x_).dtype, dims};
    const Indices at = im_.index_vars(dims);
    if (type.dtype == DType::f64) {
      ExprRef p = im_.pool().index(static_cast<int64_t>(at.size()), im_.dims(x).back());
      Indices row(at.begin(), at.begin() + std::ssize(im_.dims(x)) - 1);
      row.push_back(p);
      return reduction(im_, ir::ReduceKind::sum,
                       ir::mul(im_.element(x, row), im_.element(w, {place_of(at), at.back(), p})),
                       {im_.dims(x).back()}, type, suffix);
    }
    std::vector<ValueId> operands{x, w};
    ir::GroupedMatmulAttrs attrs;
    attrs.which = ir::capture({place_of(at)}, operands)[0];
    return im_.graph.add(ir::OpKind::grouped_matmul, operands, attrs, type,
                         im_.value_name(0) + suffix, im_.node->name);
  }

  // The hidden values of an expert [rows.., k, inner].
  Result<ValueId> activated() {
    TFCC_TRY(ValueId w, im_.input(layers_[0].weights));
    const auto wide = im_.rank(w) == 3 ? ir::as_int(im_.dims(w)[1]) : std::nullopt;
    if (!wide || (fused_ && *wide % 2 != 0))
      return im_.fail(ErrorCode::shape, fmt::format("fc1_experts_weights {} are no matrices of a "
                                                    "known, and for swiglu even, number of rows",
                                                    ir::to_string(im_.type(w))));
    TFCC_TRY(ValueId up, expert(x_, layers_[0], *wide));
    ValueId other{};
    if (has_third()) {
      TFCC_TRY(other, expert(x_, layers_[2], *wide));
    }
    const int64_t inner = fused_ ? *wide / 2 : *wide;
    Dims dims = im_.dims(up);
    dims.back() = im_.integer(inner);
    Indices at = im_.index_vars(dims);
    const auto of_up = [&](ExprRef j) {
      Indices there = at;
      there.back() = j;
      return im_.element(up, there);
    };
    ExprRef j = at.back(), body = nullptr;
    if (fused_ == 1)
      body = gated(of_up(ir::mul(im_.integer(2), j)),
                   of_up(ir::add(ir::mul(im_.integer(2), j), im_.integer(1))));
    else if (fused_ == 2) body = gated(of_up(j), of_up(ir::add(j, im_.integer(inner))));
    else if (activation_ == "swiglu") body = gated(of_up(j), im_.element(other, at));
    else body = plain(of_up(j));
    if (other.valid() && activation_ != "swiglu") body = ir::mul(body, im_.element(other, at));
    return im_.pointwise(body, im_.type(x_).dtype, dims, ".hidden");
  }

  ExprRef plain(ExprRef x) const {
    if (activation_ == "relu") return ir::max(x, real(x, 0));
    if (activation_ == "gelu") return ir::gelu_of(x, ir::GeluKind::tanh);
    return activation_ == "silu" ? swish(x, 1) : x;
  }

  // gate sigmoid(alpha gate) (linear + beta), both within the limit.
  ExprRef gated(ExprRef gate, ExprRef linear) const {
    const double limit = im_.attr_float("swiglu_limit", std::numeric_limits<float>::infinity());
    if (std::isfinite(limit)) {
      gate = ir::min(gate, real(gate, limit));
      linear = ir::max(ir::min(linear, real(linear, limit)), real(linear, -limit));
    }
    return ir::mul(swish(gate, im_.attr_float("activation_alpha", 1)),
                   ir::add(linear, real(linear, im_.attr_float("activation_beta", 0))));
  }

  Importer& im_;
  const bool coded_;
  const Layer* const layers_;
  ValueId x_, places_, share_;
  Dims rows_;  // of tokens
  int64_t width_ = 0, experts_ = 0, count_ = 0, fused_ = 0;
  int64_t block_ = 0;  // of codes that share a scale; 0: all of a column
  std::string activation_;
};

}  // namespace

Result<void> import_microsoft_moe(Importer& im) { return Mixture(im, false).import(); }
Result<void> import_microsoft_qmoe(Importer& im) { return Mixture(im, true).import(); }

}  // namespace tfcc::frontend
