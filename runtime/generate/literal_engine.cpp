// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "runtime/generate/engine.h"
#include "runtime/generate/numbers.h"
#include "runtime/generate/sampler.h"

namespace tfcc::generate {
namespace {

class LiteralEngine : public Engine {
 public:
  LiteralEngine(Executor executor, Roles roles, int64_t max_context)
      : executor_(std::move(executor)), roles_(std::move(roles)), max_context_(max_context) {
    name_ = roles_.caches.empty() ? "whole sequences" : "past and present";
  }

  std::unique_ptr<Sequence> start(std::span<const int32_t>) override {
    auto out = std::make_unique<Held>();
    out->past.resize(roles_.caches.size());
    out->present.resize(roles_.caches.size());
    return out;
  }

  bool has_place(int64_t) const override { return true; }
  bool reserve(Sequence&, int64_t) override { return true; }
  size_t most_at_once() const override { return 1; }
  int64_t most_tokens() const override { return INT64_MAX; }

  Result<void> begin(std::span<const Work>, bool) override { return {}; }
  Result<void> finish(std::span<Work> works) override {
    for (Work& w : works) {
      TFCC_TRY(const std::span<float> logits, advance(*w.sequence, w.tokens));
      if (!w.wants_token) continue;
      before_.assign(logits.begin(), logits.end());
      w.logits = before_;
      const auto token = sample(logits, w.history, w.sampling, w.history.size());
      w.token = token ? *token : -1;
      if (token && w.wants_log_probability) w.log_probability = log_probability(before_, *token);
    }
    return {};
  }

  const std::string& name() const override { return name_; }

 private:
  Result<std::span<float>> advance(Sequence& sequence, std::span<const int32_t> tokens) {
    Held& held = static_cast<Held&>(sequence);
    if (roles_.caches.empty()) {  // nothing is kept but the tokens: all are computed again
      held.tokens.insert(held.tokens.end(), tokens.begin(), tokens.end());
      tokens = held.tokens;
      held.length = 0;
    }
    const int64_t past = held.length, now = static_cast<int64_t>(tokens.size());
    make_room(past, now);
    TFCC_TRY_VOID(
        give(ids_, roles_.ids, now, [&](int64_t i) { return tokens[static_cast<size_t>(i)]; }));
    TFCC_TRY_VOID(give(mask_, roles_.mask, past + now, [](int64_t) { return 1; }));
    TFCC_TRY_VOID(give(positions_, roles_.positions, now, [&](int64_t i) { return past + i; }));
    TFCC_TRY_VOID(give(types_, roles_.types, now, [](int64_t) { return 0; }));
    for (size_t i = 0; i < roles_.caches.size(); ++i)
      TFCC_TRY_VOID(give_cache(roles_.caches[i], held.past[i], held.present[i], past, past + now));
    TFCC_TRY_VOID(executor_.run());
    TFCC_TRY_VOID(executor_.status());
    held.past.swap(held.present);
    held.length = past + now;
    held.bytes = 0;
    for (size_t i = 0; i < held.past.size(); ++i)
      held.bytes += held.past[i].capacity() + held.present[i].capacity();
    return last_logits(now);
  }

  struct Held : Sequence {
    std::vector<Bytes> past, present;
    std::vector<int32_t> tokens;
  };

  // Memory for twice the tokens at a time, so that few steps move it. Where the file does not take
  // so many, steps get theirs one by one.
  void make_room(int64_t past, int64_t now) {
    if (past + now <= room_past_ + room_now_ && now <= room_now_) return;
    const int64_t total =
        std::min(std::max<int64_t>(
                     64, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(past + now)))),
                 std::max(max_context_, past + now));
    room_now_ = roles_.caches.empty() ? total : std::max(room_now_, now);
    room_past_ = std::max(room_past_, total - room_now_);
    Shapes shapes;
    const auto table = [&](const TensorInfo& input, int64_t count) {
      if (!input.name.empty()) shapes.emplace_back(input.name, shape_of(input, count));
    };
    for (const TensorInfo* input : {&roles_.ids, &roles_.positions, &roles_.types})
      table(*input, room_now_);
    table(roles_.mask, roles_.caches.empty() ? room_now_ : room_past_ + room_now_);
    for (const Cache& cache : roles_.caches)
      shapes.emplace_back(cache.past.name, shape_of(cache, room_past_));
    (void)executor_.prepare(shapes);
  }

