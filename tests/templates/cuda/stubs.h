// SPDX-License-Identifier: Apache-2.0
// Stub text for the CUDA templates, in the form of templates/README.md; every kernel is named
// "kernel".
#pragma once

#include <string>

namespace tfcc::test {

struct NormStub {
  std::string type = "f16";
  int hidden = 768;
  bool rms = false, has_beta = true, has_residual = false, has_bias = false, has_sum = false;

  int vec() const;
  int threads_per_row() const;
  int threads() const { return threads_per_row() > 32 ? threads_per_row() : 128; }
  /// The norm of x, with residual and bias if it has them. n[0] rows; inputs x, residual, gamma,
  /// beta, bias (always all five); outputs y, sum.
  std::string text() const;
};

struct AttentionStub {
  std::string type = "f16";
  int heads = 2, kv_heads = 2, head_dim = 64, v_dim = 64;
  int block_m = 64, block_n = 64;
  bool aligned = true, causal = false, scaled = true, live = false, visible = false, bias = false,
       packed = false;
  int window_left = -1, window_right = -1;
  double scale = 0.125;

  int size() const { return type == "f32" ? 4 : 2; }
  int threads() const { return type == "f32" ? 4 * block_m : 2 * block_m; }
  int shared_bytes() const;
  /// The recommended tile of templates/README.md.
  void choose_tile();
  /// n: batch, queries, keys. Inputs q, k, v, live i64 [batch, keys], visible b8 [batch, queries,
  /// keys], bias f32 [heads, queries, keys]; output out. packed: q holds q, k and v of every token.
  std::string text() const;
};

}  // namespace tfcc::test
