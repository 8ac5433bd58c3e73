// SPDX-License-Identifier: Apache-2.0
// The container: checksum, layout, damage of every kind, and files that promise what they do not
// hold.
#include "runtime/core/artifact.h"

#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>

#include "runtime/core/manifest.h"
#include "tests/runtime/core/small_model.h"

namespace tfcc {
namespace {

using namespace testing_support;

class ArtifactTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cpu_plugin()) GTEST_SKIP() << "built without the CPU target";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::vector<std::byte> small_file(const std::function<void(pb::Manifest&)>& change = nullptr) {
    write_small_model(path_, change);
    return read_file(path_);
  }

  // Loads from memory and, if that works, runs: the right answer or an error, never anything else.
  void expect_error_or_right_answer(std::span<const std::byte> bytes, const std::string& what) {
    auto model = Model::load(bytes, options_);
    if (!model) {
      EXPECT_FALSE(model.error().message.empty()) << what;
      return;
    }
    auto e = model->executor();
    ASSERT_TRUE(e) << what;
    SmallCase c(2, 3);
    ASSERT_TRUE(e->set("x", c.x_ref())) << what;
    ASSERT_TRUE(e->set("ids", c.ids_ref())) << what;
    ASSERT_TRUE(e->run()) << what;
    EXPECT_EQ(values_of(*e->output("out")), c.expected) << what;
  }

  void expect_message(const std::function<void(pb::Manifest&)>& change, const std::string& text) {
    auto bytes = small_file(change);
    auto model = Model::load(bytes, options_);
    ASSERT_FALSE(model) << text;
    EXPECT_EQ(model.error().code, ErrorCode::bad_file) << text;
    EXPECT_NE(model.error().message.find(text), std::string::npos) << model.error().message;
  }

  // Loads from memory and runs; the run says this.
  void expect_run_error(const std::function<void(pb::Manifest&)>& change, const std::string& text) {
    auto bytes = small_file(change);
    auto model = Model::load(bytes, options_);
    ASSERT_TRUE(model) << model.error().message;
    auto e = model->executor();
    ASSERT_TRUE(e);
    SmallCase c(2, 3);
    ASSERT_TRUE(e->set("x", c.x_ref()) && e->set("ids", c.ids_ref()));
    const auto done = e->run();
    ASSERT_FALSE(done) << text;
    EXPECT_NE(done.error().message.find(text), std::string::npos) << done.error().message;
  }

  std::string path_ = temporary_path("artifact.tfcc");
  LoadOptions options_ = {.device = "cpu",
                          .threads = 1,
                          .verify_weights = false,
                          .code_dir = "",
                          .timing_cache = "",
                          .log = {}};
};

TEST(Checksum, has_the_documented_values) {
  EXPECT_EQ(runtime::checksum({}), 0x2d06800538d394c2u);
  EXPECT_EQ(runtime::checksum(std::as_bytes(std::span("abc", 3))), 0x78af5f94892f3950u);
}

TEST(Checksum, does_not_depend_on_the_pieces) {
  std::vector<unsigned char> bytes(3001);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 37);
  uint64_t whole = runtime::checksum(std::as_bytes(std::span(bytes)));
  for (size_t piece : {1, 3, 63, 64, 65, 256, 300, 1024}) {
    runtime::Checksum sum;
    for (size_t i = 0; i < bytes.size(); i += piece) {
      sum.update(bytes.data() + i, std::min(piece, bytes.size() - i));
    }
    EXPECT_EQ(sum.value(), whole) << piece;
  }
}

TEST(Checksum, sees_every_bit_and_the_length) {
  std::vector<std::byte> bytes(70);
  uint64_t plain = runtime::checksum(bytes);
  for (size_t i = 0; i < bytes.size() * 8; ++i) {
    auto changed = bytes;
    changed[i / 8] ^= std::byte(1 << (i % 8));
    EXPECT_NE(runtime::checksum(changed), plain);
  }
  bytes.push_back({});
  EXPECT_NE(runtime::checksum(bytes), plain);
}

