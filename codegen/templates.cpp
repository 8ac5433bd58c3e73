// SPDX-License-Identifier: Apache-2.0
#include "codegen/templates.h"

#include <algorithm>

namespace tfcc::codegen {
namespace {

// What the lines `#include "..."` of a text name.
std::vector<std::string_view> included(std::string_view text) {
  constexpr std::string_view kInclude = "#include \"";
  std::vector<std::string_view> paths;
  for (size_t at = 0; (at = text.find(kInclude, at)) != std::string_view::npos;) {
    at += kInclude.size();
    paths.push_back(text.substr(at, text.find('"', at) - at));
  }
  return paths;
}

}  // namespace

std::vector<const TemplateFile*> included_templates(Family family, std::string_view source) {
  std::vector<const TemplateFile*> files;
  std::vector<std::string_view> wanted = included(source);
  while (!wanted.empty()) {
    const std::string_view path = wanted.back();
    wanted.pop_back();
    const auto all = template_files();
    const auto it =
        std::find_if(all.begin(), all.end(), [&](const TemplateFile& f) { return f.path == path; });
    if (it == all.end() || !belongs_to(*it, family) ||
        std::find(files.begin(), files.end(), &*it) != files.end())
      continue;
    files.push_back(&*it);
    for (std::string_view further : included(it->text)) wanted.push_back(further);
  }
  std::sort(files.begin(), files.end(),
            [](const TemplateFile* a, const TemplateFile* b) { return a->path < b->path; });
  return files;
}

}  // namespace tfcc::codegen
