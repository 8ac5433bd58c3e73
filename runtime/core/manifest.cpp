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
void get(const Field& f, Fixed out, State& s) {
  if (expect(f, Wire::fixed64, s)) out.value = f.value;
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
void get(const Field& f, InputRole& out, State& s) {
  if (!expect(f, Wire::varint, s)) return;
  out = f.value < kInputRoleCount ? static_cast<InputRole>(f.value)
                                  : InputRole::none;  // later versions may know more
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
void get(const Field& f, Zigzag out, State& s) { get_packed(f, out.values, s, from_zigzag); }

template <class Message>
concept IsMessage = requires(Message& m) {
  m.visit([](uint32_t, auto&&) {});
};

template <IsMessage Message> void field(const Field& f, Message& m, State& s) {
  m.visit([&](uint32_t number, auto&& member) {
    if (number == f.number) get(f, member, s);
  });
}

template <IsMessage Message> void get(const Field& f, Message& out, State& s) {
  if (!expect(f, Wire::bytes, s)) return;
  if (++s.messages > kMaxManifestMessages) s.wrong = "too many messages";
  for_each_field(f.payload, s, [&](const Field& inner) { field(inner, out, s); });
}
template <IsMessage Message> void get(const Field& f, std::vector<Message>& out, State& s) {
  get(f, out.emplace_back(), s);
}
template <IsMessage Message> void get(const Field& f, std::optional<Message>& out, State& s) {
  get(f, out.emplace(), s);
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

namespace {

Manifest with_program(const Manifest& file, const Program& program) {
  Manifest m;
  static_cast<Program&>(m) = program;
  m.producer = file.producer;
  m.model = file.model;
  m.weights = file.weights;
  m.texts = file.texts;
  m.report = file.report;
  return m;
}

}  // namespace

Manifest generation_of(const Manifest& file) {
  if (file.generation_alone) return file;
  Manifest m = with_program(file, file.generation.at(0));
  m.generation_alone = true;
  return m;
}

Manifest ragged_of(const Manifest& file) { return with_program(file, file.ragged.at(0)); }

uint64_t weight_bytes(const Manifest& file) {
  std::vector<const Weight*> all;
  for (const Weight& w : file.weights) all.push_back(&w);
  std::ranges::sort(all, {}, &Weight::offset);
  uint64_t sum = 0, end = 0;
  for (const Weight* w : all) {
    const uint64_t stop = w->offset + w->size;
    if (stop > end) sum += stop - std::max(end, w->offset);
    end = std::max(end, stop);
  }
  return sum;
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
  for (Program& program : manifest.ragged) name_plans(program);
  if (manifest.generation.size() + manifest.generation_alone > 1)
    state.wrong = "two programs for generation";
  if (manifest.ragged.size() > 1) state.wrong = "two programs for tokens without padding";
  if (state.wrong == nullptr) return manifest;
  return Error{ErrorCode::bad_file, name + ": damaged manifest: it has " + state.wrong +
                                        "; compile or copy the file again"};
}

}  // namespace tfcc::runtime
