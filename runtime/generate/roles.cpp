// SPDX-License-Identifier: Apache-2.0
// Types and dims decide where they can; names, as exporters give them, where they cannot.
#include "runtime/generate/roles.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <optional>

namespace tfcc::generate {
namespace {

bool is_fixed(const DimInfo& d) { return d.min == d.max && d.max != 0; }
bool is_whole_number(DType t) { return t == DType::i64 || t == DType::i32; }
bool has(const std::string& name, const char* part) { return name.find(part) != name.npos; }

/// The words of a name but those that tell a past from a present: "past.3.conv" has "conv".
std::string words_of(const std::string& name) {
  std::string words, word;
  const auto end_word = [&] {
    const bool side = word == "past" || word == "present" || word == "in" || word == "out" ||
                      word == "input" || word == "output" || word == "new" || word == "next";
    if (!side) words += word;
    word.clear();
  };
  for (const char c : name) {
    if (std::isalpha(static_cast<unsigned char>(c)))
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else end_word();
  }
  end_word();
  return words;
}

/// "past_key_values.3.key" and "present.3.key" are both "k3", "past_key_values.3.conv" and
/// "present.3.conv" both "conv3"; empty for what has no other words.
std::string layer_and_kind(std::string name) {
  std::string digits;
  for (size_t i = 0; i < name.size(); ++i)
    if (std::isdigit(static_cast<unsigned char>(name[i]))) digits += name[i];
    else if (!digits.empty() && digits.back() != '.') digits += '.';
  while (!digits.empty() && digits.back() == '.') digits.pop_back();
  for (const char* both : {"key_values", "key_value"}) {
    std::string rest = name;
    if (const size_t at = rest.find(both); at != rest.npos) rest.erase(at, std::strlen(both));
    if (!words_of(rest).empty()) name = rest;  // else these words are all that it says
  }
  // "past_key_values.3.value": what the last of the two words says
  const size_t key = name.rfind("key"), value = name.rfind("value"), values = name.rfind("values");
  const size_t value_word = value == values ? name.npos : value;
  if (key == name.npos && value_word == name.npos) {
    const std::string words = words_of(name);
    return words.empty() ? "" : words + digits;
  }
  const bool is_value = value_word != name.npos && (key == name.npos || value_word > key);
  return (is_value ? "v" : "k") + digits;
}

std::string listed(const std::vector<TensorInfo>& infos) {
  std::string out;
  for (const TensorInfo& i : infos) out += (out.empty() ? "'" : ", '") + i.name + "'";
  return out;
}

class Finder {
 public:
  Finder(const std::vector<TensorInfo>& inputs, const std::vector<TensorInfo>& outputs,
         std::span<const std::pair<std::string, std::string>> given)
      : inputs_(inputs), outputs_(outputs) {
    for (const auto& [name, role] : given) given_[name] = role;
  }

  Result<Roles> find() {
    TFCC_TRY_VOID(check_given());
    for (const TensorInfo& in : inputs_) TFCC_TRY_VOID(take_input(in));
    if (roles_.ids.name.empty())
      return no_decoder("no input of token ids, whole numbers of [batch, length]");
    TFCC_TRY_VOID(take_outputs());
    return std::move(roles_);
  }

 private:
  static Error no_decoder(const std::string& why) {
    return {ErrorCode::unsupported,
            "the model is no decoder that can generate: " + why +
                "; --role NAME=ids|mask|positions|types|logits tells what a name is"};
  }

  Result<void> check_given() const {
    const auto known = [&](const std::string& name) {
      const auto is = [&](const TensorInfo& i) { return i.name == name; };
      return std::any_of(inputs_.begin(), inputs_.end(), is) ||
             std::any_of(outputs_.begin(), outputs_.end(), is);
    };
    for (const auto& [name, role] : given_)
      if (!known(name))
        return Error{ErrorCode::invalid_argument,
                     "a role is given for '" + name + "', which is none of the inputs " +
                         listed(inputs_) + " and outputs " + listed(outputs_)};
    return {};
  }

  // Positions of several axes, as models of images have them: [3, batch, length]. In text they agree.
  static bool has_places(const TensorInfo& in) {
    return is_whole_number(in.dtype) && in.dims.size() == 3 && is_fixed(in.dims[0]);
  }

  std::string role_of(const TensorInfo& in) const {
    const auto given = given_.find(in.name);
    if (given != given_.end()) return given->second;
    if (in.role != InputRole::none && in.dims.size() == 2) return std::string(to_string(in.role));
    if (is_float(in.dtype) && in.dims.size() >= 3) return "past";
    if (has_places(in) && has(in.name, "position")) return "positions";
    const bool table = is_whole_number(in.dtype) && in.dims.size() == 2;
    return table && roles_.ids.name.empty() ? "ids" : "";
  }

