// SPDX-License-Identifier: Apache-2.0
// The table of small graphs whose kernels are compared with the evaluator: every op, each on and
// one off the edges of its tiles. The same table runs on the CPU and on CUDA.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

namespace tfcc::test {

/// Random values of an input: uniform in [low, high], some replaced by NaN, infinities and zeros if
/// `specials`.
struct Fill {
  double low = -1, high = 1;
  bool specials = false;
};

/// One graph with the sizes it runs at.
struct Case {
  std::string name;
  std::string text;  // .tfir
  std::vector<std::vector<int64_t>>
      shapes;  // each a value per symbol, in the graph's order; empty: none needed
  std::map<std::string, Fill> fills = {};  // by input; others are in [-1, 1], integers in [-9, 9]
  double tolerance = 2e-6;                 // relative L2 error of f32 results
  double tolerance_f16 = 4.5e-4;           // the same for results that were f16: two roundings
  bool f16 = true;                         // also run with f16 storage
  bool bf16 = false;                       // and with bf16 storage
  bool widen_on_cpu = false;               // 16-bit products: the CPU has none
};
inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// A graph in text form; `inputs` and `body` as in ir/README.md, results are those named in
/// `outputs`.
std::string graph_text(const std::string& inputs, const std::string& symbols,
                       const std::string& body, const std::vector<std::string>& outputs);

/// Bytes of every pattern, as the text of a constant.
std::string codes(int64_t count, uint32_t seed, bool is_signed);

std::vector<Case> pointwise_cases();
std::vector<Case> reduce_cases();
std::vector<Case> matmul_cases();
/// Of those, the ones that kernels of a GPU and their tiles are chosen by.
std::vector<Case> matmul_tile_cases();
std::vector<Case> grouped_matmul_cases();
std::vector<Case> row_cases();
std::vector<Case> attention_cases();
std::vector<Case> linear_attention_cases();
std::vector<Case> earlier_rows_cases();
std::vector<Case> sample_cases();
/// All of them.
const std::vector<Case>& all_cases();
/// Cases whose sequences have the same bits in every batch, by check_sequence_alone.
bool same_bits_in_every_batch(const Case& c);
/// Whether it has a product of reals or an attention: what may be in TF32.
bool multiplies_reals(const Case& c);

}  // namespace tfcc::test
