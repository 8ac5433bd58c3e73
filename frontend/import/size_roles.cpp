// SPDX-License-Identifier: Apache-2.0
#include "frontend/import/size_roles.h"

#include <algorithm>
#include <optional>

#include "ir/ir.h"

namespace tfcc::frontend {
namespace {

using ir::ExprRef;
using ir::SizeSymbol;

bool is_fixed(ExprRef e) { return ir::as_int(e).has_value(); }
bool is_symbol(ExprRef e) { return e->kind == ir::ExprKind::symbol; }

struct Tokens {
  ExprRef batch, length, count;
};

// Forms of inputs, those first that surely have tokens: a later one is asked only if no input of
// the earlier ones has any.
enum class Form { ids, boxes, features, choices, plain, other };

Form form_of(const ir::Type& t) {
  const auto& d = t.dims;
  if (!is_float(t.dtype)) {
    if (d.size() == 2) return Form::ids;                                 // [batch, length]
    if (d.size() != 3 || t.dtype == DType::boolean) return Form::other;  // [batch, queries, keys]
    return ir::is_int(d[2], 4) ? Form::boxes : is_fixed(d[2]) ? Form::other : Form::choices;
  }
  if (d.size() == 2) return is_fixed(d[1]) ? Form::other : Form::features;  // samples of a wave
  if (d.size() < 3) return Form::other;
  const bool heads = d.size() == 4 && is_fixed(d[1]) && !is_fixed(d[2]) && is_fixed(d[3]);
  const bool features = !is_fixed(d[1]) && std::all_of(d.begin() + 2, d.end(), is_fixed);
  const bool channels = d.size() == 3 && is_fixed(d[1]) && !is_fixed(d[2]);
  return heads || features || channels      ? Form::features
         : d.size() == 3 && !is_fixed(d[1]) ? Form::plain
                                            : Form::other;
}

// The axis that counts tokens in an input of such a form.
size_t token_axis(const ir::Type& t, Form form) {
  if (form == Form::choices) return 2;
  return form == Form::features && t.rank() > 2 && is_fixed(t.dims[1]) ? 2 : 1;
}

// Of this input, if its batch and its length are different sizes of their own and not both fixed.
// The runtime can hold a run to a product of different sizes, and to a multiple of one, which is
// bounded with that; of others nobody could say what --max-tokens means.
std::optional<Tokens> tokens_of(const ir::Type& type, Form form) {
  const size_t axis = token_axis(type, form);
  const ExprRef batch = type.dims[0], length = type.dims[axis];
  const auto plain = [](ExprRef e) { return is_symbol(e) || is_fixed(e); };
  if (!plain(batch) || !plain(length) || (is_fixed(batch) && is_fixed(length)) || batch == length)
    return std::nullopt;
  ExprRef count = ir::mul(batch, length);
  if (form == Form::choices) {
    if (!is_symbol(type.dims[1]) || type.dims[1] == batch || type.dims[1] == length)
      return std::nullopt;
    if (is_fixed(batch) && !ir::is_int(batch, 1)) return std::nullopt;
    count = ir::mul(count, type.dims[1]);
  }
  return Tokens{batch, length, count};
}

class Roles {
 public:
  Roles(ir::Graph& graph, const SizeRanges& ranges) : graph_(graph), ranges_(ranges) {}

  void run() {
    const auto tokens = find_tokens();
    if (tokens) {
      give(tokens->batch, SizeRole::batch);
      give(tokens->length, SizeRole::length);
    } else if (const ExprRef first = first_axis()) {
      give(first, SizeRole::batch);
    }
    give_past();
    if (graph_.size_with(SizeRole::past) != nullptr) give_context();
    if (tokens && !is_symbol(tokens->count)) add_tokens(tokens->count);
  }

 private:
  const ir::Type& type(ir::ValueId v) const { return graph_.value(v).type; }

