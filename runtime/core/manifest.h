// SPDX-License-Identifier: Apache-2.0
// The manifest of a .tfcc file in memory: plain structs that mirror runtime/core/manifest.proto
// field by field, and the bounded reader that fills them. visit() names every field once, by its
// number there; the reader and the writer (codegen/manifest_bytes.h) are written on top of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/artifact.h"
#include "runtime/dtype.h"
#include "runtime/core/family.h"
#include "runtime/result.h"
#include "runtime/core/size_expr.h"
#include "runtime/input_role.h"
#include "runtime/size_role.h"

namespace tfcc::runtime {

/// A field that the schema has as fixed64.
struct Fixed {
  uint64_t& value;
};

struct Symbol {
  std::string name;
  int64_t min = 0;
  int64_t max = 0;
  uint32_t input = 0;
  uint32_t axis = 0;
  SizeExpr value;                            // of a derived symbol
  std::string min_from = {}, max_from = {};  // options that set them
  int64_t typical = 0;
  SizeRole role = SizeRole::none;
  bool made = false;
  int64_t multiple = 0;  // the axis is so many times the size; 0: once

  bool derived() const { return !value.code.empty(); }
  int64_t times() const { return multiple > 1 ? multiple : 1; }

  template <class V> void visit(V&& v) {
    v(1, name);
    v(2, min);
    v(3, max);
    v(4, input);
    v(5, axis);
    v(6, value);
    v(7, min_from);
    v(8, max_from);
    v(9, typical);
    v(10, role);
    v(11, made);
    v(12, multiple);
  }
};

struct TensorType {
  std::string name;
  DType dtype = DType::f32;
  std::vector<SizeExpr> dims;
  bool state = false;  // an input that a run changes
  InputRole role = InputRole::none;

  template <class V> void visit(V&& v) {
    v(1, name);
    v(2, dtype);
    v(3, dims);
    v(4, state);
    v(5, role);
  }
};

struct Check {
  SizeExpr value;
  bool equal = false;
  std::string message;

  template <class V> void visit(V&& v) {
    v(1, value);
    v(2, equal);
    v(3, message);
  }

  bool operator==(const Check&) const = default;
};

struct Flag {
  std::string message;

  template <class V> void visit(V&& v) { v(1, message); }
};

struct Weight {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t checksum = 0;

  template <class V> void visit(V&& v) {
    v(1, name);
    v(2, dtype);
    v(3, shape);
    v(5, offset);
    v(6, size);
    v(7, Fixed{checksum});
  }
};

enum class BufferClass : uint8_t { input = 0, output = 1, arena = 2, constant = 3, state = 4 };

struct Buffer {
  BufferClass place = BufferClass::input;
  std::string name;
  DType dtype = DType::f32;
  std::vector<SizeExpr> dims;
  uint32_t index = 0;
  SizeExpr offset = {};  // in the slot
  uint32_t first_use = 0;
  uint32_t last_use = 0;

  template <class V> void visit(V&& v) {
    v(1, place);
    v(2, name);
    v(3, dtype);
    v(4, dims);
    v(5, index);
    v(6, first_use);
    v(7, last_use);
    v(8, offset);
  }

  bool operator==(const Buffer&) const = default;
};

struct Kernel {
  std::string name;
  std::string op;
  uint32_t threads = 0;
  uint32_t shared_bytes = 0;
  bool starts_early = false;
  uint32_t cluster = 0;  // CUDA: blocks along the grid's third size, all of it; 0: none

  template <class V> void visit(V&& v) {
    v(1, name);
    v(2, op);
    v(3, threads);
    v(4, shared_bytes);
    v(5, starts_early);
    v(6, cluster);
  }

  bool operator==(const Kernel&) const = default;
};

struct TensorMap {
  uint32_t buffer = 0;
  SizeExpr rows, columns;
  uint32_t box_rows = 0;
  uint32_t box_columns = 0;

  template <class V> void visit(V&& v) {
    v(1, buffer);
    v(2, rows);
    v(3, columns);
    v(4, box_rows);
    v(5, box_columns);
  }

  bool operator==(const TensorMap&) const = default;
};

struct Tile {
  uint32_t rows = 0, columns = 0;
  float round_cycles = 0, read_cycles = 0;

  template <class V> void visit(V&& v) {
    v(1, rows);
    v(2, columns);
    v(3, round_cycles);
    v(4, read_cycles);
  }

