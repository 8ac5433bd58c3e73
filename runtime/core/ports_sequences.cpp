// SPDX-License-Identifier: Apache-2.0
// Inputs of a program without padding: tokens, cu_seqlens, and what follows from it.
#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/core/backend.h"
#include "runtime/core/ports.h"

namespace tfcc::runtime {

namespace {

Error other_tokens(const Port& p, int64_t tokens, int64_t end) {
  return {ErrorCode::shape, role(p) + " has " + std::to_string(tokens) +
                                " tokens, cu_seqlens ends at " + std::to_string(end)};
}

}  // namespace

bool Ports::is_table(const Port& p) const {
  return p.is_input && sequences_.taken() && is_of_sequences(p.type->role);
}

// Whether it has a row for each token of all sequences.
bool Ports::has_tokens(const Port& p) const {
  if (!sequences_.taken() || !p.is_input || is_table(p) || p.type->dims.empty()) return false;
  const auto symbol = p.type->dims[0].lone_symbol();
  return symbol && manifest_.symbols[*symbol].role == SizeRole::tokens;
}

// What follows from cu_seqlens is nobody's to set. Errors: invalid_argument.
Result<void> Ports::check_told(const Port& p) const {
  if (!is_table(p) || p.type->role == InputRole::cu_seqlens) return {};
  return Error{ErrorCode::invalid_argument, role(p) + " follows from cu_seqlens; set that"};
}

// cu_seqlens itself, read here; the others of its kind follow from it.
Result<void> Ports::set_sequences(const Port& p, const TensorRef& tensor) {
  TFCC_TRY_VOID(check_told(p));
  if (tensor.dtype != DType::i32 && tensor.dtype != DType::i64) {
    return Error{ErrorCode::invalid_argument,
                 role(p) + ": dtype is " + to_string(tensor.dtype) + ", must be i32 or i64"};
  }
  TFCC_TRY_VOID(check_shape(p, tensor.shape));
  if (tensor.place == Place::device || tensor.data == nullptr) {
    return Error{ErrorCode::invalid_argument,
                 role(p) + " is read by the host; give it in host memory, for enqueue() too"};
  }
  const auto count = static_cast<size_t>(tensor.shape[0]);
  if (tensor.dtype == DType::i64) return take({static_cast<const int64_t*>(tensor.data), count});
  const auto* numbers = static_cast<const int32_t*>(tensor.data);
  return take(std::vector<int64_t>(numbers, numbers + count));
}

Result<void> Ports::take(std::span<const int64_t> cu_seqlens) {
  if (!sequences_.are(cu_seqlens)) {
    TFCC_TRY_VOID(sequences_.set(cu_seqlens));
    tables_there_ = false;
  }
  for (Port& p : ports_) {
    if (!is_table(p)) continue;
    const std::span<const int32_t> table = std::as_const(sequences_).table(p.type->role);
    p.ref.data = const_cast<int32_t*>(table.data());
    p.ref.dtype = DType::i32;
    p.ref.shape.assign(1, static_cast<int64_t>(table.size()));
    p.is_set = true;
  }
  return {};
}

Result<void> Ports::set(std::string_view name, const TensorRef& tensor,
                        std::span<const int64_t> cu_seqlens) {
  TFCC_TRY(const Port* p, require(name, false));
  if (!has_tokens(*p)) {
    return Error{sequences_.taken() ? ErrorCode::invalid_argument : ErrorCode::unsupported,
                 role(*p) + (sequences_.taken()
                                 ? " has no row for each token; set it without cu_seqlens"
                                 : " is padded; Model::ragged() takes tokens without padding")};
  }
  if (!cu_seqlens.empty() && !tensor.shape.empty() && tensor.shape[0] != cu_seqlens.back())
    return other_tokens(*p, tensor.shape[0], cu_seqlens.back());
  TFCC_TRY([[maybe_unused]] const int64_t longest, sequences_.check(cu_seqlens));
  TFCC_TRY_VOID(set(name, tensor));
  return take(cu_seqlens);
}

Result<void> Ports::set(std::string_view name,
                        std::span<const std::span<const int64_t>> sequences) {
  TFCC_TRY(Port * p, require(name, false));
  const DType dtype = p->type->dtype;
  if (p->type->dims.size() != 1 || (dtype != DType::i64 && dtype != DType::i32)) {
    if (sequences_.taken())
      return Error{ErrorCode::invalid_argument,
                   role(*p) + " has no whole number for each token; give a tensor and cu_seqlens"};
  }
  std::vector<int64_t> ends{0}, all;
  for (const std::span<const int64_t> s : sequences) {
    all.insert(all.end(), s.begin(), s.end());
    ends.push_back(static_cast<int64_t>(all.size()));
  }
  const auto count = static_cast<int64_t>(all.size());
  if (dtype == DType::i32) {
    for (size_t i = 0; i < all.size(); ++i) {
      const auto narrow = static_cast<int32_t>(all[i]);
      if (narrow != all[i])
        return Error{ErrorCode::invalid_argument,
                     role(*p) + ": " + std::to_string(all[i]) + " does not fit i32"};
      std::memcpy(reinterpret_cast<std::byte*>(all.data()) + i * sizeof narrow, &narrow,
                  sizeof narrow);
    }
  }
  TFCC_TRY_VOID(set(name, {all.data(), dtype, {count}}, ends));
  p->own = std::move(all);  // whose memory is the same
  return {};
}

// Inputs over tokens have as many as cu_seqlens says. Errors: shape.
Result<void> Ports::check_tokens() const {
  for (const Port& p : ports_) {
    if (!has_tokens(p) || p.ref.shape[0] == sequences_.tokens()) continue;
    return other_tokens(p, p.ref.shape[0], sequences_.tokens());
  }
  return {};
}

// Shapes of what is made of cu_seqlens.
Result<Shapes> Ports::with_tables(const Shapes& given) const {
  if (!sequences_.taken()) return given;
  Shapes all;
  std::optional<int64_t> batch, tokens, longest;
  for (const auto& [name, shape] : given) {
    const auto p = std::find_if(ports_.begin(), ports_.end(),
                                [&](const Port& q) { return q.is_input && q.type->name == name; });
    if (p == ports_.end() || !is_table(*p)) {
      if (p != ports_.end() && has_tokens(*p) && !shape.empty()) tokens = shape[0];
      all.emplace_back(name, shape);
      continue;
    }
    TFCC_TRY_VOID(check_shape(*p, shape));
    if (p->type->role == InputRole::cu_seqlens) batch = shape[0] - 1;
    else if (p->type->role == InputRole::longest) longest = shape[0];
    else TFCC_TRY_VOID(check_told(*p));
  }
  if (!batch || *batch < 0 || !tokens) {
    return Error{ErrorCode::invalid_argument,
                 "shapes without padding name the tokens and cu_seqlens: input_ids:500, "
                 "cu_seqlens:9 are 500 tokens of 8 sequences"};
  }
  if (!longest) longest = sequences_.longest_of(*batch, *tokens);
  TFCC_TRY_VOID(sequences_.check_sizes(*batch, *tokens, *longest));
  for (const Port& p : ports_) {
    if (is_table(p))
      all.emplace_back(p.type->name,
                       Shape{Sequences::count(p.type->role, *batch, *tokens, *longest)});
  }
  return all;
}

Result<void> Ports::copy_tables(void* stream) {
  if (!sequences_.taken() || tables_there_) return {};
  for (Port& p : ports_) {
    if (!is_table(p) || !p.is_set) continue;
    const size_t bytes = bytes_of(p.ref.shape, p.type->dtype);
    p.staged.reset();
    TFCC_TRY_VOID(grow_device(own_device(p), p, bytes));
    if (bytes > 0) TFCC_TRY_VOID(queue_.copy_in(stream, own_device(p).data, p.ref.data, bytes));
  }
  tables_there_ = true;
  return {};
}

}  // namespace tfcc::runtime
