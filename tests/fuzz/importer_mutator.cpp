// SPDX-License-Identifier: Apache-2.0
// Changes ONNX files field by field, so that most of what libFuzzer tries is still a model: numbers become others, names
// become names of something else, fields and list elements go, double or change places. One time in eight bytes change instead.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <onnx_full.pb.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

struct Place {
  Message* message;
  const FieldDescriptor* field;
};

// Every field that is set, and every string of it.
void walk(Message& m, std::vector<Place>& places, std::vector<std::string>& strings) {
  const Reflection& r = *m.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  r.ListFields(m, &fields);
  for (const FieldDescriptor* f : fields) {
    places.push_back({&m, f});
    const int count = f->is_repeated() ? r.FieldSize(m, f) : 1;
    for (int i = 0; i < count; ++i) {
      if (f->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        walk(f->is_repeated() ? *r.MutableRepeatedMessage(&m, f, i) : *r.MutableMessage(&m, f), places, strings);
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
    walk(model, places, strings);
    if (places.empty()) return;
    const Place& p = places[below(places.size())];
    if (below(8) == 0) return rearrange(p);
    set(p, strings);
  }

  size_t below(size_t n) { return random_() % n; }

 private:
  int64_t number(int64_t now) {
    static constexpr int64_t kOdd[] = {0, 1, -1, 2, 3, 7, 8, 16, 127, 128, 65535, 1 << 20, INT32_MAX, INT32_MIN, 1LL << 32,
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
    changed.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(changed.data()), now.size(), changed.size()));
    return changed;
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
        return list ? r.SetRepeatedInt64(m, f, at, number(r.GetRepeatedInt64(*m, f, at))) : r.SetInt64(m, f, number(r.GetInt64(*m, f)));
      case FieldDescriptor::CPPTYPE_INT32: {
        const auto n = static_cast<int32_t>(number(list ? r.GetRepeatedInt32(*m, f, at) : r.GetInt32(*m, f)));
        return list ? r.SetRepeatedInt32(m, f, at, n) : r.SetInt32(m, f, n);
      }
      case FieldDescriptor::CPPTYPE_FLOAT:
        return list ? r.SetRepeatedFloat(m, f, at, static_cast<float>(real())) : r.SetFloat(m, f, static_cast<float>(real()));
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

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  Mutator mutator(seed);
  onnx_full::ModelProto model;
  if (mutator.below(8) == 0 || !model.ParseFromArray(data, static_cast<int>(size))) return LLVMFuzzerMutate(data, size, max_size);
  for (size_t changes = 1 + mutator.below(3); changes > 0; --changes) mutator.change(model);
  std::string out;
  if (!model.SerializeToString(&out) || out.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(out.begin(), out.end(), data);
  return out.size();
}
