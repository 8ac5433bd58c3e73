// SPDX-License-Identifier: Apache-2.0
// Executor::prepare and prepare_all: everything that runs of certain shapes, or of all, will need.
#include <algorithm>

#include "runtime/core/executor_impl.h"

namespace tfcc {

using runtime::Symbol;

inline namespace v1 {
namespace {

// The sizes at which every symbol is as large as the file says, each by itself.
Result<std::vector<int64_t>> largest_sizes(const runtime::Manifest& m) {
  std::vector<int64_t> sizes;
  for (const Symbol& s : m.symbols) {
    if (!s.derived() && s.max == 0) {
      return Error{ErrorCode::invalid_argument,
                   "the file names no largest " + s.name +
                       "; give prepare_all() shapes, or compile with --max-batch, --max-tokens, "
                       "--seq-buckets or --maxShapes"};
    }
    sizes.push_back(s.max);
  }
  return sizes;
}

// Where a file was compiled for so many tokens: the sizes that they are the product of, batch
// first. None: any rows of any length go.
struct Tokens {
  size_t batch;
  std::vector<size_t> others;
  const Symbol* tokens;
};
std::optional<Tokens> tokens_of(const runtime::Manifest& m) {
  const Symbol* batch = with_role(m, SizeRole::batch);
  const Symbol* tokens = with_role(m, SizeRole::tokens);
  if (batch == nullptr || tokens == nullptr || !tokens->derived() || tokens->made ||
      tokens->max == 0)
    return std::nullopt;
  Tokens t{static_cast<size_t>(batch - m.symbols.data()), {}, tokens};
  bool of_batch = false;
  // A product of different sizes of the inputs (manifest_check.cpp).
  tokens->value.for_each_symbol([&](size_t i) {
    if (i == t.batch) of_batch = true;
    else t.others.push_back(i);
  });
  return of_batch ? std::optional(t) : std::nullopt;
}

int64_t least(const Symbol& s) { return std::max<int64_t>(s.min, 1); }

// How many rows of these sizes leave the tokens within what the file takes; at least one.
int64_t rows_within(const Tokens& t, std::vector<int64_t> sizes) {
  sizes[t.batch] = 1;
  return std::max<int64_t>(
      t.tokens->max / std::max<int64_t>(t.tokens->value.evaluate(sizes).value_or(t.tokens->max), 1),
      1);
}

// Of these sizes those that a run may have: a file that was compiled for so many tokens takes many
// rows, or rows that are long in one size, not both.
std::vector<std::vector<int64_t>> corners(const runtime::Manifest& m,
                                          const std::vector<int64_t>& largest) {
  const auto t = tokens_of(m);
  if (!t) return {largest};
  std::vector<int64_t> many = largest;
  for (size_t i : t->others) many[i] = std::min(least(m.symbols[i]), largest[i]);
  std::vector<std::vector<int64_t>> all = {many};
  for (size_t i : t->others) {
    all.push_back(many);
    all.back()[i] = std::min(largest[i], std::max(t->tokens->max, least(m.symbols[i])));
  }
  for (auto& sizes : all) {
    const int64_t most = largest[t->batch];
    sizes[t->batch] =
        std::clamp(rows_within(*t, sizes), std::min(m.symbols[t->batch].min, most), most);
  }
  return all;
}

// Sizes at which tensors are as large as in any run of so many tokens: as many rows as there may
// be, and for each of the other sizes tokens for all of them, rounded up.
std::vector<std::vector<int64_t>> widest(const runtime::Manifest& m,
                                         const std::vector<int64_t>& largest) {
  const auto t = tokens_of(m);
  if (!t) return {largest};
  std::vector<std::vector<int64_t>> all;
  for (size_t i : t->others) {
    std::vector<int64_t> sizes = largest;
    for (size_t other : t->others) sizes[other] = std::min(least(m.symbols[other]), largest[other]);
    sizes[i] = 1;
    const int64_t each =
        std::max<int64_t>(t->tokens->value.evaluate(sizes).value_or(t->tokens->max), 1);
    sizes[i] = std::min(largest[i], (t->tokens->max + each - 1) / each);
    all.push_back(std::move(sizes));
  }
  return all;
}

}  // namespace

Result<void> Executor::Impl::prepare_symbols(std::span<const int64_t> wanted) {
  TFCC_TRY_VOID(bind(wanted));
  TFCC_TRY_VOID(make_ready(queue->own_stream(), true));
  // Also for a run on a stream that is being captured.
  if (!binding.empty()) TFCC_TRY_VOID(plain_ready(true));
  return ports.prepare(wanted);
}

Result<void> Executor::Impl::prepare(const Shapes& shapes) {
  TFCC_TRY_VOID(idle("prepare"));
  ports.forget_feeds();
  ran = false;  // results may lie in memory that grows
  std::vector<int64_t> sizes;
  TFCC_TRY_VOID(ports.symbols_for(shapes, sizes));
  TFCC_TRY_VOID(prepare_symbols(sizes));
  return model->backend->save_timings();
}

Result<void> Executor::Impl::wanted_sizes(const Shapes& shapes, std::vector<int64_t>& largest,
                                          std::vector<std::vector<int64_t>>& certain) {
  const runtime::Manifest& m = model->manifest;
  if (!shapes.empty() || m.inputs.empty()) {
    TFCC_TRY_VOID(ports.symbols_for(shapes, largest));
    certain = {largest};
    return {};
  }
  TFCC_TRY(largest, largest_sizes(m));
  certain = corners(m, largest);
  for (auto& sizes : certain) {
    if (!runtime::derive_symbols(m, sizes)) {
      return Error{ErrorCode::shape,
                   "the largest sizes of the file overflow; give prepare_all() shapes"};
    }
    for (size_t i = 0; i < sizes.size(); ++i) {  // what is computed is largest at a corner
      if (m.symbols[i].derived()) largest[i] = std::max(largest[i], sizes[i]);
    }
  }
  return {};
}

Result<void> Executor::Impl::prepare_all(const Shapes& shapes) {
  TFCC_TRY_VOID(idle("prepare_all"));
  ports.forget_feeds();
  ran = false;
  const runtime::Manifest& m = model->manifest;
  std::vector<int64_t> largest;
  std::vector<std::vector<int64_t>> certain;
  TFCC_TRY_VOID(wanted_sizes(shapes, largest, certain));
  if (shapes.empty() && !m.inputs.empty()) {
    for (std::vector<int64_t>& of_ports : widest(m, largest)) {
      if (runtime::derive_symbols(m, of_ports)) TFCC_TRY_VOID(ports.prepare(of_ports));
    }
  }
  if (captures(queue->own_stream())) TFCC_TRY_VOID(capture_all(buckets_of(largest, certain)));
  for (const auto& sizes : certain) TFCC_TRY_VOID(prepare_symbols(sizes));
  return model->backend->save_timings();
}

}  // namespace v1
}  // namespace tfcc
