// SPDX-License-Identifier: Apache-2.0
// Changes Protobuf messages field by field: numbers become others, texts become texts of something
// else, fields and list elements go, double or change places, and parts take the place of other
// parts of their kind.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <memory>
#include <string>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace tfcc::fuzz {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

struct Place {
  Message* message;
  const FieldDescriptor* field;
};

// Every field that is set, every string and every message of it.
inline void walk(Message& m, std::vector<Place>& places, std::vector<std::string>& strings,
                 std::vector<Message*>& parts) {
  parts.push_back(&m);
  const Reflection& r = *m.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  r.ListFields(m, &fields);
  for (const FieldDescriptor* f : fields) {
    places.push_back({&m, f});
    const int count = f->is_repeated() ? r.FieldSize(m, f) : 1;
    for (int i = 0; i < count; ++i) {
      if (f->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        walk(f->is_repeated() ? *r.MutableRepeatedMessage(&m, f, i) : *r.MutableMessage(&m, f),
             places, strings, parts);
      } else if (f->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        strings.push_back(f->is_repeated() ? r.GetRepeatedString(m, f, i) : r.GetString(m, f));
      }
    }
  }
}

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  void change(Message& model) {
    std::vector<Place> places;
    std::vector<std::string> strings;
    std::vector<Message*> parts;
    walk(model, places, strings, parts);
    if (places.empty()) return;
    if (below(8) == 0) return copy(parts);
    const Place& p = places[below(places.size())];
    if (below(8) == 0) return rearrange(p);
    set(p, strings);
  }

  size_t below(size_t n) { return random_() % n; }

 private:
  int64_t number(int64_t now) {
    static constexpr int64_t kOdd[] = {0,         1,         -1,        2,         3,
                                       7,         8,         16,        127,       128,
                                       65535,     1 << 20,   INT32_MAX, INT32_MIN, 1LL << 32,
                                       1LL << 40, 1LL << 62, INT64_MAX, INT64_MIN, INT64_MAX - 1};
    switch (below(4)) {
      case 0: return static_cast<int64_t>(static_cast<uint64_t>(now) + 1);
      case 1: return static_cast<int64_t>(static_cast<uint64_t>(now) - 1);
      case 2: return static_cast<int64_t>(below(32));
      default: return kOdd[below(std::size(kOdd))];
    }
  }

  double real() {
    static constexpr double kOdd[] = {0, -0.0, 1, -1, 1e-30, 1e30, -1e30, 1e300, 0.5};
    return below(8) == 0 ? std::numeric_limits<double>::quiet_NaN() : kOdd[below(std::size(kOdd))];
  }

  std::string text(const std::string& now, const std::vector<std::string>& strings) {
    if (!strings.empty() && below(4) != 0) return strings[below(strings.size())];
    std::string changed = now;
    changed.resize(now.size() + 16);
    changed.resize(
        LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(changed.data()), now.size(), changed.size()));
    return changed;
  }

  // One part as another of its kind, such as one size as another.
  void copy(const std::vector<Message*>& parts) {
    Message* to = parts[below(parts.size())];
    std::vector<const Message*> alike;
    for (const Message* m : parts) {
      if (m != to && m->GetDescriptor() == to->GetDescriptor()) alike.push_back(m);
    }
    if (alike.empty()) return;
    // By way of a copy of its own: a graph may be a part of the graph that it replaces, which
    // CopyFrom() ends the program for.
    const std::unique_ptr<Message> part(to->New());
    part->CopyFrom(*alike[below(alike.size())]);
    to->CopyFrom(*part);
  }

  // Clears a field or takes a list's element away, or doubles it, or swaps two.
  void rearrange(const Place& p) {
    const Reflection& r = *p.message->GetReflection();
    const int count = p.field->is_repeated() ? r.FieldSize(*p.message, p.field) : 0;
    if (count == 0) return r.ClearField(p.message, p.field);
    const int a = static_cast<int>(below(static_cast<size_t>(count)));
    if (below(2) == 0) {
      r.SwapElements(p.message, p.field, a, count - 1);
      if (below(2) == 0) r.RemoveLast(p.message, p.field);
    } else if (p.field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      r.AddMessage(p.message, p.field)->CopyFrom(r.GetRepeatedMessage(*p.message, p.field, a));
    } else if (p.field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      r.AddInt64(p.message, p.field, number(0));
    } else if (p.field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
      r.AddUInt32(p.message, p.field, static_cast<uint32_t>(number(0)));
    } else if (p.field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      r.AddString(p.message, p.field, r.GetRepeatedString(*p.message, p.field, a));
    }
  }

  void set(const Place& p, const std::vector<std::string>& strings) {
    Message* m = p.message;
    const FieldDescriptor* f = p.field;
    const Reflection& r = *m->GetReflection();
    const bool list = f->is_repeated();
    const int at = list ? static_cast<int>(below(static_cast<size_t>(r.FieldSize(*m, f)))) : 0;
    switch (f->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64:
        return list ? r.SetRepeatedInt64(m, f, at, number(r.GetRepeatedInt64(*m, f, at)))
                    : r.SetInt64(m, f, number(r.GetInt64(*m, f)));
      case FieldDescriptor::CPPTYPE_INT32: {
        const auto n =
            static_cast<int32_t>(number(list ? r.GetRepeatedInt32(*m, f, at) : r.GetInt32(*m, f)));
        return list ? r.SetRepeatedInt32(m, f, at, n) : r.SetInt32(m, f, n);
      }
      case FieldDescriptor::CPPTYPE_UINT32: {
        const auto n = static_cast<uint32_t>(
            number(list ? r.GetRepeatedUInt32(*m, f, at) : r.GetUInt32(*m, f)));
        return list ? r.SetRepeatedUInt32(m, f, at, n) : r.SetUInt32(m, f, n);
      }
      case FieldDescriptor::CPPTYPE_UINT64:
        return list ? void()
                    : r.SetUInt64(
                          m, f,
                          static_cast<uint64_t>(number(static_cast<int64_t>(r.GetUInt64(*m, f)))));
      case FieldDescriptor::CPPTYPE_BOOL: return list ? void() : r.SetBool(m, f, below(2) == 0);
      case FieldDescriptor::CPPTYPE_FLOAT:
        return list ? r.SetRepeatedFloat(m, f, at, static_cast<float>(real()))
                    : r.SetFloat(m, f, static_cast<float>(real()));
      case FieldDescriptor::CPPTYPE_STRING:
        return list ? r.SetRepeatedString(m, f, at, text(r.GetRepeatedString(*m, f, at), strings))
                    : r.SetString(m, f, text(r.GetString(*m, f), strings));
      case FieldDescriptor::CPPTYPE_ENUM:
        return list ? void() : r.SetEnumValue(m, f, static_cast<int>(below(16)));
      default: return list ? rearrange(p) : void();
    }
  }

  std::minstd_rand random_;
};

}  // namespace tfcc::fuzz