TEST_F(ArtifactTest, WorkIsNotMoreThanTheBuffersHold) {
  for (int launch : {0, 2}) {  // around a product
    expect_run_error(
        [&](pb::Manifest& m) {
          auto* work = m.mutable_plans(0)
                           ->mutable_buckets(0)
                           ->mutable_launches(launch)
                           ->mutable_kernel()
                           ->mutable_work();
          work->clear_code();
          size(work, {0, 1 << 20});
        },
        "more work than its buffers have elements");
  }
}

TEST_F(ArtifactTest, sections_lie_where_the_document_says) {
  auto bytes = small_file();
  auto a = runtime::read_artifact(bytes, "a.tfcc");
  ASSERT_TRUE(a) << a.error().message;
  ASSERT_EQ(a->sections.size(), 2u);
  EXPECT_EQ(a->sections[0].offset, 4096u);
  EXPECT_EQ(a->sections[1].offset % 64, 0u);
  EXPECT_EQ(a->manifest.data() + a->manifest.size(), bytes.data() + bytes.size());
  EXPECT_TRUE(runtime::verify_section(*a, a->sections[0], "a.tfcc"));
  EXPECT_EQ(std::memcmp(bytes.data(), "TFCC\2\0\0\0", 8), 0);
}

TEST_F(ArtifactTest, any_byte_of_header_table_and_manifest_may_be_wrong) {
  auto bytes = small_file();
  auto a = runtime::read_artifact(bytes, "a.tfcc");
  ASSERT_TRUE(a);
  size_t manifest = static_cast<size_t>(a->manifest.data() - bytes.data());
  size_t table = runtime::kHeaderBytes + a->sections.size() * runtime::kSectionEntryBytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bool covered = i < table || i >= manifest;
    if (!covered && i >= runtime::kFirstSection) continue;
    for (auto mask : {std::byte{0xFF}, std::byte{1}}) {
      bytes[i] ^= mask;
      if (covered) {
        EXPECT_FALSE(Model::load(bytes, options_)) << "byte " << i;
      } else if (i % 64 == 0) {
        expect_error_or_right_answer(bytes, "byte " + std::to_string(i));
      }
      bytes[i] ^= mask;
    }
  }
  expect_error_or_right_answer(bytes, "unchanged");
}

TEST_F(ArtifactTest, altered_code_is_an_error) {
  auto bytes = small_file();
  auto a = runtime::read_artifact(bytes, "a.tfcc");
  for (size_t i = 0; i < a->sections[1].size; i += 997) {
    size_t at = a->sections[1].offset + i;
    bytes[at] ^= std::byte{0x10};
    auto model = Model::load(bytes, options_);
    ASSERT_FALSE(model);
    EXPECT_NE(model.error().message.find("code checksum differs"), std::string::npos);
    bytes[at] ^= std::byte{0x10};
  }
}

TEST_F(ArtifactTest, altered_weights_are_found_when_asked) {
  auto bytes = small_file();
  bytes[4096 + 65] ^= std::byte{1};
  EXPECT_TRUE(Model::load(bytes, options_));
  options_.verify_weights = true;
  auto model = Model::load(bytes, options_);
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().message.find("weight 'w' is altered"), std::string::npos)
      << model.error().message;
  bytes[4096 + 65] ^= std::byte{1};
  EXPECT_TRUE(Model::load(bytes, options_));
}

TEST_F(ArtifactTest, truncated_at_any_length) {
  auto bytes = small_file();
  for (size_t n = 0; n < bytes.size(); n += 97) {
    auto model = Model::load(std::span(bytes).first(n), options_);
    ASSERT_FALSE(model) << n;
    EXPECT_EQ(model.error().code, ErrorCode::bad_file);
  }
  write_file(path_, std::span(bytes).first(5000));
  auto model = Model::load(path_, options_);
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().message.find("truncated: 5000 of"), std::string::npos)
      << model.error().message;
  bytes.push_back({});
  EXPECT_FALSE(Model::load(bytes, options_)) << "bytes after the end";
}

