// SPDX-License-Identifier: Apache-2.0
// Protobuf's wire format: tag = number * 8 + encoding; varints are 7 bits a byte, low bits first.
#include "frontend/wire_format.h"

namespace tfcc::frontend {

bool WireReader::read_varint(uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (at_ == message_.size()) return false;
    const auto byte = static_cast<uint8_t>(message_[at_++]);
    value |= shift < 64 ? uint64_t{byte & 0x7fu} << shift : 0;
    if (byte < 0x80) return true;
  }
  return false;
}

bool WireReader::take(uint64_t size) {
  if (size > message_.size() - at_) return false;
  field_.payload = message_.substr(at_, size);
  at_ += size;
  return true;
}

bool WireReader::next() {
  start_ = at_;
  if (broken_ || at_ == message_.size()) return false;
  field_ = Field{};
  uint64_t tag = 0;
  if (!read_varint(tag)) return fail();
  if (tag < 8 || tag > UINT32_MAX) return fail();
  field_.number = static_cast<uint32_t>(tag >> 3);
  field_.wire = static_cast<Wire>(tag & 7);
  bool whole = false;
  uint64_t length = 0;
  switch (field_.wire) {
    case Wire::varint: whole = read_varint(field_.value); break;
    case Wire::fixed64: whole = take(8); break;
    case Wire::fixed32: whole = take(4); break;
    case Wire::bytes: whole = read_varint(length) && take(length); break;
  }
  if (!whole) return fail();
  field_.whole = message_.substr(start_, at_ - start_);
  return true;
}

namespace {

void put_varint(std::string& message, uint64_t value) {
  for (; value >= 0x80; value >>= 7) message.push_back(static_cast<char>(value | 0x80));
  message.push_back(static_cast<char>(value));
}

}  // namespace

void put_bytes(std::string& message, uint32_t number, std::string_view payload) {
  put_varint(message, uint64_t{number} << 3 | static_cast<uint64_t>(Wire::bytes));
  put_varint(message, payload.size());
  message.append(payload);
}

}  // namespace tfcc::frontend
