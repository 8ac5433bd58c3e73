// SPDX-License-Identifier: Apache-2.0
// The bounded reader and the writer agree with libprotobuf on random manifests; the reader skips what
// it does not know, and refuses the rest. tools/check_names.py holds numbers and names to the schema.
#include "runtime/core/manifest.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/message_differencer.h>

#include <random>

#include "codegen/manifest_bytes.h"
#include "tests/runtime/core/small_model.h"

namespace tfcc::runtime {
namespace {

namespace gp = google::protobuf;

uint64_t random_bits(std::mt19937_64& rng) { return rng() >> (rng() % 64); }

// Fills every field of a message by reflection, so that a new field of the schema is tested without
// a new line here.
void fill(gp::Message& m, std::mt19937_64& rng) {
  const auto* r = m.GetReflection();
  const auto* d = m.GetDescriptor();
  for (int i = 0; i < d->field_count(); ++i) {
    const auto* f = d->field(i);
    if (f->containing_oneof() != nullptr && static_cast<int>(rng() % 2) != f->index_in_oneof())
      continue;
    int count = f->is_repeated() ? static_cast<int>(rng() % 4) : 1;
    for (int k = 0; k < count; ++k) {
      bool rep = f->is_repeated();
      std::string text(rng() % 5, 'a');
      bool is_dtype = f->name() == "dtype";
      switch (f->cpp_type()) {
        case gp::FieldDescriptor::CPPTYPE_MESSAGE:
          fill(rep ? *r->AddMessage(&m, f) : *r->MutableMessage(&m, f), rng);
          break;
        case gp::FieldDescriptor::CPPTYPE_STRING:
          rep ? r->AddString(&m, f, text) : r->SetString(&m, f, text);
          break;
        case gp::FieldDescriptor::CPPTYPE_UINT32: {
          auto v = is_dtype ? static_cast<uint32_t>(rng() % kDTypeCount)
                   : f->full_name() == "tfcc.manifest.TensorType.role"
                       ? static_cast<uint32_t>(rng() % kInputRoleCount)
                   : f->name() == "role" ? static_cast<uint32_t>(rng() % kSizeRoleCount)
                                         : static_cast<uint32_t>(random_bits(rng));
          rep ? r->AddUInt32(&m, f, v) : r->SetUInt32(&m, f, v);
          break;
        }
        case gp::FieldDescriptor::CPPTYPE_UINT64: r->SetUInt64(&m, f, random_bits(rng)); break;
        case gp::FieldDescriptor::CPPTYPE_INT64: {
          auto v = static_cast<int64_t>(random_bits(rng));
          rep ? r->AddInt64(&m, f, v) : r->SetInt64(&m, f, v);
          break;
        }
        case gp::FieldDescriptor::CPPTYPE_BOOL: r->SetBool(&m, f, rng() % 2 == 0); break;
        case gp::FieldDescriptor::CPPTYPE_FLOAT:
          r->SetFloat(&m, f, static_cast<float>(rng() % 100) / 8);
          break;
        case gp::FieldDescriptor::CPPTYPE_ENUM:
          r->SetEnumValue(&m, f, static_cast<int>(rng() % 5));
          break;
        default: FAIL() << "a type that the schema did not have: " << f->full_name();
      }
    }
  }
}

namespace pb = ::tfcc::manifest;

Result<Manifest> read(const std::string& bytes) {
  return read_manifest(std::as_bytes(std::span(bytes)), "m.tfcc");
}

TEST(Manifest, agrees_with_libprotobuf) {
  std::mt19937_64 rng(1);
  for (int round = 0; round < 200; ++round) {
    pb::Manifest m;
    fill(m, rng);
    auto* const generation = m.has_generation() ? m.mutable_generation()->mutable_plans() : nullptr;
    auto* const ragged = m.has_ragged() ? m.mutable_ragged()->mutable_plans() : nullptr;
    for (auto* plans : {m.mutable_plans(), generation, ragged}) {
      for (int i = 0; plans && i < plans->size(); ++i) {
        pb::Plan& p = *plans->Mutable(i);
        p.set_family(rng() % 2 ? "cuda" : "cpu");
        if (p.name().empty()) p.set_name("named after its family otherwise");
      }
    }
    if (m.has_generation() && m.generation_alone()) {
      EXPECT_EQ(
          read(m.SerializeAsString()).error().message,
          "m.tfcc: damaged manifest: it has two programs for generation; compile or copy the file again");
      m.set_generation_alone(false);
    }
    std::string bytes = m.SerializeAsString();
    auto ours = read(bytes);
    ASSERT_TRUE(ours) << ours.error().message;
    pb::Manifest back;
    ASSERT_TRUE(back.ParseFromString(codegen::manifest_bytes(*ours)));
    // A size that is absent is the empty one.
    ASSERT_TRUE(gp::util::MessageDifferencer::Equivalent(back, m)) << "round " << round;
    for (int i = 0; i < m.plans_size(); ++i)
      EXPECT_EQ(back.plans(i).has_bucket_table(), m.plans(i).has_bucket_table());
  }
}

TEST(Manifest, skips_unknown_fields) {
  pb::Manifest m;
  m.set_model("a");
  std::string bytes = m.SerializeAsString();
  bytes += std::string("\xa0\x06\x05", 3);              // field 100, varint 5
  bytes += std::string("\xaa\x06\x02xy", 5);            // field 101, two bytes
  bytes += std::string("\xb5\x06\x01\x02\x03\x04", 6);  // field 102, four bytes fixed
  bytes += std::string("\x0a\x01p", 3);                 // producer after all of them
  auto ours = read(bytes);
  ASSERT_TRUE(ours) << ours.error().message;
  EXPECT_EQ(ours->producer, "p");
  EXPECT_EQ(ours->model, "a");
}

TEST(Manifest, reads_numbers_that_are_not_packed) {
  std::string size("\x08\x02\x08\x0a", 4);  // SizeExpr.code = 1, 5 one by one
  std::string check = std::string("\x0a\x04", 2) + size;
  std::string bytes = std::string("\x32\x06", 2) + check;
  auto ours = read(bytes);
  ASSERT_TRUE(ours) << ours.error().message;
  EXPECT_EQ(ours->checks.at(0).value.code, (std::vector<int64_t>{1, 5}));
}

TEST(Manifest, refuses_broken_bytes) {
  struct {
    std::string bytes;
    const char* what;
  } cases[] = {
      {std::string("\x0a\x05x", 3), "longer than its message"},
      {std::string("\x0a", 1), "cut off"},
      {std::string("\x0b", 1), "unknown wire type"},
      {std::string("\x08\x01", 2), "another type"},
      {std::string("\x02\x00", 2), "without number"},
      {std::string(11, '\xff'), "more than ten bytes"},
      {std::string("\x22\x02\x10\x0a", 4), "unknown dtype"},
  };
  for (auto& c : cases) {
    auto r = read(c.bytes);
    ASSERT_FALSE(r) << c.what;
    EXPECT_EQ(r.error().code, ErrorCode::bad_file);
    EXPECT_NE(r.error().message.find(c.what), std::string::npos) << r.error().message;
  }
}

TEST(Manifest, bounds_the_number_of_messages) {
  std::string bytes;
  for (size_t i = 0; i <= kMaxManifestMessages; ++i)
    bytes += std::string("\x3a\x00", 2);  // flags {}
  auto r = read(bytes);
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message.find("too many messages"), std::string::npos);
}

TEST(Manifest, every_single_byte_change_is_an_error_or_a_manifest) {
  std::mt19937_64 rng(7);
  pb::Manifest m = testing_support::small_manifest();
  std::string bytes = m.SerializeAsString();
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    for (int k = 0; k < 8; ++k) {
      changed[i] = static_cast<char>(rng());
      (void)read(changed);  // the sanitizers judge
    }
    (void)read(bytes.substr(0, i));
  }
}

}  // namespace
}  // namespace tfcc::runtime
