// SPDX-License-Identifier: Apache-2.0
// Constants: rounding to 16 bits against a search over all values, recipes, file sources and their
// errors.
#include "ir/ir.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>

namespace tfcc::ir {
namespace {

std::vector<std::byte> bytes_of(DType t, const std::vector<double>& values) {
  std::vector<std::byte> out(values.size() * size_of(t));
  for (size_t i = 0; i < values.size(); ++i) write_real(t, out.data(), i, values[i]);
  return out;
}

std::vector<double> reals_of(DType t, const std::vector<std::byte>& bytes) {
  std::vector<double> out;
  for (size_t i = 0; i < bytes.size() / size_of(t); ++i)
    out.push_back(read_real(t, bytes.data(), i));
  return out;
}

double value_of_bits(DType t, uint16_t bits) {
  std::byte raw[2];
  std::memcpy(raw, &bits, 2);
  return read_real(t, raw, 0);
}

uint16_t bits_of(DType t, double v) {
  std::byte raw[2];
  write_real(t, raw, 0, v);
  uint16_t bits;
  std::memcpy(&bits, raw, 2);
  return bits;
}

TEST(Constant, SixteenBitFloatsReadBack) {
  for (DType t : {DType::f16, DType::bf16}) {
    for (int bits = 0; bits < 0x10000; ++bits) {
      const double v = value_of_bits(t, static_cast<uint16_t>(bits));
      if (std::isnan(v)) continue;
      EXPECT_EQ(bits_of(t, v), bits) << v;
    }
  }
}

TEST(Constant, RoundsToNearestEven) {
  for (DType t : {DType::f16, DType::bf16}) {
    const int last = t == DType::f16 ? 0x7bff : 0x7f7f;  // largest finite
    for (int bits = 0; bits < last; ++bits) {
      const double low = value_of_bits(t, static_cast<uint16_t>(bits)),
                   high = value_of_bits(t, static_cast<uint16_t>(bits + 1));
      const double middle = low + (high - low) / 2;
      ASSERT_EQ(bits_of(t, middle), bits + (bits & 1)) << middle;
      ASSERT_EQ(bits_of(t, std::nextafter(middle, 0)), bits) << middle;
      ASSERT_EQ(bits_of(t, std::nextafter(middle, INFINITY)), bits + 1) << middle;
      ASSERT_EQ(bits_of(t, -middle), 0x8000 | (bits + (bits & 1)));
    }
    const double largest = value_of_bits(t, static_cast<uint16_t>(last));
    const double step = largest - value_of_bits(t, static_cast<uint16_t>(last - 1));
    EXPECT_EQ(bits_of(t, largest + step / 2), last + 1);  // a tie goes to even, which is infinity
    EXPECT_EQ(bits_of(t, std::nextafter(largest + step / 2, 0)), last);
    EXPECT_TRUE(std::isnan(value_of_bits(t, bits_of(t, NAN))));
    EXPECT_EQ(bits_of(t, INFINITY), last + 1);
    EXPECT_EQ(bits_of(t, 1e-320), 0);
  }
}

TEST(Constant, IntegersKeepTheirValues) {
  std::byte raw[8];
  write_int(DType::i64, raw, 0, INT64_MIN);
  EXPECT_EQ(read_int(DType::i64, raw, 0), INT64_MIN);
  write_int(DType::i8, raw, 0, -128);
  EXPECT_EQ(read_int(DType::i8, raw, 0), -128);
  write_int(DType::u8, raw, 0, 255);
  EXPECT_EQ(read_int(DType::u8, raw, 0), 255);
  write_real(DType::i64, raw, 0, 1e30);
  EXPECT_EQ(read_int(DType::i64, raw, 0), INT64_MAX);
  write_real(DType::i64, raw, 0, NAN);
  EXPECT_EQ(read_int(DType::i64, raw, 0), 0);
  write_real(DType::boolean, raw, 0, 0.5);
  EXPECT_EQ(read_int(DType::boolean, raw, 0), 1);
}

TEST(Constant, StepsApplyInOrder) {
  Constant c =
      constant_from_bytes(DType::f32, {2, 3}, bytes_of(DType::f32, {0, 1, 2, 3, 4, 1.0002}));
  c.steps.push_back({ConstantStep::Kind::transpose, {1, 0}, DType::f32});
  c.steps.push_back({ConstantStep::Kind::cast, {}, DType::f16});
  c.steps.push_back({ConstantStep::Kind::reshape, {6}, DType::f32});
  EXPECT_EQ(c.result_dtype(), DType::f16);
  EXPECT_EQ(c.result_dims(), (std::vector<int64_t>{6}));
  const auto bytes = materialize(c);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(reals_of(DType::f16, *bytes), (std::vector<double>{0, 3, 1, 4, 2, 1.0}));
}

// Casts of weights are loops of their own: each number comes out as write_real would have it.
TEST(Constant, CastsAllWeightsAsOneNumber) {
  std::vector<uint32_t> patterns;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x7fffu, 0x8000u,
                         0x8001u, 0xf000u, 0xffffu})
      patterns.push_back(high << 16 | low);
  }
  const auto raw = std::as_bytes(std::span(patterns));
  const auto is_nan = [](DType t, const std::byte* data, size_t i) {
    return std::isnan(read_real(t, data, i));
  };
  for (const auto& [from, to] : {std::pair{DType::f32, DType::f16},
                                 {DType::f32, DType::bf16},
                                 {DType::f16, DType::f32},
                                 {DType::bf16, DType::f32},
                                 {DType::f16, DType::bf16}}) {
    const size_t count = raw.size() / size_of(from);
    Constant c = constant_from_bytes(from, {static_cast<int64_t>(count)},
                                     std::vector<std::byte>(raw.begin(), raw.end()));
    c.steps.push_back({ConstantStep::Kind::cast, {}, to});
    const auto bytes = read_constant(c);
    ASSERT_TRUE(bytes);
    ASSERT_EQ(bytes->span().size(), count * size_of(to));
    for (size_t i = 0; i < count; ++i) {
      std::byte one[8];
      write_real(to, one, 0, read_real(from, raw.data(), i));
      const std::byte* made = bytes->span().data() + i * size_of(to);
      if (is_nan(to, one, 0) && is_nan(to, made, 0)) continue;
      ASSERT_EQ(std::memcmp(made, one, size_of(to)), 0)
          << to_string(from) << " to " << to_string(to) << " at " << read_real(from, raw.data(), i);
    }
  }
}