// With a right checksum around wrong content: what a file made by a broken or hostile writer looks
// like.
TEST_F(ArtifactTest, any_byte_of_the_manifest_may_be_wrong_under_a_right_checksum) {
  auto bytes = small_file();
  runtime::Header h;
  std::memcpy(&h, bytes.data(), sizeof h);
  std::vector<runtime::Section> table(h.sections);
  std::memcpy(table.data(), bytes.data() + sizeof h, h.sections * sizeof(runtime::Section));
  auto name = std::string("m.tfcc");
  for (size_t i = h.manifest_offset; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] ^= std::byte(1 << bit);
      h.manifest_checksum = runtime::checksum(std::span(bytes).subspan(h.manifest_offset));
      h.checksum = runtime::header_checksum(h, table);
      std::memcpy(bytes.data(), &h, sizeof h);
      auto a = runtime::read_artifact(bytes, name);
      ASSERT_TRUE(a);
      if (auto m = runtime::read_manifest(a->manifest, name))
        (void)runtime::check_manifest(*m, *a, name);
      bytes[i] ^= std::byte(1 << bit);
    }
  }
}

TEST_F(ArtifactTest, says_what_a_file_is_not) {
  auto load = [&](const std::string& text) {
    write_file(path_, std::as_bytes(std::span(text)));
    auto model = Model::load(path_, options_);
    return model ? "loaded" : model.error().message;
  };
  EXPECT_NE(load("").find("only 0 bytes"), std::string::npos);
  EXPECT_NE(load(std::string(5000, 'x')).find("does not start with TFCC"), std::string::npos);
  auto missing = Model::load("/nonexistent/x.tfcc", options_);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::io);
  EXPECT_FALSE(Model::load(testing::TempDir(), options_)) << "a folder";
}

TEST_F(ArtifactTest, refuses_other_versions_and_features) {
  auto bytes = small_file();
  auto other = bytes;
  other[4] = std::byte{1};
  auto model = Model::load(other, options_);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::unsupported);
  EXPECT_NE(model.error().message.find("file version 1.0"), std::string::npos);

  // A newer minor version is read.
  runtime::Header h;
  std::memcpy(&h, bytes.data(), sizeof h);
  std::vector<runtime::Section> table(h.sections);
  std::memcpy(table.data(), bytes.data() + sizeof h, h.sections * sizeof(runtime::Section));
  h.minor = 7;
  h.checksum = runtime::header_checksum(h, table);
  std::memcpy(bytes.data(), &h, sizeof h);
  expect_error_or_right_answer(bytes, "minor 7");
  EXPECT_TRUE(Model::load(bytes, options_));

  h.features = runtime::kKnownFeatures + 1;
  h.checksum = runtime::header_checksum(h, table);
  std::memcpy(bytes.data(), &h, sizeof h);
  model = Model::load(bytes, options_);
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().message.find("features " + std::to_string(runtime::kKnownFeatures + 1)),
            std::string::npos);
}

