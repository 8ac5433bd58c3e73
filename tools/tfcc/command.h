// SPDX-License-Identifier: Apache-2.0
// What the subcommands of `tfcc` share: registration, and how results and errors are shown.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/passes.h"
#include "runtime/result.h"
#include "tools/support/output_file.h"
#include "tools/support/usage.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace tfcc::tools {

/// What main runs after parsing: the chosen subcommand, or nothing.
using Action = std::function<Result<void>()>;

/// Each adds one subcommand, which sets `action` when it was given.
void add_compile(CLI::App& app, Action& action);
void add_run(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_opt(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_tune(CLI::App& app, Action& action);
void add_completion(CLI::App& app, Action& action);

/// Checks of numbers that say in words what is wrong; CLI11's own print the whole range of a
/// double.
const CLI::Validator& not_negative();
const CLI::Validator& positive();

/// Adds --threads: 0 (the default) to kMaxThreads of runtime/tfcc.h.
void add_threads(CLI::App& command, int& threads, const std::string& help);

/// A line on stderr that replaces itself on a terminal; silent otherwise, and for anything under a
/// second.
class Progress {
 public:
  void update(const std::string& stage, size_t done, size_t total);
  /// At once: a stage that may take long and cannot tell how far it is.
  void say(const std::string& stage);
  ~Progress();

 private:
  double started_ = 0;
  bool shown_ = false;
};

}  // namespace tfcc::tools
