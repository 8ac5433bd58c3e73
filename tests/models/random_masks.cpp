// SPDX-License-Identifier: Apache-2.0
// A model with padding removed against itself with padding, over random masks: right, left and
// scattered padding, rows of padding alone, one token, no padding. Results of real tokens and of
// pooled outputs must agree; a result of padding must be zero, or that of the padded file where the
// row is kept because a pooler reads it. With NOISE 1, in every fourth run ids of padding are out
// of range, which the packed file must not notice (0: the model computes positions from them).
//
//     random_masks PACKED.tfcc PADDED.tfcc RUNS LARGEST_ID LARGEST_LENGTH NOISE TOLERANCE [cpu|cuda [weighs]]
//
// TOLERANCE is absolute. A model that `weighs` tokens by a softmax has no result for a sequence of
// padding alone, but a number. Exit status 0 if all agree, 1 with a line for the first that does not.
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

/// Integer inputs of one run by name, all [batch, length]; the mask is 0 and 1.
struct Inputs {
  int64_t batch = 0, length = 0;
  std::map<std::string, std::vector<int64_t>> values;
};

bool is_mask(const std::string& name) { return name.find("mask") != std::string::npos; }

std::vector<int64_t> random_row(std::mt19937& random, int64_t length) {
  std::vector<int64_t> row(static_cast<size_t>(length), 0);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
  };
  const int64_t live = below(length + 1);
  switch (below(7)) {
    case 0: break;                                               // padding alone
    case 1: row[static_cast<size_t>(below(length))] = 1; break;  // one token, anywhere
    case 2: std::fill(row.begin(), row.end(), 1); break;
    case 3:
      for (int64_t i = length - live; i < length; ++i) row[static_cast<size_t>(i)] = 1;
      break;  // left
    case 4:
      for (int64_t& v : row) v = below(length) < live;
      break;  // scattered
    default:
      for (int64_t i = 0; i < live; ++i) row[static_cast<size_t>(i)] = 1;
      break;  // right
  }
  return row;
}

Inputs random_inputs(const Model& model, std::mt19937& random, int64_t largest_id,
                     uint32_t longest) {
  Inputs in;
  in.batch = 1 + random() % 6;
  in.length = 1 + random() % (random() % 8 == 0 ? longest : std::min(longest, 20u));
  std::vector<int64_t> mask;
  for (int64_t b = 0; b < in.batch; ++b) {
    const auto row = random_row(random, in.length);
    mask.insert(mask.end(), row.begin(), row.end());
  }
  for (const tfcc::TensorInfo& t : model.inputs()) {
    std::vector<int64_t>& v = in.values[t.name];
    if (is_mask(t.name)) {
      v = mask;
      continue;
    }
    const int64_t most = t.name.find("type") != std::string::npos ? 1 : largest_id;
    for (size_t i = 0; i < mask.size(); ++i)
      v.push_back(static_cast<int64_t>(random() % static_cast<uint32_t>(most + 1)));
  }
  return in;
}

using Results = std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>>;

bool run(const Model& model, Executor& e, const Inputs& in, Results* results, const char* which) {
  std::vector<std::vector<std::byte>> memory;
  for (const tfcc::TensorInfo& t : model.inputs()) {
    const std::vector<int64_t>& v = in.values.at(t.name);
    std::vector<std::byte>& bytes = memory.emplace_back(v.size() * size_of(t.dtype));
    for (size_t i = 0; i < v.size(); ++i) {
      const auto narrow = static_cast<int32_t>(v[i]);
      if (t.dtype == DType::i64) std::memcpy(&bytes[i * 8], &v[i], 8);
      else if (t.dtype == DType::i32) std::memcpy(&bytes[i * 4], &narrow, 4);
      else return std::printf("FAIL  input '%s' is not of integers\n", t.name.c_str()), false;
    }
    if (auto set = e.set(t.name, {bytes.data(), t.dtype, {in.batch, in.length}}); !set)
      return std::printf("FAIL  %s: %s\n", which, set.error().message.c_str()), false;
  }
  if (auto ran = e.run(); !ran)
    return std::printf("FAIL  %s: %s\n", which, ran.error().message.c_str()), false;
  for (const tfcc::TensorInfo& t : model.outputs()) {
    auto out = e.output(t.name);
    if (!out || out->dtype != DType::f32)
      return std::printf("FAIL  output '%s' is not of f32\n", t.name.c_str()), false;
    const auto* data = static_cast<const float*>(out->data);
    (*results)[t.name] = {out->shape, {data, data + out->bytes / sizeof(float)}};
  }
  return true;
}

