// SPDX-License-Identifier: Apache-2.0
// The small model for CUDA, and a fixture that runs it on the driver and cuBLASLt of fake_cuda/.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <filesystem>

#include "runtime/core/backend.h"
#include "tests/runtime/core/small_model.h"

namespace tfcc::testing_support {

// A library of that name that is open already is what dlopen finds by the name.
inline void* open_fake(const std::string& source, const std::string& soname) {
  std::string path = temporary_path(soname);
  std::string command = "c++ -std=c++20 -shared -fPIC -O1 -Wl,-soname," + soname + " -o " + path +
                        " " + TFCC_SOURCE_DIR "/tests/runtime/cuda/fake_cuda/" + source;
  if (std::system(command.c_str()) != 0) std::exit(9);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  unlink(path.c_str());
  if (library == nullptr) std::exit(9);
  return library;
}

// Batch, length and tokens rounded up as codegen has it: lengths to powers of two from 4 or to
// those given, tokens in steps of 64 and then of an eighth, batch to the most rows that fit.
inline void set_bucket_table(pb::Manifest& m, std::vector<int64_t> lengths = {}) {
  if (lengths.empty()) {
    for (int64_t n = 4; n <= 4096; n *= 2) lengths.push_back(n);
  }
  pb::BucketTable& table = *m.mutable_plans(0)->mutable_bucket_table();
  table.Clear();
  pb::SizeExpr& batch = *table.add_sizes()->mutable_cap();
  size(&batch, {1, 2, 1, 4, 4, 0, 1, 6});  // max(tokens / the least length, 1)
  if (m.symbols(0).max() > 0) size(&batch, {0, m.symbols(0).max(), 5});
  table.add_sizes()->mutable_caps()->Add(lengths.begin(), lengths.end());
  pb::SizeCaps& tokens = *table.add_sizes();
  const int64_t most = m.symbols(2).max() > 0 ? m.symbols(2).max() : 4096;
  for (int64_t n = 64; n < most; n += n < 512 ? 64 : n < 1024 ? 128 : n < 2048 ? 256 : 512)
    tokens.add_caps(n);
  tokens.add_caps(most);
}

inline void to_cuda(pb::Manifest& m) {
  pb::Plan& plan = *m.mutable_plans(0);
  plan.set_family("cuda");
  plan.add_kernels()->set_name("bind");
  plan.set_has_bind(true);
  plan.set_bind(2);
  for (auto& k : *plan.mutable_kernels()) k.set_threads(128);
  plan.mutable_kernels(0)->set_shared_bytes(64 << 10);
  // Kernels and rows of the product by tokens, as codegen writes them.
  pb::Symbol* tokens = m.add_symbols();
  tokens->set_name("tokens");
  size(tokens->mutable_value(), {1, 0, 1, 1, 3});
  tokens->set_role(static_cast<uint32_t>(SizeRole::tokens));
  set_bucket_table(m);
  const int64_t row_bytes[] = {kC * 4, kO * 4};
  for (int i = 0; i < 2; ++i) {
    plan.mutable_slots(i)->clear_code();
    size(plan.mutable_slots(i), {1, 2, 0, row_bytes[i], 3});
  }
  auto& launches = *plan.mutable_buckets(0)->mutable_launches();
  for (int i : {0, 2}) size(launches[i].mutable_kernel()->add_grid(), {1, 2, 0, 127, 2, 0, 128, 4});
  pb::MatmulLaunch& g = *launches[1].mutable_matmul();
  for (auto* e : {g.mutable_m(), g.mutable_batch(), g.mutable_stride_a()}) e->clear_code();
  size(g.mutable_m(), {1, 2});
  size(g.mutable_batch(), {0, 1});
  if (m.targets_size() == 0) return;
  pb::Target& t = *m.mutable_targets(0);
  t.set_name("sm_90");
  // Three of the three in fake_cubin(), one after another: images do not share bytes.
  const uint64_t each = t.images(0).size() / 3;
  for (int i = 0; i < 2; ++i) *t.add_images() = t.images(0);
  for (int i = 0; i < 3; ++i) {
    t.mutable_images(i)->set_offset(i * each);
    t.mutable_images(i)->set_size(each);
  }
}

inline std::vector<std::byte> fake_cubin() {
  auto bytes = std::as_bytes(std::span("fake cubin\0fake cubin\0fake cubin"));
  return {bytes.begin(), bytes.end()};
}

class CudaBackendTest : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    // Not of GPU 0: the runtime asks for the driver once per process.
    if (runtime::query_gpu(-1).error().code != ErrorCode::invalid_argument) {
      GTEST_SKIP() << "built without CUDA";
    }
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // Runs `body` in a process of its own, where the fakes are loaded.
  void in_child(const std::function<void()>& body) {
    void* cuda = open_fake("libcuda.cpp", "libcuda.so.1");
    driver_ = cuda;
    open_fake("libcublaslt.cpp", "libcublasLt.so.13");
    body();
    auto* held = reinterpret_cast<int (*)()>(dlsym(cuda, "fake_cuda_held"));
    EXPECT_EQ(held(), 0) << "contexts, memory or modules that were not given back";
    std::exit(HasFailure() ? 1 : 0);
  }

  Model load(const std::function<void(pb::Manifest&)>& change = nullptr,
             const LoadOptions& options = {}) {
    write_small_model(
        path_,
        [&](pb::Manifest& m) {
          to_cuda(m);
          if (change) change(m);
        },
        fake_cubin());
    auto model = Model::load(path_, options);
    if (!model) {
      std::fprintf(stderr, "%s\n", model.error().message.c_str());
      std::exit(8);
    }
    return *std::move(model);
  }

  // A function of the fake driver.
  template <class F> F* fake(const char* name) {
    return reinterpret_cast<F*>(dlsym(driver_, name));
  }

  void* driver_ = nullptr;
  std::string path_ = temporary_path("cuda.tfcc");
};

// With a timing cache, and the library's functions.
class TuningTest : public CudaBackendTest {
 protected:
  void TearDown() override {
    std::filesystem::remove(cache_);
    CudaBackendTest::TearDown();
  }
  LoadOptions options(bool tune) {
    LoadOptions o;
    o.timing_cache = cache_;
    o.tune = tune;
    return o;
  }
  template <class F> F* fake_lt(const char* name) {
    return reinterpret_cast<F*>(dlsym(dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_NOLOAD), name));
  }
  const std::string cache_ = temporary_path("timings.txt");
};

inline void expect_right(Executor& e, SmallCase c) {
  ASSERT_TRUE(e.set("x", c.x_ref()));
  ASSERT_TRUE(e.set("ids", c.ids_ref()));
  auto ran = e.run();
  ASSERT_TRUE(ran) << ran.error().message;
  EXPECT_EQ(values_of(*e.output("out")), c.expected);
}

}  // namespace tfcc::testing_support
