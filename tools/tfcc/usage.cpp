// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/usage.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "codegen/clang_cpu.h"
#include "codegen/compile.h"
#include "codegen/nvrtc.h"

namespace tfcc::tools {
namespace {

std::string lower(std::string s) {
  std::transform(s.begin(), s.end(), s.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return s;
}

// Letters to change, leave out, add or exchange with the next (optimal string alignment distance).
size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] =
          std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::string meant(const std::string& word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  return near.empty() ? "" : fmt::format(" (did you mean {}?)", near);
}

// The first argument that is no option of the command, as typed without its value; or empty.
std::string unknown_option(const CLI::App& command, int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    const std::string word = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
    if (word == "--") return "";
    if (word.size() < 2 || word[0] != '-' || std::isdigit(static_cast<unsigned char>(word[1])) ||
        word[1] == '.')
      continue;
    // "-o" and its value may be one word
    if (!command.get_option_no_throw(word) &&
        (word[1] == '-' || !command.get_option_no_throw(word.substr(0, 2))))
      return word;
  }
  return "";
}

// Versions are keys of the kernel cache too, with the flags behind them.
std::string without_flags(const std::string& version) {
  return version.substr(0, version.find(" -"));
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  size_t least = 1 + std::max<size_t>(1, word.size() / 4);
  for (const std::string& k : known) {
    const size_t d = distance(lower(word), lower(k));
    if (d < least) least = d, best = k;
  }
  return best;
}

std::string wrong_usage(const CLI::App& app, int argc, char** argv, const CLI::ParseError& e) {
  const CLI::App* command = nullptr;
  std::vector<std::string> commands;
  for (const CLI::App* c : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(c->get_name());
    if (argc > 1 && c->get_name() == argv[1]) command = c;
  }
  if (!command) {
    if (argc < 2 || argv[1][0] == '-') return fmt::format("{}; tfcc --help tells more", e.what());
    return fmt::format("there is no command '{}'{}; commands are {}; tfcc --help tells more",
                       argv[1], meant(argv[1], commands), fmt::join(commands, ", "));
  }
  std::string what = e.what();
  if (const std::string option = unknown_option(*command, argc, argv); !option.empty()) {
    std::vector<std::string> options;
    for (const CLI::Option* o : command->get_options()) {
      for (const std::string& name : o->get_lnames()) options.push_back("--" + name);
    }
    what = fmt::format("tfcc {} has no option '{}'{}", command->get_name(), option,
                       meant(option, options));
  }
  return fmt::format("{}; tfcc {} --help tells more", what, command->get_name());
}

std::string version_text() {
  std::string s = "tfcc " TFCC_VERSION "\n";
  if (const std::string revision = TFCC_REVISION; !revision.empty())
    s += fmt::format("revision {}\n", revision);
  const std::string cpu = without_flags(codegen::cpu_compiler_version());
  s += cpu.empty() ? "no CPU code: built without it\n" : fmt::format("CPU code by {}\n", cpu);
  const auto cuda = codegen::cuda_compiler_version();
  s += cuda ? fmt::format("GPU code by {}\n", without_flags(*cuda))
            : fmt::format("no GPU code: {}\n", cuda.error().message);
  return s + fmt::format("targets {}", fmt::join(codegen::target_names(), ", "));
}

}  // namespace tfcc::tools