TEST(Constant, ReadsWhatNoStepChangesWhereItLies) {
  Constant c = constant_from_bytes(DType::f32, {2, 3}, bytes_of(DType::f32, {0, 1, 2, 3, 4, 5}));
  c.steps.push_back({ConstantStep::Kind::reshape, {6}, DType::f32});
  const auto bytes = read_constant(c);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(bytes->span().data(), c.bytes->data());
}

// What lies in memory of the caller cannot come again from anywhere; what a file holds can.
TEST(Constant, IsTheSameAfterItWasLetGo) {
  const std::vector<float> values(8192, 1.5f);
  const auto bytes = std::as_bytes(std::span(values));
  const std::string path = testing::TempDir() + "/constant_let_go";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  auto in_memory = std::make_shared<SourceFile>();
  in_memory->data = bytes.data();
  in_memory->size = bytes.size();
  const auto on_disk = map_source_file(path);
  ASSERT_TRUE(on_disk);
  EXPECT_TRUE((*on_disk)->on_disk);
  for (const std::shared_ptr<const SourceFile>& file :
       {std::shared_ptr<const SourceFile>(in_memory), *on_disk}) {
    Constant c;
    c.source = Constant::Source::file;
    c.file = file;
    c.dims = {8000};
    c.offset = 256;
    for (int time = 0; time < 2; ++time) {
      const auto read = read_constant(c);
      ASSERT_TRUE(read);
      EXPECT_TRUE(std::ranges::equal(read->span(), bytes.subspan(256, 32000)));
      let_go(c);
    }
  }
  std::remove(path.c_str());
}

TEST(Constant, AddsANumberToIntegersModuloTheirBits) {
  Constant c = constant_from_bytes(DType::u8, {4}, bytes_of(DType::u8, {0, 1, 128, 255}));
  c.steps.push_back({ConstantStep::Kind::add, {-128}, DType::i8});
  EXPECT_EQ(c.result_dtype(), DType::i8);
  auto bytes = materialize(c);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(reals_of(DType::i8, *bytes), (std::vector<double>{-128, -127, 0, 127}));
  c.steps.push_back({ConstantStep::Kind::add, {INT64_MAX}, DType::i16});
  bytes = materialize(c);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(reals_of(DType::i16, *bytes), (std::vector<double>{-129, -128, -1, 126}));
}

