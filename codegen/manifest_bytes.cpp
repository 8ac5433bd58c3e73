// SPDX-License-Identifier: Apache-2.0
#include "codegen/manifest_bytes.h"

#include <bit>
#include <type_traits>

#include "runtime/wire.h"

namespace tfcc::codegen {
namespace {

using runtime::Wire;

uint64_t zigzag(int64_t v) {
  return static_cast<uint64_t>(v) << 1 ^ static_cast<uint64_t>(v >> 63);
}

/// Writes the fields of one message that visit() names.
class MessageWriter {
 public:
  std::string bytes;

  template <class T> void operator()(uint32_t number, T& v) {
    if constexpr (std::is_integral_v<T>) put(number, static_cast<uint64_t>(v));
    else if constexpr (std::is_same_v<T, Family>) put_text(number, to_string(v));
    else if constexpr (std::is_enum_v<T>) put(number, static_cast<uint64_t>(v));
    else if (std::string inner = message(v); !inner.empty()) put_text(number, inner);
  }
  void operator()(uint32_t number, std::string& v) {
    if (!v.empty()) put_text(number, v);
  }
  void operator()(uint32_t number, float& v) {
    put_fixed(number, Wire::fixed32, std::bit_cast<uint32_t>(v), 4);
  }
  void operator()(uint32_t number, runtime::Fixed v) {
    put_fixed(number, Wire::fixed64, v.value, 8);
  }
  void operator()(uint32_t number, runtime::Zigzag v) { put_packed(number, v.values, zigzag); }
  template <class T> void operator()(uint32_t number, std::vector<T>& list) {
    if constexpr (std::is_integral_v<T>) {
      put_packed(number, list, [](T v) { return static_cast<uint64_t>(v); });
    } else {
      for (T& v : list) put_text(number, message(v));
    }
  }
  template <class T> void operator()(uint32_t number, std::optional<T>& v) {
    if (v) put_text(number, message(*v));
  }

 private:
  static std::string message(std::string& text) { return text; }
  template <class T> static std::string message(T& v) {
    MessageWriter inner;
    v.visit(inner);
    return std::move(inner.bytes);
  }

  static void append_varint(std::string& to, uint64_t v) {
    for (; v >= 0x80; v >>= 7) to += static_cast<char>(v | 0x80);
    to += static_cast<char>(v);
  }
  void put_tag(uint32_t number, Wire wire) {
    append_varint(bytes, number << 3 | static_cast<uint32_t>(wire));
  }
  void put(uint32_t number, uint64_t v) {
    if (v == 0) return;
    put_tag(number, Wire::varint);
    append_varint(bytes, v);
  }
  void put_text(uint32_t number, std::string_view v) {
    put_tag(number, Wire::bytes);
    append_varint(bytes, v.size());
    bytes += v;
  }
  void put_fixed(uint32_t number, Wire wire, uint64_t v, int width) {
    if (v == 0) return;
    put_tag(number, wire);
    for (int k = 0; k < width; ++k) bytes += static_cast<char>(v >> (8 * k));
  }
  template <class T, class F>
  void put_packed(uint32_t number, const std::vector<T>& list, const F& of) {
    std::string run;
    for (T v : list) append_varint(run, of(v));
    if (!run.empty()) put_text(number, run);
  }
};

}  // namespace

std::string manifest_bytes(runtime::Manifest& manifest) {
  MessageWriter writer;
  manifest.visit(writer);
  return std::move(writer.bytes);
}

}  // namespace tfcc::codegen
