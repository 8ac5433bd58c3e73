// SPDX-License-Identifier: Apache-2.0
// Profiles of a run: a time, FLOP and bytes for each launch at the sizes of the inputs, limits of
// the machine, and an executor that computes as before afterwards.
#include "runtime/core/profile.h"

#include "tests/runtime/cuda/fake_cuda.h"

namespace tfcc {
namespace {

using namespace testing_support;
using runtime::LaunchProfile;

void count_work(pb::Manifest& m) {
  auto& launches = *m.mutable_plans(0)->mutable_buckets(0)->mutable_launches();
  size(launches[0].mutable_bytes(), {1, 0, 1, 1, 3, 0, 44, 3});  // B * S * 44
  size(launches[1].mutable_flops(), {1, 0, 1, 1, 3, 0, 2 * kC * kO, 3});
  launches[0].add_ops("pointwise");
  launches[1].add_ops("matmul");
}

void expect_launches(const std::vector<LaunchProfile>& all, int64_t b, int64_t s, size_t runs) {
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].name, "h");
  EXPECT_EQ(all[0].op, "pointwise");
  EXPECT_EQ(all[0].kernel, "embed");
  EXPECT_EQ(all[0].bytes, b * s * 44);
  EXPECT_EQ(all[0].flops, 0);
  EXPECT_EQ(all[1].kernel, "");
  EXPECT_EQ(all[1].flops, b * s * 2 * kC * kO);
  EXPECT_EQ(all[1].arithmetic, DType::f32);
  ASSERT_EQ(all[1].sizes.size(), 4u);
  EXPECT_EQ(all[1].sizes[0] * all[1].sizes[1], b * s);
  EXPECT_EQ(all[1].sizes[2], kO);
  EXPECT_EQ(all[1].sizes[3], kC);
  for (const LaunchProfile& l : all) EXPECT_EQ(l.ms.size(), runs);
}

class ProfileTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cpu_plugin()) GTEST_SKIP() << "built without the CPU target";
    write_small_model(path_, count_work);
    options_.device = "cpu";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string path_ = temporary_path("profile.tfcc");
  LoadOptions options_;
};

TEST_F(ProfileTest, times_every_launch_and_disturbs_nothing) {
  Model model = *Model::load(path_, options_);
  Executor e = *model.executor();
  expect_right(e, {2, 3});
  SmallCase c(4, 5);
  ASSERT_TRUE(e.set("x", c.x_ref()));
  ASSERT_TRUE(e.set("ids", c.ids_ref()));
  auto all = runtime::profile_launches(e, 1, 6);
  ASSERT_TRUE(all) << all.error().message;
  expect_launches(*all, 4, 5, 6);
  for (const LaunchProfile& l : *all) {
    for (double ms : l.ms) EXPECT_TRUE(ms >= 0 && ms < 10000) << ms;
  }
  EXPECT_FALSE(e.output("out"));
  expect_right(e, {4, 5});
  expect_right(e, {2, 3});
}

TEST_F(ProfileTest, counts_the_size_that_a_launch_made) {
  write_small_model(path_, [](pb::Manifest& m) {
    make_a_size(m);
    size(m.mutable_plans(0)->mutable_buckets(0)->mutable_launches(3)->mutable_bytes(),
         {1, 2, 0, 8 * kO, 3});
  });
  Model model = *Model::load(path_, options_);
  Executor e = *model.executor();
  SmallCase c(4, 5);
  ASSERT_TRUE(e.set("x", c.x_ref()));
  ASSERT_TRUE(e.set("ids", c.ids_ref()));
  for (const int warm_up : {0, 2}) {
    auto all = runtime::profile_launches(e, warm_up, 3);
    ASSERT_TRUE(all) << all.error().message;
    ASSERT_EQ(all->size(), 4u);
    EXPECT_EQ((*all)[3].bytes, 10 * 8 * kO);
    EXPECT_EQ((*all)[3].ms.size(), 3u);
  }
}

TEST_F(ProfileTest, needs_inputs_and_work) {
  Model model = *Model::load(path_, options_);
  Executor e = *model.executor();
  auto none = runtime::profile_launches(e, 0, 1);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::invalid_argument);
  SmallCase c(0, 5);
  int64_t somewhere = 0;
  ASSERT_TRUE(e.set("x", {&somewhere, DType::f32, {0, 5, kC}}));
  ASSERT_TRUE(e.set("ids", {&somewhere, DType::i64, {0, 5}}));
  auto empty = runtime::profile_launches(e, 0, 1);
  ASSERT_FALSE(empty);
  EXPECT_NE(empty.error().message.find("empty run"), std::string::npos);
}

