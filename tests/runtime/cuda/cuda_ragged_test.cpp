// SPDX-License-Identifier: Apache-2.0
// Tokens without padding on the fake driver: what follows from cu_seqlens reaches the device with
// run() and with enqueue(), which copies it when it has changed, and under a replayed graph.
#include <numeric>

#include "tests/runtime/cuda/fake_cuda.h"

namespace tfcc {
namespace {

using namespace testing_support;

constexpr int64_t kMostTokens = 64, kMostSequences = 8;

// One kernel, rows, over the tokens of a run. Sizes 0: tokens, 1: batch, 2: the longest.
pb::Manifest ragged_manifest() {
  pb::Manifest m;
  m.set_model("rows.onnx");
  const std::pair<SizeRole, int64_t> sizes[] = {
      {SizeRole::tokens, kMostTokens}, {SizeRole::batch, kMostSequences}, {SizeRole::length, 16}};
  const uint32_t inputs[] = {4, 2, 6};  // that tell them
  for (int i = 0; i < 3; ++i) {
    pb::Symbol* s = m.add_symbols();
    s->set_name(std::string(to_string(sizes[i].first)));
    s->set_min(1);
    s->set_max(sizes[i].second);
    s->set_input(inputs[i]);
    s->set_role(static_cast<uint32_t>(sizes[i].first));
  }
  add_port(m.add_inputs(), "x", DType::f32, {{1, 0}});
  const int64_t counts[] = {1, 1, 1, 0, 0, 2};
  for (int i = 0; i < 6; ++i) {
    const auto role = static_cast<InputRole>(static_cast<int>(InputRole::cu_seqlens) + i);
    pb::TensorType* t = m.add_inputs();
    add_port(t, std::string(to_string(role)).c_str(), DType::i32, {{1, counts[i]}});
    if (role == InputRole::cu_seqlens)
      for (int64_t c : {0, 1, 2}) t->mutable_dims(0)->add_code(c);  // + 1
    t->set_role(static_cast<uint32_t>(role));
  }
  add_port(m.add_outputs(), "out", DType::f32, {{1, 0}});
  pb::Plan& plan = *m.add_plans();
  plan.set_family("cuda");
  plan.set_precision("f32");
  add_buffer(plan, pb::Buffer::INPUT, "x", 0, {{1, 0}});
  add_buffer(plan, pb::Buffer::INPUT, "cu_seqlens", 1, {{1, 1, 0, 1, 2}}, DType::i32);
  add_buffer(plan, pb::Buffer::INPUT, "row_sequences", 4, {{1, 0}}, DType::i32);
  add_buffer(plan, pb::Buffer::INPUT, "row_positions", 5, {{1, 0}}, DType::i32);
  add_buffer(plan, pb::Buffer::OUTPUT, "out", 0, {{1, 0}});
  for (const char* name : {"rows", "bind_rows"}) {
    pb::Kernel* k = plan.add_kernels();
    k->set_name(name);
    k->set_threads(128);
  }
  plan.set_has_bind(true);
  plan.set_bind(1);
  pb::BucketTable& table = *plan.mutable_bucket_table();
  for (int64_t most : {kMostTokens, kMostSequences, int64_t{16}}) table.add_sizes()->add_caps(most);
  pb::Bucket& bucket = *plan.add_buckets();
  bucket.set_name("any");
  pb::Launch* launch = bucket.add_launches();
  launch->set_name("out");
  launch->mutable_kernel()->set_kernel(0);
  for (uint32_t arg = 0; arg < 5; ++arg) launch->mutable_kernel()->add_args(arg);
  size(launch->mutable_kernel()->add_grid(), {1, 0});
  return m;
}

class CudaRaggedTest : public CudaBackendTest {
 protected:
  Model load_ragged() {
    auto file = ArtifactFile::create(path_);
    pb::Manifest m = ragged_manifest();
    const auto code = std::as_bytes(std::span("fake cubin\0fake cubin"));
    EXPECT_TRUE(file->begin_section(runtime::SectionKind::code));
    EXPECT_TRUE(file->write(code));
    pb::Target* t = m.add_targets();
    t->set_name("sm_90");
    t->set_section(file->end_section());
    for (size_t i = 0; i < 2; ++i) {
      pb::Image* image = t->add_images();
      image->set_offset(i * code.size() / 2);
      image->set_size(code.size() / 2);
    }
    const std::string text = m.SerializeAsString();
    EXPECT_TRUE(file->finish(std::as_bytes(std::span(text))));
    auto model = Model::load(path_);
    if (!model) {
      std::fprintf(stderr, "%s\n", model.error().message.c_str());
      std::exit(8);
    }
    return *model->ragged();
  }
};

struct RaggedCase {
  std::vector<int64_t> cu_seqlens{0};
  std::vector<float> x, expected, out;

