// SPDX-License-Identifier: Apache-2.0
// Protobuf's wire format, read field by field from memory without copying, and written back. Used
// to look at a model of any size before Protobuf sees a part of it; every length is checked against
// the bytes that are there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tfcc::frontend {

/// How a field is encoded. The groups of old (3 and 4) do not occur in ONNX and count as damage.
enum class Wire : uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

/// One field of a message.
struct Field {
  uint32_t number = 0;
  Wire wire = Wire::varint;
  uint64_t value = 0;        // Wire::varint
  std::string_view payload;  // Wire::bytes
  std::string_view whole;    // with its tag

  bool is(uint32_t n, Wire w) const { return number == n && wire == w; }
};

/// Iterates over the fields of one message: `while (reader.next()) use(reader.field());`, then test
/// broken().
class WireReader {
 public:
  explicit WireReader(std::string_view message) : message_(message) {}

  /// False at the end and on damage.
  bool next();
  const Field& field() const { return field_; }
  bool broken() const { return broken_; }
  /// Where the last field starts.
  size_t position() const { return start_; }

 private:
  bool fail() {
    broken_ = true;
    return false;
  }
  bool read_varint(uint64_t& value);
  bool take(uint64_t size);

  std::string_view message_;
  size_t start_ = 0;
  size_t at_ = 0;
  bool broken_ = false;
  Field field_;
};

/// Appends a field of Wire::bytes.
void put_bytes(std::string& message, uint32_t number, std::string_view payload);

}  // namespace tfcc::frontend
