// SPDX-License-Identifier: Apache-2.0
// tfcc completion: a script for the shell that completes commands, options and their values, made
// from the options themselves.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "codegen/compile.h"
#include "passes/passes.h"
#include "tools/tfcc/command.h"

namespace tfcc::tools {
namespace {

// "--fp16 --target -o": every spelling of every option.
std::string options_of(const CLI::App& command) {
  std::vector<std::string> words;
  for (const CLI::Option* o : command.get_options()) {
    for (const std::string& n : o->get_lnames()) words.push_back("--" + n);
    for (const std::string& n : o->get_snames()) words.push_back("-" + n);
  }
  return fmt::format("{}", fmt::join(words, " "));
}

// Commas separate targets and passes; what is before the last one stays.
std::string bash_script(const CLI::App& app) {
  std::vector<std::string> commands, passes;
  std::string cases;
  for (const CLI::App* c : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(c->get_name());
    cases += fmt::format("    {}) options='{}' ;;\n", c->get_name(), options_of(*c));
  }
  for (const passes::PassInfo& p : passes::all_passes()) passes.emplace_back(p.name);
  return fmt::format(
      R"(# Completion of tfcc for bash; for zsh after `autoload bashcompinit && bashcompinit`. Made by `tfcc completion`.
_tfcc() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} options= values= k
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W '{} help --help --version' -- "$word")
    return
  fi
  case ${{COMP_WORDS[1]}} in
{}    help) options='{}' ;;
  esac
  [[ $before == = ]] && before=${{COMP_WORDS[COMP_CWORD-2]}}
  [[ $word == = ]] && word= && before=${{COMP_WORDS[COMP_CWORD-1]}}
  case $before in
    --target) values='{}' ;;
    --cpu) values='native all {}' ;;
    --passes | --skip-passes) values='{}' ;;
  esac
  if [[ -n $values ]]; then
    local kept=
    [[ $word == *,* ]] && kept=${{word%,*}},
    mapfile -t COMPREPLY < <(compgen -P "$kept" -W "$values" -- "${{word##*,}}")
  elif [[ $word == -* || ${{COMP_WORDS[1]}} == help ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
  fi
}}
complete -o default -F _tfcc tfcc
)",
      fmt::join(commands, " "), cases, fmt::join(commands, " "),
      fmt::join(codegen::target_names(), " "), fmt::join(codegen::cpu_levels(), " "),
      fmt::join(passes, " "));
}

}  // namespace

void add_completion(CLI::App& app, Action& action) {
  CLI::App* c = app.add_subcommand(
      "completion", "print a script that completes words for the shell: source <(tfcc completion)");
  c->callback([&app, &action] {
    action = [&app]() -> Result<void> {
      const std::string text = bash_script(app);
      std::fwrite(text.data(), 1, text.size(), stdout);  // main looks whether it arrived
      return {};
    };
  });
}

}  // namespace tfcc::tools
