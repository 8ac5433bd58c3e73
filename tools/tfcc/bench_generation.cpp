// SPDX-License-Identifier: Apache-2.0
// tfcc bench --prefill N --decode N: whole answers by the Generator, as a server has them, with
// sampling and the host's part of each step.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>

#include <fmt/format.h>

#include "runtime/core/profile.h"
#include "runtime/generate.h"
#include "tools/tfcc/bench.h"

namespace tfcc::tools {
namespace {

// When the tokens of a round came.
class Arrivals {
 public:
  void start(size_t sequences) {
    const std::lock_guard lock(mutex_);
    begin_ = Clock::now();
    first_ms_.assign(sequences, 0);
    after_ms_.clear();
    waiting_ = sequences;
  }
  void token(size_t sequence) {
    const std::lock_guard lock(mutex_);
    const double now = ms_since(begin_);
    if (waiting_ == 0) after_ms_.push_back(now);
    if (first_ms_[sequence] != 0) return;
    first_ms_[sequence] = now;
    if (--waiting_ > 0) return;
    all_first_ms_ = now;
    begun_.notify_all();
  }
  /// Waits until every sequence has its first token; false after a while.
  bool have_begun() {
    std::unique_lock lock(mutex_);
    return begun_.wait_for(lock, std::chrono::milliseconds(50), [&] { return waiting_ == 0; });
  }
  double prefill_ms() const { return all_first_ms_; }
  /// Tokens that came once every sequence had its first, and how long they took.
  size_t tokens() const { return after_ms_.size(); }
  double decode_ms() const { return after_ms_.empty() ? 0 : after_ms_.back() - all_first_ms_; }

 private:
  std::mutex mutex_;
  std::condition_variable begun_;
  Clock::time_point begin_;
  std::vector<double> first_ms_, after_ms_;
  size_t waiting_ = 0;
  double all_first_ms_ = 0;
};

struct Rounds {
  Series prefill, token;  // ms of all prompts; ms between the tokens of a sequence
  double prompt_tokens = 0, shared_tokens = 0;  // of a round
  int64_t steps = 0, steps_ahead = 0;           // once each has its first token
  double host_us = 0;                           // of such a step
  std::optional<double> weights_ms;
};

class GenerationBench {
 public:
  static Result<GenerationBench> make(const BenchOptions& o, const Model& model) {
    GeneratorOptions options;
    options.max_sequences = o.batch;
    options.max_context = o.context_before() + o.prefill + o.decode;
    TFCC_TRY(Generator generator, Generator::make(model, options));
    return GenerationBench(o, std::move(generator));
  }

  Result<Rounds> run() {
    Stage stage("rounds");
    const int64_t context = o_.context_before();
    for (int64_t b = 0; b < o_.batch; ++b) contexts_.push_back(random_ids(context));
    TFCC_TRY_VOID(answer(context > 0 ? 0 : o_.prefill, 1));  // so that the contexts are known
    TFCC_TRY_VOID(answer(o_.prefill, o_.decode));  // as the rounds, which then capture nothing new
    Rounds out;
    const GeneratorStats before = generator_.stats();
    decoding_ = {};
    const auto start = Clock::now();
    int done = 0;
    for (; done < o_.rounds_at_least() || ms_since(start) < o_.duration_s * 1000; ++done) {
      TFCC_TRY_VOID(answer(o_.prefill, o_.decode));
      out.prefill.ms.push_back(arrivals_->prefill_ms());
      const double each = static_cast<double>(arrivals_->tokens()) / static_cast<double>(o_.batch);
      if (each > 0) out.token.ms.push_back(arrivals_->decode_ms() / each);
      stage.update(ms_since(start) / std::max(o_.duration_s * 1000, 1e-3));
    }
    const GeneratorStats after = generator_.stats();
    out.prompt_tokens = static_cast<double>(after.prompt_tokens - before.prompt_tokens) / done;
    out.shared_tokens = static_cast<double>(after.shared_tokens - before.shared_tokens) / done;
    out.steps = decoding_.steps;
    out.steps_ahead = decoding_.steps_ahead;
    out.host_us = 1000 * decoding_.host_ms / static_cast<double>(std::max<int64_t>(out.steps, 1));
    return out;
  }

 private:
  GenerationBench(const BenchOptions& o, Generator generator)
      : o_(o), generator_(std::move(generator)), rng_(o.seed) {}

  std::vector<int32_t> random_ids(int64_t count) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int32_t& id : ids)
      id = static_cast<int32_t>(rng_() % static_cast<uint64_t>(generator_.vocabulary_size()));
    return ids;
  }

