// SPDX-License-Identifier: Apache-2.0
#include "tools/support/fold.h"

#include <algorithm>
#include <cctype>
#include <map>

namespace tfcc::tools {
namespace {

/// "a.12.b" is "a.", "12", ".b": texts and numbers in turn, from a text to a text.
std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts{""};
  for (const char c : name) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0,
               in_number = parts.size() % 2 == 0;
    if (digit != in_number) parts.emplace_back();
    parts.back() += c;
  }
  if (parts.size() % 2 == 0) parts.emplace_back();
  return parts;
}

/// "7" if all are 7, "0..31" for a run, else "*".
std::string together(const std::vector<std::string>& numbers) {
  if (std::all_of(numbers.begin(), numbers.end(),
                  [&](const std::string& n) { return n == numbers[0]; }))
    return numbers[0];
  constexpr size_t kLongest = 9;
  for (size_t i = 0; i < numbers.size(); ++i)
    if (numbers[i].size() > kLongest ||
        (i > 0 && std::stol(numbers[i]) != std::stol(numbers[i - 1]) + 1))
      return "*";
  return numbers.front() + ".." + numbers.back();
}

}  // namespace

std::vector<Folded> fold(const std::vector<std::pair<std::string, std::string>>& items) {
  std::map<std::pair<std::vector<std::string>, std::string>, std::vector<size_t>> groups;
  std::vector<std::vector<std::string>> parts;
  for (size_t i = 0; i < items.size(); ++i) {
    parts.push_back(parts_of(items[i].first));
    std::vector<std::string> texts = parts.back();
    for (size_t k = 1; k < texts.size(); k += 2) texts[k].clear();
    groups[{std::move(texts), items[i].second}].push_back(i);
  }
  std::vector<Folded> out;
  for (const auto& [key, members] : groups) {
    Folded f{"", members.front(), members.size(), members};
    for (size_t k = 0; k < key.first.size(); ++k) {
      if (k % 2 == 0) {
        f.name += key.first[k];
        continue;
      }
      std::vector<std::string> numbers;
      for (const size_t i : members) numbers.push_back(parts[i][k]);
      f.name += together(numbers);
    }
    out.push_back(std::move(f));
  }
  std::sort(out.begin(), out.end(),
            [](const Folded& a, const Folded& b) { return a.first < b.first; });
  return out;
}

}  // namespace tfcc::tools
