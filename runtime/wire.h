// SPDX-License-Identifier: Apache-2.0
// Protobuf's wire format, read field by field from memory without copying: what the runtime reads a
// manifest with, and the frontend a model of any size before Protobuf sees a part of it. tag =
// number * 8 + encoding; varints are 7 bits a byte, low bits first. Every length is checked against
// the bytes that are there. (protozero's lengths have 32 bits; a model's graph may be larger.)
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tfcc::runtime {

/// How a field is encoded. The groups of old (3 and 4) count as damage.
enum class Wire : uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

/// One field of a message.
struct WireField {
  uint32_t number = 0;
  Wire wire = Wire::varint;
  uint64_t value = 0;        // of the others than Wire::bytes
  std::string_view payload;  // Wire::bytes
  std::string_view whole;    // with its tag

  bool is(uint32_t n, Wire w) const { return number == n && wire == w; }
};

/// Takes the first number off a packed run of them; false if it is no number, with `wrong` saying
/// why.
inline bool take_varint(std::string_view& run, uint64_t& value, const char*& wrong) {
  value = 0;
  for (unsigned shift = 0; shift < 70; shift += 7) {
    if (run.empty()) {
      wrong = "a number that is cut off";
      return false;
    }
    const auto byte = static_cast<uint8_t>(run.front());
    run.remove_prefix(1);
    value |= shift < 64 ? uint64_t{byte & 0x7fu} << shift : 0;
    if (byte < 0x80) return true;
  }
  wrong = "a number of more than ten bytes";
  return false;
}

/// Iterates over the fields of one message: `while (reader.next()) use(reader.field());`, then test
/// broken().
class WireReader {
 public:
  explicit WireReader(std::string_view message) : message_(message), rest_(message) {}

  /// False at the end and on damage.
  bool next() {
    if (wrong_) return false;
    start_ = message_.size() - rest_.size();
    if (rest_.empty()) return false;
    field_ = WireField{};
    uint64_t tag = 0, size = 0;
    if (!take_varint(rest_, tag, wrong_)) return false;
    if (tag < 8 || tag > UINT32_MAX) return fail("a field without number");
    field_.number = static_cast<uint32_t>(tag >> 3);
    field_.wire = static_cast<Wire>(tag & 7);
    switch (field_.wire) {
      case Wire::varint:
        if (!take_varint(rest_, field_.value, wrong_)) return false;
        break;
      case Wire::fixed64:
      case Wire::fixed32:
        size = field_.wire == Wire::fixed64 ? 8 : 4;
        if (size > rest_.size()) return fail("a number that is cut off");
        static_assert(std::endian::native == std::endian::little);
        std::memcpy(&field_.value, rest_.data(), size);
        rest_.remove_prefix(size);
        break;
      case Wire::bytes:
        if (!take_varint(rest_, size, wrong_)) return false;
        if (size > rest_.size()) return fail("a field longer than its message");
        field_.payload = rest_.substr(0, size);
        rest_.remove_prefix(size);
        break;
      default: return fail("an unknown wire type");
    }
    field_.whole = message_.substr(start_, message_.size() - rest_.size() - start_);
    return true;
  }
  const WireField& field() const { return field_; }
  bool broken() const { return wrong_ != nullptr; }
  /// "a number that is cut off"; null if nothing was wrong.
  const char* wrong() const { return wrong_; }
  /// Where the last field starts.
  size_t position() const { return start_; }

 private:
  bool fail(const char* what) {
    wrong_ = what;
    return false;
  }

  std::string_view message_, rest_;
  size_t start_ = 0;
  const char* wrong_ = nullptr;
  WireField field_;
};

}  // namespace tfcc::runtime