  // Each context with `fresh` new ids behind it, at once.
  Result<void> answer(int64_t fresh, int64_t tokens) {
    std::vector<std::vector<int32_t>> prompts = contexts_;
    for (auto& prompt : prompts) {
      const std::vector<int32_t> more = random_ids(fresh);
      prompt.insert(prompt.end(), more.begin(), more.end());
    }
    arrivals_->start(prompts.size());
    std::vector<Generator::Id> ids;
    for (size_t b = 0; b < prompts.size(); ++b) {
      GenerateOptions options;
      options.max_tokens = tokens;
      options.on_token = [arrivals = arrivals_.get(), b](int32_t) { arrivals->token(b); };
      TFCC_TRY(const Generator::Id id, generator_.submit(prompts[b], options));
      ids.push_back(id);
    }
    const auto failed = [&](Generator::Id id) {
      const auto g = generator_.poll(id);
      return !g || g->end == GenerateEnd::failed;
    };
    while (!arrivals_->have_begun() && std::ranges::none_of(ids, failed)) {}
    const GeneratorStats begun = generator_.stats();
    for (const Generator::Id id : ids) {
      TFCC_TRY(const Generated g, generator_.wait(id));
      if (g.end == GenerateEnd::failed) return g.error;
      if (g.end != GenerateEnd::length)
        return Error{ErrorCode::internal, fmt::format("a sequence ended by {} after {} tokens",
                                                      to_string(g.end), g.tokens.size())};
    }
    const GeneratorStats done = generator_.stats();
    decoding_.steps += done.steps - begun.steps;
    decoding_.steps_ahead += done.steps_ahead - begun.steps_ahead;
    decoding_.host_ms += done.host_ms - begun.host_ms;
    return {};
  }

  const BenchOptions& o_;
  std::unique_ptr<Arrivals> arrivals_ = std::make_unique<Arrivals>();  // outlives the callbacks
  Generator generator_;
  std::mt19937_64 rng_;
  std::vector<std::vector<int32_t>> contexts_;
  GeneratorStats decoding_;  // of the rounds, once each sequence has its first token
};

double per_second(double count, double ms) { return ms > 0 ? count * 1000 / ms : 0; }

void print(const BenchOptions& o, const Model& model, const Rounds& r) {
  const double batch = static_cast<double>(o.batch);
  std::printf("%s on %s (%s), sequences %lld, context %lld, prefill %lld, decode %lld\n",
              o.model.c_str(), model.device().c_str(), model.target().c_str(),
              static_cast<long long>(o.batch), static_cast<long long>(o.context_before()),
              static_cast<long long>(o.prefill), static_cast<long long>(o.decode));
  std::printf(
      "Prefill: %.4f ms until each has its first token, %.0f tokens computed and %.0f shared, %.1f tokens/s\n",
      r.prefill.median(), r.prompt_tokens, r.shared_tokens,
      per_second(r.prompt_tokens, r.prefill.median()));
  if (!r.token.ms.empty()) {
    std::printf(
        "Decode: median = %.4f ms a token of each, min = %.4f ms, max = %.4f ms, %.1f tokens/s",
        r.token.median(), r.token.quantile(0), r.token.quantile(1),
        per_second(batch, r.token.median()));
    if (r.weights_ms)
      std::printf("; reading the weights of products once takes %.4f ms, %.0f%% of it",
                  *r.weights_ms, 100 * *r.weights_ms / r.token.median());
    std::printf("\n");
  }
  std::printf(
      "Host: %.1f us a step, %lld of %lld steps begun before the last was known; medians of %zu rounds\n",
      r.host_us, static_cast<long long>(r.steps_ahead), static_cast<long long>(r.steps),
      r.prefill.ms.size());
}

nlohmann::json json_of(const BenchOptions& o, const Model& model, const Rounds& r) {
  nlohmann::json j = {{"schema", 1},
                      {"model", o.model},
                      {"device", model.device()},
                      {"target", model.target()},
                      {"sequences", o.batch},
                      {"context", o.context_before()},
                      {"prefill", o.prefill},
                      {"decode", o.decode},
                      {"prompt_tokens", r.prompt_tokens},
                      {"shared_tokens", r.shared_tokens},
                      {"prefill_ms", tools::json_of(r.prefill)},
                      {"token_ms", tools::json_of(r.token)},
                      {"steps", r.steps},
                      {"steps_ahead", r.steps_ahead},
                      {"host_us", r.host_us}};
  j["weights_ms"] = r.weights_ms ? nlohmann::json(*r.weights_ms) : nlohmann::json(nullptr);
  return j;
}

}  // namespace

Result<void> bench_generation(const BenchOptions& o, const Model& model) {
  TFCC_TRY(const Model generation, model.generation());
  TFCC_TRY(GenerationBench bench, GenerationBench::make(o, model));
  TFCC_TRY(Rounds rounds, bench.run());
  if (auto executor = generation.executor()) {
    if (const auto ms = runtime::weight_read_ms(*executor)) rounds.weights_ms = *ms;
  }
  if (o.json) std::printf("%s\n", json_of(o, model, rounds).dump(1).c_str());
  else print(o, model, rounds);
  return {};
}

}  // namespace tfcc::tools