TEST_F(ArtifactTest, checks_sizes_that_launches_make) {
  auto load = [&](const std::function<void(pb::Manifest&)>& change) {
    write_small_model(path_, [&](pb::Manifest& m) {
      make_a_size(m);
      if (change) change(m);
    });
    auto model = Model::load(path_, options_);
    return model ? std::string("loaded") : model.error().message;
  };
  const auto launches = [](pb::Manifest& m) {
    return m.mutable_plans(0)->mutable_buckets(0)->mutable_launches();
  };
  if (has_cpu_plugin()) EXPECT_EQ(load(nullptr), "loaded");
  const std::string too_early = "launch 'out' has a size that no launch before it makes";
  EXPECT_NE(load([&](pb::Manifest& m) { launches(m)->Mutable(0)->clear_makes(); }).find(too_early),
            std::string::npos);
  const std::string never = load([&](pb::Manifest& m) {
    launches(m)->Mutable(0)->clear_makes();
    launches(m)->Mutable(3)->mutable_kernel()->mutable_work()->set_code(1, 0);
  });
  EXPECT_NE(never.find("bucket 'any' has no launch that makes a size"), std::string::npos) << never;
  EXPECT_NE(load([&](pb::Manifest& m) {
              launches(m)->Mutable(1)->set_makes(3);
            }).find("launch 'h' makes a size again"),
            std::string::npos);
  EXPECT_NE(load([&](pb::Manifest& m) { launches(m)->SwapElements(0, 3); }).find(too_early),
            std::string::npos);
  EXPECT_NE(load([&](pb::Manifest& m) {
              launches(m)->Mutable(1)->set_makes(2);
            }).find("launch 'h' makes no size"),
            std::string::npos);
  for (bool input : {true, false}) {
    const std::string problem = load([&](pb::Manifest& m) {
      (input ? m.mutable_inputs(0) : m.mutable_outputs(0))->mutable_dims(1)->set_code(1, 2);
    });
    EXPECT_NE(problem.find(input ? "'x' has a dim that a launch makes"
                                 : "'out' has a dim that a launch makes"),
              std::string::npos)
        << problem;
  }
}

TEST_F(ArtifactTest, checks_tensor_maps) {
  // A map of the first launch, in a plan that is for a GPU.
  auto map = [](pb::Manifest& m) -> pb::TensorMap& {
    pb::Plan& p = *m.mutable_plans(0);
    p.set_family("cuda");
    p.set_has_bind(true);
    for (pb::Kernel& k : *p.mutable_kernels()) k.set_threads(128);
    p.mutable_buffers(5)->set_dtype(static_cast<uint32_t>(DType::f16));
    pb::TensorMap& made = *p.mutable_buckets(0)->mutable_launches(0)->mutable_kernel()->add_maps();
    made.set_buffer(5);
    size(made.mutable_rows(), {1, 0});
    size(made.mutable_columns(), {0, 8});
    made.set_box_rows(64);
    made.set_box_columns(64);
    return made;
  };
  expect_message(
      [&](auto& m) {
        map(m);
        m.mutable_plans(0)->mutable_buckets(0)->mutable_launches(0)->mutable_kernel()->set_resident(
            65);
      },
      "too many blocks");
  auto tiles = [&](pb::Manifest& m, int count) -> pb::TileChoice& {
    map(m);
    pb::TileChoice& choice = *m.mutable_plans(0)
                                  ->mutable_buckets(0)
                                  ->mutable_launches(0)
                                  ->mutable_kernel()
                                  ->mutable_tiles();
    size(choice.mutable_rows(), {1, 0});
    choice.set_columns(64);
    for (int i = 0; i < count; ++i) {
      pb::Tile& t = *choice.add_tiles();
      t.set_rows(64), t.set_columns(64);
    }
    return choice;
  };
  const char* broken_tiles = "has broken tiles";
  expect_message(
      [&](auto& m) {
        pb::TileChoice& first = tiles(m, 2);
        pb::TileChoice& other = *m.mutable_plans(0)
                                     ->mutable_buckets(0)
                                     ->mutable_launches(2)
                                     ->mutable_kernel()
                                     ->mutable_tiles();
        other = first, other.mutable_tiles(1)->set_columns(128);
      },
      "has other tiles than one that is named alike");
  expect_message([&](auto& m) { tiles(m, 1); }, broken_tiles);
  expect_message([&](auto& m) { tiles(m, 16); }, broken_tiles);
  expect_message([&](auto& m) { tiles(m, 2).mutable_tiles(1)->set_rows(0); }, broken_tiles);
  expect_message([&](auto& m) { tiles(m, 2).mutable_tiles(0)->set_columns(0); }, broken_tiles);
  expect_message([&](auto& m) { tiles(m, 2).clear_rows(); }, broken_tiles);
  expect_message([&](auto& m) { tiles(m, 2).set_columns(0); }, broken_tiles);
  expect_message([&](auto& m) { tiles(m, 2).set_columns(~uint64_t{0}); }, broken_tiles);
  expect_message([&](auto& m) { size(tiles(m, 2).mutable_rows(), {1, 99}); }, broken_tiles);
  expect_message([&](auto& m) { map(m), m.mutable_plans(0)->mutable_kernels(0)->set_cluster(16); },
                 "kernel 'embed' has a cluster of 16");
  expect_message([&](auto& m) { map(m), m.mutable_plans(0)->mutable_kernels(0)->set_cluster(2); },
                 "has another grid than its clusters");
  expect_message(
      [&](auto& m) {
        map(m), m.mutable_plans(0)->set_family("cpu");
        m.mutable_plans(0)->mutable_kernels(1)->set_cluster(2);
      },
      "has a cluster of 2");
  expect_message([&](auto& m) { map(m), m.mutable_plans(0)->set_family("cpu"); },
                 "a tensor map for a CPU");
  expect_message([&](auto& m) { map(m).set_buffer(8); }, "missing buffer");
  expect_message([&](auto& m) { map(m).set_buffer(0); }, "maps a graph input or output");
  expect_message([&](auto& m) { map(m).set_buffer(7); }, "maps a graph input or output");
  expect_message(
      [&](auto& m) {
        map(m);
        m.mutable_plans(0)->mutable_buffers(5)->set_dtype(static_cast<uint32_t>(DType::i32));
      },
      "neither f32 nor of 16 or 8 bits");
  expect_message([&](auto& m) { map(m).clear_rows(); }, "a map of broken sizes");
  expect_message([&](auto& m) { map(m).mutable_columns()->add_code(3); }, "a map of broken sizes");
  for (uint32_t n : {0, 257})
    expect_message([&](auto& m) { map(m).set_box_rows(n); }, "broken box");
  for (uint32_t n : {0, 65, 96, 576})
    expect_message([&](auto& m) { map(m).set_box_columns(n); }, "broken box");
  for (uint32_t n : {0, 33, 64}) {
    const auto of_f32 = [&](auto& m) {
      map(m).set_box_columns(n);
      m.mutable_plans(0)->mutable_buffers(5)->set_dtype(static_cast<uint32_t>(DType::f32));
    };
    expect_message(of_f32, "broken box");
  }
  for (uint32_t n : {0, 129, 192}) {
    const auto of_bytes = [&](auto& m) {
      map(m).set_box_columns(n);
      m.mutable_plans(0)->mutable_buffers(5)->set_dtype(static_cast<uint32_t>(DType::u8));
    };
    expect_message(of_bytes, "broken box");
  }
}

