// SPDX-License-Identifier: Apache-2.0
// From shapes to sizes: the symbols that the inputs' shapes give, the bucket that takes them, and
// every size of its launches. Pure arithmetic, no device; the executor does it again only when a
// shape changes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/backend.h"
#include "runtime/core/manifest.h"
#include "runtime/result.h"

namespace tfcc::runtime {

using Shape = std::vector<int64_t>;

/// Reads the symbols off the inputs' shapes (one per input, ranks already right) and compares every
/// dim with them. Errors: shape, naming the inputs that disagree or the limit that is passed.
Result<void> read_symbols(const Manifest& manifest, std::span<const Shape* const> shapes,
                          std::vector<int64_t>& symbols);

/// Computes the derived symbols from those before them; false on overflow.
bool derive_symbols(const Manifest& manifest, std::span<int64_t> symbols);

/// True if a symbol is 0 below its minimum: an empty batch or sequence, for which nothing is
/// launched. Binding refuses it where an output has elements nevertheless.
bool is_empty_run(const Manifest& manifest, std::span<const int64_t> symbols);

/// Evaluates dims. Errors: shape (overflow, negative).
Result<void> evaluate_dims(const TensorType& tensor, std::span<const int64_t> symbols,
                           Shape& shape);

/// Bytes of the arena for these symbols. Errors: shape.
Result<size_t> arena_size(const Plan& plan, std::span<const int64_t> symbols);

/// Whether a check holds; one that overflows does not.
bool holds(const Check& check, std::span<const int64_t> symbols);

/// The first bucket of launches whose limits hold, or null.
const Bucket* first_bucket(const Plan& plan, std::span<const int64_t> symbols);

/// "batch_size = 2, sequence_length = 16", for messages.
std::string print_symbols(const Manifest& manifest, std::span<const int64_t> symbols);

/// A tensor map with its sizes known.
struct BoundMap {
  uint32_t buffer = 0;
  int64_t rows = 0, columns = 0;
};

/// A launch with its sizes known.
struct BoundLaunch {
  const Launch* launch = nullptr;
  std::array<int64_t, 3> grid = {1, 1, 1};
  int64_t work = 0;
  std::vector<BoundMap> maps;
  int64_t rows = 0;  // by which its kernel chooses a tile: at most so many
  MatmulShape matmul;
  size_t handle = 0;  // of the product, given by the queue
  bool skip = false;  // no work for these sizes
  bool behind_skipped = false;
};

/// All sizes of one plan for one set of symbols. Its arrays are allocated once.
class Binding {
 public:
  Binding(const Manifest& manifest, const Plan& plan);

  /// Checks the symbols and evaluates shapes and buffers. Errors: shape; internal if the plan does
  /// not fit its own buffers.
  Result<void> bind_shapes(std::span<const int64_t> symbols);
  /// Evaluates the launches for the shapes bound. Errors: as bind_shapes().
  Result<void> bind_launches();
  /// Both.
  Result<void> bind(std::span<const int64_t> symbols);
  /// Evaluates the launches at the caps of a bucket (bucket_finder.h), in place of real sizes: no
  /// shapes, and the checks of the model do not apply. Errors: shape.
  Result<void> bind_caps(std::span<const int64_t> caps);

  /// Evaluates launches from `first` on with a size that a launch before them made, in place of its
  /// bound. Errors: shape; internal if it is larger than its bound.
  Result<void> bind_made(size_t first, size_t symbol, int64_t value);

  /// Forgets the symbols, so that the next bind_shapes() starts anew.
  void unbind() { bound_ = false; }
  bool has_launches() const { return launched_; }
  bool bound_to(std::span<const int64_t> symbols) const;
  bool empty() const { return empty_; }
  std::span<const int64_t> symbols() const { return symbols_; }
  std::span<BoundLaunch> launches() { return {launches_.data(), launch_count_}; }
  /// Where a buffer of the arena lies in it.
  size_t offset(uint32_t buffer) const { return offsets_[buffer]; }
  size_t arena_bytes() const { return arena_bytes_; }
  const Shape& output_shape(size_t i) const { return outputs_[i]; }

 private:
  Result<void> bind_map(const Launch& launch, const TensorMap& map, BoundLaunch& bound) const;
  Result<void> bind_checks();
  Result<const Bucket*> choose_bucket() const;
  Result<void> lay_out();
  Result<void> bind_buffers();
  Result<void> bind_launch(const Launch& launch, BoundLaunch& bound) const;
  Result<void> bind_matmul(const Launch& launch, BoundLaunch& bound) const;
  Error broken(const std::string& what) const;

  const Manifest& manifest_;
  const Plan& plan_;
  std::vector<int64_t> symbols_;
  bool bound_ = false;
  bool launched_ = false;
  bool empty_ = false;
  std::vector<Shape> inputs_;
  std::vector<Shape> outputs_;
  std::vector<int64_t> elements_;  // of each buffer
  std::vector<size_t> offsets_;    // of each buffer in the arena
  std::vector<size_t> room_;       // bytes from there to the end of its slot
  std::vector<size_t> slot_offsets_;
  size_t arena_bytes_ = 0;
  std::vector<BoundLaunch> launches_;
  size_t launch_count_ = 0;
};

}  // namespace tfcc::runtime
