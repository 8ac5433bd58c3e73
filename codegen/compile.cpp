// SPDX-License-Identifier: Apache-2.0
#include "codegen/compile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>

#include "codegen/clang_cpu.h"
#include "codegen/cpu_units.h"
#include "codegen/nvrtc.h"
#include "codegen/parallel.h"

namespace tfcc::codegen {

const std::vector<std::string>& cuda_architectures() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const TargetClass& c : target_classes())
      names.insert(names.end(), c.targets.begin(), c.targets.end());
    return names;
  }();
  return kNames;
}

const std::vector<std::string>& cpu_levels() {
  static const std::vector<std::string> kNames = {"x86-64-v2", "x86-64-v3", "x86-64-v4"};
  return kNames;
}

namespace {

constexpr const char* kPtx = "compute_80";

void add_target(std::vector<TargetName>& out, const std::string& name, Family family) {
  const bool known =
      std::any_of(out.begin(), out.end(), [&](const TargetName& t) { return t.name == name; });
  if (!known) out.push_back({name, family});
}

bool is_level(const std::string& name) {
  const auto& levels = cpu_levels();
  return std::find(levels.begin(), levels.end(), name) != levels.end();
}

// What "cpu" stands for.
Result<void> add_levels(std::vector<TargetName>& out, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name == "all") {
      for (const std::string& level : cpu_levels()) add_target(out, level, Family::cpu);
    } else if (name == "native" || is_level(name)) {
      add_target(out, name == "native" ? native_cpu_level() : name, Family::cpu);
    } else {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("--cpu: there is no level '{}'; levels are native, all, {}", name,
                               fmt::join(cpu_levels(), ", "))};
    }
  }
  return {};
}

// What serves instead of a GPU's name that is none of ours: code of the same generation, or PTX,
// which the driver compiles.
std::string way_out(const std::string& name) {
  if (name.rfind("sm_", 0) != 0) return "";
  const size_t digits = name.find_first_not_of("0123456789", 3);
  const std::string number = name.substr(3, digits == std::string::npos ? digits : digits - 3);
  if (number.size() < 2 || number.size() > 4) return "";
  const int wanted = std::stoi(number);
  if (wanted < 80) return "GPUs before sm_80 have not the instructions that its kernels use; ";
  std::string best;
  for (const std::string& g : cuda_architectures()) {
    const int have = std::stoi(g.substr(3));
    if (have / 10 == wanted / 10 && have <= wanted) best = g;
  }
  return best.empty() ? fmt::format("{} serves GPUs without code of their own; ", kPtx)
                      : fmt::format("code for {} runs there; ", best);
}

}  // namespace

std::vector<std::string> target_names() {
  std::vector<std::string> names = {"cpu", "cuda"};
  for (const std::string& g : cuda_architectures()) names.push_back(g);
  for (const char* n : {kPtx, "x86-64-v2", "x86-64-v3", "x86-64-v4"}) names.push_back(n);
  return names;
}

Result<std::vector<TargetName>> parse_targets(const std::vector<std::string>& names,
                                              const std::vector<std::string>& levels) {
  std::vector<TargetName> out;
  const auto& gpus = cuda_architectures();
  for (std::string name : names) {
    for (const TargetClass& c : target_classes()) {
      if (name == c.name && !c.variant.empty()) name = c.targets[0];  // sm_90a
    }
    if (name == "cpu") {
      TFCC_TRY_VOID(add_levels(out, levels));
    } else if (name == "cuda") {
      for (const std::string& g : gpus) add_target(out, g, Family::cuda);
    } else if (is_level(name)) {
      add_target(out, name, Family::cpu);
    } else if (name == kPtx || std::find(gpus.begin(), gpus.end(), name) != gpus.end()) {
      add_target(out, name, Family::cuda);
    } else {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("--target: there is no target '{}'; {}targets are {}", name,
                               way_out(name), fmt::join(target_names(), ", "))};
    }
  }
  const bool any_gpu = std::any_of(out.begin(), out.end(),
                                   [](const TargetName& t) { return t.family == Family::cuda; });
  if (any_gpu) add_target(out, kPtx, Family::cuda);
  return out;
}

