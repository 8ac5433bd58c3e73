// SPDX-License-Identifier: Apache-2.0
// The `tfcc` command. Results go to stdout, everything else to stderr. Exit codes: 0 success, 1
// failure, 2 wrong usage.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "frontend/onnx/onnx_reader.h"
#include "tools/tfcc/command.h"
#include "tools/tfcc/usage.h"

int main(int argc, char** argv) {
  CLI::App app{"tfcc: an ahead-of-time compiler for transformers. ONNX in, one .tfcc file out."};
  app.name("tfcc");
  app.set_version_flag("--version", tfcc::tools::version_text);
  app.require_subcommand(1);
  tfcc::tools::Action action;
  tfcc::tools::add_compile(app, action);
  tfcc::tools::add_run(app, action);
  tfcc::tools::add_generate(app, action);
  tfcc::tools::add_verify(app, action);
  tfcc::tools::add_bench(app, action);
  tfcc::tools::add_inspect(app, action);
  tfcc::tools::add_opt(app, action);
  tfcc::tools::add_tune(app, action);
  tfcc::tools::add_completion(app, action);
  app.footer("Start with: tfcc compile model.onnx, then tfcc run model.tfcc --random");
  // tfcc help, tfcc help COMMAND
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "help") {
    words.erase(words.begin());
    if (words.empty() ||
        !app.get_subcommands([&](const CLI::App* c) { return c->get_name() == words[0]; }).empty())
      words.push_back("--help");
    else ++argv, --argc;  // "tfcc help compil" says that there is no such command
  }
  std::reverse(words.begin(), words.end());  // as the parser takes them
  try {
    app.parse(words);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    std::fprintf(stderr, "tfcc: usage: %s\n", tfcc::tools::wrong_usage(app, argc, argv, e).c_str());
    return 2;
  }
  try {
    tfcc::Result<void> result = action();
    if (result && (std::fflush(stdout) != 0 || std::ferror(stdout))) {
      result = tfcc::Error{tfcc::ErrorCode::io,
                           "standard output: cannot write; free space or choose another place"};
    }
    if (result) return 0;
    const std::string message = tfcc::frontend::escaped_lines(result.error().message);
    const bool usage = result.error().code == tfcc::ErrorCode::usage;
    std::fprintf(stderr, "tfcc: %s%s\n", usage ? "usage: " : "", message.c_str());
    return usage ? 2 : 1;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "tfcc: out of memory\n");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "tfcc: internal error: %s\n", e.what());
  }
  return 1;
}
