// SPDX-License-Identifier: Apache-2.0
// Evaluation of a plan's sizes for the shapes of a run, with the errors a user can cause by shapes.
#include "runtime/core/binding.h"
#include "runtime/core/tile_table.h"

#include <algorithm>

namespace tfcc::runtime {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 56;
constexpr int64_t kLargestSize = int64_t{1}
                                 << 30;  // what proofs of the compiler take of any size (ir/expr.h)
constexpr size_t kSlotAlignment = 256;
constexpr int64_t kMaxGrid[3] = {0x7FFFFFFF, 65535, 65535};

Error overflow(const std::string& what) {
  return {ErrorCode::shape, what + ": a size overflows; use smaller shapes"};
}

// "input 'mask': dim 1 is 7, but dim 1 of 'ids' gives sequence_length = 8"
Error disagreement(const Manifest& m, const TensorType& input, size_t axis, int64_t got,
                   int64_t want) {
  const SizeExpr& dim = input.dims[axis];
  std::string message =
      "input '" + input.name + "': dim " + std::to_string(axis) + " is " + std::to_string(got);
  if (auto s = dim.lone_symbol(); s && !m.symbols[*s].derived()) {
    const Symbol& symbol = m.symbols[*s];
    return {ErrorCode::shape, message + ", but dim " + std::to_string(symbol.axis) + " of '" +
                                  m.inputs[symbol.input].name + "' gives " + symbol.name + " = " +
                                  std::to_string(want)};
  }
  if (dim.constant()) return {ErrorCode::shape, message + ", must be " + std::to_string(want)};
  return {ErrorCode::shape, message + ", must be " + dim.print() + " = " + std::to_string(want)};
}

// "batch_size is 40, but the file was compiled with --max-batch 32"; a derived size by its program
Result<void> check_range(const Manifest& m, const Symbol& s, int64_t value) {
  bool below = value != 0 && value < s.min;
  bool above = s.max != 0 && value > s.max;
  if (!below && !above) return {};
  if (const std::string& from = below ? s.min_from : s.max_from; !from.empty()) {
    const std::string axis = s.times() > 1 ? std::to_string(s.times()) + "*" + s.name : s.name;
    return Error{ErrorCode::shape, (s.derived() ? s.value.print() : axis) + " is " +
                                       std::to_string(value * s.times()) +
                                       ", but the file was compiled with " + from};
  }
  if (s.derived())
    return Error{ErrorCode::shape, s.value.print() + " is " + std::to_string(value) +
                                       ", must be at most " + std::to_string(s.max)};
  return Error{ErrorCode::shape,
               "input '" + m.inputs[s.input].name + "': dim " + std::to_string(s.axis) + " (" +
                   (s.times() > 1 ? std::to_string(s.times()) + "*" : "") + s.name + ") is " +
                   std::to_string(value * s.times()) + ", must be at " +
                   (below ? "least " + std::to_string(s.min * s.times())
                          : "most " + std::to_string(s.max * s.times())) +
                   "; use another shape or compile with other limits"};
}

// "input 'x': dim 1 (S) is 0, which leaves output 'mean' with elements; the file was compiled for
// sizes from 1 on". A derived symbol is 0 because one that is read is.
Error nothing_to_read(const Manifest& m, std::span<const int64_t> symbols,
                      const std::string& output) {
  std::string which = "the inputs have a size of 0";
  for (size_t i = symbols.size(); i-- > 0;) {
    const Symbol& s = m.symbols[i];
    if (symbols[i] != 0 || s.min == 0 || s.derived()) continue;
    which = "input '" + m.inputs[s.input].name + "': dim " + std::to_string(s.axis) + " (" +
            s.name + ") is 0";
  }
  return {ErrorCode::shape, which + ", which leaves output '" + output +
                                "' with elements; the file was compiled for sizes from 1 on"};
}

// Elements from the first to behind the last of `batch` matrices, or nothing on overflow.
std::optional<int64_t> extent(int64_t batch, int64_t stride, int64_t rows, int64_t columns) {
  int64_t steps = 0, last = 0, total = 0;
  if (batch == 0) return 0;
  if (__builtin_mul_overflow(batch - 1, stride, &steps)) return std::nullopt;
  if (__builtin_mul_overflow(rows, columns, &last)) return std::nullopt;
  if (__builtin_add_overflow(steps, last, &total)) return std::nullopt;
  return total;
}

}  // namespace

