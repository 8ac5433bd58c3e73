// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "runtime/tfcc.h"

namespace tfcc::tools {

namespace {

CLI::Validator number(const std::string& name, const std::string& what, bool (*good)(double)) {
  return CLI::Validator(
      [what, good](std::string& text) -> std::string {
        char* end = nullptr;
        const double n = std::strtod(text.c_str(), &end);
        if (!text.empty() && *end == 0 && std::isfinite(n) && good(n)) return "";
        return "'" + (text.size() > 20 ? text.substr(0, 20) + "..." : text) + "' is no number " +
               what;
      },
      name);
}

}  // namespace

const CLI::Validator& not_negative() {
  static const CLI::Validator check =
      number("NONNEGATIVE", "from 0", [](double n) { return n >= 0; });
  return check;
}

const CLI::Validator& positive() {
  static const CLI::Validator check = number("POSITIVE", "above 0", [](double n) { return n > 0; });
  return check;
}

void add_threads(CLI::App& command, int& threads, const std::string& help) {
  const std::string most = std::to_string(kMaxThreads);
  auto check = [most](std::string& text) -> std::string {
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    const size_t zeros = std::min(text.find_first_not_of('0'), text.size());
    if (digits && text.size() - zeros <= most.size() &&
        std::strtol(text.c_str(), nullptr, 10) <= kMaxThreads)
      return "";
    return "'" + (text.size() > 20 ? text.substr(0, 20) + "..." : text) +
           "' is no number of threads from 0 (one per core) to " + most;
  };
  command
      .add_option("--threads", threads,
                  help + ", at most " + most + "; 0, the default: one per core")
      ->check(CLI::Validator(check, ""));
}

namespace {
double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
}  // namespace

void Progress::update(const std::string& stage, size_t done, size_t total) {
  if (started_ == 0) started_ = now();
  if (!isatty(2) || now() - started_ < 1) return;
  std::fprintf(stderr, "\r\033[K%s: %zu of %zu", stage.c_str(), done, total);
  shown_ = true;
}

void Progress::say(const std::string& stage) {
  if (!isatty(2)) return;
  std::fprintf(stderr, "\r\033[K%s", stage.c_str());
  shown_ = true;
}

Progress::~Progress() {
  if (shown_) std::fprintf(stderr, "\r\033[K");
}

}  // namespace tfcc::tools
