// SPDX-License-Identifier: Apache-2.0
// What `tfcc inspect` knows of a file: verified manifest, sizes to evaluate at, and the JSON form
// of docs/inspect-json.md.
#pragma once

#include <nlohmann/json.hpp>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/manifest.h"
#include "runtime/core/model.h"
#include "tools/tfcc/tensors.h"

namespace tfcc::tools {

/// A .tfcc file mapped for reading; nothing of it is executed.
struct InspectedFile {
  std::string path;
  runtime::MappedFile map;
  runtime::Artifact artifact;
  runtime::Manifest manifest;
  bool generation = false;     // the program for generation is shown
  bool ragged = false;         // that for tokens without padding is
  std::vector<int64_t> sizes;  // of the symbols, at which bytes and flops are given

  /// Reads header, table and manifest. Errors: io, bad_file, unsupported.
  static Result<InspectedFile> open(const std::string& path);
  /// The same of a file in memory, which must stay there. `path` is its name in messages.
  static Result<InspectedFile> read(std::span<const std::byte> bytes, const std::string& path);

  /// Behind the names of its texts: codegen::suffix().
  std::string_view suffix() const { return ragged ? ".ragged" : generation ? ".generate" : ""; }
  /// Shows the program for tokens without padding from now on. Errors: unsupported (there is none).
  Result<void> show_ragged();
  /// Shows the program for generation from now on, not the graph as it was exported. Errors:
  /// unsupported (why there is none).
  Result<void> show_generation();

  /// Sets `sizes` from shapes of inputs; a symbol that none gives is 16 (the batch) or 128, within
  /// its range. Errors: invalid_argument (no such input), shape.
  Result<void> set_sizes(const WantedSizes& wanted);
  /// The value at `sizes`, or nothing if it does not fit 64 bits.
  std::optional<int64_t> at(const runtime::SizeExpr& e) const { return e.evaluate(sizes); }

  /// Bytes that an executor holds for all slots of a plan at `sizes`.
  std::optional<int64_t> arena_bytes(const runtime::Plan& plan) const;
  /// The most bytes of arena buffers that one launch needs at `sizes`, and how much more the arena
  /// is.
  std::optional<int64_t> live_bytes(const runtime::Plan& plan) const;
  std::optional<double> arena_ratio(const runtime::Plan& plan) const;

  /// Launches that come again and again: the first and the last time one may differ.
  struct Layers {
    size_t count, launches;  // of layers; of each
    size_t first = 0;        // the launch that the first one begins with
  };
  std::optional<Layers> layers(const runtime::Plan& plan, const runtime::Bucket& bucket) const;

  /// The bucket that runs at `sizes`, or null.
  const runtime::Bucket* bucket(const runtime::Plan& plan) const;
  /// Arena buffers whose size grows with the square of one symbol, such as attention scores.
  std::vector<const runtime::Buffer*> quadratic_buffers(const runtime::Plan& plan) const;
  /// A kept text; of several with one name the first. Errors: invalid_argument (none of that name),
  /// bad_file (altered).
  Result<std::string> text(const std::string& name) const;
  Result<std::string> text(const runtime::Text& text) const;
  uint64_t code_bytes(const runtime::Target& target) const;
  uint64_t weight_bytes() const;

 private:
  void within_tokens();

  mutable bool texts_verified_ = false;
  mutable std::map<std::string_view, const runtime::Text*>
      text_index_;  // made when the first is asked for
};

/// "in", "out", "arena", "constant" or "state".
const char* class_name(runtime::BufferClass place);
/// The dims of a tensor or buffer as text: "[batch_size,128]".
std::string dims_text(const std::vector<runtime::SizeExpr>& dims);
/// "4, 8, 16, .., 512": what a size is rounded up to.
std::string caps_text(const runtime::SizeCaps& caps);

/// What is printed beside interface and plans.
struct TextOptions {
  bool launches = false, kernels = false, ir = false, texts = false;
  bool values = false;  // flops and bytes of launches as numbers, not as expressions
};

/// What `tfcc inspect` prints without --json. Errors: invalid_argument (no texts), bad_file
/// (altered).
Result<std::string> inspect_text(const InspectedFile& file, const TextOptions& options);

/// What `tfcc inspect --why` prints of every launch whose name contains these words, of the buckets
/// that run at the file's sizes.
/// Errors: invalid_argument (no such launch).
Result<std::string> inspect_why(const InspectedFile& file, const std::string& name);

/// JSON of a file, which may be anything: discarded where it is none, or nested so deeply that
/// printing it would end the stack.
nlohmann::json shallow_json(std::string_view text);

/// docs/inspect-json.md.
nlohmann::json to_json(const InspectedFile& file);

}  // namespace tfcc::tools
