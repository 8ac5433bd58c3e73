// SPDX-License-Identifier: Apache-2.0
#include "runtime/core/sequences.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

namespace tfcc::runtime {
namespace {

const TensorType* input_of(const Program& program, InputRole role) {
  const auto it = std::find_if(program.inputs.begin(), program.inputs.end(),
                               [role](const TensorType& t) { return t.role == role; });
  return it == program.inputs.end() ? nullptr : &*it;
}

const Symbol* size_of_role(const Program& program, SizeRole role) {
  const auto it = std::find_if(program.symbols.begin(), program.symbols.end(),
                               [role](const Symbol& s) { return s.role == role; });
  return it == program.symbols.end() ? nullptr : &*it;
}

// Kernels index with 32 bits.
int64_t most_of(const Program& program, SizeRole role) {
  const Symbol* s = size_of_role(program, role);
  return s != nullptr && s->max > 0 ? std::min<int64_t>(s->max, INT32_MAX) : INT32_MAX;
}

Error wrong(const std::string& message) {
  return Error{ErrorCode::shape, "cu_seqlens: " + message};
}

Result<void> check_most(int64_t n, int64_t most, const std::string& what) {
  if (n <= most) return {};
  return wrong(what + ", at most " + std::to_string(most) + " are taken");
}

}  // namespace

std::string no_ragged_program(const Program& program) {
  for (int i = static_cast<int>(InputRole::cu_seqlens); i < kInputRoleCount; ++i) {
    const auto role = static_cast<InputRole>(i);
    const TensorType* t = input_of(program, role);
    const std::string what = "its input '" + std::string(to_string(role)) + "'";
    if (t == nullptr) return what + " is missing";
    if (std::ranges::count(program.inputs, role, &TensorType::role) > 1)
      return what + " is there twice";
    if (t->dtype != DType::i32 || t->dims.size() != 1 || t->state)
      return what + " is no vector of i32";
    const SizeRole counts = role == InputRole::row_sequences || role == InputRole::row_positions
                                ? SizeRole::tokens
                            : role == InputRole::longest ? SizeRole::length
                                                         : SizeRole::batch;
    const Symbol* size = size_of_role(program, counts);
    std::vector<int64_t> one(program.symbols.size(), 1), two = one;
    if (size == nullptr || size->derived())
      return "its number of " + std::string(to_string(counts)) + " is no size of a run";
    two[static_cast<size_t>(size - program.symbols.data())] = 2;
    const int64_t more = role == InputRole::cu_seqlens;
    if (t->dims[0].evaluate(one) != 1 + more || t->dims[0].evaluate(two) != 2 + more)
      return what + " has another size";
  }
  return {};
}

Sequences::Sequences(const Manifest& manifest)
    : taken_(no_ragged_program(manifest).empty()),
      most_batch_(most_of(manifest, SizeRole::batch)),
      most_tokens_(most_of(manifest, SizeRole::tokens)),
      most_length_(most_of(manifest, SizeRole::length)) {}

Result<void> Sequences::check_sizes(int64_t batch, int64_t tokens, int64_t longest) const {
  TFCC_TRY_VOID(
      check_most(batch, most_batch_, "there are " + std::to_string(batch) + " sequences"));
  TFCC_TRY_VOID(
      check_most(tokens, most_tokens_, "there are " + std::to_string(tokens) + " tokens"));
  const std::string sizes =
      std::to_string(tokens) + " tokens of " + std::to_string(batch) + " sequences";
  if (tokens < batch) return wrong("there are " + sizes + ", each of which has one at least");
  if (longest < 1 ? tokens > 0 : longest > tokens || (tokens - 1) / longest >= batch) {
    return wrong("there are " + sizes + ", of which the longest cannot have " +
                 std::to_string(longest));
  }
  return check_most(longest, most_length_, "a sequence has " + std::to_string(longest) + " tokens");
}

int64_t Sequences::longest_of(int64_t batch, int64_t tokens) const {
  const auto size = [&](InputRole role) { return static_cast<int64_t>(table(role).size()); };
  if (tokens == tokens_ && batch == size(InputRole::seqlens)) return size(InputRole::longest);
  return std::min(std::max<int64_t>(tokens - batch + 1, 0), most_length_);
}

int64_t Sequences::count(InputRole role, int64_t batch, int64_t tokens, int64_t longest) {
  switch (role) {
    case InputRole::cu_seqlens: return batch + 1;
    case InputRole::row_sequences:
    case InputRole::row_positions: return tokens;
    case InputRole::longest: return longest;
    default: return batch;
  }
}

Result<int64_t> Sequences::check(std::span<const int64_t> cu) const {
  if (cu.empty()) return wrong("it is empty; it has one number more than there are sequences");
  if (cu[0] != 0) return wrong("it begins with " + std::to_string(cu[0]) + ", must begin with 0");
  int64_t longest = 0;
  for (size_t i = 1; i < cu.size(); ++i) {
    const std::string sequence = "sequence " + std::to_string(i - 1);
    if (cu[i] < cu[i - 1])
      return wrong("it falls from " + std::to_string(cu[i - 1]) + " to " + std::to_string(cu[i]) +
                   " at " + sequence);
    if (cu[i] == cu[i - 1])
      return wrong(sequence + " has no token: it begins and ends at " + std::to_string(cu[i]));
    TFCC_TRY_VOID(check_most(cu[i] - cu[i - 1], most_length_,
                             sequence + " has " + std::to_string(cu[i] - cu[i - 1]) + " tokens"));
    longest = std::max(longest, cu[i] - cu[i - 1]);
  }
  TFCC_TRY_VOID(check_sizes(std::ssize(cu) - 1, cu.back(), longest));
  return longest;
}

Result<void> Sequences::set(std::span<const int64_t> cu) {
  TFCC_TRY(const int64_t longest, check(cu));
  try {
    make(cu, longest);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::memory, "cu_seqlens: no memory for tables of " +
                                        std::to_string(cu.back()) + " tokens; use fewer"};
  }
  std::swap(tables_, spare_);
  tokens_ = cu.back();
  return {};
}

bool Sequences::are(std::span<const int64_t> cu) const {
  return std::ranges::equal(cu, table(InputRole::cu_seqlens));
}

// In memory of the tables before the last ones.
void Sequences::make(std::span<const int64_t> cu, int64_t longest) {
  const int64_t batch = std::ssize(cu) - 1;
  spare(InputRole::cu_seqlens).assign(cu.begin(), cu.end());
  std::vector<int32_t>&lengths = spare(InputRole::seqlens),
  &order = spare(InputRole::longest_first), &sequences = spare(InputRole::row_sequences),
  &positions = spare(InputRole::row_positions);
  lengths.clear();
  sequences.clear();
  positions.resize(static_cast<size_t>(cu.back()));
  for (int64_t b = 0; b < batch; ++b) {
    const auto at = static_cast<size_t>(b);
    lengths.push_back(static_cast<int32_t>(cu[at + 1] - cu[at]));
    sequences.resize(static_cast<size_t>(cu[at + 1]), static_cast<int32_t>(b));
    std::iota(positions.begin() + cu[at], positions.begin() + cu[at + 1], 0);
  }
  order.resize(static_cast<size_t>(batch));
  std::iota(order.begin(), order.end(), 0);
  const auto length = [&](int32_t b) { return lengths[static_cast<size_t>(b)]; };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return length(a) != length(b) ? length(a) > length(b) : a < b;
  });
  spare(InputRole::longest).resize(static_cast<size_t>(longest));
}

}  // namespace tfcc::runtime
