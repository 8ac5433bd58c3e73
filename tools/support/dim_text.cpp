// SPDX-License-Identifier: Apache-2.0
#include "tools/support/dim_text.h"

#include "ir/ir.h"

namespace tfcc::tools {

ir::ExprRef parse_dim(const std::string& text, ir::ExprPool& pool,
                      const std::map<std::string, int64_t>& sizes) {
  auto e = ir::parse_expr(
      text, pool,
      [&](std::string_view name) {
        const auto it = sizes.find(std::string(name));
        return it == sizes.end() ? pool.symbol(name) : pool.integer(it->second);
      },
      [](std::string_view) -> std::optional<std::pair<int64_t, DType>> { return std::nullopt; });
  return e ? *e : nullptr;
}

std::vector<std::string> sizes_in(const std::string& text) {
  ir::ExprPool pool;
  std::vector<std::string> names;
  const ir::ExprRef e = parse_dim(text, pool, {});
  if (!e) return {text};  // a name that is no word of the language, such as "batch size"
  ir::for_each_node(e, [&](ir::ExprRef n) {
    if (n->kind == ir::ExprKind::symbol) names.push_back(n->name);
  });
  return names;
}

}  // namespace tfcc::tools