  bool operator==(const Tile&) const = default;
};

struct TileChoice {
  SizeExpr rows;
  uint64_t columns = 0;
  std::vector<Tile> tiles;
  std::string what;

  template <class V> void visit(V&& v) {
    v(1, rows);
    v(2, columns);
    v(3, tiles);
    v(4, what);
  }

  bool operator==(const TileChoice&) const = default;
};

struct KernelLaunch {
  uint32_t kernel = 0;
  std::vector<uint32_t> args;
  std::vector<SizeExpr> grid;
  SizeExpr work;
  uint32_t grain = 0;
  std::vector<TensorMap> maps;
  uint32_t resident = 0;  // CUDA: the most blocks for each multiprocessor, of the grid's first size
  std::optional<TileChoice> tiles;  // CUDA

  template <class V> void visit(V&& v) {
    v(1, kernel);
    v(2, args);
    v(3, grid);
    v(4, work);
    v(5, grain);
    v(6, maps);
    v(7, resident);
    v(8, tiles);
  }

  bool operator==(const KernelLaunch&) const = default;
};

struct MatmulLaunch {
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t d = 0;
  bool has_bias = false;
  uint32_t bias = 0;
  SizeExpr m, n, k, batch, stride_a, stride_b;
  bool trans_a = false;
  bool trans_b = false;
  float alpha = 0;
  bool in_order = false;
  bool tf32 = false;
  bool side_by_side = false;

  template <class V> void visit(V&& v) {
    v(1, a);
    v(2, b);
    v(3, d);
    v(4, has_bias);
    v(5, bias);
    v(6, m);
    v(7, n);
    v(8, k);
    v(9, batch);
    v(10, stride_a);
    v(11, stride_b);
    v(12, trans_a);
    v(13, trans_b);
    v(14, alpha);
    v(15, in_order);
    v(16, tf32);
    v(17, side_by_side);
  }

  bool operator==(const MatmulLaunch&) const = default;
};

struct Launch {
  std::string name;
  std::vector<std::string> ops;
  std::optional<KernelLaunch> kernel;  // exactly one of the two after validation
  std::optional<MatmulLaunch> matmul;
  SizeExpr flops;
  SizeExpr bytes;
  std::string why;  // how it was chosen, for `tfcc inspect --why`
  uint32_t makes = 0;

  template <class V> void visit(V&& v) {
    v(1, name);
    v(2, ops);
    v(3, kernel);
    v(4, matmul);
    v(5, flops);
    v(6, bytes);
    v(7, why);
    v(8, makes);
  }

  bool operator==(const Launch&) const = default;
};

struct Bucket {
  std::string name;
  std::vector<Check> limits;
  std::vector<Launch> launches;

  template <class V> void visit(V&& v) {
    v(1, name);
    v(2, limits);
    v(3, launches);
  }

  bool operator==(const Bucket&) const = default;
};

/// How a size is rounded up to the cap of its bucket.
struct SizeCaps {
  std::vector<int64_t> caps;  // ascending; a size has the first that is not smaller
  SizeExpr
      cap;  // where there are none: a program over the caps of all sizes, then the least value of each

  template <class V> void visit(V&& v) {
    v(1, caps);
    v(2, cap);
  }

  bool operator==(const SizeCaps&) const = default;
};

/// Which runs share the launches captured at the caps of their sizes. One entry per symbol.
struct BucketTable {
  std::vector<SizeCaps> sizes;

  template <class V> void visit(V&& v) { v(1, sizes); }

  bool operator==(const BucketTable&) const = default;
};

/// Plan::precision where products of f32 are multiplied in TF32.
inline constexpr std::string_view kTf32 = "tf32", kTf32x3 = "tf32x3";

struct Plan {
  Family family = Family::cpu;
  std::string name;  // what dumps and reports call it: "cpu", "cuda", "sm_90a"
  std::vector<Buffer> buffers;
  std::vector<SizeExpr> slots;
  std::vector<Bucket> buckets;
  std::vector<Kernel> kernels;
  bool has_bind = false;
  uint32_t bind = 0;
  std::string precision;
  SizeExpr live_bytes;
  std::vector<Check> limits;
  std::optional<BucketTable> bucket_table;
  std::string no_bucket_table;
  uint32_t counters = 0;  // CUDA: behind the flags: multiprocessors, then zeros between launches