  template <class F>
  Result<void> give(Bytes& memory, const TensorInfo& input, int64_t count, F value) {
    if (input.name.empty()) return {};
    memory.clear();
    const std::vector<int64_t> shape = shape_of(input, count);
    for (int64_t i = 0; i < shape[0] * count; ++i)
      append_number(value(i % count), input.dtype, memory);
    return executor_.set(input.name, {memory.data(), input.dtype, shape, Place::host});
  }

  // [batch, length], or positions [axes, batch, length].
  static std::vector<int64_t> shape_of(const TensorInfo& input, int64_t count) {
    if (input.dims.size() == 2) return {1, count};
    return {input.dims[0].max, 1, count};
  }

  static std::vector<int64_t> shape_of(const Cache& cache, int64_t tokens) {
    std::vector<int64_t> shape;
    for (size_t k = 0; k < cache.past.dims.size(); ++k)
      shape.push_back(k == cache.batch_axis  ? 1
                      : k == cache.past_axis ? tokens
                                             : cache.past.dims[k].max);
    return shape;
  }

  static size_t bytes_of(const Cache& cache, int64_t tokens) {
    size_t n = size_of(cache.past.dtype);
    for (const int64_t d : shape_of(cache, tokens)) n *= static_cast<size_t>(d);
    return n;
  }

  // The two change places after the run. They grow by half, so that few steps move them.
  Result<void> give_cache(const Cache& cache, Bytes& past, Bytes& present, int64_t before,
                          int64_t after) {
    const size_t needed = bytes_of(cache, after);
    if (past.empty())  // an address for nothing, or a state of zeros
      past.resize(std::max(size_of(cache.past.dtype), bytes_of(cache, before)));
    if (present.size() < needed) {
      present = Bytes();
      present.resize(needed + needed / 2);
    }
    TFCC_TRY_VOID(executor_.set(
        cache.past.name, {past.data(), cache.past.dtype, shape_of(cache, before), Place::host}));
    return executor_.set(cache.present,
                         {present.data(), cache.past.dtype, shape_of(cache, after), Place::host});
  }

  Result<std::span<float>> last_logits(int64_t rows) {
    TFCC_TRY(const Tensor all, executor_.output(roles_.logits));
    const auto width = static_cast<size_t>(roles_.vocabulary);
    logits_.resize(width);
    const size_t first = (static_cast<size_t>(rows) - 1) * width;
    if (all.bytes < (first + width) * size_of(all.dtype))
      return Error{ErrorCode::unsupported, "the output '" + roles_.logits +
                                               "' has not the logits of each token of the step"};
    numbers_from(all.data, all.dtype, first, logits_);
    return std::span<float>(logits_);
  }

  Executor executor_;
  Roles roles_;
  int64_t max_context_, room_past_ = 0, room_now_ = 0;  // tokens that the arena holds
  std::string name_;
  Bytes ids_, mask_, positions_, types_;
  std::vector<float> logits_, before_;  // of the last token, and before it was chosen from them
};

}  // namespace

Result<std::unique_ptr<Engine>> make_literal_engine(const Model& model, Roles roles,
                                                    int64_t max_context) {
  TFCC_TRY(Executor executor, model.executor());
  return std::unique_ptr<Engine>(
      std::make_unique<LiteralEngine>(std::move(executor), std::move(roles), max_context));
}

}  // namespace tfcc::generate
