// SPDX-License-Identifier: Apache-2.0
// Sizes of launches for given symbols: slots, work, and the form a product takes.
#include "runtime/core/binding.h"

#include "tests/runtime/core/small_model.h"

namespace tfcc::runtime {
namespace {

using testing_support::kC;
using testing_support::kO;
using testing_support::size;
using testing_support::small_manifest;
namespace pb = ::tfcc::manifest;

// The manifest of the small model, as the runtime reads it; weights get the sizes that the writer
// gives them.
Manifest read(const std::function<void(pb::Plan&)>& change = nullptr) {
  pb::Manifest m = small_manifest();
  for (uint64_t bytes : {20, 48, 12}) m.add_weights()->set_size(bytes);
  if (change) change(*m.mutable_plans(0));
  std::string text = m.SerializeAsString();
  auto read = read_manifest(std::as_bytes(std::span(text)), "m.tfcc");
  EXPECT_TRUE(read) << read.error().message;
  return *read;
}

pb::MatmulLaunch& product(pb::Plan& p) {
  return *p.mutable_buckets(0)->mutable_launches(1)->mutable_matmul();
}

MatmulShape bound_product(const std::function<void(pb::MatmulLaunch&)>& change) {
  Manifest m = read([&](pb::Plan& p) {
    change(product(p));
    // Room for operands that lie apart.
    size(p.mutable_buffers(5)->add_dims(), {0, 2});
    size(p.mutable_slots(0), {0, 2, 3});
  });
  Binding b(m, m.plans[0]);
  auto done = b.bind(std::vector<int64_t>{2, 5});
  EXPECT_TRUE(done) << done.error().message;
  return b.launches()[1].matmul;
}

TEST(Binding, lays_out_slots_and_sizes) {
  Manifest m = read();
  Binding b(m, m.plans[0]);
  ASSERT_TRUE(b.bind(std::vector<int64_t>{3, 7}));
  EXPECT_EQ(b.offset(5), 0u);
  EXPECT_EQ(b.offset(6), 512u) << "3 * 7 * 16 bytes, rounded up to 256";
  EXPECT_EQ(b.arena_bytes(), 512u + 256u);
  EXPECT_EQ(*arena_size(m.plans[0], std::vector<int64_t>{3, 7}), b.arena_bytes());
  EXPECT_EQ(b.launches().size(), 3u);
  EXPECT_EQ(b.launches()[0].work, 21);
  EXPECT_EQ(b.launches()[2].work, 63);
  EXPECT_EQ(b.output_shape(0), (Shape{3, 7, kO}));
}

TEST(Binding, buffers_lie_at_their_offsets_in_a_slot) {
  auto with_offset = [](int64_t offset) {
    return read([=](pb::Plan& p) {
      size(p.mutable_slots(0), {0, 4, 3});  // four times the size
      p.mutable_buffers(6)->set_index(0);
      size(p.mutable_buffers(6)->mutable_offset(), {0, offset});
    });
  };
  const std::vector<int64_t> sizes = {3, 7};
  Manifest good = with_offset(512);
  Binding b(good, good.plans[0]);
  ASSERT_TRUE(b.bind(sizes));
  EXPECT_EQ(b.offset(5), 0u);
  EXPECT_EQ(b.offset(6), 512u);
  for (int64_t wrong : {500, 2048, -256}) {
    Manifest bad = with_offset(wrong);
    auto done = Binding(bad, bad.plans[0]).bind(sizes);
    ASSERT_FALSE(done) << wrong;
    EXPECT_NE(done.error().message.find("outside its slot"), std::string::npos);
  }
  Manifest late = with_offset(1280);  // inside, but 252 bytes do not fit
  EXPECT_FALSE(Binding(late, late.plans[0]).bind(sizes));
}

TEST(Binding, names_the_option_that_set_a_limit) {
  Manifest m = read();
  m.symbols[0].max = 4;
  m.symbols[0].max_from = "--max-batch 4";
  m.symbols[1].min = 3;
  m.symbols[1].min_from = "--minShapes x:1x3x4";
  m.symbols.push_back({"tokens", 0, 20, 0, 0, {{1, 0, 1, 1, 3}, "batch_size*sequence_length"}});
  m.symbols[2].max_from = "--max-tokens 20";
  auto message = [&](int64_t batch, int64_t length) {
    Shape x = {batch, length, kC}, ids = {batch, length};
    std::vector<const Shape*> shapes = {&x, &ids};
    std::vector<int64_t> symbols;
    auto done = read_symbols(m, shapes, symbols);
    return done ? "" : done.error().message;
  };
  EXPECT_EQ(message(4, 5), "");
  EXPECT_EQ(message(5, 4), "batch_size is 5, but the file was compiled with --max-batch 4");
  EXPECT_EQ(message(4, 2),
            "sequence_length is 2, but the file was compiled with --minShapes x:1x3x4");
  EXPECT_EQ(message(3, 7),
            "batch_size*sequence_length is 21, but the file was compiled with --max-tokens 20");
}

// That rows of a batch are one tall product is for the plan to say.
TEST(Binding, maps_have_the_sizes_of_the_run_and_stay_in_their_buffer) {
  // h has 4 B S elements: B S / 2 rows of 8.
  const auto bound = [](std::initializer_list<int64_t> rows, int64_t columns,
                        DType dtype = DType::f32) {
    const Manifest m = read([&](pb::Plan& p) {
      p.mutable_buffers(5)->set_dtype(static_cast<uint32_t>(dtype));
      pb::TensorMap& map = *p.mutable_buckets(0)->mutable_launches(0)->mutable_kernel()->add_maps();
      map.set_buffer(5);
      size(map.mutable_rows(), rows);
      size(map.mutable_columns(), {0, columns});
    });
    Binding b(m, m.plans[0]);
    auto done = b.bind(std::vector<int64_t>{2, 5});
    return done ? std::to_string(b.launches()[0].maps.at(0).rows) + " x " +
                      std::to_string(b.launches()[0].maps[0].columns)
                : done.error().message;
  };
  EXPECT_EQ(bound({1, 0, 1, 1, 3, 0, 2, 4}, 8), "5 x 8");
  EXPECT_NE(bound({1, 0, 1, 1, 3, 0, 2, 4, 0, 1, 2}, 8).find("reaches outside its buffer"),
            std::string::npos);
  EXPECT_EQ(bound({1, 0, 1, 1, 3}, 4), "10 x 4");
  EXPECT_NE(bound({1, 0, 1, 1, 3}, 2).find("reaches outside its buffer"), std::string::npos)
      << "rows of 8 bytes";
  EXPECT_NE(bound({1, 0, 1, 1, 3}, 4, DType::f16).find("reaches outside its buffer"),
            std::string::npos)
      << "rows of 8 bytes, of 16 bits";
  EXPECT_EQ(bound({1, 0, 1, 1, 3, 0, 4, 4}, 16, DType::u8), "2 x 16");
  EXPECT_NE(bound({1, 0, 1, 1, 3, 0, 2, 4}, 8, DType::u8).find("reaches outside its buffer"),
            std::string::npos)
      << "rows of 8 bytes";
}

// Keys of no tokens, beside queries: attention makes zeros of them. Without queries it makes nothing.
TEST(Binding, an_empty_map_is_no_work_if_it_is_the_first) {
  const auto bound = [](int64_t first, int64_t second) {
    const Manifest m = read([&](pb::Plan& p) {
      p.set_family("cuda");
      for (const int64_t rows : {first, second}) {
        pb::TensorMap& map =
            *p.mutable_buckets(0)->mutable_launches(0)->mutable_kernel()->add_maps();
        map.set_buffer(5);
        size(map.mutable_rows(), {0, rows});
        size(map.mutable_columns(), {0, 4});
      }
    });
    Binding b(m, m.plans[0]);
    EXPECT_TRUE(b.bind(std::vector<int64_t>{2, 5}));
    const auto& launch = b.launches()[0];
    return (launch.skip ? "nothing of " : "") + std::to_string(launch.maps[0].rows) + " and " +
           std::to_string(launch.maps[1].rows) + " rows";
  };
  EXPECT_EQ(bound(10, 2), "10 and 2 rows");
  EXPECT_EQ(bound(10, 0), "10 and 1 rows");
  EXPECT_EQ(bound(0, 10), "nothing of 1 and 10 rows");
  EXPECT_EQ(bound(0, 0), "nothing of 1 and 1 rows");
}

// By which a tile is chosen: a number of rows that no run has would make a table without end.
TEST(Binding, rows_of_tiles_are_those_of_a_run) {
  const auto bound = [](std::initializer_list<int64_t> rows) {
    const Manifest m = read([&](pb::Plan& p) {
      size(p.mutable_buckets(0)
               ->mutable_launches(0)
               ->mutable_kernel()
               ->mutable_tiles()
               ->mutable_rows(),
           rows);
    });
    Binding b(m, m.plans[0]);
    auto done = b.bind(std::vector<int64_t>{2, 5});
    return done ? std::to_string(b.launches()[0].rows) : done.error().message;
  };
  EXPECT_EQ(bound({1, 0, 1, 1, 3}), "10");
  for (int64_t rows : {int64_t{-1}, int64_t{1} << 41, INT64_MAX})
    EXPECT_NE(bound({0, rows}).find("rows of"), std::string::npos) << rows;
}

TEST(Binding, a_batch_is_what_the_plan_says) {
  MatmulShape s = bound_product([](pb::MatmulLaunch&) {});
  EXPECT_EQ(s.m, 5);
  EXPECT_EQ(s.batch, 2);
  EXPECT_EQ(s.stride_a, 20);
}

TEST(Binding, a_batch_stays_one_where_rows_do_not_follow_each_other) {
  MatmulShape apart = bound_product([](pb::MatmulLaunch& g) {
    g.clear_stride_a();
    size(g.mutable_stride_a(), {1, 1, 0, kC + 1, 3});
  });
  EXPECT_EQ(apart.m, 5);
  EXPECT_EQ(apart.batch, 2);
  EXPECT_EQ(apart.stride_a, 25);
  MatmulShape transposed = bound_product([](pb::MatmulLaunch& g) { g.set_trans_a(true); });
  EXPECT_EQ(transposed.batch, 2);
  EXPECT_TRUE(transposed.trans_a);
  MatmulShape shared = bound_product([](pb::MatmulLaunch& g) { g.clear_stride_a(); });
  EXPECT_EQ(shared.batch, 2);
}

TEST(Binding, a_product_without_rows_is_skipped) {
  Manifest m = read([](pb::Plan& p) {
    product(p).mutable_m()->clear_code();
    size(product(p).mutable_m(), {0, 0});
  });
  Binding b(m, m.plans[0]);
  ASSERT_TRUE(b.bind(std::vector<int64_t>{2, 5}));
  EXPECT_TRUE(b.launches()[1].skip);
  EXPECT_FALSE(b.launches()[0].skip);
}

// A launch that counts on the wait of the one before it must know that there is none.
TEST(Binding, a_launch_knows_that_the_one_before_it_is_skipped) {
  for (const bool skips : {false, true}) {
    Manifest m = read([&](pb::Plan& p) {
      if (skips) {
        product(p).mutable_m()->clear_code();
        size(product(p).mutable_m(), {0, 0});
      }
    });
    Binding b(m, m.plans[0]);
    ASSERT_TRUE(b.bind(std::vector<int64_t>{2, 5}));
    ASSERT_EQ(b.launches().size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(b.launches()[i].behind_skipped, skips && i == 2) << i;
  }
}

TEST(Binding, empty_runs_have_no_launches) {
  Manifest m = read();
  Binding b(m, m.plans[0]);
  ASSERT_TRUE(b.bind(std::vector<int64_t>{0, 5}));
  EXPECT_TRUE(b.empty());
  EXPECT_TRUE(b.launches().empty());
  EXPECT_EQ(b.arena_bytes(), 0u);
}

TEST(Binding, a_product_over_nothing_is_left_to_the_launch_that_writes_it) {
  Manifest m = read([](pb::Plan& p) {
    product(p).mutable_k()->clear_code();
    size(product(p).mutable_k(), {0, 0});
  });
  Binding b(m, m.plans[0]);
  ASSERT_TRUE(b.bind(std::vector<int64_t>{2, 5}));
  EXPECT_TRUE(b.launches()[1].skip);
  EXPECT_FALSE(b.launches()[0].skip);
}

TEST(Binding, sizes_below_the_smallest_are_refused_but_for_zero) {
  Manifest m = read();
  m.symbols[0].min = 2;
  auto read_batch = [&](int64_t batch) {
    Shape x = {batch, 5, kC}, ids = {batch, 5};
    std::vector<int64_t> symbols;
    return read_symbols(m, std::vector<const Shape*>{&x, &ids}, symbols);
  };
  EXPECT_TRUE(read_batch(0));
  EXPECT_TRUE(read_batch(2));
  auto one = read_batch(1);
  ASSERT_FALSE(one);
  EXPECT_NE(one.error().message.find("(batch_size) is 1, must be at least 2"), std::string::npos);
}

TEST(Binding, sizes_have_a_bound) {
  Manifest m = read();
  m.symbols[0].max = 0;
  auto read_batch = [&](int64_t batch) {
    Shape x = {batch, 5, kC}, ids = {batch, 5};
    std::vector<int64_t> symbols;
    return read_symbols(m, std::vector<const Shape*>{&x, &ids}, symbols);
  };
  EXPECT_TRUE(read_batch(int64_t{1} << 30));
  auto larger = read_batch((int64_t{1} << 30) + 1);
  ASSERT_FALSE(larger);
  EXPECT_EQ(larger.error().code, ErrorCode::shape);
  EXPECT_NE(larger.error().message.find("is 1073741825, must be at most 1073741824"),
            std::string::npos)
      << larger.error().message;
}

TEST(Binding, an_axis_is_a_multiple_of_a_size) {
  Manifest m = read();
  m.symbols[0].multiple = 4;
  m.symbols[0].max = 3;
  std::vector<int64_t> symbols;
  const auto read_batch = [&](int64_t batch) {
    Shape x = {batch, 5, kC}, ids = {batch, 5};
    for (auto& in : m.inputs)
      in.dims[0] =
          SizeExpr{{static_cast<int64_t>(SizeCode::symbol), 0, static_cast<int64_t>(SizeCode::push),
                    4, static_cast<int64_t>(SizeCode::mul)},
                   "4*batch_size"};
    return read_symbols(m, std::vector<const Shape*>{&x, &ids}, symbols);
  };
  ASSERT_TRUE(read_batch(8));
  EXPECT_EQ(symbols[0], 2);
  const auto between = read_batch(9), above = read_batch(16);
  ASSERT_FALSE(between);
  ASSERT_FALSE(above);
  EXPECT_NE(between.error().message.find("dim 0 is 9, must be a multiple of 4"), std::string::npos)
      << between.error().message;
  EXPECT_NE(above.error().message.find("(4*batch_size) is 16, must be at most 12"),
            std::string::npos)
      << above.error().message;
}

TEST(Binding, sizes_that_overflow_are_errors) {
  Manifest m = read([](pb::Plan& p) { size(p.mutable_slots(0), {0, int64_t{1} << 50, 3}); });
  Binding b(m, m.plans[0]);
  auto done = b.bind(std::vector<int64_t>{8, 16});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::shape);
  EXPECT_NE(done.error().message.find("arena: a size overflows"), std::string::npos);
}

}  // namespace
}  // namespace tfcc::runtime
