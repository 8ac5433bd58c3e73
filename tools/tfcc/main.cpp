// SPDX-License-Identifier: Apache-2.0
// The `tfcc` command. Results go to stdout, everything else to stderr. Exit codes: 0 success, 1 failure, 2 wrong usage.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "frontend/onnx_reader.h"
#include "tools/tfcc/command.h"

namespace {

// The parser names a missing command where a wrong one was given.
std::string wrong_usage(const CLI::App& app, int argc, char** argv, const CLI::ParseError& e) {
  std::string commands;
  bool known = argc < 2 || argv[1][0] == '-';
  for (const CLI::App* c : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands += (commands.empty() ? "" : ", ") + c->get_name();
    known = known || c->get_name() == argv[1];
  }
  if (known) return e.what();
  return "there is no command '" + std::string(argv[1]) + "'; commands are " + commands;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"tfcc: an ahead-of-time compiler for transformers. ONNX in, one .tfcc file out."};
  app.name("tfcc");
  app.set_version_flag("--version", "tfcc " TFCC_VERSION);
  app.require_subcommand(1);
  tfcc::tools::Action action;
  tfcc::tools::add_compile(app, action);
  tfcc::tools::add_run(app, action);
  tfcc::tools::add_verify(app, action);
  tfcc::tools::add_bench(app, action);
  tfcc::tools::add_inspect(app, action);
  tfcc::tools::add_opt(app, action);
  tfcc::tools::add_tune(app, action);
  app.footer("Start with: tfcc compile model.onnx, then tfcc run model.tfcc --random");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    std::fprintf(stderr, "tfcc: usage: %s; tfcc --help tells more\n", wrong_usage(app, argc, argv, e).c_str());
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
    std::fprintf(stderr, "tfcc: %s\n", message.c_str());
    return message.rfind("usage: ", 0) == 0 ? 2 : 1;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "tfcc: out of memory\n");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "tfcc: internal error: %s\n", e.what());
  }
  return 1;
}
