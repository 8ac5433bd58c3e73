// SPDX-License-Identifier: Apache-2.0
// The bounded reader agrees with libprotobuf on random manifests, skips what it does not know, and
// refuses the rest.
#include "runtime/core/manifest.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <random>

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
          auto v = is_dtype              ? static_cast<uint32_t>(rng() % kDTypeCount)
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

// Writes our structs back as Protobuf messages, to compare as bytes.
namespace pb = ::tfcc::manifest;
void put(const SizeExpr& e, pb::SizeExpr* o) {
  for (int64_t c : e.code) o->add_code(c);
  o->set_text(e.text);
}
void put(const Check& c, pb::Check* o) {
  put(c.value, o->mutable_value());
  o->set_equal(c.equal);
  o->set_message(c.message);
}
void put(const TensorType& t, pb::Tensor* o) {
  o->set_name(t.name);
  o->set_dtype(static_cast<uint32_t>(t.dtype));
  for (auto& d : t.dims) put(d, o->add_dims());
  o->set_state(t.state);
}
void put(const Launch& l, pb::Launch* o) {
  o->set_name(l.name);
  for (auto& op : l.ops) o->add_ops(op);
  if (l.kernel) {
    auto* k = o->mutable_kernel();
    k->set_kernel(l.kernel->kernel);
    for (uint32_t a : l.kernel->args) k->add_args(a);
    for (auto& g : l.kernel->grid) put(g, k->add_grid());
    put(l.kernel->work, k->mutable_work());
    k->set_grain(l.kernel->grain);
    for (auto& map : l.kernel->maps) {
      auto* m = k->add_maps();
      m->set_buffer(map.buffer);
      put(map.rows, m->mutable_rows());
      put(map.columns, m->mutable_columns());
      m->set_box_rows(map.box_rows);
      m->set_box_columns(map.box_columns);
    }
  }
  if (l.gemm) {
    auto* g = o->mutable_gemm();
    g->set_a(l.gemm->a);
    g->set_b(l.gemm->b);
    g->set_d(l.gemm->d);
    g->set_has_bias(l.gemm->has_bias);
    g->set_bias(l.gemm->bias);
    put(l.gemm->m, g->mutable_m());
    put(l.gemm->n, g->mutable_n());
    put(l.gemm->k, g->mutable_k());
    put(l.gemm->batch, g->mutable_batch());
    put(l.gemm->stride_a, g->mutable_stride_a());
    put(l.gemm->stride_b, g->mutable_stride_b());
    g->set_trans_a(l.gemm->trans_a);
    g->set_trans_b(l.gemm->trans_b);
    g->set_alpha(l.gemm->alpha);
    g->set_in_order(l.gemm->in_order);
  }
  put(l.flops, o->mutable_flops());
  put(l.bytes, o->mutable_bytes());
  o->set_why(l.why);
  o->set_makes(l.makes);
}
void put(const Plan& p, pb::Plan* o) {
  o->set_family(std::string(to_string(p.family)));
  o->set_name(p.name);
  for (auto& b : p.buffers) {
    auto* q = o->add_buffers();
    q->set_class_(static_cast<pb::Buffer::Class>(b.place));
    q->set_name(b.name);
    q->set_dtype(static_cast<uint32_t>(b.dtype));
    for (auto& d : b.dims) put(d, q->add_dims());
    q->set_index(b.index);
    q->set_first_use(b.first_use);
    q->set_last_use(b.last_use);
    put(b.offset, q->mutable_offset());
  }
  for (auto& s : p.slots) put(s, o->add_slots());
  for (auto& b : p.buckets) {
    auto* q = o->add_buckets();
    q->set_name(b.name);
    for (auto& c : b.limits) put(c, q->add_limits());
    for (auto& l : b.launches) put(l, q->add_launches());
  }
  for (auto& k : p.kernels) {
    auto* q = o->add_kernels();
    q->set_name(k.name);
    q->set_op(k.op);
    q->set_threads(k.threads);
    q->set_shared_bytes(k.shared_bytes);
    q->set_starts_early(k.starts_early);
  }
  o->set_has_bind(p.has_bind);
  o->set_bind(p.bind);
  o->set_precision(p.precision);
  o->set_counters(p.counters);
  put(p.live_bytes, o->mutable_live_bytes());
  for (auto& c : p.limits) put(c, o->add_limits());
  if (p.bucket_table) {
    o->mutable_bucket_table();
    for (auto& s : p.bucket_table->sizes) {
      auto* q = o->mutable_bucket_table()->add_sizes();
      for (int64_t n : s.caps) q->add_caps(n);
      put(s.cap, q->mutable_cap());
    }
  }
  o->set_no_bucket_table(p.no_bucket_table);
}
template <class Message>  // pb::Manifest or pb::Program
void put_program(const Program& m, Message& o) {
  for (auto& s : m.symbols) {
    auto* q = o.add_symbols();
    q->set_name(s.name);
    q->set_min(s.min);
    q->set_max(s.max);
    q->set_input(s.input);
    q->set_axis(s.axis);
    put(s.value, q->mutable_value());
    q->set_min_from(s.min_from);
    q->set_max_from(s.max_from);
    q->set_typical(s.typical);
    q->set_role(static_cast<uint32_t>(s.role));
    q->set_made(s.made);
    q->set_multiple(s.multiple);
  }
  for (auto& t : m.inputs) put(t, o.add_inputs());
  for (auto& t : m.outputs) put(t, o.add_outputs());
  for (auto& c : m.checks) put(c, o.add_checks());
  for (auto& f : m.flags) o.add_flags()->set_message(f.message);
  for (auto& p : m.plans) put(p, o.add_plans());
  for (auto& t : m.targets) {
    auto* q = o.add_targets();
    q->set_name(t.name);
    q->set_plan(t.plan);
    q->set_section(t.section);
    for (auto& i : t.images) {
      auto* image = q->add_images();
      image->set_offset(i.offset);
      image->set_size(i.size);
    }
    q->set_min_driver(t.min_driver);
  }
}
pb::Manifest to_protobuf(const Manifest& m) {
  pb::Manifest o;
  o.set_producer(m.producer);
  o.set_model(m.model);
  put_program(m, o);
  for (auto& w : m.weights) {
    auto* q = o.add_weights();
    q->set_name(w.name);
    q->set_dtype(static_cast<uint32_t>(w.dtype));
    for (int64_t d : w.shape) q->add_shape(d);
    q->set_layout(w.layout);
    q->set_offset(w.offset);
    q->set_size(w.size);
    q->set_checksum(w.checksum);
  }
  for (auto& t : m.texts) {
    auto* q = o.add_texts();
    q->set_name(t.name);
    q->set_offset(t.offset);
    q->set_size(t.size);
  }
  o.set_report(m.report);
  for (const Program& p : m.generation) put_program(p, *o.mutable_generation());
  o.set_no_generation(m.no_generation);
  return o;
}

Result<Manifest> read(const std::string& bytes) {
  return read_manifest(std::as_bytes(std::span(bytes)), "m.tfcc");
}

TEST(Manifest, agrees_with_libprotobuf) {
  std::mt19937_64 rng(1);
  for (int round = 0; round < 200; ++round) {
    pb::Manifest m;
    fill(m, rng);
    auto* const generation = m.has_generation() ? m.mutable_generation()->mutable_plans() : nullptr;
    for (auto* plans : {m.mutable_plans(), generation}) {
      for (int i = 0; plans && i < plans->size(); ++i) {
        pb::Plan& p = *plans->Mutable(i);
        p.set_family(rng() % 2 ? "cuda" : "cpu");
        if (p.name().empty()) p.set_name("named after its family otherwise");
      }
    }
    std::string bytes = m.SerializeAsString();
    auto ours = read(bytes);
    ASSERT_TRUE(ours) << ours.error().message;
    ASSERT_EQ(to_protobuf(*ours).SerializeAsString(), bytes) << "round " << round;
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
