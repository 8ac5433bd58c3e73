// SPDX-License-Identifier: Apache-2.0
// Sets and maps of nodes, for walks over expressions: one block of memory, the first few entries
// without any. A walk over a body of ten nodes makes one of these, and a graph has many bodies.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace tfcc::ir {

/// Distinct pointers to things of type T, each with a V. Nothing is ever removed. References to
/// values hold until the next insertion.
template <class T, class V> class PointerMap {
 public:
  /// The value of `key`, or null if there is none.
  V* find(const T* key) {
    if (slots_.empty()) {
      for (size_t i = 0; i < size_; ++i) {
        if (few_[i].key == key) return &few_[i].value;
      }
      return nullptr;
    }
    Entry& e = slots_[place(key)];
    return e.key ? &e.value : nullptr;
  }
  bool contains(const T* key) { return find(key) != nullptr; }
  size_t size() const { return size_; }

  /// Adds `value` for `key`, which must not be null; false, and nothing is changed, if there is
  /// one.
  bool insert(const T* key, V value = {}) {
    if (slots_.empty()) {
      if (find(key)) return false;
      if (size_ < kFew) {
        few_[size_++] = {key, value};
        return true;
      }
      grow(8 * kFew);
    } else if (4 * (size_ + 1) > 3 * slots_.size()) {
      grow(2 * slots_.size());
    }
    Entry& e = slots_[place(key)];
    if (e.key) return false;
    e = {key, value};
    ++size_;
    return true;
  }

 private:
  struct Entry {
    const T* key = nullptr;
    V value{};
  };
  static constexpr size_t kFew = 8;

  // Where the key is, or would be. The number of slots is a power of two.
  size_t place(const T* key) const {
    const uint64_t spread = (reinterpret_cast<uintptr_t>(key) >> 3) * 0x9e3779b97f4a7c15ULL;
    size_t at = spread >> (64 - std::countr_zero(slots_.size()));
    while (slots_[at].key && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  void grow(size_t slots) {
    std::vector<Entry> old(slots);
    old.swap(slots_);
    if (old.empty()) {
      for (size_t i = 0; i < size_; ++i) slots_[place(few_[i].key)] = few_[i];
    }
    for (const Entry& e : old) {
      if (e.key) slots_[place(e.key)] = e;
    }
  }

  Entry few_[kFew];
  std::vector<Entry> slots_;
  size_t size_ = 0;
};

struct Nothing {};
template <class T> using PointerSet = PointerMap<T, Nothing>;

}  // namespace tfcc::ir