bool holds(const Check& c, std::span<const int64_t> symbols) {
  auto value = c.value.evaluate(symbols);
  return value && (c.equal ? *value == 0 : *value >= 0);
}

const Bucket* first_bucket(const Plan& plan, std::span<const int64_t> symbols) {
  for (const Bucket& bucket : plan.buckets) {
    if (std::all_of(bucket.limits.begin(), bucket.limits.end(),
                    [&](const Check& c) { return holds(c, symbols); })) {
      return &bucket;
    }
  }
  return nullptr;
}

bool derive_symbols(const Manifest& m, std::span<int64_t> symbols) {
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (!m.symbols[i].derived()) continue;
    auto value = m.symbols[i].value.evaluate(symbols);
    if (!value || *value < 0) return false;
    symbols[i] = *value;
  }
  return true;
}

Result<void> read_symbols(const Manifest& m, std::span<const Shape* const> shapes,
                          std::vector<int64_t>& symbols) {
  symbols.resize(m.symbols.size());
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (m.symbols[i].derived()) continue;
    const Symbol& s = m.symbols[i];
    const int64_t dim = (*shapes[s.input])[s.axis];
    const auto refused = [&](const std::string& why) {
      return Error{ErrorCode::shape, "input '" + m.inputs[s.input].name + "': dim " +
                                         std::to_string(s.axis) + " is " + std::to_string(dim) +
                                         ", must be " + why};
    };
    if (dim > kLargestSize) return refused("at most " + std::to_string(kLargestSize));
    if (dim % s.times() != 0) return refused("a multiple of " + std::to_string(s.times()));
    symbols[i] = dim / s.times();
    TFCC_TRY_VOID(check_range(m, m.symbols[i], symbols[i]));
  }
  if (!derive_symbols(m, symbols)) return overflow("the inputs");
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (m.symbols[i].derived()) TFCC_TRY_VOID(check_range(m, m.symbols[i], symbols[i]));
  }
  for (size_t i = 0; i < m.inputs.size(); ++i) {
    for (size_t axis = 0; axis < m.inputs[i].dims.size(); ++axis) {
      int64_t got = (*shapes[i])[axis];
      auto want = m.inputs[i].dims[axis].evaluate(symbols);
      if (!want) return overflow("input '" + m.inputs[i].name + "'");
      if (got != *want) return disagreement(m, m.inputs[i], axis, got, *want);
    }
  }
  return {};
}

bool is_empty_run(const Manifest& m, std::span<const int64_t> symbols) {
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i] == 0 && m.symbols[i].min > 0) return true;
  }
  return false;
}

Result<void> evaluate_dims(const TensorType& tensor, std::span<const int64_t> symbols,
                           Shape& shape) {
  shape.resize(tensor.dims.size());
  for (size_t i = 0; i < shape.size(); ++i) {
    auto value = tensor.dims[i].evaluate(symbols);
    if (!value) return overflow("'" + tensor.name + "'");
    // An empty run may give an expression such as S - 1 no sense: its outputs have no elements.
    shape[i] = std::max<int64_t>(*value, 0);
  }
  auto count = checked_product(shape);
  if (!count || *count > kMaxElements) return overflow("'" + tensor.name + "'");
  return {};
}

Result<size_t> arena_size(const Plan& plan, std::span<const int64_t> symbols) {
  size_t total = 0;
  for (const SizeExpr& slot : plan.slots) {
    auto bytes = slot.evaluate(symbols);
    if (!bytes || *bytes < 0 || *bytes > kMaxElements) return overflow("arena");
    total += (static_cast<size_t>(*bytes) + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
    if (total > static_cast<size_t>(kMaxElements)) return overflow("arena");
  }
  return total;
}

std::string print_symbols(const Manifest& m, std::span<const int64_t> symbols) {
  std::string out;
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (m.symbols[i].derived()) continue;
    out += (i > 0 ? ", " : "") + m.symbols[i].name + " = " + std::to_string(symbols[i]);
  }
  return out;
}