TEST_F(ArtifactTest, checks_every_reference_of_the_manifest) {
  auto plan = [](pb::Manifest& m) -> pb::Plan& { return *m.mutable_plans(0); };
  auto launch = [](pb::Manifest& m, int i) {
    return m.mutable_plans(0)->mutable_buckets(0)->mutable_launches(i);
  };
  expect_message([](auto& m) { m.mutable_symbols(0)->set_input(9); }, "comes from no input");
  expect_message([](auto& m) { m.mutable_symbols(0)->set_axis(3); }, "comes from no input");
  expect_message([](auto& m) { m.mutable_symbols(0)->set_min(9); }, "empty range");
  expect_message([](auto& m) { m.mutable_inputs(1)->set_name("x"); }, "two inputs are named");
  expect_message([](auto& m) { m.mutable_outputs(0)->set_name("x"); }, "differ in type");
  expect_message([](auto& m) { m.mutable_inputs(0)->mutable_dims(0)->set_code(1, 2); },
                 "broken dims");
  expect_message([](auto& m) { m.mutable_checks(0)->mutable_value()->add_code(3); },
                 "check is broken");
  expect_message([](auto& m) { m.mutable_weights(2)->set_offset(1 << 20); },
                 "outside the weights section");
  expect_message([](auto& m) { m.mutable_weights(2)->set_offset(4); },
                 "outside the weights section");
  expect_message([](auto& m) { m.mutable_weights(2)->set_shape(0, 1); },
                 "not the size of its shape");
  expect_message([&](auto& m) { plan(m).set_family("tpu"); }, "unknown family");
  expect_message([&](auto& m) { plan(m).clear_buckets(); }, "without buckets");
  expect_message([&](auto& m) { plan(m).mutable_buffers(5)->set_index(2); }, "has no storage");
  expect_message([&](auto& m) { plan(m).mutable_buffers(2)->set_place(pb::Buffer::STATE); },
                 "changes an input that is no state");
  expect_message(
      [&](auto& m) {
        plan(m).mutable_buffers(2)->set_place(pb::Buffer::STATE),
            plan(m).mutable_buffers(2)->set_index(9);
      },
      "has no storage");
  expect_message([&](auto& m) { launch(m, 0)->mutable_kernel()->set_kernel(2); }, "has no kernel");
  expect_message([&](auto& m) { launch(m, 0)->mutable_kernel()->set_args(0, 8); },
                 "missing buffer");
  expect_message([&](auto& m) { launch(m, 1)->mutable_matmul()->set_bias(8); }, "missing buffer");
  expect_message([&](auto& m) { launch(m, 1)->mutable_matmul()->set_d(3); }, "writes a weight");
  expect_message([&](auto& m) { launch(m, 1)->mutable_matmul()->clear_k(); }, "lacks a size");
  expect_message([&](auto& m) { launch(m, 1)->clear_matmul(); }, "does nothing");
  expect_message([](auto& m) { m.mutable_targets(0)->set_plan(1); }, "has no plan");
  expect_message([](auto& m) { m.mutable_targets(0)->set_section(0); }, "has no code");
  expect_message([](auto& m) { m.mutable_targets(0)->clear_images(); }, "code of every kernel");
  expect_message([](auto& m) { m.mutable_targets(0)->mutable_images(0)->set_offset(1); },
                 "outside its section");
  expect_message([](auto& m) { m.add_texts()->set_size(1); }, "outside the text section");
  expect_message([&](auto& m) { plan(m).mutable_kernels(0)->set_name("missing"); },
                 "'missing' is not in its code");
}