namespace {

// What the cache holds for a CUDA kernel: registers, spills, then the image.
struct CachedHeader {
  int32_t registers, spill_bytes;
};

std::vector<std::byte> with_header(const CudaImage& image) {
  const CachedHeader h{image.registers, image.spill_bytes};
  std::vector<std::byte> bytes(sizeof h + image.bytes.size());
  std::memcpy(bytes.data(), &h, sizeof h);
  std::memcpy(bytes.data() + sizeof h, image.bytes.data(), image.bytes.size());
  return bytes;
}

class Builder {
 public:
  Builder(std::vector<const PlanInput*> inputs, const CompileOptions& options, WeightPool& weights,
          CompileResult& result)
      : options_(options),
        weights_(weights),
        result_(result),
        cache_(options.cache),
        threads_(threads_or_all(options.threads)) {
    program_.inputs = std::move(inputs);
  }

  // Plans first, so that the number of kernels is known.
  Result<size_t> plan_all() {
    for (const TargetName& t : options_.targets) TFCC_TRY_VOID(plan(class_of(t.name)));
    name_plans();
    size_t kernels = 0;
    for (const TargetName& t : options_.targets) kernels += kernels_of(t).size();
    return kernels;
  }

  Result<BuiltProgram> compile_all(size_t& done, size_t total) {
    done_ = done;
    total_ = total;
    TFCC_TRY(std::vector<TargetUnits> all, units_of_targets());
    TFCC_TRY_VOID(compile_units(all));
    for (TargetUnits& u : all) {
      TFCC_TRY_VOID(u.target.family == Family::cuda ? add_cuda_code(u) : add_cpu_code(u));
    }
    done = done_;
    return std::move(program_);
  }

 private:
  // A plan for this class, or that of another class which came out the same.
  Result<void> plan(const TargetClass& target) {
    if (plans_.count(target.name)) return {};
    const auto in = std::find_if(program_.inputs.begin(), program_.inputs.end(),
                                 [&](const PlanInput* i) { return i->family == target.family; });
    TFCC_CHECK(in != program_.inputs.end() && "a target without a graph");
    TFCC_TRY(Lowered lowered, lower((*in)->graph, target, weights_, (*in)->options));
    const auto same = std::find(program_.plans.begin(), program_.plans.end(), lowered);
    plans_[target.name] = static_cast<size_t>(same - program_.plans.begin());
    if (same == program_.plans.end()) program_.plans.push_back(std::move(lowered));
    return {};
  }

  // By family while all of a family share one, else by the first class that each is for.
  void name_plans() {
    for (const TargetClass& c : target_classes()) {
      const auto it = plans_.find(c.name);
      if (it == plans_.end()) continue;
      runtime::Plan& p = program_.plans[it->second].plan;
      const bool alone = std::all_of(plans_.begin(), plans_.end(), [&](const auto& other) {
        return other.second == it->second || program_.plans[other.second].plan.family != p.family;
      });
      if (!alone && p.name == to_string(p.family)) p.name = c.name;
    }
    for (Lowered& l : program_.plans) l.plan.name += suffix(program_.inputs[0]->kind);
  }

  size_t plan_of(const TargetName& t) const { return plans_.at(class_of(t.name).name); }
  const std::vector<KernelSource>& kernels_of(const TargetName& t) const {
    return program_.plans[plan_of(t)].kernels;
  }

  void step(const std::string& target, size_t kernels) {
    std::lock_guard lock(mutex_);
    done_ += kernels;
    if (options_.progress) options_.progress("compiling kernels for " + target, done_, total_);
  }

  struct Compiled {
    std::vector<std::byte> bytes;
    bool cached = false;
    double ms = 0;
  };

  struct TargetUnits {
    const TargetName& target;
    std::string compiler;
    std::vector<Unit> units;
    std::vector<Compiled> code;  // of each unit
  };

  Result<std::vector<TargetUnits>> units_of_targets() {
    std::vector<TargetUnits> all;
    for (const TargetName& t : options_.targets) {
      if (t.family == Family::cuda) {
        TFCC_TRY(std::string compiler, cuda_compiler_version());
        all.push_back({t, std::move(compiler), units_of(kernels_of(t)), {}});
      } else {
        all.push_back({t, cpu_compiler_version(), cpu_units(kernels_of(t)), {}});
      }
      all.back().code.resize(all.back().units.size());
    }
    return all;
  }

  // Compiles or finds every unit of all targets, in their order; the first error wins.
  Result<void> compile_units(std::vector<TargetUnits>& all) {
    std::vector<std::pair<size_t, size_t>> jobs;
    for (size_t t = 0; t < all.size(); ++t) {
      for (size_t i = 0; i < all[t].units.size(); ++i) jobs.emplace_back(t, i);
    }
    std::optional<Error> error;
    std::atomic<bool> failed{false};
    parallel_for(jobs.size(), threads_, [&](size_t j) {
      if (failed) return;
      TargetUnits& of = all[jobs[j].first];
      const Unit& unit = of.units[jobs[j].second];
      Result<Compiled> made = compile_or_find(of, unit.source);
      if (!made) {
        std::lock_guard lock(mutex_);
        if (!error) error = made.error();
        failed = true;
        return;
      }
      of.code[jobs[j].second] = *std::move(made);
      step(of.target.name, unit.kernels.size());
    });
    if (error) return *error;
    return {};
  }

