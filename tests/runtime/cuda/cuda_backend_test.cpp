// SPDX-License-Identifier: Apache-2.0
// The CUDA backend on a driver and a cuBLASLt made of host code (fake_cuda/): what it passes to
// them, in which order, and that all is given back. The GPU tests show that the real ones agree.
#include "runtime/core/backend.h"
#include "tests/runtime/cuda/fake_cuda.h"

namespace tfcc {
namespace {

using namespace testing_support;

void run_and_enqueue(const Model& model) {
  EXPECT_EQ(model.target(), "sm_90");
  EXPECT_EQ(model.device(), "fake GPU");
  Executor e = *model.executor();
  for (auto [b, s] : {std::pair{2, 3}, {8, 16}, {0, 3}, {1, 1}}) expect_right(e, {b, s});
  SmallCase c(2, 3);
  ASSERT_TRUE(e.set("x", c.x_ref()));
  ASSERT_TRUE(e.set("ids", c.ids_ref()));
  auto host = e.enqueue(nullptr);
  ASSERT_FALSE(host);
  EXPECT_NE(host.error().message.find("input 'x' is in host memory"), std::string::npos);

  std::vector<float> out(c.expected.size());
  TensorRef refs[] = {c.x_ref(), c.ids_ref(), {out.data(), DType::f32, {2, 3, kO}}};
  const char* names[] = {"x", "ids", "out"};
  for (int i = 0; i < 3; ++i) {
    refs[i].place = Place::device;
    ASSERT_TRUE(e.set(names[i], refs[i]));
  }
  ASSERT_TRUE(e.enqueue(nullptr));
  EXPECT_EQ(out, c.expected);
  EXPECT_FALSE(e.output("out")) << "it lies in the caller's device memory";
  EXPECT_TRUE(e.status());
  c.ids[1] = 77;
  ASSERT_TRUE(e.enqueue(nullptr)) << "a flag is no error of the launch";
  auto status = e.status();
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("outside [0, 5)"), std::string::npos);
  EXPECT_TRUE(e.status()) << "flags are cleared when they are read";
  EXPECT_EQ(e.stats().plain_runs, 0u);
  EXPECT_EQ(e.stats().graph_runs, 5u) << "nothing runs for an empty batch";
}

// run() brings the flags along: status() has them, once, and what other streams raise later too.
void flags_of_runs(const Model& model) {
  Executor e = *model.executor();
  SmallCase good(2, 3), bad(2, 3);
  bad.ids[1] = 77;
  const auto run = [&](SmallCase& c) {
    ASSERT_TRUE(e.set("x", c.x_ref()));
    ASSERT_TRUE(e.set("ids", c.ids_ref()));
    ASSERT_TRUE(e.run());
  };
  run(good);
  EXPECT_TRUE(e.status());
  run(bad);
  EXPECT_FALSE(e.status());
  EXPECT_TRUE(e.status()) << "flags are cleared when they are read";
  run(bad);
  run(good);
  EXPECT_FALSE(e.status()) << "nobody asked after the first";
  run(good);
  EXPECT_TRUE(e.status());

  std::vector<float> out(bad.expected.size());
  TensorRef refs[] = {bad.x_ref(), bad.ids_ref(), {out.data(), DType::f32, {2, 3, kO}}};
  const char* names[] = {"x", "ids", "out"};
  for (int i = 0; i < 3; ++i) {
    refs[i].place = Place::device;
    ASSERT_TRUE(e.set(names[i], refs[i]));
  }
  ASSERT_TRUE(e.enqueue(nullptr));
  EXPECT_FALSE(e.status());
  ASSERT_TRUE(e.enqueue(nullptr));
  for (const char* name : names) ASSERT_TRUE(e.clear(name));
  run(good);
  EXPECT_FALSE(e.status()) << "what the caller's stream raised before";
}

// Small integers: exact in any order.
void expect_product(runtime::Queue& q, runtime::MatmulShape s) {
  auto numbers = [](int64_t count, int seed) {
    std::vector<float> v(static_cast<size_t>(count));
    for (size_t i = 0; i < v.size(); ++i)
      v[i] = static_cast<float>((i * 5 + static_cast<size_t>(seed)) % 9) - 4;
    return v;
  };
  auto a = numbers(s.batch * std::max(s.stride_a, s.m * s.k), 1);
  auto b = numbers((s.batch - 1) * s.stride_b + s.k * s.n, 2), bias = numbers(s.n, 3);
  std::vector<float> d(static_cast<size_t>(s.batch * s.m * s.n));
  auto handle = q.prepare_matmul(s);
  ASSERT_TRUE(handle) << handle.error().message;
  EXPECT_EQ(*q.prepare_matmul(s), *handle) << "made once";
  auto done = q.matmul(nullptr, *handle, {a.data(), b.data(), bias.data(), d.data()});
  ASSERT_TRUE(done) << done.error().message;
  for (int64_t i = 0; i < s.batch; ++i) {
    for (int64_t r = 0; r < s.m; ++r) {
      for (int64_t c = 0; c < s.n; ++c) {
        float sum = 0;
        for (int64_t k = 0; k < s.k; ++k) {
          sum += a[static_cast<size_t>(i * s.stride_a +
                                       (s.trans_a ? k * s.m + r : r * s.row(s.k) + k))] *
                 b[static_cast<size_t>(i * s.stride_b + (s.trans_b ? c * s.k + k : k * s.n + c))];
        }
        sum = sum * s.alpha + (s.has_bias ? bias[static_cast<size_t>(c)] : 0);
        ASSERT_EQ(d[static_cast<size_t>(i * s.stride_d() + r * s.row(s.n) + c)], sum)
            << s.side_by_side << s.trans_a << s.trans_b << s.has_bias;
      }
    }
  }
}

/// Calls use(queue) with a queue of the model's backend.
template <class F> void with_queue(const std::string& path, const F& use) {
  auto bytes = read_file(path);
  auto artifact = *runtime::read_artifact(bytes, path);
  auto manifest = *runtime::read_manifest(artifact.manifest, path);
  LoadOptions options;
  auto backend =
      runtime::make_cuda_backend({artifact, manifest, manifest.targets[0], options, path}, 0);
  ASSERT_TRUE(backend) << backend.error().message;
  auto queue = (*backend)->queue();
  ASSERT_TRUE(queue);
  use(**queue);
}

void products_of_every_form(runtime::Queue& queue) {
  runtime::MatmulShape heads;
  heads.m = 5, heads.n = 7, heads.k = heads.stride_a = 3, heads.batch = 4, heads.stride_b = 3 * 7;
  heads.side_by_side = true;
  expect_product(queue, heads);
  for (int form = 0; form < 16; ++form) {
    for (int64_t batch : {1, 3}) {
      for (int64_t stride_b : {int64_t{0}, int64_t{7 * 3}}) {
        runtime::MatmulShape s;
        s.m = 5, s.n = 7, s.k = 3, s.batch = batch;
        s.stride_a = 5 * 3 + 2, s.stride_b = stride_b;
        s.trans_a = form & 1, s.trans_b = form & 2, s.has_bias = form & 4;
        s.alpha = form & 8 ? 0.5f : 1.0f;
        expect_product(queue, s);
      }
    }
  }
}

// 1 + 2^-11 is 1 in TF32.
void products_in_tf32(runtime::Queue& queue) {
  runtime::MatmulShape s;
  s.m = s.n = s.k = 1;
  const float a = 1 + 0x1p-11f, b = 3;
  for (bool tf32 : {false, true}) {
    s.tf32 = tf32;
    float d = 0;
    auto handle = queue.prepare_matmul(s);
    ASSERT_TRUE(handle) << handle.error().message;
    ASSERT_TRUE(queue.matmul(nullptr, *handle, {&a, &b, nullptr, &d}));
    EXPECT_EQ(d, tf32 ? 3.0f : a * 3);
  }
}

TEST_F(CudaBackendTest, products_in_tf32_are_asked_for_alone) {
  EXPECT_EXIT(in_child([&] {
                load();
                with_queue(path_, products_in_tf32);
              }),
              testing::ExitedWithCode(0), "");
}

TEST_F(CudaBackendTest, flags_of_runs) {
  EXPECT_EXIT(in_child([&] { flags_of_runs(load()); }), testing::ExitedWithCode(0), "");
}

// Page-locked memory of the host, and pieces of the device's.
void copy_pieces(const Model& model) {
  Memory device = *model.allocate(100), host = *model.allocate_host(10);
  ASSERT_EQ(device.place(), Place::device);
  ASSERT_EQ(host.place(), Place::host);
  std::memset(host.data(), 'a', 10);
  const Memory::Piece in[] = {{90, host.data(), 10}};
  ASSERT_TRUE(device.write(in));
  std::string out(3, '-');
  const Memory::Piece back[] = {{98, out.data(), 2}};
  ASSERT_TRUE(device.read(back));
  ASSERT_EQ(out, "aa-");
}

TEST_F(CudaBackendTest, copies_pieces_of_memory) {
  EXPECT_EXIT(in_child([&] { copy_pieces(load()); }), testing::ExitedWithCode(0), "");
}

TEST_F(CudaBackendTest, runs_and_enqueues) {
  EXPECT_EXIT(in_child([&] { run_and_enqueue(load()); }), testing::ExitedWithCode(0), "");
}

// Rows of any length, 128 to a block.
void start_early(pb::Manifest& m) {
  m.clear_checks();
  m.mutable_symbols(0)->clear_max();
  m.mutable_plans(0)->mutable_kernels(1)->set_starts_early(true);
}

TEST_F(CudaBackendTest, kernels_that_wait_themselves_start_early) {
  auto body = [&] {
    Model model = load(start_early);
    Executor e = *model.executor();
    expect_right(e, {2, 3});
    EXPECT_EQ(fake<int()>("fake_cuda_early")(), 1) << "the second kernel, once captured";
    Executor other = *model.executor();
    expect_right(other, {8, 100});
    EXPECT_EQ(fake<int()>("fake_cuda_early")(), 1) << "more blocks than the GPU holds";
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

TEST_F(CudaBackendTest, blocks_along_the_third_size_are_launched_as_clusters) {
  auto body = [&] {
    Model model = load([&](pb::Manifest& m) {
      start_early(m);
      m.mutable_plans(0)->mutable_kernels(1)->set_cluster(2);
      for (auto& launch : *m.mutable_plans(0)->mutable_buckets(0)->mutable_launches()) {
        if (!launch.has_kernel() || launch.kernel().kernel() != 1) continue;
        while (launch.kernel().grid_size() < 2) size(launch.mutable_kernel()->add_grid(), {0, 1});
        size(launch.mutable_kernel()->add_grid(), {0, 2});
      }
    });
    Executor e = *model.executor();
    expect_right(e, {1, 8});
    EXPECT_EQ(fake<int()>("fake_cuda_cluster")(), 2);
    EXPECT_EQ(fake<int()>("fake_cuda_early")(), 1) << "a cluster may start early too";
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

// The device has one multiprocessor; 800 rows, 128 to a block, are 7 blocks.
TEST_F(CudaBackendTest, grids_are_as_large_as_the_device_has_multiprocessors) {
  for (uint32_t resident : {0, 3, 20}) {
    auto body = [&] {
      Model model = load([&](pb::Manifest& m) {
        start_early(m);
        for (auto& launch : *m.mutable_plans(0)->mutable_buckets(0)->mutable_launches()) {
          if (launch.has_kernel()) launch.mutable_kernel()->set_resident(resident);
        }
      });
      Executor e = *model.executor();
      expect_right(e, {8, 100});
      EXPECT_EQ(fake<int()>("fake_cuda_widest")(), resident == 3 ? 3 : 7);
    };
    EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
  }
}

TEST_F(CudaBackendTest, code_without_the_wait_starts_in_order) {
  auto body = [&] {
    Model model = load([](pb::Manifest& m) {
      start_early(m);
      m.mutable_targets(0)->set_name("compute_80");
    });
    Executor e = *model.executor();
    expect_right(e, {2, 3});
    EXPECT_EQ(fake<int()>("fake_cuda_early")(), 0);
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

TEST_F(CudaBackendTest, products_by_rows_on_a_library_by_columns) {
  EXPECT_EXIT(in_child([&] {
                load();
                with_queue(path_, products_of_every_form);
              }),
              testing::ExitedWithCode(0), "");
}

TEST_F(CudaBackendTest, names_code_for_another_gpu) {
  auto change = [](pb::Manifest& m) { m.mutable_targets(0)->set_name("sm_80"); };
  EXPECT_EXIT(in_child([&] { load(change); }), testing::ExitedWithCode(8),
              "it has code for sm_80, here is fake GPU .sm_90, driver for CUDA 13.0.; compile with "
              "--target sm_90");
}

TEST_F(CudaBackendTest, names_a_driver_that_is_too_old) {
  auto change = [](pb::Manifest& m) { m.mutable_targets(0)->set_min_driver(13010); };
  EXPECT_EXIT(in_child([&] { load(change); }), testing::ExitedWithCode(8),
              "its sm_90 code needs a driver for CUDA 13.1, .*update the NVIDIA driver");
}

TEST_F(CudaBackendTest, names_a_kernel_that_is_missing) {
  auto change = [](pb::Manifest& m) { m.mutable_plans(0)->mutable_kernels(1)->set_name("gone"); };
  EXPECT_EXIT(in_child([&] { load(change); }), testing::ExitedWithCode(8),
              "kernel 'gone' is not in its sm_90 code");
}

TEST_F(CudaBackendTest, names_memory_that_is_not_there) {
  auto change = [](pb::Manifest& m) {
    auto* slot = m.mutable_plans(0)->mutable_slots(0);
    slot->clear_code();
    size(slot, {0, int64_t{1} << 41});
  };
  auto body = [&] {
    Model model = load(change);
    auto e = model.executor();
    auto r = e->prepare({{"x", {1, 1, kC}}, {"ids", {1, 1}}});
    std::fprintf(stderr, "%s\n", r ? "prepared" : r.error().message.c_str());
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0),
              "no memory for the arena: .* bytes needed, 1048576 free");
}

}  // namespace
}  // namespace tfcc