TEST_F(ArtifactTest, a_file_that_is_not_finished_leaves_nothing) {
  {
    auto file = ArtifactFile::create(path_);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->begin_section(runtime::SectionKind::text));
    file->end_section();
  }
  std::string folder = std::filesystem::path(path_).parent_path();
  for (auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_FALSE(entry.path().string().starts_with(path_)) << entry.path();
  }
}

TEST_F(ArtifactTest, a_full_disk_is_an_error_and_leaves_nothing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto write_too_much = [&] {
    rlimit limit = {64 << 10, 64 << 10};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) std::exit(3);
    std::string message;
    {
      auto file = ArtifactFile::create(path_);
      std::vector<std::byte> bytes(1 << 20);
      if (!file || !file->begin_section(runtime::SectionKind::weights)) std::exit(4);
      auto done = file->write(bytes);
      if (!done) message = done.error().message;
    }
    for (auto& entry : std::filesystem::directory_iterator(testing::TempDir())) {
      if (entry.path().string().starts_with(path_)) std::exit(5);
    }
    std::fprintf(stderr, "%s\n", message.c_str());
    std::exit(message.empty() ? 2 : 1);
  };
  EXPECT_EXIT(write_too_much(), testing::ExitedWithCode(1),
              "artifact.tfcc: cannot write: .*; choose another place");
}

TEST_F(ArtifactTest, names_the_place_it_cannot_write) {
  auto file = ArtifactFile::create("/nonexistent/m.tfcc");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::io);
  EXPECT_NE(file.error().message.find("/nonexistent/m.tfcc: cannot write here"), std::string::npos);
}

}  // namespace
}  // namespace tfcc
