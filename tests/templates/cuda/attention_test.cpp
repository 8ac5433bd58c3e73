// SPDX-License-Identifier: Apache-2.0
// The attention template against a double reference on the same rounded inputs.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/templates/cuda/device.h"
#include "tests/templates/cuda/stubs.h"

namespace tfcc::test {
namespace {

struct Problem {
  AttentionStub stub;
  int batch = 2, queries = 64, keys = 64;
  std::vector<double> live = {};  // [batch, keys]; empty: all
  double logit = 1;               // size of the elements of q
};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double threshold(const std::string& type) {
  return type == "f16" ? 8e-4 : type == "bf16" ? 5e-3 : 1e-5;
}

/// Inputs in the order of the stub. Keys that are not live hold NaN: nothing may read them.
std::vector<HostTensor> make_inputs(const Problem& p) {
  const AttentionStub& s = p.stub;
  size_t b = p.batch, m = p.queries, n = p.keys;
  HostTensor q = random(s.type, b * m * s.heads * s.head_dim, 1, -p.logit, p.logit);
  HostTensor k = random(s.type, b * n * s.kv_heads * s.head_dim, 2);
  HostTensor v = random(s.type, b * n * s.kv_heads * s.v_dim, 3);
  HostTensor live = tensor("i64", p.live.empty() ? std::vector<double>(b * n, 1) : p.live);
  HostTensor visible = random("f32", b * m * n, 4);
  for (double& x : visible.values) x = x > -0.3;
  visible.type = "b8";
  if (s.visible && m > 3)
    std::fill_n(visible.values.begin() + 3 * n, n, 0.0);  // one query sees nothing
  HostTensor bias = random("f32", s.heads * m * n, 5, -2, 2);
  if (s.live) {
    for (size_t r = 0; r < b * n; ++r) {
      if (live.values[r] != 0) continue;
      std::fill_n(k.values.begin() + r * s.kv_heads * s.head_dim, s.kv_heads * s.head_dim, kNan);
      std::fill_n(v.values.begin() + r * s.kv_heads * s.v_dim, s.kv_heads * s.v_dim, kNan);
    }
  }
  return {q, k, v, live, visible, bias};
}

std::vector<double> reference(const Problem& p, const std::vector<HostTensor>& in) {
  const AttentionStub& s = p.stub;
  std::vector<double> out(size_t(p.batch) * p.queries * s.heads * s.v_dim, 0.0), w(p.keys);
  auto at = [](const HostTensor& t, size_t row, int heads, int h, int width) {
    return &t.values[(row * heads + h) * width];
  };
  for (int b = 0; b < p.batch; ++b) {
    for (int h = 0; h < s.heads; ++h) {
      int g = h / (s.heads / s.kv_heads);
      for (int i = 0; i < p.queries; ++i) {
        const double* q = at(in[0], size_t(b) * p.queries + i, s.heads, h, s.head_dim);
        double top = -std::numeric_limits<double>::infinity(), sum = 0;
        for (int j = 0; j < p.keys; ++j) {
          w[j] = -std::numeric_limits<double>::infinity();
          if (s.live && in[3].values[size_t(b) * p.keys + j] == 0) continue;
          const int right = s.causal ? 0 : s.window_right, diagonal = i + p.keys - p.queries;
          if ((right >= 0 && j > diagonal + right) ||
              (s.window_left >= 0 && j < diagonal - s.window_left))
            continue;
          if (s.visible && in[4].values[(size_t(b) * p.queries + i) * p.keys + j] == 0) continue;
          const double* k = at(in[1], size_t(b) * p.keys + j, s.kv_heads, g, s.head_dim);
          double dot = 0;
          for (int c = 0; c < s.head_dim; ++c) dot += q[c] * k[c];
          w[j] =
              dot * s.scale + (s.bias ? in[5].values[(size_t(h) * p.queries + i) * p.keys + j] : 0);
          top = std::max(top, w[j]);
        }
        double* o = &out[((size_t(b) * p.queries + i) * s.heads + h) * s.v_dim];
        if (std::isinf(top)) continue;
        for (int j = 0; j < p.keys; ++j) {
          w[j] = std::exp(w[j] - top);
          sum += w[j];
        }
        for (int j = 0; j < p.keys; ++j) {
          if (w[j] == 0) continue;
          const double* v = at(in[2], size_t(b) * p.keys + j, s.kv_heads, g, s.v_dim);
          for (int c = 0; c < s.v_dim; ++c) o[c] += w[j] / sum * v[c];
        }
      }
    }
  }
  return out;
}

/// q, k and v of a token side by side in the first input.
void pack(const Problem& p, std::vector<HostTensor>& in) {
  size_t rows = size_t(p.batch) * p.keys;
  HostTensor all{p.stub.type, {}};
  for (size_t r = 0; r < rows; ++r) {
    for (int t = 0; t < 3; ++t) {
      size_t width = in[t].values.size() / rows;
      all.values.insert(all.values.end(), in[t].values.begin() + r * width,
                        in[t].values.begin() + (r + 1) * width);
    }
  }
  in[0] = all;
}

void check(Problem p) {
  SCOPED_TRACE(testing::Message() << p.stub.type << " queries " << p.queries << " keys " << p.keys
                                  << " d " << p.stub.head_dim << " dv " << p.stub.v_dim << " tile "
                                  << p.stub.block_m << "x" << p.stub.block_n << " causal "
                                  << p.stub.causal << " scaled " << p.stub.scaled);
  std::vector<HostTensor> inputs = make_inputs(p);
  std::vector<double> expected = reference(p, inputs);
  if (p.stub.packed) pack(p, inputs);
  Launch launch{.source = p.stub.text(),
                .grid = {unsigned((p.queries + p.stub.block_m - 1) / p.stub.block_m) + 1,
                         unsigned(p.stub.heads), unsigned(p.batch)},
                .threads = unsigned(p.stub.threads()),
                .shared_bytes = unsigned(p.stub.shared_bytes()),
                .sizes = {p.batch, p.queries, p.keys},
                .inputs = inputs,
                .outputs = {{p.stub.type, std::vector<double>(expected.size())}}};
  run(launch);
  EXPECT_LE(relative_error(launch.outputs[0].values, expected), threshold(p.stub.type));
  std::vector<double> first = launch.outputs[0].values;
  run(launch);
  EXPECT_EQ(first, launch.outputs[0].values) << "two runs differ";
}

class Attention : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { TFCC_NEEDS_DEVICE(); }
  AttentionStub stub(int d = 64, int dv = 0) const {
    AttentionStub s{.type = GetParam(), .head_dim = d, .v_dim = dv ? dv : d};
    s.choose_tile();
    return s;
  }
};

TEST_P(Attention, LengthsAtTileEdges) {
  for (int n : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300})
    check({.stub = stub(), .queries = n, .keys = n});
}