Binding::Binding(const Manifest& manifest, const Plan& plan)
    : manifest_(manifest),
      plan_(plan),
      symbols_(manifest.symbols.size()),
      outputs_(manifest.outputs.size()),
      elements_(plan.buffers.size()),
      offsets_(plan.buffers.size()),
      room_(plan.buffers.size()),
      slot_offsets_(plan.slots.size()) {
  size_t most = 0;
  for (const Bucket& b : plan.buckets) most = std::max(most, b.launches.size());
  launches_.resize(most);
  inputs_.resize(manifest.inputs.size());
}

bool Binding::bound_to(std::span<const int64_t> symbols) const {
  return bound_ && std::equal(symbols.begin(), symbols.end(), symbols_.begin(), symbols_.end());
}

Error Binding::broken(const std::string& what) const {
  return {ErrorCode::internal, what + " for " + print_symbols(manifest_, symbols_) +
                                   ": the plan does not fit itself; report this model"};
}

Result<void> Binding::bind_shapes(std::span<const int64_t> symbols) {
  bound_ = launched_ = false;
  symbols_.assign(symbols.begin(), symbols.end());
  empty_ = is_empty_run(manifest_, symbols_);
  for (size_t i = 0; i < outputs_.size(); ++i) {
    TFCC_TRY_VOID(evaluate_dims(manifest_.outputs[i], symbols_, outputs_[i]));
    if (empty_ && *checked_product(outputs_[i]) > 0) {
      return nothing_to_read(manifest_, symbols_, manifest_.outputs[i].name);
    }
  }
  launch_count_ = 0;
  arena_bytes_ = 0;
  if (!empty_) {
    TFCC_TRY_VOID(bind_checks());
    TFCC_TRY_VOID(choose_bucket());
    TFCC_TRY_VOID(bind_buffers());
  }
  bound_ = true;
  return {};
}

Result<void> Binding::bind_launches() {
  launch_count_ = 0;
  if (!empty_) {
    TFCC_TRY(const Bucket* bucket, choose_bucket());
    for (const Launch& launch : bucket->launches) {
      BoundLaunch& bound = launches_[launch_count_];
      TFCC_TRY_VOID(bind_launch(launch, bound));
      bound.behind_skipped = launch_count_ > 0 && launches_[launch_count_ - 1].skip;
      ++launch_count_;
    }
  }
  launched_ = true;
  return {};
}

Result<void> Binding::bind(std::span<const int64_t> symbols) {
  TFCC_TRY_VOID(bind_shapes(symbols));
  return bind_launches();
}

// Sizes of buffers at the caps mean nothing (batch and length are capped apart from tokens), so
// that products are held against the slots.
Result<void> Binding::bind_caps(std::span<const int64_t> caps) {
  bound_ = launched_ = empty_ = false;
  symbols_.assign(caps.begin(), caps.end());
  TFCC_TRY_VOID(lay_out());
  for (size_t i = 0; i < plan_.buffers.size(); ++i) {
    const Buffer& b = plan_.buffers[i];
    size_t room = b.place == BufferClass::arena      ? room_[i]
                  : b.place == BufferClass::constant ? manifest_.weights[b.index].size
                                                     : 0;
    elements_[i] = static_cast<int64_t>(room / size_of(b.dtype));
  }
  return bind_launches();
}

Result<void> Binding::bind_made(size_t first, size_t symbol, int64_t value) {
  const int64_t bound = symbols_[symbol];
  if (value < 0 || value > bound)
    return broken("size " + manifest_.symbols[symbol].name + " came out as " +
                  std::to_string(value));
  symbols_[symbol] = value;
  Result<void> done;
  for (size_t i = first; i < launch_count_ && done; ++i)
    done = bind_launch(*launches_[i].launch, launches_[i]);
  symbols_[symbol] = bound;  // the shapes are still those bound
  return done;
}

Result<void> Binding::bind_checks() {
  for (const auto* checks : {&manifest_.checks, &plan_.limits}) {
    for (const Check& c : *checks) {
      if (holds(c, symbols_)) continue;
      return Error{ErrorCode::shape, "shapes do not fit the model: " + c.message + " (" +
                                         print_symbols(manifest_, symbols_) + ")"};
    }
  }
  return {};
}

