// SPDX-License-Identifier: Apache-2.0
// Constants are recipes: where the bytes come from and what is done to them. Passes extend the
// recipe; the artifact writer, the evaluator and the folding of constants make the bytes, a tensor
// at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/dtype.h"
#include "runtime/result.h"

namespace tfcc::ir {

/// A file that constants point into, mapped read-only for as long as anyone refers to it.
struct SourceFile {
  std::string name;  // as written in the text form
  const std::byte* data = nullptr;
  uint64_t size = 0;
  std::shared_ptr<const void> mapping;  // keeps `data` alive
  bool on_disk = false;                 // `data` is a mapping of a file, and comes again from there
};

/// One step of a recipe, applied to the row-major tensor before it.
struct ConstantStep {
  enum class Kind { transpose, cast, reshape, add } kind;
  std::vector<int64_t>
      numbers;  // transpose: the permutation; reshape: the new dims; add: what is added to each integer
  DType dtype = DType::f32;  // cast, add: the new type
};

class ComputedConstant;

/// A constant tensor: a source and the steps that follow.
struct Constant {
  enum class Source { bytes, file, random, concat, graph } source = Source::bytes;
  DType dtype = DType::f32;                             // of the source
  std::vector<int64_t> dims;                            // of the source
  std::shared_ptr<const std::vector<std::byte>> bytes;  // Source::bytes, little-endian, row-major
  std::shared_ptr<const SourceFile> file;               // Source::file
  uint64_t offset = 0;                                  // Source::file
  uint64_t seed = 0;                                    // Source::random: normal, deviation 0.02
  int64_t axis = 0;             // Source::concat: where parts follow each other
  std::vector<Constant> parts;  // Source::concat: recipes of one type
  std::shared_ptr<const ComputedConstant> computed;  // Source::graph: ir/computed.h
  std::vector<ConstantStep> steps;

  /// Type and dims after all steps.
  DType result_dtype() const;
  std::vector<int64_t> result_dims() const;
  int64_t element_count() const;
};

/// A constant from values in memory.
Constant constant_from_bytes(DType dtype, std::vector<int64_t> dims, std::vector<std::byte> bytes);

/// Constants of one type joined along an axis. Needs: at least one part, equal dtypes and dims but
/// for the axis.
Constant concat_constants(std::vector<Constant> parts, int64_t axis);

/// A constant of the type of this output.
Constant constant_of(std::shared_ptr<const ComputedConstant> computed);

/// A text that two recipes share only if they give the same bytes: what their sources and steps
/// are. Bytes of more than `most_compared` are the same if they are one object.
std::string recipe_key(const Constant& c, size_t most_compared = SIZE_MAX);

/// The bytes of a constant: made for it, or those of its source where no step changes them, which
/// live as long as the source.
class ConstantBytes {
 public:
  static ConstantBytes of(std::span<const std::byte> bytes);
  /// To be written through data(). Throws std::bad_alloc.
  static ConstantBytes room(size_t size);

  std::span<const std::byte> span() const { return bytes_; }
  std::byte* data() { return owned_.get(); }

 private:
  std::unique_ptr<std::byte[]> owned_;
  std::span<const std::byte> bytes_;
};

/// The bytes after all steps. Errors: memory; io or bad_file if the source file is absent or too
/// short; those of eval().
Result<ConstantBytes> read_constant(const Constant& c);
/// Gives the memory that read_constant() brought in from files on disk back to the system; it comes
/// in again where it is read again.
void let_go(const Constant& c);
/// The same as read_constant() as a vector of its own.
Result<std::vector<std::byte>> materialize(const Constant& c);

/// Maps a file read-only. Errors: io.
Result<std::shared_ptr<const SourceFile>> map_source_file(const std::string& path);

/// Element `i` of row-major bytes of type `dtype`, as double or int64 (exact for integers).
double read_real(DType dtype, const std::byte* data, size_t i);
int64_t read_int(DType dtype, const std::byte* data, size_t i);
/// Stores a number, rounding to nearest even for 16-bit floats.
void write_real(DType dtype, std::byte* data, size_t i, double v);
void write_int(DType dtype, std::byte* data, size_t i, int64_t v);

}  // namespace tfcc::ir
