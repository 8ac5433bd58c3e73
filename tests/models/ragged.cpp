// SPDX-License-Identifier: Apache-2.0
// A model's program without padding against its own program with padding: random sequences, given
// once padded on the right and once one after the other. Results of tokens and of sequences must
// agree, and with those of each sequence alone.
//
//     ragged MODEL.tfcc RUNS LARGEST_ID LARGEST_LENGTH TOLERANCE [cpu|cuda]
//
// TOLERANCE is absolute; 0 asks for the same bits. Exit status 0 if all agree, 1 with a line for the first that does not.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "runtime/tfcc.h"

namespace {

using tfcc::DType;
using tfcc::Executor;
using tfcc::Model;
using Bytes = std::vector<std::byte>;

bool is_mask(const std::string& name) { return name.find("mask") != std::string::npos; }

/// Sequences of whole numbers for each input over tokens.
struct Batch {
  std::vector<int64_t> lengths;
  std::map<std::string, std::vector<std::vector<int64_t>>> values;

  int64_t longest() const { return *std::max_element(lengths.begin(), lengths.end()); }
  /// Sequence b of it.
  Batch alone(size_t b) const {
    Batch one{{lengths[b]}, {}};
    for (const auto& [name, rows] : values) one.values[name] = {rows[b]};
    return one;
  }
};

Batch random_batch(const Model& model, std::mt19937& random, int64_t largest_id, uint32_t longest) {
  Batch out;
  const size_t batch = 1 + random() % 6;
  const uint32_t most = random() % 8 == 0 ? longest : std::min(longest, 20u);
  for (size_t b = 0; b < batch; ++b) out.lengths.push_back(1 + random() % most);
  for (const tfcc::TensorInfo& t : model.inputs()) {
    if (is_mask(t.name)) continue;
    const int64_t largest = t.name.find("type") != std::string::npos ? 1 : largest_id;
    for (int64_t n : out.lengths) {
      std::vector<int64_t>& row = out.values[t.name].emplace_back();
      for (int64_t s = 0; s < n; ++s)
        row.push_back(static_cast<int64_t>(random() % static_cast<uint32_t>(largest + 1)));
    }
  }
  return out;
}

template <class T> bool good(const tfcc::Result<T>& r, const char* what) {
  if (!r) std::printf("FAIL  %s: %s\n", what, r.error().message.c_str());
  return static_cast<bool>(r);
}

Bytes bytes_of(const std::vector<int64_t>& v, DType dtype) {
  Bytes bytes(v.size() * size_of(dtype));
  for (size_t i = 0; i < v.size(); ++i) {
    const auto narrow = static_cast<int32_t>(v[i]);
    if (dtype == DType::i64) std::memcpy(&bytes[i * 8], &v[i], 8);
    else std::memcpy(&bytes[i * 4], &narrow, 4);
  }
  return bytes;
}

bool set_padded(const Model& model, Executor& e, const Batch& in, std::vector<Bytes>& memory) {
  const auto batch = static_cast<int64_t>(in.lengths.size());
  for (const tfcc::TensorInfo& t : model.inputs()) {
    std::vector<int64_t> all;
    for (size_t b = 0; b < in.lengths.size(); ++b) {
      for (int64_t s = 0; s < in.longest(); ++s) {
        const bool real = s < in.lengths[b];
        all.push_back(is_mask(t.name) ? real
                      : real          ? in.values.at(t.name)[b][static_cast<size_t>(s)]
                                      : static_cast<int64_t>(b + s) % 2);  // which nobody may read
      }
    }
    memory.push_back(bytes_of(all, t.dtype));
    if (!good(e.set(t.name, {memory.back().data(), t.dtype, {batch, in.longest()}}), "set"))
      return false;
  }
  return true;
}

// In pieces, or as one tensor.
bool set_ragged(const Model& model, Executor& e, const Batch& in, bool pieces,
                std::vector<Bytes>& memory) {
  for (const tfcc::TensorInfo& t : model.inputs()) {
    if (t.role == tfcc::InputRole::cu_seqlens) continue;
    const auto& rows = in.values.at(t.name);
    if (pieces) {
      const std::vector<std::span<const int64_t>> spans(rows.begin(), rows.end());
      if (!good(e.set(t.name, spans), "set in pieces")) return false;
      continue;
    }
    std::vector<int64_t> all, ends{0};
    for (const auto& row : rows) {
      all.insert(all.end(), row.begin(), row.end());
      ends.push_back(static_cast<int64_t>(all.size()));
    }
    memory.push_back(bytes_of(all, t.dtype));
    if (!good(e.set(t.name, {memory.back().data(), t.dtype, {ends.back()}}, ends), "set"))
      return false;
  }
  return true;
}

using Results = std::map<std::string, std::pair<std::vector<int64_t>, Bytes>>;

bool run(const Model& model, Executor& e, Results& out) {
  if (!good(e.run(), "run")) return false;
  for (const tfcc::TensorInfo& t : model.outputs()) {
    auto y = e.output(t.name);
    if (!good(y, t.name.c_str())) return false;
    const auto* data = static_cast<const std::byte*>(y->data);
    out[t.name] = {y->shape, {data, data + y->bytes}};
  }
  return true;
}

// Bytes of sequence b: its tokens of [T,..], its row of [B,..]; of a padded tensor its real ones.
Bytes of_sequence(const std::pair<std::vector<int64_t>, Bytes>& result, const Batch& in, size_t b,
                  bool padded) {
  const auto& [shape, bytes] = result;
  int64_t first = 0, tokens = 0;
  for (size_t k = 0; k < in.lengths.size(); ++k) {
    if (k < b) first += in.lengths[k];
    tokens += in.lengths[k];
  }
  const auto batch = static_cast<int64_t>(in.lengths.size());
  const bool of_tokens = padded ? shape.size() > 1 && shape[1] == in.longest() && shape.size() == 3
                                : shape.size() == 2 && shape[0] == tokens && tokens != batch;
  if (!of_tokens) {
    const size_t each = bytes.size() / in.lengths.size();
    return {bytes.begin() + static_cast<std::ptrdiff_t>(b * each),
            bytes.begin() + static_cast<std::ptrdiff_t>((b + 1) * each)};
  }
  const int64_t rows = padded ? batch * in.longest() : tokens;
  const auto each = static_cast<int64_t>(bytes.size()) / rows;
  const int64_t from = padded ? static_cast<int64_t>(b) * in.longest() : first;
  return {bytes.begin() + from * each, bytes.begin() + (from + in.lengths[b]) * each};
}

// Numbers of f32 that are no further apart; of other types the same bits.
bool agree(const Bytes& a, const Bytes& b, DType dtype, double tolerance) {
  if (tolerance == 0 || dtype != DType::f32) return a == b;
  for (size_t i = 0; i + sizeof(float) <= a.size(); i += sizeof(float)) {
    float x, y;
    std::memcpy(&x, &a[i], sizeof x);
    std::memcpy(&y, &b[i], sizeof y);
    if (!(std::fabs(x - y) <= tolerance)) return false;
  }
  return a.size() == b.size();
}

double tolerance = 0;
std::map<std::string, DType> dtypes;  // of outputs

bool same(const Results& a, const Batch& of_a, size_t in_a, bool padded, const Results& b,
          const Batch& of_b, size_t in_b, const char* what) {
  for (const auto& [name, result] : b) {
    if (agree(of_sequence(a.at(name), of_a, in_a, padded), of_sequence(result, of_b, in_b, false),
              dtypes.at(name), tolerance))
      continue;
    std::printf("FAIL  '%s' of sequence %zu of %zu is not that %s; lengths", name.c_str(), in_b,
                of_b.lengths.size(), what);
    for (int64_t n : of_b.lengths) std::printf(" %lld", static_cast<long long>(n));
    std::printf("\n");
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6 || argc > 7)
    return std::fprintf(stderr,
                        "ragged MODEL.tfcc RUNS LARGEST_ID LARGEST_LENGTH TOLERANCE [cpu|cuda]\n"),
           2;
  tfcc::LoadOptions options;
  if (argc > 6) options.device = argv[6];
  tolerance = std::atof(argv[5]);
  options.threads = 2;
  auto model = Model::load(argv[1], options);
  if (!good(model, "load")) return 1;
  auto ragged = model->ragged();
  if (!good(ragged, "ragged")) return 1;
  auto padded_run = model->executor(), ragged_run = ragged->executor();
  if (!good(padded_run, "executor") || !good(ragged_run, "executor")) return 1;
  for (const tfcc::TensorInfo& t : ragged->outputs()) dtypes[t.name] = t.dtype;
  std::mt19937 random(1);
  int64_t tokens = 0, places = 0;
  const int runs = std::atoi(argv[2]);
  for (int i = 0; i < runs; ++i) {
    const Batch in =
        random_batch(*model, random, std::atoi(argv[3]), static_cast<uint32_t>(std::atoi(argv[4])));
    std::vector<Bytes> memory;
    Results want, got;
    if (!set_padded(*model, *padded_run, in, memory) || !run(*model, *padded_run, want)) return 1;
    if (!set_ragged(*ragged, *ragged_run, in, i % 2 == 0, memory) ||
        !run(*ragged, *ragged_run, got))
      return 1;
    for (size_t b = 0; b < in.lengths.size(); ++b) {
      if (!same(want, in, b, true, got, in, b, "of the padded batch")) return 1;
      tokens += in.lengths[b];
      places += in.longest();
    }
    const size_t one = random() % in.lengths.size();
    const Batch alone = in.alone(one);
    Results of_one;
    if (!set_ragged(*ragged, *ragged_run, alone, i % 2 != 0, memory) ||
        !run(*ragged, *ragged_run, of_one) ||
        !same(of_one, alone, 0, false, got, in, one, "of the sequence alone"))
      return 1;
  }
  std::printf("ok    %d random batches, %lld tokens that would be %lld with padding\n", runs,
              static_cast<long long>(tokens), static_cast<long long>(places));
  return 0;
}
