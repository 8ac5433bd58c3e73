// SPDX-License-Identifier: Apache-2.0
// What `tfcc inspect` makes of files whose checksums are right and whose contents are not what any
// compiler writes.
#include "tools/tfcc/inspect.h"

#include <gtest/gtest.h>

#include <cstring>
#include <ctime>
#include <functional>
#include <random>

#include "runtime/core/manifest.pb.h"
#include "tools/tfcc/inspect_page.h"

namespace tfcc::tools {
namespace {

namespace pb = ::tfcc::manifest;
using runtime::Section;
using runtime::SectionKind;

void size(pb::SizeExpr* e, std::initializer_list<int64_t> code) {
  e->clear_code();
  for (int64_t c : code) e->add_code(c);
}

// x: f32[B,S,4], one plan for the CPU with two kernels, one slot and one bucket without launches.
pb::Manifest small_manifest() {
  pb::Manifest m;
  m.set_producer("tfcc of a test");
  auto* x = m.add_inputs();
  x->set_name("x");
  size(x->add_dims(), {1, 0});
  size(x->add_dims(), {1, 1});
  size(x->add_dims(), {0, 4});
  for (uint32_t axis : {0u, 1u}) {
    auto* s = m.add_symbols();
    s->set_name(axis == 0 ? "B" : "S");
    s->set_min(1);
    s->set_axis(axis);
  }
  auto* tokens = m.add_symbols();
  tokens->set_name("tokens");
  tokens->set_max(512);
  size(tokens->mutable_value(), {1, 0, 1, 1, 3});
  auto* p = m.add_plans();
  p->set_family("cpu");
  for (const char* name : {"one", "two"}) p->add_kernels()->set_name(name);
  size(p->add_slots(), {1, 2, 0, 16, 3});
  p->add_buckets()->set_name("any");
  return m;
}

void add_launch(pb::Manifest& m, uint32_t kernel, const std::string& name = "l") {
  auto* l = m.mutable_plans(0)->mutable_buckets(0)->add_launches();
  l->set_name(name);
  l->mutable_kernel()->set_kernel(kernel);
}

// A file of this manifest: sections of weights, code and texts, then the manifest.
std::vector<std::byte> file_of(const pb::Manifest& m, const std::string& texts = "") {
  const std::string manifest = m.SerializeAsString();
  constexpr size_t kZeros = 4096;
  std::vector<Section> sections = {
      {SectionKind::weights, 0, runtime::kFirstSection, kZeros, 0},
      {SectionKind::code, 0, runtime::kFirstSection, kZeros, 0},
      {SectionKind::text, 0, runtime::kFirstSection + kZeros, texts.size(), 0}};
  std::string file(runtime::kFirstSection + kZeros, '\0');
  file += texts + manifest;
  sections[2].checksum = runtime::checksum(std::as_bytes(std::span(texts)));
  runtime::Header h = {};
  std::memcpy(h.magic, runtime::kMagic, sizeof h.magic);
  h.major = runtime::kMajorVersion;
  h.file_bytes = file.size();
  h.manifest_offset = file.size() - manifest.size();
  h.manifest_bytes = manifest.size();
  h.manifest_checksum = runtime::checksum(std::as_bytes(std::span(manifest)));
  h.sections = static_cast<uint32_t>(sections.size());
  h.checksum = runtime::header_checksum(h, sections);
  std::memcpy(file.data(), &h, sizeof h);
  std::memcpy(file.data() + runtime::kHeaderBytes, sections.data(),
              sections.size() * sizeof(Section));
  const auto* bytes = reinterpret_cast<const std::byte*>(file.data());
  return {bytes, bytes + file.size()};
}

// Everything that is shown of a file; the sanitizers judge what it reads.
void show_all(const std::vector<std::byte>& bytes) {
  auto f = InspectedFile::read(bytes, "f.tfcc");
  ASSERT_TRUE(f) << f.error().message;
  ASSERT_TRUE(f->set_sizes({}));
  EXPECT_TRUE(inspect_text(*f, {.launches = true, .kernels = true, .texts = true, .values = true}));
  EXPECT_FALSE(to_json(*f).dump(1, ' ', false, nlohmann::json::error_handler_t::replace).empty());
  EXPECT_TRUE(inspect_page(*f));
}

void expect_refused(const std::function<void(pb::Manifest&)>& change, const std::string& text,
                    const std::string& texts = "") {
  pb::Manifest m = small_manifest();
  show_all(file_of(m));
  change(m);
  const auto bytes = file_of(m, texts);
  auto f = InspectedFile::read(bytes, "f.tfcc");
  ASSERT_FALSE(f) << text;
  EXPECT_EQ(f.error().code, ErrorCode::bad_file);
  EXPECT_NE(f.error().message.find(text), std::string::npos) << f.error().message;
}

double cpu_seconds(const std::function<void()>& work) {
  const std::clock_t start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

TEST(Inspect, a_derived_size_is_a_product_of_sizes) {
  for (const std::initializer_list<int64_t>& code : {std::initializer_list<int64_t>{1, 0, 1, 0, 3},
                                                     {1, 0, 1, 1, 3, 0, 8, 3},
                                                     {1, 0, 1, 1, 2},
                                                     {1, 0}}) {
    expect_refused(
        [&](pb::Manifest& m) {
          m.mutable_symbols(2)->mutable_value()->clear_code();
          size(m.mutable_symbols(2)->mutable_value(), code);
        },
        "not a product of different sizes of the inputs");
  }
  pb::Manifest turned = small_manifest();
  turned.mutable_symbols(2)->mutable_value()->clear_code();
  size(turned.mutable_symbols(2)->mutable_value(), {1, 1, 1, 0, 3});
  show_all(file_of(turned));
}

TEST(Inspect, parts_of_a_section_do_not_share_its_bytes) {
  const std::string texts(100, 'x');
  const auto add_text = [](pb::Manifest& m, uint64_t offset, uint64_t bytes) {
    m.add_texts()->set_offset(offset);
    m.mutable_texts(m.texts_size() - 1)->set_size(bytes);
  };
  expect_refused([&](pb::Manifest& m) { add_text(m, 0, 60), add_text(m, 40, 60); },
                 "outside the text section", texts);
  expect_refused([&](pb::Manifest& m) { add_text(m, 0, 101); }, "outside the text section", texts);
  expect_refused(
      [](pb::Manifest& m) {
        for (int i = 0; i < 3; ++i) {  // each may lie in one other
          auto* w = m.add_weights();
          w->set_dtype(2);
          w->add_shape(2048);
          w->set_size(4096);
        }
      },
      "outside the weights section");
  expect_refused(
      [](pb::Manifest& m) {
        for (int i = 0; i < 2; ++i) {
          auto* t = m.add_targets();
          t->set_section(1);
          t->add_images()->set_size(4096);
          t->mutable_images(0)->set_offset(static_cast<uint64_t>(i));
        }
      },
      "code outside its section");
}

TEST(Inspect, kernels_have_names_of_their_own) {
  expect_refused([](pb::Manifest& m) { m.mutable_plans(0)->mutable_kernels(1)->set_name("one"); },
                 "two kernels are named 'one'");
}

TEST(Inspect, bucket_tables_are_of_the_sizes_and_small) {
  auto table = [](pb::Manifest& m) {
    for (int i = m.symbols_size(); i > 0; --i)
      m.mutable_plans(0)->mutable_bucket_table()->add_sizes();
    return m.mutable_plans(0)->mutable_bucket_table();
  };
  expect_refused([&](pb::Manifest& m) { table(m)->add_sizes(); },
                 "a bucket table that is not of the sizes of the file");
  expect_refused(
      [&](pb::Manifest& m) {
        auto* sizes = table(m)->mutable_sizes(0);
        for (int64_t n = 1; n <= 1025; ++n) sizes->add_caps(n);
      },
      "a bucket table with more than 1024 caps of a size");
  for (const std::vector<int64_t>& caps :
       {std::vector<int64_t>{8, 8}, {8, 4}, {-1}, {(int64_t{1} << 31) + 1}}) {
    expect_refused(
        [&](pb::Manifest& m) {
          table(m)->mutable_sizes(0)->mutable_caps()->Add(caps.begin(), caps.end());
        },
        "a bucket table with broken caps");
  }
  expect_refused([&](pb::Manifest& m) { table(m)->mutable_sizes(0)->mutable_cap()->add_code(2); },
                 "a bucket table with a broken cap");
  expect_refused(
      [&](pb::Manifest& m) {
        size(table(m)->mutable_sizes(0)->mutable_cap(), {0, 1});
        for (int i = 0; i < 100; ++i)
          size(m.mutable_plans(0)->mutable_bucket_table()->mutable_sizes(0)->mutable_cap(),
               {0, 1, 2});
      },
      "a bucket table with a broken cap");
  expect_refused(
      [&](pb::Manifest& m) {
        for (int i = 0; i < 64; ++i)
          *m.add_symbols() = m.symbols(0), m.mutable_symbols(m.symbols_size() - 1)->set_role(0);
        table(m);
      },
      "a bucket table of more than 64 sizes");
  expect_refused(
      [](pb::Manifest& m) {
        m.mutable_symbols(0)->set_role(1);
        m.mutable_symbols(1)->set_role(1);
      },
      "two symbols have the role of");
}

TEST(Inspect, long_names_are_not_used_without_end) {
  expect_refused(
      [](pb::Manifest& m) {
        m.mutable_plans(0)->mutable_kernels(0)->set_name(std::string(1 << 20, 'k'));
        for (int i = 0; i < 70; ++i) add_launch(m, 0);
      },
      "long names are used too often");
  expect_refused(
      [](pb::Manifest& m) {
        m.mutable_inputs(0)->set_name(std::string(1 << 20, 'x'));
        for (int i = 0; i < 70; ++i) m.add_symbols()->set_axis(2);
      },
      "long names are used too often");
}

TEST(Inspect, plans_and_targets_are_few) {
  expect_refused(
      [](pb::Manifest& m) {
        for (int i = 0; i < 16; ++i) *m.add_plans() = m.plans(0);
      },
      "more than 16 plans");
  expect_refused(
      [](pb::Manifest& m) {
        for (int i = 0; i < 124; ++i) m.add_targets();
      },
      "more than 123 targets");
}

// The layers of a bucket by their definition: of all distances the one at which most launches in a
// row repeat.
std::optional<InspectedFile::Layers> slow_layers(const std::vector<uint32_t>& kinds) {
  size_t period = 0, most = 0, end = 0;
  for (size_t p = 1; p < kinds.size(); ++p) {
    size_t run = 0;
    for (size_t i = p; i < kinds.size(); ++i) {
      run = kinds[i] == kinds[i - p] ? run + 1 : 0;
      if (run > most) most = run, period = p, end = i + 1;
    }
  }
  if (most < 2) return std::nullopt;
  return InspectedFile::Layers{(most + period + period / 2) / period, period, end - most - period};
}

TEST(Inspect, layers_are_what_repeats) {
  std::mt19937 rng(1);
  for (int round = 0; round < 300; ++round) {
    pb::Manifest m = small_manifest();
    std::vector<uint32_t> kinds(rng() % 40);
    for (size_t i = 0; i < kinds.size(); ++i)
      kinds[i] =
          round % 2 && i >= 7 && rng() % 20 ? kinds[i - 7] : static_cast<uint32_t>(rng() % 2);
    for (uint32_t k : kinds) add_launch(m, k);
    const auto bytes = file_of(m);
    auto f = InspectedFile::read(bytes, "f.tfcc");
    ASSERT_TRUE(f);
    const auto got = f->layers(f->manifest.plans[0], f->manifest.plans[0].buckets[0]),
               want = slow_layers(kinds);
    ASSERT_EQ(got.has_value(), want.has_value());
    if (!got) continue;
    EXPECT_EQ(std::tuple(got->count, got->launches, got->first),
              std::tuple(want->count, want->launches, want->first))
        << "round " << round;
  }
}

// Of a file with so much of everything that a look at all pairs would take half a minute and more.
constexpr double kSeconds = 5;

TEST(Inspect, layers_take_linear_time) {
  pb::Manifest m = small_manifest();
  std::mt19937 rng(2);
  for (int i = 0; i < 150'000; ++i) add_launch(m, rng() % 2, "");
  const auto bytes = file_of(m);
  const auto f = InspectedFile::read(bytes, "f.tfcc");
  ASSERT_TRUE(f);
  EXPECT_LT(
      cpu_seconds([&] { (void)f->layers(f->manifest.plans[0], f->manifest.plans[0].buckets[0]); }),
      kSeconds);
}

TEST(Inspect, live_bytes_take_linear_time) {
  pb::Manifest m = small_manifest();
  for (int i = 0; i < 150'000; ++i) {
    add_launch(m, 0, "");
    auto* b = m.mutable_plans(0)->add_buffers();
    b->set_place(pb::Buffer::ARENA);
    b->set_last_use(i % 2 ? UINT32_MAX : 140'000);
  }
  const auto bytes = file_of(m);
  auto f = InspectedFile::read(bytes, "f.tfcc");
  ASSERT_TRUE(f && f->set_sizes({}));
  EXPECT_LT(cpu_seconds([&] { EXPECT_EQ(f->live_bytes(f->manifest.plans[0]), 150'000 * 4); }),
            kSeconds);
}

TEST(Inspect, squares_of_sizes_take_linear_time) {
  pb::Manifest m = small_manifest();
  for (int i = 0; i < 20'000; ++i) {
    auto* s = m.add_symbols();
    s->set_min(1);
    s->set_axis(2);
    auto* b = m.mutable_plans(0)->add_buffers();
    b->set_place(pb::Buffer::ARENA);
    size(b->add_dims(), {1, i + 3});
  }
  const auto bytes = file_of(m);
  auto f = InspectedFile::read(bytes, "f.tfcc");
  ASSERT_TRUE(f && f->set_sizes({}));
  EXPECT_LT(cpu_seconds([&] { EXPECT_TRUE(f->quadratic_buffers(f->manifest.plans[0]).empty()); }),
            kSeconds);
}

TEST(Inspect, texts_take_linear_time) {
  pb::Manifest m = small_manifest();
  std::string texts;
  for (int i = 0; i < 40'000; ++i) {
    auto* t = m.add_texts();
    t->set_name("kernels/cpu/k" + std::to_string(i) + ".cpp");
    t->set_offset(texts.size());
    t->set_size(64);
    texts += std::string(64, 'a');
  }
  const auto bytes = file_of(m, texts);
  const auto f = InspectedFile::read(bytes, "f.tfcc");
  ASSERT_TRUE(f);
  EXPECT_LT(cpu_seconds([&] {
              for (const auto& t : f->manifest.texts) EXPECT_TRUE(f->text(t.name));
            }),
            kSeconds);
}

TEST(Inspect, a_plan_of_many_layers_is_shown) {
  pb::Manifest m = small_manifest();
  for (int i = 0; i < 8'000; ++i)
    add_launch(m, 0, "l." + std::to_string(i / 4) + "/x");  // a part each four
  show_all(file_of(m));
}

TEST(Inspect, a_report_may_be_nested_beyond_any_stack) {
  for (const std::string& report :
       {std::string(3'000'000, '['),
        "{\"a\":" + std::string(2'000'000, '[') + std::string(2'000'000, ']') + "}"}) {
    pb::Manifest m = small_manifest();
    m.set_report(report);
    show_all(file_of(m));
  }
  EXPECT_EQ(shallow_json("{\"a\": [\"[[[[\\\"[[\", 1]}")["a"][1], 1);
  EXPECT_TRUE(shallow_json(std::string(40, '[') + std::string(40, ']')).is_discarded());
}

TEST(Inspect, sums_of_sizes_that_do_not_fit_are_no_number) {
  for (int64_t bytes : {INT64_MAX, INT64_MAX - 300, int64_t{-5}}) {
    pb::Manifest m = small_manifest();
    for (int i = 0; i < 2; ++i) size(m.mutable_plans(0)->add_slots(), {0, bytes});
    auto* b = m.mutable_plans(0)->add_buffers();
    b->set_place(pb::Buffer::ARENA);
    b->set_index(2);
    size(b->mutable_offset(), {0, INT64_MAX - 100});
    const auto file = file_of(m);
    show_all(file);
    auto f = InspectedFile::read(file, "f.tfcc");
    ASSERT_TRUE(f && f->set_sizes({}));
    EXPECT_FALSE(f->arena_bytes(f->manifest.plans[0]));
  }
}

}  // namespace
}  // namespace tfcc::tools