  std::optional<Tokens> find_tokens() const {
    for (Form form : {Form::ids, Form::boxes, Form::features, Form::choices, Form::plain}) {
      std::optional<Tokens> found;
      for (ir::ValueId v : graph_.inputs()) {
        if (form_of(type(v)) != form || is_cache(type(v))) continue;
        const auto tokens = tokens_of(type(v), form);
        if (!tokens || is_later_axis(*tokens)) continue;
        if (form == Form::ids && is_computed_for(*tokens)) return tokens;
        if (!found) found = tokens;
      }
      if (found) return found;
    }
    return std::nullopt;
  }

  // A mask [queries, keys] beside x [batch, queries, width] has no batch. Positions in time, height
  // and width, [3, batch, length], are of one.
  bool is_later_axis(const Tokens& tokens) const {
    return std::any_of(graph_.inputs().begin(), graph_.inputs().end(), [&](ir::ValueId v) {
      const auto& d = type(v).dims;
      if (!is_symbol(tokens.batch) || d.size() < 2) return false;
      const bool several = d.size() == 3 && !is_float(type(v).dtype) && is_fixed(d[0]) &&
                           d[1] == tokens.batch && d[2] == tokens.length;
      return !several && std::find(d.begin() + 1, d.end(), tokens.batch) != d.end();
    });
  }

  // An output of a row for each of these tokens: those of ids, not of the mask of an encoder or of
  // a cache that may stand before them.
  bool is_computed_for(const Tokens& tokens) const {
    return std::any_of(graph_.outputs.begin(), graph_.outputs.end(),
                       [&](const ir::Graph::Output& o) {
                         const auto& d = type(o.value).dims;
                         return d.size() > 1 && d[0] == tokens.batch && d[1] == tokens.length;
                       });
  }

  // [batch, heads, past, width] or [batch, past, heads, width] of reals. That the past may be 0 was
  // found out by import (frontend/import/empty_sizes.h).
  ExprRef past_of(const ir::Type& t) const {
    if (!is_float(t.dtype) || t.rank() != 4) return nullptr;
    for (size_t k : {2, 1}) {
      if (is_symbol(t.dims[k]) && graph_.pool().range(t.dims[k]->name).min == 0) return t.dims[k];
    }
    return nullptr;
  }
  bool is_cache(const ir::Type& t) const { return past_of(t) != nullptr; }

  // Of the first input of the highest rank that inputs have up to 2.
  ExprRef first_axis() const {
    for (size_t rank : {2, 1}) {
      for (ir::ValueId v : graph_.inputs()) {
        if (type(v).rank() >= rank) return type(v).dims[0];
      }
    }
    return nullptr;
  }

  void give(ExprRef size, SizeRole role) {
    if (graph_.size_with(role) != nullptr) return;
    for (SizeSymbol& s : graph_.symbols) {
      if (is_symbol(size) && s.name == size->name && s.role == SizeRole::none) s.role = role;
    }
  }

  void give_past() {
    for (ir::ValueId v : graph_.inputs()) {
      if (const ExprRef past = past_of(type(v))) give(past, SizeRole::past);
    }
  }

  void give_context() {
    for (ir::ValueId v : graph_.inputs()) {
      if (!is_float(type(v).dtype) && type(v).rank() == 2) give(type(v).dims[1], SizeRole::context);
    }
  }

  void add_tokens(ExprRef count) {
    std::string name = "tokens";
    // A size of the model that was fixed by its range is no symbol any more, but the range is still
    // its own.
    auto taken = [&] {
      const auto said = ranges_.find(name);
      return (said != ranges_.end() && said->second.max == said->second.min) ||
             std::any_of(graph_.symbols.begin(), graph_.symbols.end(),
                         [&](const SizeSymbol& s) { return s.name == name; });
    };
    while (taken()) name += "_";
    const auto range = ranges_.find(name);
    const int64_t least =
        ir::eval_size(count, [this](std::string_view n) { return graph_.pool().range(n).min; });
    graph_.pool().set_range(name,
                            {least, range == ranges_.end() ? std::nullopt : range->second.max});
    graph_.symbols.push_back({name, 0, 0, SizeRole::tokens, count});
  }

  ir::Graph& graph_;
  const SizeRanges& ranges_;
};

}  // namespace

void tell_roles(ir::Graph& graph, const SizeRanges& ranges) { Roles(graph, ranges).run(); }

}  // namespace tfcc::frontend