TEST_P(Attention, HeadSizes) {
  for (int d : {1, 8, 16, 24, 30, 32, 48, 64, 72, 80, 96, 112, 128, 136, 160, 192, 256}) {
    check({.stub = stub(d), .queries = 70, .keys = 70});
  }
}

TEST_P(Attention, ValueSizeDiffers) {
  check({.stub = stub(64, 40), .queries = 65, .keys = 65});
  check({.stub = stub(40, 64), .queries = 65, .keys = 65});
  check({.stub = stub(24, 128), .queries = 65, .keys = 65});
  check({.stub = stub(200, 20), .queries = 65, .keys = 65});
  check({.stub = stub(7, 5), .queries = 65, .keys = 65});
}

TEST_P(Attention, CrossLengthsAndCausal) {
  for (bool causal : {false, true}) {
    for (auto [m, n] : {std::pair{1, 200}, {5, 64}, {64, 129}, {130, 40}, {200, 200}, {257, 255}}) {
      AttentionStub s = stub();
      s.causal = causal;
      check({.stub = s, .queries = m, .keys = n});
    }
  }
}

TEST_P(Attention, Windows) {
  for (auto [l, r] : {std::pair{0, 0}, {7, -1}, {64, 0}, {3, 5}, {100, 70}, {-1, 9}}) {
    for (auto [m, n] : {std::pair{1, 200}, {64, 129}, {130, 40}, {200, 200}, {257, 255}}) {
      AttentionStub s = stub();
      s.window_left = l, s.window_right = r;
      check({.stub = s, .queries = m, .keys = n});
    }
  }
}

TEST_P(Attention, KeyPadding) {
  for (int n : {40, 64, 200, 511}) {
    AttentionStub s = stub();
    s.live = true;
    for (int pattern = 0; pattern < 4; ++pattern) {
      Problem p{.stub = s, .batch = 3, .queries = n, .keys = n};
      HostTensor noise = random("f32", size_t(3) * n, 9);
      for (int b = 0; b < 3; ++b) {
        for (int j = 0; j < n; ++j) {
          int length = b == 0 ? 0 : b == 1 ? n / 3 : n;  // the first sequence is empty
          bool live = pattern == 0   ? j < length
                      : pattern == 1 ? j >= n - length
                      : pattern == 2 ? noise.values[b * n + j] > 0.2
                                     : j % 128 == 7;
          p.live.push_back(live);
        }
      }
      check(p);
    }
  }
}

TEST_P(Attention, ScoreAndVisible) {
  for (int d : {64, 128, 192}) {
    for (bool causal : {false, true}) {
      AttentionStub s = stub(d);
      s.scaled = false, s.visible = true, s.bias = true, s.causal = causal, s.live = true;
      s.choose_tile();
      Problem p{.stub = s, .queries = 90, .keys = 130};
      HostTensor noise = random("f32", 260, 11);
      for (double x : noise.values) p.live.push_back(x > -0.5);
      check(p);
    }
  }
}

TEST_P(Attention, GroupedHeadsAndPacked) {
  AttentionStub s = stub();
  s.heads = 6, s.kv_heads = 2;
  check({.stub = s, .queries = 77, .keys = 77});
  s.kv_heads = 1;
  check({.stub = s, .queries = 77, .keys = 100});
  s.heads = 3, s.kv_heads = 3, s.packed = true;
  check({.stub = s, .queries = 77, .keys = 77});
}

TEST_P(Attention, ElementCopies) {
  AttentionStub s = stub();
  s.aligned = false;
  check({.stub = s, .queries = 77, .keys = 77});
}

TEST_P(Attention, LargeLogits) {
  AttentionStub s = stub();
  s.scale = 100;
  check({.stub = s, .queries = 65, .keys = 65, .logit = 30});
  s.scaled = false, s.bias = true;
  check({.stub = s, .queries = 65, .keys = 65, .logit = 30});
}

TEST_P(Attention, OtherTiles) {
  bool small = std::string(GetParam()) != "f32";
  for (int m : {16, 32, small ? 128 : 64}) {
    for (int n : {16, 32, small ? 128 : 64}) {
      AttentionStub s = stub();
      s.block_m = m, s.block_n = n, s.live = true;
      Problem p{.stub = s, .queries = 131, .keys = 261};
      for (int j = 0; j < 2 * 261; ++j) p.live.push_back(j % 37 < 20);
      check(p);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Attention, testing::Values("f16", "bf16", "f32"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tfcc::test
