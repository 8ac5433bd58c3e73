// SPDX-License-Identifier: Apache-2.0
// A small real model for the tests of the runtime: two compiled kernels around a product.
//
//     h[b,s,c]  = 2 * x[b,s,c] + table[ids[b,s]]        flag 0: an id lies outside [0, 5)
//     y[b,s,o]  = sum_c h[b,s,c] * w[c,o] + bias[o]
//     out       = y + 1
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "codegen/artifact_file.h"
#include "runtime/core/manifest.pb.h"
#include "runtime/core/size_expr.h"
#include "runtime/size_role.h"
#include "runtime/tfcc.h"

namespace tfcc::testing_support {

namespace pb = ::tfcc::manifest;

inline constexpr int kC = 4;    // channels in
inline constexpr int kO = 3;    // channels out
inline constexpr int kIds = 5;  // rows of the table
inline constexpr int kMaxBatch = 8;
inline constexpr int kMaxLength = 16;

inline constexpr const char* kKernels = R"(
  #include <stdint.h>
  extern "C" void embed(const int64_t*, uint32_t* flags, void* const* a, int64_t begin,
                        int64_t end) {
    const float* x = (const float*)a[0];
    const int64_t* ids = (const int64_t*)a[1];
    const float* table = (const float*)a[2];
    float* h = (float*)a[3];
    for (int64_t t = begin; t < end; ++t) {
      int64_t id = ids[t];
      if (id < 0 || id >= 5) { flags[0] = 1; id = 0; }
      for (int c = 0; c < 4; ++c) h[t * 4 + c] = 2 * x[t * 4 + c] + table[id];
    }
  }
  extern "C" void add_one(const int64_t*, uint32_t*, void* const* a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ((float*)a[1])[i] = ((const float*)a[0])[i] + 1;
  }
  extern "C" void half(const int64_t* n, uint32_t*, void* const*, int64_t, int64_t) { ((int64_t*)n)[2] = n[0] * n[1] / 2; })";

inline std::string temporary_path(const std::string& name) {
  return testing::TempDir() + "tfcc_" + std::to_string(getpid()) + "_" + name;
}

inline std::vector<std::byte> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> chars((std::istreambuf_iterator<char>(in)), {});
  auto* p = reinterpret_cast<const std::byte*>(chars.data());
  return {p, p + chars.size()};
}

inline void write_file(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

/// False in a build without the CPU target, where nothing of the below can run.
inline bool has_cpu_plugin() {
  return access(TFCC_BINARY_DIR "/runtime/libtfcc_cpu.so", F_OK) == 0;
}

/// The shared object of the two kernels, compiled once by the system's compiler.
inline const std::vector<std::byte>& kernel_code() {
  static const std::vector<std::byte> code = [] {
    std::string source = temporary_path("kernels.cpp"), object = temporary_path("kernels.so");
    std::ofstream(source) << kKernels;
#if defined(__SANITIZE_THREAD__)
    const std::string flags = "-fsanitize=thread ";  // what the kernels do is seen too
#else
    const std::string flags;
#endif
    std::string command =
        "c++ " + flags + "-shared -fPIC -O1 -nostdlib -o " + object + " " + source;
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    auto bytes = read_file(object);
    unlink(source.c_str());
    unlink(object.c_str());
    return bytes;
  }();
  return code;
}

/// Fills a size program: size(expr, {0, 4}) is the constant 4, size(expr, {1, 0, 1, 1, 3}) is B *
/// S.
inline void size(pb::SizeExpr* e, std::initializer_list<int64_t> code) {
  for (int64_t c : code) e->add_code(c);
}

inline pb::Buffer* add_buffer(pb::Plan& plan, pb::Buffer::Class place, const char* name,
                              uint32_t index,
                              std::initializer_list<std::initializer_list<int64_t>> dims,
                              DType dtype = DType::f32) {
  pb::Buffer* b = plan.add_buffers();
  b->set_place(place);
  b->set_name(name);
  b->set_index(index);
  b->set_dtype(static_cast<uint32_t>(dtype));
  for (auto& d : dims) size(b->add_dims(), d);
  return b;
}

inline void add_port(pb::TensorType* t, const char* name, DType dtype,
                     std::initializer_list<std::initializer_list<int64_t>> dims) {
  t->set_name(name);
  t->set_dtype(static_cast<uint32_t>(dtype));
  for (auto& d : dims) size(t->add_dims(), d);
}

inline const char* host_level() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("x86-64-v2") ? "x86-64-v2" : "x86-64";
}

