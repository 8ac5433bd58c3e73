// SPDX-License-Identifier: Apache-2.0
// The one schema of runtime/core/manifest.proto, read field by field (runtime/wire.h). Nesting
// is as deep as the schema, so there is no recursion to limit; the number of messages is limited,
// strings and arrays are bounded by the bytes they come from.
#include "runtime/core/manifest.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "runtime/wire.h"

namespace tfcc::runtime {
namespace {

// What every nested reader shares: the budget of messages and the first thing that was wrong.
struct State {
  size_t messages = 0;
  const char* wrong = nullptr;
};

using Field = WireField;

// All fields of a message.
template <class F> void for_each_field(std::string_view bytes, State& s, const F& use) {
  WireReader in(bytes);
  while (!s.wrong && in.next()) use(in.field());
  if (!s.wrong) s.wrong = in.wrong();
}

bool expect(const Field& f, Wire wire, State& s) {
  if (f.wire == wire) return true;
  if (s.wrong == nullptr) s.wrong = "a field of another type than it has";
  return false;
}

// One `get` per type of a field; all append to vectors and overwrite single values, as Protobuf
// does.
void get(const Field& f, std::string& out, State& s) {
  if (expect(f, Wire::bytes, s)) {
    out.assign(f.payload);
  }
}
void get(const Field& f, bool& out, State& s) {
  if (expect(f, Wire::varint, s)) out = f.value != 0;
}
void get(const Field& f, uint32_t& out, State& s) {
  if (expect(f, Wire::varint, s)) out = static_cast<uint32_t>(f.value);
}
void get(const Field& f, uint64_t& out, State& s) {
  if (expect(f, Wire::varint, s)) out = f.value;
}
void get(const Field& f, int64_t& out, State& s) {
  if (expect(f, Wire::varint, s)) out = static_cast<int64_t>(f.value);
}
void get(const Field& f, float& out, State& s) {
  if (expect(f, Wire::fixed32, s)) out = std::bit_cast<float>(static_cast<uint32_t>(f.value));
}
void get_fixed(const Field& f, uint64_t& out, State& s) {
  if (expect(f, Wire::fixed64, s)) out = f.value;
}
void get(const Field& f, DType& out, State& s) {
  if (!expect(f, Wire::varint, s)) return;
  if (f.value >= kDTypeCount) s.wrong = "an unknown dtype";
  out = static_cast<DType>(f.value);
}
void get(const Field& f, Family& out, State& s) {
  std::string name;
  get(f, name, s);
  if (const auto family = family_of(name)) out = *family;
  else if (s.wrong == nullptr) s.wrong = "a plan of an unknown family";
}
void get(const Field& f, BufferClass& out, State& s) {
  if (!expect(f, Wire::varint, s)) return;
  if (f.value > static_cast<uint64_t>(BufferClass::state)) s.wrong = "an unknown buffer class";
  out = static_cast<BufferClass>(f.value);
}
void get(const Field& f, SizeRole& out, State& s) {
  if (!expect(f, Wire::varint, s)) return;
  out = f.value < kSizeRoleCount ? static_cast<SizeRole>(f.value)
                                 : SizeRole::none;  // later versions may know more
}
void get(const Field& f, std::vector<std::string>& out, State& s) {
  if (++s.messages > kMaxManifestMessages) s.wrong = "too many texts";
  get(f, out.emplace_back(), s);
}

int64_t from_zigzag(uint64_t v) { return static_cast<int64_t>((v >> 1) ^ (~(v & 1) + 1)); }

// Repeated numbers come packed, or one by one from other writers.
template <class T, class Convert>
void get_packed(const Field& f, std::vector<T>& out, State& s, Convert convert) {
  if (f.wire == Wire::varint) {
    out.push_back(convert(f.value));
    return;
  }
  if (!expect(f, Wire::bytes, s)) return;
  std::string_view run = f.payload;
  for (uint64_t v = 0; !run.empty() && !s.wrong && take_varint(run, v, s.wrong);)
    out.push_back(convert(v));
}
void get(const Field& f, std::vector<uint32_t>& out, State& s) {
  get_packed(f, out, s, [](uint64_t v) { return static_cast<uint32_t>(v); });
}
void get(const Field& f, std::vector<int64_t>& out, State& s) {
  get_packed(f, out, s, [](uint64_t v) { return static_cast<int64_t>(v); });
}
void get_zigzag(const Field& f, std::vector<int64_t>& out, State& s) {
  get_packed(f, out, s, from_zigzag);
}

// The schema: one `field` per message, from field number to member.
void field(const Field& f, SizeExpr& m, State& s);
void field(const Field& f, Symbol& m, State& s);
void field(const Field& f, TensorType& m, State& s);
void field(const Field& f, Check& m, State& s);
void field(const Field& f, Flag& m, State& s);
void field(const Field& f, Weight& m, State& s);
void field(const Field& f, Buffer& m, State& s);
void field(const Field& f, Kernel& m, State& s);
void field(const Field& f, TensorMap& m, State& s);
void field(const Field& f, KernelLaunch& m, State& s);
void field(const Field& f, GemmLaunch& m, State& s);
void field(const Field& f, Launch& m, State& s);
void field(const Field& f, Bucket& m, State& s);
void field(const Field& f, SizeCaps& m, State& s);
void field(const Field& f, BucketTable& m, State& s);
void field(const Field& f, Plan& m, State& s);
void field(const Field& f, Image& m, State& s);
void field(const Field& f, Target& m, State& s);
void field(const Field& f, Text& m, State& s);

template <class Message>
concept IsMessage = requires(const Field& f, Message& m, State& s) {
  field(f, m, s);
};

template <IsMessage Message> void get(const Field& f, Message& out, State& s) {
  if (!expect(f, Wire::bytes, s)) return;
  if (++s.messages > kMaxManifestMessages) s.wrong = "too many messages";
  for_each_field(f.payload, s, [&](const Field& inner) { field(inner, out, s); });
}
template <IsMessage Message> void get(const Field& f, std::vector<Message>& out, State& s) {
  get(f, out.emplace_back(), s);
}

void field(const Field& f, SizeExpr& m, State& s) {
  switch (f.number) {
    case 1: return get_zigzag(f, m.code, s);
    case 2: return get(f, m.text, s);
  }
}

void field(const Field& f, Symbol& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.name, s);
    case 2: return get(f, m.min, s);
    case 3: return get(f, m.max, s);
    case 4: return get(f, m.input, s);
    case 5: return get(f, m.axis, s);
    case 6: return get(f, m.value, s);
    case 7: return get(f, m.min_from, s);
    case 8: return get(f, m.max_from, s);
    case 9: return get(f, m.typical, s);
    case 10: return get(f, m.role, s);
    case 11: return get(f, m.made, s);
    case 12: return get(f, m.multiple, s);
  }
}

