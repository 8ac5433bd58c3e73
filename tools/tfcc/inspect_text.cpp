// SPDX-License-Identifier: Apache-2.0
// What `tfcc inspect` prints: interface, plans and, where asked for, launches, kernels and texts.
#include <fmt/format.h>

#include <map>

#include "runtime/core/tile_table.h"
#include "tools/support/fold.h"
#include "tools/tfcc/inspect.h"
#include "tools/tfcc/inspect_page.h"

namespace tfcc::tools {
namespace {

std::string bytes_text(std::optional<int64_t> bytes) {
  if (!bytes) return "too many bytes";
  if (*bytes < 10'000) return fmt::format("{} bytes", *bytes);
  if (*bytes < 10'000'000) return fmt::format("{:.1f} kB", static_cast<double>(*bytes) / 1e3);
  return fmt::format("{:.1f} MB", static_cast<double>(*bytes) / 1e6);
}

std::string value_text(std::optional<int64_t> v) { return v ? std::to_string(*v) : "overflow"; }

std::string op_counts(const runtime::Bucket& bucket) {
  std::map<std::string, size_t> counts;
  for (const runtime::Launch& l : bucket.launches)
    ++counts[fmt::format("{}", fmt::join(l.ops, "+"))];
  std::string s;
  for (const auto& [op, n] : counts) s += fmt::format("{}{} {}", s.empty() ? "" : ", ", n, op);
  return s;
}

class Listing {
 public:
  Listing(const InspectedFile& file, const TextOptions& options) : f_(file), o_(options) {}

  Result<std::string> write() {
    show_interface();
    for (const runtime::Plan& p : f_.manifest.plans) show_plan(p);
    for (const runtime::Text& t : f_.manifest.texts) {
      if (o_.texts) line("text {}: {}", t.name, bytes_text(static_cast<int64_t>(t.size)));
      if (!o_.ir || t.name.rfind("ir/", 0) != 0) continue;
      TFCC_TRY(const std::string text, f_.text(t));
      line("{}:\n{}", t.name, text);
    }
    if (o_.ir && f_.manifest.texts.empty()) return f_.text("ir/").error();
    return std::move(out_);
  }

 private:
  template <class... Args> void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  void show_tensors(const char* title, const std::vector<runtime::TensorType>& list) {
    line("{}:", title);
    std::vector<std::pair<std::string, std::string>> items;
    for (const auto& t : list)
      items.emplace_back(t.name, std::string(to_string(t.dtype)) + dims_text(t.dims));
    for (const Folded& f : fold(items))
      line("  {} {}{}", f.name, items[f.first].second, times(f.count));
  }

  static std::string times(size_t n) { return n > 1 ? fmt::format(" ({} times)", n) : ""; }

  void show_messages(const char* what, const std::vector<std::string>& messages) {
    std::vector<std::pair<std::string, std::string>> items;
    for (const std::string& m : messages)
      items.emplace_back("", m);  // equal ones alone: numbers in them mean something
    for (const Folded& f : fold(items))
      line("{}: {}{}", what, items[f.first].second, times(f.count));
  }

  void show_symbol(const runtime::Manifest& m, const runtime::Symbol& s) {
    std::string range =
        s.max ? fmt::format("{} to {}", s.min, s.max) : fmt::format("{} or more", s.min);
    if (s.derived())
      range = (s.made ? "made by the run, at most " : "") + s.value.print() +
              (s.max && !s.made ? fmt::format(", at most {}", s.max) : "");
    if (!s.derived())
      range += fmt::format(", axis {} of {}{}", s.axis, m.inputs[s.input].name,
                           s.times() > 1 ? fmt::format(" / {}", s.times()) : "");
    for (const std::string* from : {&s.min_from, &s.max_from}) {
      if (!from->empty()) range += fmt::format(" ({})", *from);
    }
    if (s.typical) range += fmt::format(", typically {}", s.typical);
    line("size {}{}: {}", s.name,
         s.role == SizeRole::none || s.name == to_string(s.role)
             ? ""
             : fmt::format(" ({})", to_string(s.role)),
         range);
  }

  void show_bucket_table(const runtime::Plan& p) {
    if (p.family != Family::cuda) return;
    if (!p.bucket_table) {
      line("  launched one by one: {}",
           p.no_bucket_table.empty() ? "the file has no bucket table" : p.no_bucket_table);
      return;
    }
    for (size_t i = 0; i < p.bucket_table->sizes.size(); ++i) {
      line("  graphs for {} up to {}", f_.manifest.symbols[i].name,
           caps_text(p.bucket_table->sizes[i]));
    }
  }

  void show_interface() {
    const runtime::Manifest& m = f_.manifest;
    line("{}: {}, {} from {}", f_.path, bytes_text(static_cast<int64_t>(f_.artifact.file.size())),
         m.producer, m.model);
    show_tensors("inputs", m.inputs);
    show_tensors("outputs", m.outputs);
    for (const runtime::Symbol& s : m.symbols) show_symbol(m, s);
    std::vector<std::string> checks, flags;
    for (const runtime::Check& c : m.checks) checks.push_back(c.message);
    for (const runtime::Flag& c : m.flags) flags.push_back(c.message);
    show_messages("check", checks);
    show_messages("flag", flags);
    for (const runtime::Program& p : m.generation)
      line("generation: {} plans of its own; --generation shows them", p.plans.size());
    if (m.generation_alone && m.generation.empty()) line("generation: this is its program");
    if (!m.no_generation.empty()) line("generation: none: {}", m.no_generation);
    for (const runtime::Program& p : m.ragged)
      line("without padding: {} plans of its own; --ragged shows them", p.plans.size());
    line("weights: {}, {}", m.weights.size(), bytes_text(static_cast<int64_t>(f_.weight_bytes())));
    line("targets:");
    for (const runtime::Target& t : m.targets) {
      line("  {:<12} {} plan, {} of code", t.name, m.plans[t.plan].name,
           bytes_text(static_cast<int64_t>(f_.code_bytes(t))));
    }
  }

  void show_launches(const runtime::Plan& p, const runtime::Bucket& b) {
    for (const runtime::Launch& l : b.launches) {
      const std::string what = l.kernel ? p.kernels[l.kernel->kernel].name : "product";
      const std::string flops = o_.values ? value_text(f_.at(l.flops)) : l.flops.print();
      const std::string bytes = o_.values ? value_text(f_.at(l.bytes)) : l.bytes.print();
      line("    {:<32} {:<18} {:<44} flops {}, bytes {}", l.name,
           fmt::format("{}", fmt::join(l.ops, "+")), what, flops, bytes);
    }
  }

  void show_plan(const runtime::Plan& p) {
    line("plan {}: {}, {} kernels, {} slots", p.name, p.precision, p.kernels.size(),
         p.slots.size());
    const auto ratio = f_.arena_ratio(p);
    line("  at {}: arena {}, most live at once {}{}", sizes_text(f_), bytes_text(f_.arena_bytes(p)),
         bytes_text(f_.live_bytes(p)), ratio ? fmt::format(", ratio {:.2f}", *ratio) : "");
    for (const runtime::Check& c : p.limits) line("  limit: {}", c.message);
    show_bucket_table(p);
    std::string names;
    for (const runtime::Buffer* b : f_.quadratic_buffers(p)) {
      names += fmt::format("{}{}{}", names.empty() ? "" : ", ", b->name, dims_text(b->dims));
    }
    line("  buffers that grow with the square of a size: {}", names.empty() ? "none" : names);
    const runtime::Bucket* runs = f_.bucket(p);
    for (const runtime::Bucket& b : p.buckets) {
      line("  bucket {}{}: {} launches: {}", b.name, &b == runs ? " (runs at these sizes)" : "",
           b.launches.size(), op_counts(b));
      if (const auto layers = f_.layers(p, b)) {
        line("    {} layers of {} launches", layers->count, layers->launches);
      }
      if (o_.launches) show_launches(p, b);
    }
    if (!o_.kernels) return;
    line("  kernels:");
    for (const runtime::Kernel& k : p.kernels) {
      line("    {} ({}){}", k.name, k.op,
           k.threads
               ? fmt::format(", {} threads, {} bytes of shared memory", k.threads, k.shared_bytes)
               : "");
    }
  }

  const InspectedFile& f_;
  const TextOptions& o_;
  std::string out_;
};

// Which of its tiles a kernel is told to take at the file's sizes.
std::string told_tile(const InspectedFile& file, const runtime::TileChoice& choice) {
  constexpr int64_t kProcessors = 132;  // of an H100 and an H200, whose kernels these are
  const auto rows = file.at(choice.rows);
  if (!rows || *rows < 1 || *rows > runtime::kMostTileRows) return "";
  const runtime::Tile& t = choice.tiles[runtime::fastest_tile(
      choice.tiles, *rows, static_cast<int64_t>(choice.columns), kProcessors)];
  return fmt::format(
      "told which at runtime/core/tile_table.cpp: {} x {} of {} rows on {} multiprocessors, if no timing cache has another\n",
      t.rows, t.columns, *rows, kProcessors);
}

}  // namespace

Result<std::string> inspect_why(const InspectedFile& file, const std::string& name) {
  std::string out;
  for (const runtime::Plan& p : file.manifest.plans) {
    const runtime::Bucket* bucket = file.bucket(p);
    if (!bucket) continue;
    for (const runtime::Launch& l : bucket->launches) {
      if (l.name.find(name) == std::string::npos) continue;
      const std::string kernel =
          l.kernel ? "kernel " + p.kernels[l.kernel->kernel].name : "a product of the library";
      out += fmt::format("{} ({} plan, bucket {}): {}, {}\n", l.name, p.name, bucket->name,
                         fmt::join(l.ops, "+"), kernel);
      out += l.why.empty() && l.kernel
                 ? fmt::format("one template does it: {}\n", p.kernels[l.kernel->kernel].op)
                 : l.why + "\n";
      if (l.kernel && l.kernel->tiles) out += told_tile(file, *l.kernel->tiles);
    }
  }
  if (!out.empty()) return out;
  return Error{
      ErrorCode::invalid_argument,
      fmt::format("{}: no launch has '{}' in its name; --launches lists them", file.path, name)};
}

Result<std::string> inspect_text(const InspectedFile& file, const TextOptions& options) {
  return Listing(file, options).write();
}

}  // namespace tfcc::tools