  template <class V> void visit(V&& v) {
    v(1, family);
    v(2, buffers);
    v(3, slots);
    v(4, buckets);
    v(5, kernels);
    v(6, has_bind);
    v(7, bind);
    v(8, precision);
    v(9, live_bytes);
    v(10, limits);
    v(12, bucket_table);
    v(13, no_bucket_table);
    v(14, name);
    v(15, counters);
  }

  bool operator==(const Plan&) const = default;
};

struct Image {
  uint64_t offset = 0;
  uint64_t size = 0;

  template <class V> void visit(V&& v) {
    v(1, offset);
    v(2, size);
  }
};

struct Target {
  std::string name;
  uint32_t plan = 0;
  uint32_t section = 0;
  std::vector<Image> images;
  uint32_t min_driver = 0;

  template <class V> void visit(V&& v) {
    v(1, name);
    v(2, plan);
    v(3, section);
    v(4, images);
    v(5, min_driver);
  }
};

/// Names of texts that are files kept with the model begin so.
inline constexpr char kAttachmentPrefix[] = "files/";

struct Text {
  std::string name;
  uint64_t offset = 0;
  uint64_t size = 0;

  template <class V> void visit(V&& v) {
    v(1, name);
    v(2, offset);
    v(3, size);
  }
};

/// One use of a model: what goes in and out, and the plans that compute it.
struct Program {
  std::vector<Symbol> symbols;
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;
  std::vector<Check> checks;
  std::vector<Flag> flags;
  std::vector<Plan> plans;
  std::vector<Target> targets;

  template <class V> void visit(V&& v) {
    v(3, symbols);
    v(4, inputs);
    v(5, outputs);
    v(6, checks);
    v(7, flags);
    v(9, plans);
    v(10, targets);
  }
};

/// The program that is the graph as it was exported, what all programs share, and others: for
/// generation, and for tokens without padding.
struct Manifest : Program {
  std::string producer;
  std::string model;
  std::vector<Weight> weights;
  std::vector<Text> texts;
  std::string report;
  std::vector<Program> generation;  // one, or none
  std::string no_generation;        // why
  bool generation_alone = false;    // the file's program is that for generation
  std::vector<Program> ragged;      // one, or none
  std::string no_ragged;            // why

  template <class V> void visit(V&& v) {
    Program::visit(v);
    v(1, producer);
    v(2, model);
    v(8, weights);
    v(11, texts);
    v(12, report);
    v(13, generation);
    v(14, no_generation);
    v(15, generation_alone);
    v(16, ragged);
    v(17, no_ragged);
  }
};

/// The manifest of a file that had its program of generation alone, of one that has such a program.
Manifest generation_of(const Manifest& file);
/// That of a file whose program is the one over tokens without padding, of one that has it.
Manifest ragged_of(const Manifest& file);

/// Bytes of a file's weights; what two of them share counts once.
uint64_t weight_bytes(const Manifest& file);

/// Caps that a plan may name for one size.
inline constexpr size_t kMaxCaps = 1024;
/// Sizes of a file with a bucket table, and codes of the program of a cap: looking buckets up stays
/// quick whoever wrote the file.
inline constexpr size_t kMaxBucketSizes = 64, kMaxCapCodes = 256;
/// Lengths that a user may name, each with graphs of its own.
inline constexpr size_t kMaxLengths = 64;
/// No size has a larger cap: CUDA kernels index with 32 bits.
inline constexpr int64_t kLargestCap = int64_t{1} << 31;

/// Messages that one manifest may hold, all kinds together: bounds the memory a small file can
/// claim.
inline constexpr size_t kMaxManifestMessages = size_t{1} << 20;

/// What dumps and the file call the source of a kernel: "cuda/norm__f16_h768.cu".
std::string source_file(const Plan& plan, const std::string& kernel);

/// The symbol with this role, or null.
const Symbol* with_role(const Manifest& manifest, SizeRole role);

/// Reads the wire format. Unknown fields are skipped. `name` starts every message.
/// Errors: bad_file (broken encoding, wrong wire type, unknown dtype or class, too many messages).
Result<Manifest> read_manifest(std::span<const std::byte> bytes, const std::string& name);

/// Checks every index, offset and size program against the rest of the manifest and the file, so
/// that nothing later can reach outside. Errors: bad_file.
Result<void> check_manifest(const Manifest& manifest, const Artifact& artifact,
                            const std::string& name);

}  // namespace tfcc::runtime
