// SPDX-License-Identifier: Apache-2.0
// Choice of the target that runs: the file's targets against this machine's GPU and CPU.
#include <algorithm>
#include <array>
#include <charconv>

#include "runtime/core/model.h"

namespace tfcc::runtime {
namespace {

// From the plainest to the richest.
constexpr std::array<const char*, 4> kLevels = {"x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"};

bool cpu_supports(size_t level) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  switch (level) {
    case 0: return true;
    case 1: return __builtin_cpu_supports("x86-64-v2");
    case 2: return __builtin_cpu_supports("x86-64-v3");
    case 3: return __builtin_cpu_supports("x86-64-v4");
  }
#endif
  (void)level;
  return false;
}

std::string cpu_text() {
  for (size_t i = kLevels.size(); i-- > 0;) {
    if (cpu_supports(i)) return std::string("an ") + kLevels[i] + " CPU";
  }
  return "a CPU that is not x86-64";
}

std::string target_list(const Manifest& m) {
  std::string out;
  for (const Target& t : m.targets) out += (out.empty() ? "" : ", ") + t.name;
  return out.empty() ? "no code" : "code for " + out;
}

bool is_cuda(const Manifest& m, const Target& t) { return m.plans[t.plan].family == Family::cuda; }

bool has_family(const Manifest& m, bool cuda) {
  for (const Target& t : m.targets) {
    if (is_cuda(m, t) == cuda) return true;
  }
  return false;
}

std::string gpu_text(const GpuInfo& gpu) {
  return gpu.name + " (sm_" + std::to_string(gpu.major * 10 + gpu.minor) + ", driver for CUDA " +
         std::to_string(gpu.driver / 1000) + "." + std::to_string(gpu.driver % 1000 / 10) + ")";
}

// Whether the driver is too old for code that would otherwise run, to say so.
const Target* blocked_by_driver(const Manifest& m, GpuInfo gpu) {
  gpu.driver = 1 << 30;
  return best_for_gpu(m, gpu);
}

Result<const Target*> for_gpu(const Manifest& m, int index, const std::string& name) {
  if (!has_family(m, true)) {
    return Error{ErrorCode::device, name + ": no code for any GPU, it has " + target_list(m) +
                                        "; compile with --target for your GPU, or use device cpu"};
  }
  auto asked = query_gpu(index);
  if (!asked) {
    return Error{asked.error().code, name + ": its GPU code cannot run: " + asked.error().message};
  }
  const GpuInfo& gpu = *asked;
  if (const Target* t = best_for_gpu(m, gpu)) return t;
  std::string sm = "sm_" + std::to_string(gpu.major * 10 + gpu.minor);
  if (const Target* t = blocked_by_driver(m, gpu)) {
    return Error{ErrorCode::device, name + ": its " + t->name + " code needs a driver for CUDA " +
                                        std::to_string(t->min_driver / 1000) + "." +
                                        std::to_string(t->min_driver % 1000 / 10) + ", here is " +
                                        gpu_text(gpu) + "; update the NVIDIA driver"};
  }
  return Error{ErrorCode::device, name + ": it has " + target_list(m) + ", here is " +
                                      gpu_text(gpu) + "; compile with --target " + sm};
}

Result<const Target*> for_cpu(const Manifest& m, const std::string& name) {
  if (const Target* t = best_for_cpu(m)) return t;
  const bool has_cpu = std::any_of(m.targets.begin(), m.targets.end(),
                                   [](const Target& t) { return t.name.starts_with("x86-64"); });
  return Error{ErrorCode::device, name + ": no code for this CPU: it has " + target_list(m) +
                                      ", here is " + cpu_text() + "; compile with " +
                                      (has_cpu ? "--cpu=all" : "--target cpu")};
}

// That this CPU could run better code than the file has, and how to get it; empty if it could not.
std::string slower_than_could_be(const Target& t, const std::string& name) {
  const auto level = std::find(kLevels.begin(), kLevels.end(), t.name);
  for (size_t i = kLevels.size();
       level != kLevels.end() && i-- > static_cast<size_t>(level - kLevels.begin()) + 1;) {
    if (!cpu_supports(i)) continue;
    return name + ": runs code for " + t.name + ", here is " + cpu_text() +
           ", for which better code can be made; compile with --cpu=native or --cpu=all";
  }
  return "";
}

}  // namespace

std::optional<CudaTarget> parse_cuda_target(const std::string& name) {
  CudaTarget t;
  t.ptx = name.starts_with("compute_");
  if (!t.ptx && !name.starts_with("sm_")) return std::nullopt;
  const char* begin = name.data() + (t.ptx ? 8 : 3);
  const char* end = name.data() + name.size();
  int number = 0;
  auto [rest, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || number < 10 || number > 9999) return std::nullopt;
  t.exact = end - rest == 1 && *rest == 'a';
  if (rest != end && !t.exact) return std::nullopt;
  t.major = number / 10;
  t.minor = number % 10;
  return t;
}

const Target* best_for_gpu(const Manifest& m, const GpuInfo& gpu) {
  const Target* best = nullptr;
  int best_score = -1;
  for (const Target& t : m.targets) {
    auto c = parse_cuda_target(t.name);
    if (!c || !is_cuda(m, t) || t.min_driver > static_cast<uint32_t>(gpu.driver)) continue;
    int have = gpu.major * 10 + gpu.minor, need = c->major * 10 + c->minor;
    bool runs = c->exact ? have == need
                : c->ptx ? have >= need
                         : c->major == gpu.major && have >= need;
    // Machine code before PTX, which is compiled at load; then the closest; then the variant.
    int score = (c->ptx ? 0 : 100000) + need * 2 + (c->exact ? 1 : 0);
    if (runs && score > best_score) best = &t, best_score = score;
  }
  return best;
}

const Target* best_for_cpu(const Manifest& m) {
  for (size_t i = kLevels.size(); i-- > 0;) {
    if (!cpu_supports(i)) continue;
    for (const Target& t : m.targets) {
      if (!is_cuda(m, t) && t.name == kLevels[i]) return &t;
    }
  }
  return nullptr;
}

Result<Choice> choose_target(const Manifest& m, const std::string& device,
                             const std::string& name) {
  if (device == "cpu") {
    TFCC_TRY(const Target* t, for_cpu(m, name));
    return Choice{t, -1, slower_than_could_be(*t, name)};
  }
  if (device == "auto") {
    auto gpu = for_gpu(m, 0, name);
    if (gpu) return Choice{*gpu, 0, ""};
    auto cpu = for_cpu(m, name);
    if (cpu)
      return Choice{*cpu, -1,
                    has_family(m, true) ? gpu.error().message + "; using the cpu"
                                        : slower_than_could_be(**cpu, name)};
    if (has_family(m, true)) {
      return Error{ErrorCode::device,
                   gpu.error().message + "; nor is there code for " + cpu_text()};
    }
    return cpu.error();
  }
  int index = 0;
  if (device.starts_with("cuda:")) {
    const char* end = device.data() + device.size();
    auto [rest, error] = std::from_chars(device.data() + 5, end, index);
    if (error != std::errc() || rest != end || index < 0) index = -1;
  } else if (device != "cuda") {
    index = -1;
  }
  if (index < 0) {
    return Error{ErrorCode::invalid_argument,
                 "device '" + device + "' is not known; use auto, cpu, cuda or cuda:N"};
  }
  TFCC_TRY(const Target* t, for_gpu(m, index, name));
  return Choice{t, index, ""};
}

}  // namespace tfcc::runtime