  Result<void> take_input(const TensorInfo& in) {
    const std::string role = role_of(in);
    if (role == "past") {
      pasts_.push_back(in);
      return {};
    }
    TensorInfo* place = role == "ids"         ? &roles_.ids
                        : role == "mask"      ? &roles_.mask
                        : role == "positions" ? &roles_.positions
                        : role == "types"     ? &roles_.types
                                              : nullptr;
    if (!place)
      return no_decoder("the input '" + in.name + "' is neither ids, mask, positions nor past");
    if (!place->name.empty())
      return no_decoder("both '" + place->name + "' and '" + in.name + "' look like its " + role);
    if (in.dims.size() != 2 && !(role == "positions" && has_places(in)))
      return no_decoder("the input '" + in.name + "' has " + std::to_string(in.dims.size()) +
                        " dims where its " + role + " have 2");
    *place = in;
    return {};
  }

  // A present is told by the role it was given, or by layer and kind in its name.
  const TensorInfo* past_of(const TensorInfo& out) const {
    const auto given = given_.find(out.name);
    const std::string key = layer_and_kind(out.name);
    for (const TensorInfo& past : pasts_)
      if (given != given_.end() ? past.name == given->second
                                : !key.empty() && layer_and_kind(past.name) == key)
        return &past;
    return nullptr;
  }

  Result<Cache> pair(const TensorInfo& past, const TensorInfo& present) const {
    Cache out{past, present.name};
    const std::string& batch = roles_.ids.dims[0].text;
    std::optional<size_t> grows;
    for (size_t k = 0; k < past.dims.size(); ++k) {
      if (past.dims[k].text == batch && !is_fixed(past.dims[k])) out.batch_axis = k;
      else if (!is_fixed(past.dims[k])) {
        if (grows)
          return no_decoder("'" + past.name +
                            "' has two sizes beside the batch that are not fixed");
        grows = k;
      }
    }
    bool fits = present.dtype == past.dtype && present.dims.size() == past.dims.size();
    const std::string key = layer_and_kind(past.name);
    const bool is_cache = key.starts_with('k') || key.starts_with('v');
    if (grows) out.past_axis = *grows;
    else if (is_cache && (key.size() == 1 || std::isdigit(static_cast<unsigned char>(key[1]))))
      return no_decoder("'" + past.name + "' has no axis that grows");
    else {
      for (size_t k = 0; fits && k < past.dims.size(); ++k)
        fits = present.dims[k].text == past.dims[k].text;
    }
    if (!fits)
      return no_decoder("'" + present.name + "' and its past '" + past.name +
                        "' are of different types");
    return out;
  }

  Result<void> take_outputs() {
    std::string like_logits;
    for (const TensorInfo& out : outputs_) {
      const auto given = given_.find(out.name);
      const bool fits =
          out.dims.size() == 3 && is_fixed(out.dims[2]) && !past_of(out) && is_float(out.dtype);
      // an encoder's hidden state has the same shape: by itself it is no sign of a decoder
      if (fits && like_logits.empty() && given == given_.end()) like_logits = out.name;
      const bool logits = given != given_.end()
                              ? given->second == "logits"
                              : fits && (has(out.name, "logits") || !pasts_.empty());
      if (logits) {
        if (!roles_.logits.empty())
          return no_decoder("both '" + roles_.logits + "' and '" + out.name +
                            "' look like its logits");
        roles_.logits = out.name;
        roles_.vocabulary = out.dims.size() == 3 ? out.dims[2].max : 0;
      } else if (const TensorInfo* past = past_of(out)) {
        TFCC_TRY(Cache cache, pair(*past, out));
        roles_.caches.push_back(std::move(cache));
      }
    }
    if (roles_.logits.empty() || roles_.vocabulary <= 0)
      return no_decoder("no output of logits, numbers of [batch, length, vocabulary]" +
                        (like_logits.empty() ? ""
                                             : " (if '" + like_logits + "' is it, say --role " +
                                                   like_logits + "=logits)"));
    for (const TensorInfo& past : pasts_) {
      const auto is = [&](const Cache& c) { return c.past.name == past.name; };
      const auto n = std::count_if(roles_.caches.begin(), roles_.caches.end(), is);
      if (n == 1) continue;
      return no_decoder(
          "the input '" + past.name + "' has " + (n ? "two outputs" : "no output") +
          " that would be it a step later (give it one with --role OUTPUT=" + past.name + ")");
    }
    return {};
  }

  const std::vector<TensorInfo>&inputs_, &outputs_;
  std::map<std::string, std::string> given_;
  std::vector<TensorInfo> pasts_;
  Roles roles_;
};

}  // namespace

Result<Roles> find_roles(const std::vector<TensorInfo>& inputs,
                         const std::vector<TensorInfo>& outputs,
                         std::span<const std::pair<std::string, std::string>> given) {
  return Finder(inputs, outputs, given).find();
}

}  // namespace tfcc::generate