Result<const Bucket*> Binding::choose_bucket() const {
  if (const Bucket* bucket = first_bucket(plan_, symbols_)) return bucket;
  const auto& limits = plan_.buckets.back().limits;
  auto failed = std::find_if(limits.begin(), limits.end(),
                             [&](const Check& c) { return !holds(c, symbols_); });
  return Error{ErrorCode::shape, "shapes are larger than the file was compiled for: " +
                                     failed->message + " (" + print_symbols(manifest_, symbols_) +
                                     "); use smaller shapes or compile with larger limits"};
}

Result<void> Binding::lay_out() {
  TFCC_TRY(arena_bytes_, arena_size(plan_, symbols_));
  size_t offset = 0;
  for (size_t i = 0; i < plan_.slots.size(); ++i) {
    slot_offsets_[i] = offset;
    const auto bytes = static_cast<size_t>(*plan_.slots[i].evaluate(symbols_));
    offset += (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  }
  for (size_t i = 0; i < plan_.buffers.size(); ++i) {
    const Buffer& b = plan_.buffers[i];
    if (b.place != BufferClass::arena) continue;
    const int64_t slot = *plan_.slots[b.index].evaluate(symbols_);
    const auto inside = b.offset.evaluate(symbols_);
    if (!inside) return overflow("buffer '" + b.name + "'");
    if (*inside < 0 || *inside > slot || *inside % static_cast<int64_t>(kSlotAlignment) != 0) {
      return broken("buffer '" + b.name + "' lies outside its slot");
    }
    offsets_[i] = slot_offsets_[b.index] + static_cast<size_t>(*inside);
    room_[i] = static_cast<size_t>(slot - *inside);
  }
  return {};
}

// Lays out the slots and checks that every buffer fits where it lies.
Result<void> Binding::bind_buffers() {
  TFCC_TRY_VOID(lay_out());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    TFCC_TRY_VOID(evaluate_dims(manifest_.inputs[i], symbols_, inputs_[i]));
  }
  for (size_t i = 0; i < plan_.buffers.size(); ++i) {
    const Buffer& b = plan_.buffers[i];
    int64_t count = 1;
    for (const SizeExpr& dim : b.dims) {
      auto value = dim.evaluate(symbols_);
      if (!value || *value < 0) return overflow("buffer '" + b.name + "'");
      if (__builtin_mul_overflow(count, *value, &count)) return overflow("buffer '" + b.name + "'");
    }
    if (count > kMaxElements) return overflow("buffer '" + b.name + "'");
    elements_[i] = count;
    auto io_bytes = [](const Shape& shape, DType t) {
      return static_cast<size_t>(*checked_product(shape)) * size_of(t);
    };
    size_t room = b.place == BufferClass::arena      ? room_[i]
                  : b.place == BufferClass::constant ? manifest_.weights[b.index].size
                  : b.place == BufferClass::input || b.place == BufferClass::state
                      ? io_bytes(inputs_[b.index], manifest_.inputs[b.index].dtype)
                      : io_bytes(outputs_[b.index], manifest_.outputs[b.index].dtype);
    if (static_cast<size_t>(count) * size_of(b.dtype) > room) {
      return broken("buffer '" + b.name + "' needs " + std::to_string(count) +
                    " elements and has " + std::to_string(room) + " bytes");
    }
  }
  return {};
}

Result<void> Binding::bind_launch(const Launch& launch, BoundLaunch& bound) const {
  std::vector<BoundMap> maps = std::move(bound.maps);  // its memory is kept from run to run
  maps.clear();
  bound = {};
  bound.maps = std::move(maps);
  bound.launch = &launch;
  if (launch.matmul) return bind_matmul(launch, bound);
  const KernelLaunch& k = *launch.kernel;
  for (size_t i = 0; i < k.grid.size(); ++i) {
    auto size = k.grid[i].evaluate(symbols_);
    if (!size || *size < 0 || *size > kMaxGrid[i]) return overflow("grid of '" + launch.name + "'");
    bound.grid[i] = *size;
    bound.skip |= *size == 0;
  }
  for (const TensorMap& map : k.maps) TFCC_TRY_VOID(bind_map(launch, map, bound));
  if (k.tiles) {
    const auto rows = k.tiles->rows.evaluate(symbols_);
    if (!rows || *rows < 0 || *rows > kMostTileRows)
      return overflow("rows of '" + launch.name + "'");
    bound.rows = *rows;
  }
  auto work = k.work.evaluate(symbols_);
  if (!work || *work < 0 || *work > kMaxElements) return overflow("work of '" + launch.name + "'");
  bound.work = *work;
  if (plan_.family == Family::cpu) {
    bound.skip = *work == 0;
    int64_t most = 0;
    bool empty = false;
    for (uint32_t arg : k.args) {
      most = std::max(most, elements_[arg]);
      empty |= elements_[arg] == 0;
    }
    // Every item computes at least one element of a result, unless there is none.
    if (*work > most && !empty)
      return broken("launch '" + launch.name + "' has more work than its buffers have elements");
  }
  return {};
}