inline void add_plan(pb::Manifest& m) {
  pb::Plan& plan = *m.add_plans();
  plan.set_family("cpu");
  plan.set_precision("f32");
  add_buffer(plan, pb::Buffer::INPUT, "x", 0, {{1, 0}, {1, 1}, {0, kC}});
  add_buffer(plan, pb::Buffer::INPUT, "ids", 1, {{1, 0}, {1, 1}}, DType::i64);
  add_buffer(plan, pb::Buffer::CONSTANT, "table", 0, {{0, kIds}});
  add_buffer(plan, pb::Buffer::CONSTANT, "w", 1, {{0, kC}, {0, kO}});
  add_buffer(plan, pb::Buffer::CONSTANT, "bias", 2, {{0, kO}});
  add_buffer(plan, pb::Buffer::ARENA, "h", 0, {{1, 0}, {1, 1}, {0, kC}});
  add_buffer(plan, pb::Buffer::ARENA, "y", 1, {{1, 0}, {1, 1}, {0, kO}});
  add_buffer(plan, pb::Buffer::OUTPUT, "out", 0, {{1, 0}, {1, 1}, {0, kO}});
  size(plan.add_slots(), {1, 0, 1, 1, 3, 0, kC * 4, 3});
  size(plan.add_slots(), {1, 0, 1, 1, 3, 0, kO * 4, 3});
  for (const char* name : {"embed", "add_one"}) plan.add_kernels()->set_name(name);

  pb::Bucket& bucket = *plan.add_buckets();
  bucket.set_name("any");
  pb::Launch* embed = bucket.add_launches();
  embed->set_name("h");
  embed->mutable_kernel()->set_kernel(0);
  for (uint32_t arg : {0, 1, 2, 5}) embed->mutable_kernel()->add_args(arg);
  size(embed->mutable_kernel()->mutable_work(), {1, 0, 1, 1, 3});
  embed->mutable_kernel()->set_grain(1);

  pb::Launch* product = bucket.add_launches();
  product->set_name("y");
  pb::MatmulLaunch& g = *product->mutable_matmul();
  g.set_a(5);
  g.set_b(3);
  g.set_d(6);
  g.set_has_bias(true);
  g.set_bias(4);
  size(g.mutable_m(), {1, 1});
  size(g.mutable_n(), {0, kO});
  size(g.mutable_k(), {0, kC});
  size(g.mutable_batch(), {1, 0});
  size(g.mutable_stride_a(), {1, 1, 0, kC, 3});
  g.set_alpha(1);

  pb::Launch* add = bucket.add_launches();
  add->set_name("out");
  add->mutable_kernel()->set_kernel(1);
  for (uint32_t arg : {6, 7}) add->mutable_kernel()->add_args(arg);
  size(add->mutable_kernel()->mutable_work(), {1, 0, 1, 1, 3, 0, kO, 3});
  add->mutable_kernel()->set_grain(4);
}

inline pb::Manifest small_manifest() {
  pb::Manifest m;
  m.set_producer("tfcc test");
  m.set_model("small.onnx");
  pb::Symbol* b = m.add_symbols();
  b->set_name("batch_size");
  b->set_min(1);
  b->set_max(kMaxBatch);
  b->set_role(static_cast<uint32_t>(SizeRole::batch));
  pb::Symbol* s = m.add_symbols();
  s->set_name("sequence_length");
  s->set_min(1);
  s->set_axis(1);
  s->set_role(static_cast<uint32_t>(SizeRole::length));
  add_port(m.add_inputs(), "x", DType::f32, {{1, 0}, {1, 1}, {0, kC}});
  add_port(m.add_inputs(), "ids", DType::i64, {{1, 0}, {1, 1}});
  add_port(m.add_outputs(), "out", DType::f32, {{1, 0}, {1, 1}, {0, kO}});
  pb::Check* check = m.add_checks();
  size(check->mutable_value(), {0, kMaxLength, 1, 1, 9, 2});  // 16 - S >= 0
  check->set_message("sequence_length must be at most 16");
  m.add_flags()->set_message("ids: a value lies outside [0, 5)");
  add_plan(m);
  return m;
}