TEST(Constant, IsComputedByAGraphAndRoundedOnce) {
  const auto g = parse(R"(graph @g() {
  const @c : f16[3,2] = f32[2,3] graph @made() {
    const @a : f32[2,2] = [1.0, 2.0, 3.0, 4.0]
    const @b : f32[2,3] = [1.0, 0.5, 0.0, 0.25, 1e-08, 4096.0]
    %p = matmul(@a, @b) {alpha = 1.0, trans_a = false, trans_b = false} : f32[2,3]
    %q = pointwise(%p) {body = (i,j) => %p[i,j] - 1.0} : f32[2,3]
    return made = %q
  } |> transpose(1,0) |> cast(f16)
  return c = @c
})");
  ASSERT_TRUE(g) << g.error().message;
  EXPECT_TRUE(verify(*g).empty());
  const Constant& c = *g->constant(g->outputs[0].value);
  const auto bytes = materialize(c);
  ASSERT_TRUE(bytes) << bytes.error().message;
  // 0.5 + 2e-8 - 1 in float64, then to f32 and f16; 16384 is beyond no type.
  const double want[] = {0.5, 3, -0.5, 0.5, 8191, 16383};
  for (size_t i = 0; i < 6; ++i)
    EXPECT_NEAR(read_real(DType::f16, bytes->data(), i), want[i], std::abs(want[i]) * 0x1p-11) << i;
  Constant plain = c;
  plain.steps.clear();
  EXPECT_EQ(read_constant(plain)->span().data(), read_constant(plain)->span().data())
      << "it is made once";
  EXPECT_EQ(recipe_key(c), recipe_key(Constant(c)));
  EXPECT_NE(recipe_key(c), recipe_key(plain));
}

TEST(Constant, OfAGraphWithoutItsFileSaysSo) {
  const auto g = parse(R"(graph @g() {
  const @c : f32[2] = graph @made() {
    const @a : f32[2] = file("no such file.onnx", f32[2], 0)
    %q = pointwise(@a) {body = (i) => @a[i] - 1.0} : f32[2]
    return made = %q
  }
  return c = @c
})");
  ASSERT_TRUE(g) << g.error().message;
  const auto bytes = materialize(*g->constant(g->outputs[0].value));
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().code, ErrorCode::io);
  EXPECT_NE(bytes.error().message.find("no such file.onnx"), std::string::npos);
}

TEST(Constant, TransposesAnyRank) {
  std::vector<double> values(2 * 3 * 4 * 5);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  for (DType t : {DType::u8, DType::bf16, DType::f32, DType::f64}) {
    Constant c = constant_from_bytes(t, {2, 3, 4, 5}, bytes_of(t, values));
    c.steps.push_back({ConstantStep::Kind::transpose, {2, 0, 3, 1}, t});
    const auto bytes = materialize(c);
    ASSERT_TRUE(bytes);
    size_t at = 0;
    for (int k = 0; k < 4; ++k) {
      for (int i = 0; i < 2; ++i) {
        for (int l = 0; l < 5; ++l) {
          for (int j = 0; j < 3; ++j)
            EXPECT_EQ(read_real(t, bytes->data(), at++), ((i * 3 + j) * 4 + k) * 5 + l);
        }
      }
    }
  }
}

TEST(Constant, RandomIsNormalAndRepeatable) {
  Constant c;
  c.source = Constant::Source::random;
  c.dims = {100000};
  c.seed = 7;
  const auto first = materialize(c), second = materialize(c);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*first, *second);
  double sum = 0, square = 0;
  for (double v : reals_of(DType::f32, *first)) sum += v, square += v * v;
  EXPECT_NEAR(sum / 1e5, 0, 3e-4);
  EXPECT_NEAR(std::sqrt(square / 1e5), 0.02, 2e-4);
  c.seed = 8;
  EXPECT_NE(*materialize(c), *first);
}

TEST(Constant, ReadsFilesAndSaysWhatIsWrong) {
  const std::string path = testing::TempDir() + "tfcc_constant_" + std::to_string(getpid());
  const float values[] = {0, 1, 2, 3};
  std::FILE* f = std::fopen(path.c_str(), "wb");
  ASSERT_EQ(std::fwrite(values, 4, 4, f), 4u);
  std::fclose(f);
  const auto file = map_source_file(path);
  ASSERT_TRUE(file);
  Constant c;
  c.source = Constant::Source::file;
  c.dims = {2};
  c.file = *file;
  c.offset = 4;
  EXPECT_EQ(reals_of(DType::f32, *materialize(c)), (std::vector<double>{1, 2}));
  c.offset = 12;
  const auto beyond = materialize(c);
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code, ErrorCode::bad_file);
  std::remove(path.c_str());

  auto named = std::make_shared<SourceFile>();
  named->name = "gone.onnx";
  c.file = named;
  const auto gone = materialize(c);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::io);
  EXPECT_NE(gone.error().message.find("gone.onnx"), std::string::npos);
  EXPECT_FALSE(map_source_file(path));
}

}  // namespace
}  // namespace tfcc::ir