Result<void> Binding::bind_map(const Launch& launch, const TensorMap& map,
                               BoundLaunch& bound) const {
  const auto rows = map.rows.evaluate(symbols_), columns = map.columns.evaluate(symbols_);
  if (!rows || !columns || *rows < 0 || *columns < 0)
    return overflow("a map of '" + launch.name + "'");
  const int64_t sizes[] = {*rows, *columns};
  const auto elements = checked_product(sizes);
  const auto size = static_cast<int64_t>(size_of(plan_.buffers[map.buffer].dtype));
  const int64_t whole = size == 2 && map.box_columns > 64 ? 64 : 16 / size;
  if (!elements || *elements > elements_[map.buffer] || *columns % whole != 0) {
    return broken("a map of '" + launch.name + "' reaches outside its buffer");
  }
  // The first map has the rows that results are of: without any there is no work. Another may be
  // empty, as keys of no tokens are, of which attention makes zeros: then it has a row that nobody
  // reads, for there are no maps without rows.
  bound.skip |= *elements == 0 && (bound.maps.empty() || *columns == 0);
  bound.maps.push_back({map.buffer, std::max<int64_t>(*rows, 1), *columns});
  return {};
}

Result<void> Binding::bind_matmul(const Launch& launch, BoundLaunch& bound) const {
  const MatmulLaunch& g = *launch.matmul;
  MatmulShape& s = bound.matmul;
  struct {
    const SizeExpr* expr;
    int64_t* value;
  } sizes[] = {{&g.m, &s.m},
               {&g.n, &s.n},
               {&g.k, &s.k},
               {&g.batch, &s.batch},
               {&g.stride_a, &s.stride_a},
               {&g.stride_b, &s.stride_b}};
  for (auto& size : sizes) {
    auto value = size.expr->evaluate(symbols_);
    if (!value || *value < 0 || *value > kMaxElements)
      return overflow("product '" + launch.name + "'");
    *size.value = *value;
  }
  // A sum over nothing is written by the launch that the plan has for it.
  bound.skip = s.m == 0 || s.n == 0 || s.batch == 0 || s.k == 0;
  if (bound.skip) return {};
  // Side by side they have as many elements as one behind the other.
  auto a = extent(s.batch, g.side_by_side ? s.m * s.k : s.stride_a, s.m, s.k);
  auto b = extent(s.batch, s.stride_b, s.k, s.n), d = extent(s.batch, s.m * s.n, s.m, s.n);
  if (!a || !b || !d || *a > elements_[g.a] || *b > elements_[g.b] || *d > elements_[g.d] ||
      (g.has_bias && s.n > elements_[g.bias])) {
    return broken("product '" + launch.name + "' reaches outside its buffers");
  }
  if (s.batch == 1) s.stride_a = s.stride_b = 0;
  s.side_by_side = g.side_by_side && s.batch > 1;
  s.trans_a = g.trans_a;
  s.trans_b = g.trans_b;
  s.has_bias = g.has_bias;
  s.in_order = g.in_order;
  s.tf32 = g.tf32;
  s.alpha = g.alpha;
  s.a = plan_.buffers[g.a].dtype;
  s.b = plan_.buffers[g.b].dtype;
  s.d = plan_.buffers[g.d].dtype;
  if (g.has_bias) s.bias = plan_.buffers[g.bias].dtype;
  return {};
}

}  // namespace tfcc::runtime