/// Size 2, T <= B*S, which a launch before all others makes: half of the tokens. The last launch
/// computes so many of its rows.
inline void make_a_size(pb::Manifest& m) {
  pb::Symbol* t = m.add_symbols();
  t->set_name("half");
  t->set_role(static_cast<uint32_t>(SizeRole::packed));
  t->set_made(true);
  size(t->mutable_value(), {1, 0, 1, 1, 3});
  pb::Plan& plan = *m.mutable_plans(0);
  plan.add_kernels()->set_name("half");
  auto* launches = plan.mutable_buckets(0)->mutable_launches();
  pb::KernelLaunch* last = launches->Mutable(launches->size() - 1)->mutable_kernel();
  last->clear_work();
  size(last->mutable_work(), {1, 2, 0, kO, 3});
  pb::Launch* half = launches->Add();
  half->set_name("half");
  half->set_makes(3);
  half->mutable_kernel()->set_kernel(2);
  half->mutable_kernel()->add_args(5);
  half->mutable_kernel()->set_grain(1);
  size(half->mutable_kernel()->mutable_work(), {0, 1});
  for (int i = launches->size() - 1; i > 0; --i) launches->SwapElements(i, i - 1);
}

inline std::vector<float> small_table() { return {0, 10, 20, 30, 40}; }
inline std::vector<float> small_w() { return {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}; }
inline std::vector<float> small_bias() { return {0.5f, -0.5f, 100}; }

inline void add_weight(ArtifactFile& file, pb::Manifest& m, const char* name,
                       std::vector<int64_t> shape, const std::vector<float>& values) {
  auto bytes = std::as_bytes(std::span(values));
  pb::Weight* w = m.add_weights();
  w->set_name(name);
  for (int64_t d : shape) w->add_shape(d);
  w->set_offset(*file.align(runtime::kWeightAlignment));
  w->set_size(bytes.size());
  w->set_checksum(runtime::checksum(bytes));
  EXPECT_TRUE(file.write(bytes));
}

/// Writes the small model; `change` may alter the manifest before it is written. No code, no
/// target.
inline void write_small_model(const std::string& path,
                              const std::function<void(pb::Manifest&)>& change = nullptr,
                              const std::vector<std::byte>& code = kernel_code()) {
  auto file = ArtifactFile::create(path);
  ASSERT_TRUE(file) << file.error().message;
  pb::Manifest m = small_manifest();
  ASSERT_TRUE(file->begin_section(runtime::SectionKind::weights));
  add_weight(*file, m, "table", {kIds}, small_table());
  add_weight(*file, m, "w", {kC, kO}, small_w());
  add_weight(*file, m, "bias", {kO}, small_bias());
  file->end_section();
  if (!code.empty()) {
    ASSERT_TRUE(file->begin_section(runtime::SectionKind::code));
    ASSERT_TRUE(file->write(code));
    pb::Target* t = m.add_targets();
    t->set_name(host_level());
    t->set_section(file->end_section());
    t->add_images()->set_size(code.size());
  }
  if (change) change(m);
  std::string text = m.SerializeAsString();
  auto done = file->finish(std::as_bytes(std::span(text)));
  ASSERT_TRUE(done) << done.error().message;
}

/// Inputs for one shape, and what must come out.
struct SmallCase {
  int64_t batch, length;
  std::vector<float> x;
  std::vector<int64_t> ids;
  std::vector<float> expected;

  SmallCase(int64_t b, int64_t s) : batch(b), length(s) {
    for (int64_t t = 0; t < b * s; ++t) {
      ids.push_back(t * 7 % kIds);
      for (int c = 0; c < kC; ++c) x.push_back(static_cast<float>((t * kC + c) % 11) - 5);
      for (int o = 0; o < kO; ++o) {
        float y = small_bias()[o] + 1;
        for (int c = 0; c < kC; ++c) {
          y += (2 * x[t * kC + c] + small_table()[ids[t]]) * small_w()[c * kO + o];
        }
        expected.push_back(y);
      }
    }
  }
  TensorRef x_ref() { return {x.data(), DType::f32, {batch, length, kC}}; }
  TensorRef ids_ref() { return {ids.data(), DType::i64, {batch, length}}; }
};

inline std::vector<float> values_of(const Tensor& t) {
  auto* p = static_cast<const float*>(t.data);
  return {p, p + t.bytes / sizeof(float)};
}

}  // namespace tfcc::testing_support