bool has_tokens(const Inputs& in, const std::vector<int64_t>& mask, size_t sequence) {
  const auto first = mask.begin() + static_cast<std::ptrdiff_t>(sequence) * in.length;
  return std::find(first, first + in.length, 1) != first + in.length;
}

/// The largest difference of results, NaN where one is; results of padding may be zero instead.
double difference(const Inputs& in, const std::vector<int64_t>& mask, const Results& packed,
                  const Results& padded, bool weighs) {
  double most = 0;
  for (const auto& [name, result] : packed) {
    const auto& [shape, values] = result;
    const std::vector<float>& want = padded.at(name).second;
    if (padded.at(name).first != shape || want.size() != values.size()) return INFINITY;
    const bool tokens = shape.size() == 3 && shape[1] == in.length;
    const size_t width = values.size() / (tokens ? mask.size() : static_cast<size_t>(in.batch));
    for (size_t i = 0; i < values.size(); ++i) {
      if (tokens && mask[i / width] == 0 && values[i] == 0) continue;
      const double d = std::fabs(static_cast<double>(values[i]) - want[i]);
      if (std::isnan(d)) return d;
      if (weighs && !has_tokens(in, mask, i / width)) continue;
      most = std::max(most, d);
    }
  }
  return most;
}

std::string text(const Inputs& in, const std::vector<int64_t>& mask) {
  std::string s = std::to_string(in.batch) + "x" + std::to_string(in.length) + ", mask";
  for (size_t i = 0; i < mask.size(); ++i)
    s += (i % static_cast<size_t>(in.length) ? "" : " ") + std::to_string(mask[i]);
  return s;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 8 || argc > 10)
    return std::fprintf(
               stderr,
               "random_masks PACKED.tfcc PADDED.tfcc RUNS LARGEST_ID LARGEST_LENGTH NOISE TOLERANCE [cpu|cuda [weighs]]\n"),
           2;
  tfcc::LoadOptions options;
  if (argc > 8) options.device = argv[8];
  const bool weighs = argc > 9;
  options.threads = 2;
  auto packed = Model::load(argv[1], options), padded = Model::load(argv[2], options);
  for (const auto* m : {&packed, &padded}) {
    if (!*m) return std::fprintf(stderr, "%s\n", m->error().message.c_str()), 1;
  }
  auto a = packed->executor(), b = padded->executor();
  if (!a || !b) return std::fprintf(stderr, "%s\n", (a ? b : a).error().message.c_str()), 1;
  const int runs = std::atoi(argv[3]), largest_id = std::atoi(argv[4]);
  const auto longest = static_cast<uint32_t>(std::atoi(argv[5]));
  const bool noise = std::atoi(argv[6]) != 0;
  const double tolerance = std::atof(argv[7]);
  std::mt19937 random(1);
  double most = 0;
  int64_t tokens = 0, real = 0;
  for (int i = 0; i < runs; ++i) {
    Inputs in = random_inputs(*packed, random, largest_id, longest);
    std::vector<int64_t> mask;
    for (const auto& [name, v] : in.values) {
      if (is_mask(name)) mask = v;
    }
    Results want, got;
    if (!run(*padded, *b, in, &want, argv[2])) return 1;
    for (auto& [name, v] : in.values) {
      if (!noise || i % 4 != 0 || is_mask(name)) continue;
      for (size_t k = 0; k < v.size(); ++k) {
        // A first token may be read although it is padding, by a pooler.
        if (mask[k] == 0 && k % static_cast<size_t>(in.length) != 0) v[k] = k % 2 ? -7 : 1000000000;
      }
    }
    if (!run(*packed, *a, in, &got, argv[1]))
      return std::printf("      run %d, %s\n", i, text(in, mask).c_str()), 1;
    const double d = difference(in, mask, got, want, weighs);
    if (!(d <= tolerance))
      return std::printf("FAIL  run %d: %g apart, %s\n", i, d, text(in, mask).c_str()), 1;
    most = std::max(most, d);
    for (int64_t m : mask) ++tokens, real += m;
  }
  std::printf("ok    %d random masks, %lld real tokens of %lld, at most %.1e apart\n", runs,
              static_cast<long long>(real), static_cast<long long>(tokens), most);
  return 0;
}