  explicit RaggedCase(const std::vector<int64_t>& lengths) {
    for (int64_t n : lengths) cu_seqlens.push_back(cu_seqlens.back() + n);
    for (size_t b = 0; b < lengths.size(); ++b) {
      for (int64_t s = 0; s < lengths[b]; ++s) {
        x.push_back(static_cast<float>(x.size() % 7));
        expected.push_back(x.back() + 100.0f * static_cast<float>(b) + static_cast<float>(s) +
                           10000.0f * static_cast<float>(cu_seqlens[b + 1]));
      }
    }
    out.resize(x.size());
  }
  int64_t tokens() const { return std::ssize(x); }
  TensorRef ref(std::vector<float>& v, Place place) {
    return {v.data(), DType::f32, {tokens()}, place};
  }
};

const std::vector<std::vector<int64_t>> kCases = {{3, 1, 5}, {2}, {9, 16, 1, 1, 4}, {1}, {3, 1, 5}};

TEST_F(CudaRaggedTest, runs) {
  auto body = [&] {
    Model model = load_ragged();
    ASSERT_EQ(model.inputs().size(), 2u) << "tokens and cu_seqlens";
    Executor e = *model.executor();
    for (const auto& lengths : kCases) {
      RaggedCase c(lengths);
      ASSERT_TRUE(e.set("x", c.ref(c.x, Place::host), c.cu_seqlens));
      auto ran = e.run();
      ASSERT_TRUE(ran) << ran.error().message;
      EXPECT_EQ(values_of(*e.output("out")), c.expected);
    }
    EXPECT_EQ(e.stats().graphs_made, 1u) << "one bucket";
    EXPECT_EQ(e.stats().graph_runs, kCases.size());
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

TEST_F(CudaRaggedTest, two_runs_are_under_way) {
  auto body = [&] {
    Executor e = *load_ragged().executor();
    RaggedCase first({3, 1, 5}), second({2, 2});
    ASSERT_TRUE(e.set("x", first.ref(first.x, Place::host), first.cu_seqlens));
    ASSERT_TRUE(e.start());
    ASSERT_TRUE(e.set("x", second.ref(second.x, Place::host), second.cu_seqlens));
    ASSERT_TRUE(e.start());
    ASSERT_TRUE(e.finish());
    EXPECT_EQ(values_of(*e.output("out")), first.expected);
    ASSERT_TRUE(e.finish());
    EXPECT_EQ(values_of(*e.output("out")), second.expected);
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

TEST_F(CudaRaggedTest, enqueue_copies_what_has_changed) {
  auto body = [&] {
    Executor e = *load_ragged().executor();
    auto* copies = fake<int()>("fake_cuda_copies_in");
    int stream = 0;
    for (const auto& lengths : kCases) {
      RaggedCase c(lengths);
      ASSERT_TRUE(e.set("x", c.ref(c.x, Place::device), c.cu_seqlens));
      ASSERT_TRUE(e.set("out", c.ref(c.out, Place::device)));
      auto done = e.enqueue(&stream);
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_EQ(c.out, c.expected);
      const int before = copies();
      ASSERT_TRUE(e.set("x", c.ref(c.x, Place::device), c.cu_seqlens)) << "the same again";
      std::iota(c.x.begin(), c.x.end(), 0.0f);
      std::fill(c.out.begin(), c.out.end(), 0.0f);
      ASSERT_TRUE(e.enqueue(&stream));
      EXPECT_EQ(copies(), before) << "nothing has changed";
      EXPECT_EQ(c.out[0], 10000.0f * static_cast<float>(lengths[0]));
      // A run of its own in between, whose tables are elsewhere.
      RaggedCase other({4, 4, 4});
      ASSERT_TRUE(e.clear("out"));
      ASSERT_TRUE(e.set("x", other.ref(other.x, Place::host), other.cu_seqlens));
      ASSERT_TRUE(e.run());
      EXPECT_EQ(values_of(*e.output("out")), other.expected);
    }
    RaggedCase c({2, 1});
    ASSERT_TRUE(e.set("x", c.ref(c.x, Place::host), c.cu_seqlens));
    ASSERT_TRUE(e.set("out", c.ref(c.out, Place::device)));
    auto refused = e.enqueue(&stream);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("input 'x' is in host memory"), std::string::npos);
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tfcc
