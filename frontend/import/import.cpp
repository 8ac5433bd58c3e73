// SPDX-License-Identifier: Apache-2.0
// The driver: declares inputs and initializers, walks the nodes in order, and repeats the walk
// while it learns facts about sizes (S <= 128 from a position table) that make the next walk
// simpler.
#include "frontend/import/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <numeric>
#include <set>

#include "frontend/import/empty_sizes.h"
#include "frontend/import/importer.h"
#include "frontend/import/input_roles.h"
#include "frontend/import/size_roles.h"
#include "frontend/onnx/inline_functions.h"
#include "ir/ir.h"

namespace tfcc::frontend {
namespace {

struct Registered {
  ImportFunction function;
  int64_t min_opset, max_opset;
  std::string_view dtypes, notes;
};

// By domain and name.
using Registry = std::map<std::pair<std::string_view, std::string_view>, Registered>;

const Registry& registry() {
  static const Registry kTable = {
#define TFCC_IMPORT(name, function, min_opset, max_opset, dtypes, notes) \
  {{"", #name}, {function, min_opset, max_opset, dtypes, notes}},
#include "frontend/import/importers.def"
#undef TFCC_IMPORT
#define TFCC_IMPORT(name, function, min_opset, max_opset, dtypes, notes) \
  {{"com.microsoft", #name}, {function, min_opset, max_opset, dtypes, notes}},
#include "frontend/import/importers_microsoft.def"
#undef TFCC_IMPORT
  };
  return kTable;
}

// Null if the operator is unknown, whatever the opset.
const Registered* known(const Node& n) {
  auto it = registry().find({n.domain, n.op_type});
  return it == registry().end() ? nullptr : &it->second;
}

const Registered* lookup(const Node& n, int64_t opset) {
  const Registered* r = known(n);
  return r && opset >= r->min_opset && (r->max_opset == 0 || opset <= r->max_opset) ? r : nullptr;
}

int64_t opset_of(const Model& model, const Node& n) {
  if (n.opset > 0) return n.opset;
  auto it = model.opsets.find(n.domain);
  return it == model.opsets.end() ? 1 : it->second;
}

constexpr size_t kNamesPerOperator = 4;

// Every operator that cannot be imported, in one message.
Result<void> check_operators(const Model& model) {
  std::map<std::string, std::vector<std::string>> missing;
  for (const Node& n : model.nodes) {
    const int64_t opset = opset_of(model, n);
    if (lookup(n, opset)) continue;
    std::string key = (n.domain.empty() ? "" : n.domain + ".") + n.op_type;
    if (const Registered* r = known(n))
      key += fmt::format(" of opset {} (from {} on)", opset, r->min_opset);
    missing[key].push_back(n.name.empty() && !n.outputs.empty() ? n.outputs[0] : n.name);
  }
  if (missing.empty()) return {};
  std::string list;
  for (const auto& [op, nodes] : missing) {
    list += (list.empty() ? "" : "; ") + escaped(op) + " (";
    for (size_t i = 0; i < nodes.size() && i < kNamesPerOperator; ++i)
      list += (i ? ", " : "") + escaped(nodes[i]);
    if (nodes.size() > kNamesPerOperator)
      list += fmt::format(", and {} more", nodes.size() - kNamesPerOperator);
    list += ")";
  }
  return Error{
      ErrorCode::unsupported,
      fmt::format("{}: unsupported operators: {}; docs/operators.md lists what is supported",
                  model.path, list)};
}

/// A size that an axis of an input is, once or more often.
struct AxisSize {
  std::string symbol;
  int64_t times = 1;
};

// "64*chunks", as exporters name an axis that is a multiple of a size; or an axis that the graph
// cuts into such parts.
AxisSize axis_size(const Facts& facts, const std::string& name) {
  int64_t times = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), times);
  const std::string rest(end, name.data() + name.size());
  const auto plain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  if (error == std::errc() && times > 0 && times <= ir::kLargestSize && rest.size() > 1 &&
      rest[0] == '*' && !std::isdigit(static_cast<unsigned char>(rest[1])) &&
      std::all_of(rest.begin() + 1, rest.end(), plain)) {
    AxisSize size = axis_size(facts, resolved_size(facts, rest.substr(1)));
    return {size.symbol, size.times * times};
  }
  const auto known = facts.multiple.find(name);
  if (known == facts.multiple.end()) return {name};
  std::string of_part = fmt::format("{}_by_{}", name, known->second);
  while (facts.axes.count(of_part)) of_part += "_";
  const AxisSize part = axis_size(facts, of_part);
  return {part.symbol, part.times * known->second};
}

// What a size is in terms of others: learnt from the graph, or said by a name like
// "past_sequence_length + sequence_length". Null if it is a size of its own. The runtime compares
// it with the input's shape like any known size.
ExprRef derived_size(Importer& im, const Facts& facts, const std::string& name,
                     const std::set<std::string>& names) {
  auto known = facts.equal.find(name);
  if (known == facts.equal.end() && name.find(" + ") == std::string::npos) return nullptr;
  auto own = [&](std::string_view part) -> ExprRef {
    const std::string n(part);
    const bool single = n != name && names.count(n) && !facts.equal.count(n) &&
                        !facts.alias.count(n) && !facts.fixed.count(n);
    const AxisSize size = axis_size(facts, n);
    return single && n.find(" + ") == std::string::npos
               ? ir::mul(im.integer(size.times), im.pool().symbol(size.symbol))
               : nullptr;
  };
  auto e = ir::parse_expr(
      known == facts.equal.end() ? name : known->second, im.pool(), own,
      [](std::string_view) -> std::optional<std::pair<int64_t, DType>> { return std::nullopt; });
  return e && (*e)->type == Scalar::i64 ? *e : nullptr;
}

// Ranges stand before any expression over the symbols is built. A size is at least 1 unless
// something says otherwise.
std::set<std::string> declare_ranges(Importer& im, const Facts& facts,
                                     const std::set<std::string>& may_be_zero) {
  std::set<std::string> names;
  for (const ValueInfo& in : im.model().inputs) {
    for (size_t axis = 0; axis < in.dims.size(); ++axis) {
      if (in.dims[axis].value) continue;
      std::string name = symbol_name(in, axis);
      name = resolved_size(facts, name);
      const AxisSize size = axis_size(facts, name);
      ir::SymbolRange range{may_be_zero.count(size.symbol) ? 0 : 1, std::nullopt};
      for (const auto& [n, times] :
           {std::pair(size.symbol, int64_t{1}), std::pair(name, size.times)}) {
        auto min = facts.min.find(n), max = facts.max.find(n);
        if (min != facts.min.end())
          range.min =
              times == 1 ? min->second : std::max(range.min, (min->second + times - 1) / times);
        if (max != facts.max.end())
          range.max = std::min(range.max.value_or(INT64_MAX), max->second / times);
        if (times == size.times) break;
      }
      if (names.count(size.symbol)) {  // an axis before has it too
        const ir::SymbolRange before = im.pool().range(size.symbol);
        range.min = std::max(range.min, before.min);
        if (before.max) range.max = std::min(range.max.value_or(INT64_MAX), *before.max);
      }
      im.pool().set_range(size.symbol, range);
      names.insert({name, size.symbol});
    }
  }
  return names;
}

Result<void> declare_inputs(Importer& im, const Facts& facts,
                            const std::set<std::string>& may_be_zero) {
  const std::set<std::string> names = declare_ranges(im, facts, may_be_zero);
  std::set<std::string> seen;
  for (const ValueInfo& in : im.model().inputs) {
    if (!in.is_tensor || !in.dtype) {
      return im.fail(
          ErrorCode::unsupported,
          fmt::format("input '{}' has type {}, which is not supported", escaped(in.name),
                      in.is_tensor ? onnx_type_name(in.onnx_type) : "that is no tensor"));
    }
    if (!in.has_shape) {
      return im.fail(
          ErrorCode::unsupported,
          fmt::format("input '{}' has no shape; export the model with named dynamic axes",
                      escaped(in.name)));
    }
    Dims dims;
    for (size_t axis = 0; axis < in.dims.size(); ++axis) {
      if (in.dims[axis].value) {
        if (*in.dims[axis].value < 0)
          return im.fail(ErrorCode::bad_file,
                         fmt::format("input '{}' has a negative size", escaped(in.name)));
        dims.push_back(im.integer(*in.dims[axis].value));
        continue;
      }
      std::string name = symbol_name(in, axis);
      name = resolved_size(facts, name);
      if (auto fixed = facts.fixed.find(name); fixed != facts.fixed.end()) {
        dims.push_back(im.integer(fixed->second));
        continue;
      }
      if (ExprRef other = derived_size(im, facts, name, names)) {
        dims.push_back(other);
        continue;
      }
      const AxisSize size = axis_size(facts, name);
      if (auto fixed = facts.fixed.find(size.symbol); fixed != facts.fixed.end()) {
        dims.push_back(im.integer(size.times * fixed->second));
        continue;
      }
      if (seen.insert(size.symbol).second) {
        im.graph.symbols.push_back({size.symbol, static_cast<uint32_t>(im.graph.inputs().size()),
                                    static_cast<uint32_t>(axis)});
        im.graph.symbols.back().multiple = size.times;
      }
      dims.push_back(ir::mul(im.integer(size.times), im.pool().symbol(size.symbol)));
    }
    if (in.name.empty()) return im.fail(ErrorCode::bad_file, "an input has no name");
    if (im.values.count(in.name))
      return im.fail(ErrorCode::bad_file,
                     fmt::format("input '{}' is declared twice", escaped(in.name)));
    im.values[in.name] = im.graph.add_input(in.name, {*in.dtype, dims});
  }
  return {};
}

Result<void> declare_outputs(Importer& im) {
  std::set<std::string> names;
  for (const ValueInfo& out : im.model().outputs) {
    if (!names.insert(out.name).second)
      return im.fail(ErrorCode::bad_file,
                     fmt::format("output '{}' is declared twice", escaped(out.name)));
    auto it = im.values.find(out.name);
    if (it == im.values.end())
      return im.fail(ErrorCode::bad_file,
                     fmt::format("output '{}' is not computed", escaped(out.name)));
    for (const Importer::OutputRule rule : im.output_rules)
      TFCC_TRY_VOID(rule(im, out.name, it->second));
    if (const auto t = element_type(im.onnx_type(it->second)); t && t->is_packed()) {
      return im.fail(
          ErrorCode::unsupported,
          fmt::format(
              "output '{}' has type {}, which no caller can hold; end the graph with a Cast",
              escaped(out.name), onnx_type_name(t->onnx_type)));
    }
    im.graph.outputs.push_back({out.name, it->second});
  }
  if (im.graph.outputs.empty()) return im.fail(ErrorCode::bad_file, "the graph has no outputs");
  return {};
}

Result<void> walk(Importer& im, const Facts& facts, const std::set<std::string>& may_be_zero) {
  TFCC_TRY_VOID(declare_inputs(im, facts, may_be_zero));
  for (const auto& [name, constant] : im.model().initializers) {
    if (!im.values.count(name)) im.values[name] = im.graph.add_constant(name, constant);
  }
  for (const auto& [name, packed] : im.model().packed_initializers) {
    if (!im.values.count(name)) im.values[name] = unpack(im, packed, name);
  }
  TFCC_TRY_VOID(im.import_nodes(im.model().nodes));
  im.node = nullptr;
  return declare_outputs(im);
}

size_t count_shape_ops(const Graph& g) {
  size_t n = 0;
  for (ir::OpId o : g.order()) {
    const ir::Op& op = g.op(o);
    n += op.kind == ir::OpKind::pointwise && op.operands.empty() &&
         !is_float(g.value(op.results[0]).type.dtype);
  }
  return n;
}

void merge(Facts& into, const Facts& from) {
  for (const auto& [k, v] : from.max) {
    auto [it, added] = into.max.emplace(k, v);
    it->second = std::min(it->second, v);
  }
  for (const auto& [k, v] : from.min) into.min[k] = std::max(into.min[k], v);
  into.reason.insert(from.reason.begin(), from.reason.end());
  into.alias.insert(from.alias.begin(), from.alias.end());
  into.fixed.insert(from.fixed.begin(), from.fixed.end());
  into.equal.insert(from.equal.begin(), from.equal.end());
  for (const auto& [k, v] : from.multiple) {
    auto [it, added] = into.multiple.emplace(k, v);
    it->second = std::lcm(it->second, v);
  }
}

// What is wrong with a size that would have to be larger than it may be; empty if there is none.
std::string impossible_size(const Facts& facts) {
  for (const auto& [name, least] : facts.min) {
    const auto most = facts.max.find(name);
    if (most == facts.max.end() || least <= most->second) continue;
    return fmt::format("size {} would have to be at least {} and at most {}", escaped(name), least,
                       most->second);
  }
  return {};
}

// What the caller promises, as if it had been found.
Facts facts_of(const SizeRanges& ranges) {
  Facts facts;
  for (const auto& [name, range] : ranges) {
    if (range.max && *range.max == range.min) {
      facts.fixed[name] = range.min;
      continue;
    }
    facts.min[name] = range.min;
    if (range.max) facts.max[name] = *range.max;
  }
  return facts;
}

// A rule of the graph that import did not keep. What is known of the sizes may not tell that indices
// are inside (16*B*S*S reshaped to [8,8]), or that the two lengths of a product are one: both are no
// defect.
Error broken_rule(const Importer& im, const ir::Violation& v) {
  const std::string_view what =
      v.rule == "E4"   ? "the elements that it reads cannot be told to exist for all sizes"
      : v.rule == "C4" ? std::string_view(v.text).substr(v.text.find("inner dims"))
                       : "";
  if (what.empty())
    return {ErrorCode::internal,
            fmt::format("{}: after import: {}", im.model().path, to_string(v))};
  return im.fail(
      ErrorCode::unsupported,
      fmt::format(
          "node '{}': {}; export it with fixed sizes, or fix them with --minShapes and --maxShapes",
          escaped(im.graph.op(v.op).origin), what));
}

constexpr int kRounds = 8;
constexpr size_t kMostOps =
    size_t{1} << 17;  // after import; a transformer of a hundred layers has some ten thousand

// Elements that 64 bits can count, symbols taken as 1.
bool countable(const ir::Type& type) {
  int64_t n = 1;
  for (ExprRef d : type.dims) {
    const std::optional<int64_t> size = ir::as_int(d);
    if (size && *size != 0 && __builtin_mul_overflow(n, *size, &n)) return false;
  }
  return n <= INT64_MAX / 8;
}

// What no machine could compile or run, before anything is spent on it.
Result<void> check_extent(const Importer& im) {
  size_t ops = 0;
  for (ir::OpId o : im.graph.order()) {
    const ir::Op& op = im.graph.op(o);
    ops += op.kind != ir::OpKind::constant;
    for (ValueId v : op.results) {
      if (countable(im.graph.value(v).type)) continue;
      return im.fail(
          ErrorCode::shape,
          fmt::format("'{}' has the shape {}, whose size does not fit 64 bits",
                      escaped(im.graph.value(v).name), ir::to_string(im.graph.value(v).type)));
    }
  }
  for (ValueId v : im.graph.inputs()) {
    if (!countable(im.graph.value(v).type)) {
      return im.fail(
          ErrorCode::shape,
          fmt::format("input '{}' has the shape {}, whose size does not fit 64 bits",
                      escaped(im.graph.value(v).name), ir::to_string(im.graph.value(v).type)));
    }
  }
  if (ops > kMostOps)
    return im.fail(ErrorCode::unsupported,
                   fmt::format("the graph has {} ops; at most {} are compiled", ops, kMostOps));
  return {};
}

// What an op comes from, where its importer did not say: the name of the node, or of what it
// computes.
void note_origin(Graph& graph, size_t first_op, const Node& n) {
  const std::string& label = n.name.empty() && !n.outputs.empty() ? n.outputs[0] : n.name;
  for (size_t i = first_op; i < graph.op_count(); ++i) {
    ir::Op& op = graph.op(ir::OpId{static_cast<uint32_t>(i)});
    if (op.origin.empty() && op.kind != ir::OpKind::constant) op.origin = label;
  }
}

std::string input_types(const Importer& im) {
  std::string list;
  for (size_t i = 0; i < im.node->inputs.size(); ++i) {
    if (!im.has_input(i)) continue;
    const auto v = im.input(i);
    if (v)
      list += fmt::format("{}'{}' of {}", list.empty() ? "" : ", ", escaped(im.node->inputs[i]),
                          to_string(im.type(*v).dtype));
  }
  return list;
}

// The first input against the table's column of types. The importers rely on it: sums of truth
// values have no meaning, and a product of integers is another operator.
Result<void> check_first_input(const Importer& im, std::string_view dtypes) {
  if (!im.has_input(0)) return {};
  const bool real = dtypes == "float", integer = dtypes == "int", boolean = dtypes == "bool",
             number = dtypes == "float, int";
  if (!real && !integer && !boolean && !number) return {};
  TFCC_TRY(const ValueId first, im.input(0));
  const DType t = im.type(first).dtype;
  if ((real && is_float(t)) || (integer && is_integer(t)) || (boolean && t == DType::boolean) ||
      (number && t != DType::boolean))
    return {};
  const char* needed = real      ? "a float type"
                       : integer ? "an integer type"
                       : boolean ? "bool"
                                 : "a float or integer type";
  return im.fail(ErrorCode::unsupported,
                 fmt::format("input '{}' has type {}; {} is needed", escaped(im.node->inputs[0]),
                             to_string(t), needed));
}

}  // namespace

/// Keeps account of the node that ops are made for; at its end that is again the one before, such
/// as the If of a branch.
class Importer::NodeScope {
 public:
  explicit NodeScope(Importer& im) : im_(im), outer_(im.node_index_) {}
  ~NodeScope() { leave_for(outer_); }
  NodeScope(const NodeScope&) = delete;
  void enter(const Node& n) const {
    leave_for(im_.nodes_.size());
    im_.nodes_.push_back(&n);
  }

 private:
  // The ops made since the last call are those of the present node.
  void leave_for(size_t node) const {
    im_.node_of_op_.resize(im_.graph.op_count(), im_.node_index_);
    im_.node_index_ = node;
  }
  Importer& im_;
  size_t outer_;
};

std::vector<ImportedNode> Importer::imported() const {
  std::vector<ImportedNode> out;
  for (const Node* n : nodes_) {
    const std::string& name = n->name.empty() && !n->outputs.empty() ? n->outputs[0] : n->name;
    out.push_back({name, (n->domain.empty() ? "" : n->domain + ".") + n->op_type, {}});
  }
  for (ir::OpId o : graph.order()) {
    if (graph.op(o).kind == ir::OpKind::constant || o.value >= node_of_op_.size() ||
        node_of_op_[o.value] == kNoNode)
      continue;
    out[node_of_op_[o.value]].ops.push_back(o);
  }
  return out;
}

namespace {

// What a node asks for may have no value. Nothing is built on that.
Result<void> refuse_poison(const Importer& im, size_t first_op) {
  ir::Poison why = ir::Poison::none;
  for (size_t o = first_op; o < im.graph.op_count() && why == ir::Poison::none; ++o)
    why = ir::poison_in(im.graph, ir::OpId{static_cast<uint32_t>(o)});
  for (const ir::SizeCheck& check : im.graph.checks) {
    if (why == ir::Poison::none) why = ir::poison_of(check.condition);
  }
  if (why == ir::Poison::none) return {};
  if (why == ir::Poison::ill_typed)
    return im.fail(ErrorCode::unsupported,
                   fmt::format("inputs of these types do not go together: {}", input_types(im)));
  return im.fail(ErrorCode::shape, std::string(ir::to_string(why)));
}

/// What is known of the sizes before anything is imported.
Facts given_facts(const Model& model, const SizeRanges& ranges) {
  Facts facts = facts_of(ranges);
  for (const ValueInfo& in : model.inputs) {
    for (size_t axis = 0; axis < in.dims.size(); ++axis) facts.axes.insert(symbol_name(in, axis));
  }
  return facts;
}

void fill(ImportReport& report, const Model& model, const Importer& im, const Facts& facts) {
  report.nodes = model.nodes.size();
  report.node_list = im.imported();
  report.warnings = model.warnings;
  for (const auto& [size, value] : facts.fixed) {
    if (auto why = facts.reason.find(size); why != facts.reason.end())
      report.warnings.push_back(why->second);
  }
  for (const auto& [size, parts] : facts.multiple)
    report.warnings.push_back(
        fmt::format("{} is always a multiple of {}: {}", size, parts, facts.reason.at(size)));
  report.shape_ops_left = count_shape_ops(im.graph);
  size_t kept = 0;
  for (ir::OpId o : im.graph.order()) kept += im.graph.op(o).kind != ir::OpKind::constant;
  report.shape_nodes = model.nodes.size() > kept ? model.nodes.size() - kept : 0;
}

}  // namespace

Result<void> Importer::import_nodes(const std::vector<Node>& nodes) {
  const NodeScope scope(*this);
  for (const Node& n : nodes) {
    node = &n;
    scope.enter(n);
    opset = opset_of(model_, n);
    for (auto it = n.outputs.begin(); it != n.outputs.end(); ++it) {
      const std::string& out = *it;
      if (!out.empty() && (values.count(out) || std::find(n.outputs.begin(), it, out) != it))
        return fail(ErrorCode::bad_file, fmt::format("'{}' is defined twice", escaped(out)));
    }
    const Registered* known = lookup(n, opset);
    if (!known)
      return fail(
          ErrorCode::unsupported,
          fmt::format("the operator of opset {} is not supported; docs/operators.md lists what is",
                      opset));
    if (const std::string problem = attributes_problem(n); !problem.empty())
      return fail(ErrorCode::bad_file, problem);
    TFCC_TRY_VOID(check_first_input(*this, known->dtypes));
    const size_t first_op = graph.op_count();
    Result<void> done = known->function(*this);
    // Ops of a branch are those of its own nodes, which may have failed without harm.
    const Result<void> valued = refuse_poison(*this, std::max(first_op, judged_ops_));
    judged_ops_ = graph.op_count();
    TFCC_TRY_VOID(valued);
    TFCC_TRY_VOID(std::move(done));
    note_origin(graph, first_op, n);
    keep_narrow_type(*this);
  }
  return {};
}

Result<Graph> import_onnx(const Model& model, ImportReport* report, const SizeRanges& ranges) {
  if (!model.functions.empty()) {
    TFCC_TRY(const Model inlined, inline_functions(model));
    return import_onnx(inlined, report, ranges);
  }
  TFCC_TRY_VOID(check_operators(model));
  const Facts given = given_facts(model, ranges);
  Facts facts = given;
  EmptySizes empty;
  // How many rows are left without padding is a number that the device counts. A graph that asks for
  // it, as a shape does, is imported with room for all rows. False if that was so already.
  const auto leave_room = [&](const Importer& im) {
    if (facts.room_for_padding || !im.graph.size_with(SizeRole::packed)) return false;
    facts = given;
    facts.room_for_padding = true;
    empty = {};
    return true;
  };
  for (int round = 0; round < kRounds; ++round) {
    Importer im(model, facts);
    Result<void> walked = walk(im, facts, empty.allowed());
    const Facts before = facts;
    merge(facts, im.found);
    const std::string impossible = impossible_size(facts);
    const bool wrong =
        !impossible.empty() || empty.contradicted(before, facts, static_cast<bool>(walked));
    if (wrong && empty.retreat(facts)) {
      round = -1;
      continue;
    }
    if ((!impossible.empty() || (facts == before && !walked)) && leave_room(im)) {
      round = -1;
      continue;
    }
    if (!impossible.empty())
      return Error{ErrorCode::shape, fmt::format("{}: {}", model.path, impossible)};
    if (!(facts == before))
      continue;  // with what was learned, even a walk that failed may go through
    TFCC_TRY_VOID(std::move(walked));
    im.graph.clean();
    TFCC_TRY_VOID(check_extent(im));
    tell_roles(im.graph, ranges);
    tell_input_roles(im.graph);
    const std::vector<ir::Violation> broken = ir::verify(im.graph);
    if (broken.empty() ? empty.more(im, facts, walk) : leave_room(im) || empty.retreat(facts)) {
      round = -1;  // the sizes settle once more
      continue;
    }
    if (!broken.empty()) return broken_rule(im, broken[0]);
    if (report) fill(*report, model, im, facts);
    return std::move(im.graph);
  }
  return Error{ErrorCode::unsupported,
               fmt::format("{}: the sizes of this model do not settle", model.path)};
}

std::vector<OperatorInfo> supported_operators() {
  std::vector<OperatorInfo> out;
  for (const auto& [name, r] : registry()) {
    out.push_back({std::string(name.second), std::string(name.first), r.min_opset, r.max_opset,
                   std::string(r.dtypes), std::string(r.notes)});
  }
  return out;
}

}  // namespace tfcc::frontend