void field(const Field& f, TensorType& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.name, s);
    case 2: return get(f, m.dtype, s);
    case 3: return get(f, m.dims, s);
    case 4: return get(f, m.state, s);
  }
}

void field(const Field& f, Check& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.value, s);
    case 2: return get(f, m.equal, s);
    case 3: return get(f, m.message, s);
  }
}

void field(const Field& f, Flag& m, State& s) {
  if (f.number == 1) get(f, m.message, s);
}

void field(const Field& f, Weight& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.name, s);
    case 2: return get(f, m.dtype, s);
    case 3: return get(f, m.shape, s);
    case 4: return get(f, m.layout, s);
    case 5: return get(f, m.offset, s);
    case 6: return get(f, m.size, s);
    case 7: return get_fixed(f, m.checksum, s);
  }
}

void field(const Field& f, Buffer& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.place, s);
    case 2: return get(f, m.name, s);
    case 3: return get(f, m.dtype, s);
    case 4: return get(f, m.dims, s);
    case 5: return get(f, m.index, s);
    case 6: return get(f, m.first_use, s);
    case 7: return get(f, m.last_use, s);
    case 8: return get(f, m.offset, s);
  }
}

void field(const Field& f, Kernel& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.name, s);
    case 2: return get(f, m.op, s);
    case 3: return get(f, m.threads, s);
    case 4: return get(f, m.shared_bytes, s);
    case 5: return get(f, m.starts_early, s);
  }
}

void field(const Field& f, TensorMap& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.buffer, s);
    case 2: return get(f, m.rows, s);
    case 3: return get(f, m.columns, s);
    case 4: return get(f, m.box_rows, s);
    case 5: return get(f, m.box_columns, s);
  }
}

void field(const Field& f, KernelLaunch& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.kernel, s);
    case 2: return get(f, m.args, s);
    case 3: return get(f, m.grid, s);
    case 4: return get(f, m.work, s);
    case 5: return get(f, m.grain, s);
    case 6: return get(f, m.maps, s);
  }
}

void field(const Field& f, GemmLaunch& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.a, s);
    case 2: return get(f, m.b, s);
    case 3: return get(f, m.d, s);
    case 4: return get(f, m.has_bias, s);
    case 5: return get(f, m.bias, s);
    case 6: return get(f, m.m, s);
    case 7: return get(f, m.n, s);
    case 8: return get(f, m.k, s);
    case 9: return get(f, m.batch, s);
    case 10: return get(f, m.stride_a, s);
    case 11: return get(f, m.stride_b, s);
    case 12: return get(f, m.trans_a, s);
    case 13: return get(f, m.trans_b, s);
    case 14: return get(f, m.alpha, s);
    case 15: return get(f, m.in_order, s);
  }
}

