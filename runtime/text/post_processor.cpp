// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/parts.h"

namespace tfcc::text {
namespace {

// The ids of one special token of a template, which may be several.
Result<std::vector<int32_t>> ids_of(const Json& section, const std::string& name) {
  const auto& table = section.at("special_tokens");
  const auto found = table.find(name);
  if (found == table.end())
    return Error{ErrorCode::bad_file, "the template of the post-processor names '" + name +
                                          "', which special_tokens lacks"};
  return found->at("ids").get<std::vector<int32_t>>();
}

Result<PostProcessor> from_template(const Json& section) {
  PostProcessor out;
  bool seen = false;
  for (const Json& item : section.at("single")) {
    if (item.contains("Sequence")) {
      if (seen)
        return Error{ErrorCode::unsupported,
                     "the template of the post-processor repeats the text, which is not supported"};
      seen = true;
      continue;
    }
    TFCC_TRY(const std::vector<int32_t> ids,
             ids_of(section, item.at("SpecialToken").at("id").get<std::string>()));
    std::vector<int32_t>& side = seen ? out.after : out.before;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  return out;
}

}  // namespace

Result<PostProcessor> make_post_processor(const Json& section, int depth) {
  TFCC_TRY(const std::string type, type_of(section, "post-processor"));
  if (type == "ByteLevel") return PostProcessor{};  // it moves offsets, which nobody has here
  if (type == "TemplateProcessing") return from_template(section);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return PostProcessor{{section.at("cls").at(1).get<int32_t>()},
                         {section.at("sep").at(1).get<int32_t>()}};
  if (type != "Sequence") return unknown_type("post-processor", type);
  if (depth >= kMaxNesting)
    return Error{ErrorCode::bad_file, "post-processors are nested too deeply"};
  PostProcessor out;
  for (const Json& inner : section.at("processors")) {
    TFCC_TRY(const PostProcessor next, make_post_processor(inner, depth + 1));
    out.before.insert(out.before.begin(), next.before.begin(), next.before.end());
    out.after.insert(out.after.end(), next.after.begin(), next.after.end());
  }
  return out;
}

}  // namespace tfcc::text