TEST_F(ProfileTest, reports_what_kernels_flag) {
  Model model = *Model::load(path_, options_);
  Executor e = *model.executor();
  SmallCase c(1, 2);
  c.ids[1] = 77;
  ASSERT_TRUE(e.set("x", c.x_ref()));
  ASSERT_TRUE(e.set("ids", c.ids_ref()));
  auto flagged = runtime::profile_launches(e, 0, 1);
  ASSERT_FALSE(flagged);
  EXPECT_NE(flagged.error().message.find("outside [0, 5)"), std::string::npos);
}

TEST_F(ProfileTest, measures_the_machine) {
  Model model = *Model::load(path_, options_);
  Executor e = *model.executor();
  EXPECT_EQ(runtime::precision_of(e), DType::f32);
  auto copy = runtime::measured_copy_rate(e);
  ASSERT_TRUE(copy) << copy.error().message;
  EXPECT_GT(*copy, 1e8);
  EXPECT_LT(*copy, 1e14);
  auto product = runtime::measured_product_rate(e, DType::f32);
  ASSERT_TRUE(product) << product.error().message;
  EXPECT_GT(*product, 1e8);
  EXPECT_LT(*product, 1e15);
  auto half = runtime::measured_product_rate(e, DType::f16);
  ASSERT_FALSE(half);
  EXPECT_EQ(half.error().code, ErrorCode::unsupported);
}

TEST_F(ProfileTest, a_cpu_has_no_graph) {
  Model model = *Model::load(path_, options_);
  Executor e = *model.executor();
  SmallCase c(4, 5);
  ASSERT_TRUE(e.set("x", c.x_ref()));
  ASSERT_TRUE(e.set("ids", c.ids_ref()));
  auto none = runtime::profile_graph(e, 3);
  ASSERT_TRUE(none) << none.error().message;
  EXPECT_TRUE(none->ms.empty());
}

using CudaProfileTest = CudaBackendTest;

// Of a run by its graph alone the library's product takes time: 4 ms.
TEST_F(CudaProfileTest, says_what_launches_add_to_the_graph) {
  auto body = [&] {
    Model model = load(count_work);
    Executor e = *model.executor();
    expect_right(e, {2, 3});
    SmallCase c(2, 3);
    ASSERT_TRUE(e.set("x", c.x_ref()));
    ASSERT_TRUE(e.set("ids", c.ids_ref()));
    auto plain = runtime::profile_launches(e, 0, 1);
    ASSERT_TRUE(plain);
    reinterpret_cast<void (*)(bool)>(
        dlsym(dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_NOLOAD), "fake_cublaslt_timed"))(true);
    const int held = fake<int()>("fake_cuda_held")();
    auto all = runtime::profile_graph(e, 3);
    ASSERT_TRUE(all) << all.error().message;
    ASSERT_EQ(all->ms.size(), plain->size());
    EXPECT_EQ(all->begin_ms, 1) << "from one event to the next";
    for (size_t i = 0; i < all->ms.size(); ++i)
      EXPECT_EQ(all->ms[i], (*plain)[i].kernel.empty() ? 4 : 0) << (*plain)[i].name;
    EXPECT_EQ(fake<int()>("fake_cuda_held")(), held) << "its graphs are given back";
    expect_right(e, {2, 3});
    expect_right(e, {4, 5});
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

TEST_F(CudaProfileTest, launches_plainly_behind_a_gate) {
  auto body = [&] {
    Model model = load(count_work);
    Executor e = *model.executor();
    expect_right(e, {2, 3});
    SmallCase c(2, 3);  // the one above is gone
    ASSERT_TRUE(e.set("x", c.x_ref()));
    ASSERT_TRUE(e.set("ids", c.ids_ref()));
    auto all = runtime::profile_launches(e, 1, 3);
    ASSERT_TRUE(all) << all.error().message;
    expect_launches(*all, 2, 3, 3);
    for (const LaunchProfile& l : *all) EXPECT_EQ(l.ms, (std::vector<double>{1, 1, 1}));
    EXPECT_EQ(fake<int()>("fake_cuda_gates")(), 4);
    EXPECT_EQ(e.stats().graphs_made, 1u);
    expect_right(e, {2, 3});
    EXPECT_EQ(e.stats().graphs_made, 1u);
    EXPECT_EQ(e.stats().graph_runs, 2u);
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tfcc