  Result<Compiled> compile_or_find(const TargetUnits& of, const KernelSource& source) {
    const auto begin = std::chrono::steady_clock::now();
    const TargetName& t = of.target;
    const CacheKey key = kernel_key(t.family, of.compiler, compiler_arch(t.name), source.text);
    Compiled out;
    if (auto hit = cache_.get(key)) {
      out = {std::move(*hit), true};
    } else {
      TFCC_TRY(out.bytes, compile_one(t, source));
      cache_.put(key, out.bytes);
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    out.ms = took.count();
    return out;
  }

  Result<std::vector<std::byte>> compile_one(const TargetName& t, const KernelSource& source) {
    if (t.family != Family::cuda) return compile_cpu_object({source.name, source.text}, t.name);
    TFCC_TRY(CudaImage image, compile_cuda(source.name, source.text, compiler_arch(t.name)));
    return with_header(image);
  }

  Result<void> add_cuda_code(TargetUnits& of) {
    const TargetName& t = of.target;
    program_.code.push_back({t, plan_of(t), {}, least_driver(t.name)});
    for (size_t i = 0; i < of.units.size(); ++i) {
      auto& [bytes, cached, ms] = of.code[i];
      CachedHeader h{};
      if (bytes.size() < sizeof h)
        return Error{ErrorCode::internal, "kernel cache: an entry is too short"};
      std::memcpy(&h, bytes.data(), sizeof h);
      bytes.erase(bytes.begin(), bytes.begin() + sizeof h);
      result_.kernels.push_back(
          {of.units[i].source.name, t.name, h.registers, h.spill_bytes, cached, ms});
      program_.code.back().images.push_back(std::move(bytes));
    }
    return {};
  }

  Result<void> add_cpu_code(TargetUnits& of) {
    std::vector<std::vector<std::byte>> objects;
    for (size_t i = 0; i < of.units.size(); ++i) {
      for (const std::string& name : of.units[i].kernels)
        result_.kernels.push_back({name, of.target.name, 0, 0, of.code[i].cached, of.code[i].ms});
      objects.push_back(std::move(of.code[i].bytes));
    }
    TFCC_TRY(auto shared, link_cpu(objects, of.target.name));
    program_.code.push_back({of.target, plan_of(of.target), {std::move(shared)}});
    return {};
  }

  const CompileOptions& options_;
  WeightPool& weights_;
  CompileResult& result_;
  KernelCache cache_;
  int threads_;
  BuiltProgram program_;
  std::map<std::string_view, size_t> plans_;  // of each class
  std::mutex mutex_;
  size_t done_ = 0, total_ = 0;
};

}  // namespace

std::string_view suffix(ProgramKind kind) {
  constexpr std::string_view kSuffixes[] = {"", ".generate", ".ragged"};
  return kSuffixes[static_cast<int>(kind)];
}

Result<CompileResult> compile(const std::vector<PlanInput>& inputs, const std::string& path,
                              const CompileOptions& options) {
  WeightPool weights;
  CompileResult result;
  std::vector<std::unique_ptr<Builder>> builders;
  size_t kernels = 0, done = 0;
  for (const ProgramKind kind :
       {ProgramKind::exported, ProgramKind::generation, ProgramKind::ragged}) {
    std::vector<const PlanInput*> of_program;
    for (const PlanInput& in : inputs) {
      if (in.kind == kind) of_program.push_back(&in);
    }
    if (of_program.empty()) continue;
    builders.push_back(std::make_unique<Builder>(std::move(of_program), options, weights, result));
    TFCC_TRY(const size_t more, builders.back()->plan_all());
    kernels += more;
  }
  std::vector<BuiltProgram> programs;
  for (const auto& b : builders) {
    TFCC_TRY(BuiltProgram program, b->compile_all(done, kernels));
    programs.push_back(std::move(program));
  }
  TFCC_TRY_VOID(write_artifact(path, programs, weights, options, result));
  for (BuiltProgram& p : programs)
    std::move(p.plans.begin(), p.plans.end(), std::back_inserter(result.plans));
  return result;
}

}  // namespace tfcc::codegen