void field(const Field& f, Launch& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.name, s);
    case 2: return get(f, m.ops, s);
    case 3: return get(f, m.kernel.emplace(), s);
    case 4: return get(f, m.gemm.emplace(), s);
    case 5: return get(f, m.flops, s);
    case 6: return get(f, m.bytes, s);
    case 7: return get(f, m.why, s);
    case 8: return get(f, m.makes, s);
  }
}

void field(const Field& f, Bucket& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.name, s);
    case 2: return get(f, m.limits, s);
    case 3: return get(f, m.launches, s);
  }
}

void field(const Field& f, SizeCaps& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.caps, s);
    case 2: return get(f, m.cap, s);
  }
}

void field(const Field& f, BucketTable& m, State& s) {
  if (f.number == 1) get(f, m.sizes, s);
}

void field(const Field& f, Plan& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.family, s);
    case 2: return get(f, m.buffers, s);
    case 3: return get(f, m.slots, s);
    case 4: return get(f, m.buckets, s);
    case 5: return get(f, m.kernels, s);
    case 6: return get(f, m.has_bind, s);
    case 7: return get(f, m.bind, s);
    case 8: return get(f, m.precision, s);
    case 9: return get(f, m.live_bytes, s);
    case 10: return get(f, m.limits, s);
    case 12: return get(f, m.bucket_table.emplace(), s);
    case 13: return get(f, m.no_bucket_table, s);
    case 14: return get(f, m.name, s);
    case 15: return get(f, m.counters, s);
  }
}

void field(const Field& f, Image& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.offset, s);
    case 2: return get(f, m.size, s);
  }
}

void field(const Field& f, Target& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.name, s);
    case 2: return get(f, m.plan, s);
    case 3: return get(f, m.section, s);
    case 4: return get(f, m.images, s);
    case 5: return get(f, m.min_driver, s);
  }
}

void field(const Field& f, Text& m, State& s) {
  switch (f.number) {
    case 1: return get(f, m.name, s);
    case 2: return get(f, m.offset, s);
    case 3: return get(f, m.size, s);
  }
}

void field(const Field& f, Program& m, State& s) {
  switch (f.number) {
    case 3: return get(f, m.symbols, s);
    case 4: return get(f, m.inputs, s);
    case 5: return get(f, m.outputs, s);
    case 6: return get(f, m.checks, s);
    case 7: return get(f, m.flags, s);
    case 9: return get(f, m.plans, s);
    case 10: return get(f, m.targets, s);
  }
}

void field(const Field& f, Manifest& m, State& s) {
  field(f, static_cast<Program&>(m), s);
  switch (f.number) {
    case 1: return get(f, m.producer, s);
    case 2: return get(f, m.model, s);
    case 8: return get(f, m.weights, s);
    case 11: return get(f, m.texts, s);
    case 12: return get(f, m.report, s);
    case 13: return get(f, m.generation, s);
    case 14: return get(f, m.no_generation, s);
  }
}

}  // namespace

const Symbol* with_role(const Manifest& m, SizeRole role) {
  const auto it = std::find_if(m.symbols.begin(), m.symbols.end(),
                               [role](const Symbol& s) { return s.role == role; });
  return it == m.symbols.end() ? nullptr : &*it;
}

std::string source_file(const Plan& plan, const std::string& kernel) {
  return plan.name + "/" + kernel + (plan.family == Family::cuda ? ".cu" : ".cpp");
}

Manifest generation_of(const Manifest& file) {
  Manifest m;
  static_cast<Program&>(m) = file.generation.at(0);
  m.producer = file.producer;
  m.model = file.model;
  m.weights = file.weights;
  m.texts = file.texts;
  m.report = file.report;
  return m;
}

Result<Manifest> read_manifest(std::span<const std::byte> bytes, const std::string& name) {
  State state;
  Manifest manifest;
  for_each_field({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, state,
                 [&](const Field& f) { field(f, manifest, state); });
  const auto name_plans = [](Program& program) {
    for (Plan& p : program.plans) {
      if (p.name.empty()) p.name = to_string(p.family);
    }
  };
  name_plans(manifest);
  for (Program& program : manifest.generation) name_plans(program);
  if (manifest.generation.size() > 1) state.wrong = "two programs for generation";
  if (state.wrong == nullptr) return manifest;
  return Error{ErrorCode::bad_file, name + ": damaged manifest: it has " + state.wrong +
                                        "; compile or copy the file again"};
}

}  // namespace tfcc::runtime
