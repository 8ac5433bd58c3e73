// SPDX-License-Identifier: Apache-2.0
// The `tfcc` command. Results go to stdout, everything else to stderr. Exit codes: 0 success, 1 failure, 2 wrong usage.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "tools/tfcc/command.h"

int main(int argc, char** argv) {
  CLI::App app{"tfcc: an ahead-of-time compiler for transformers. ONNX in, one .tfcc file out."};
  app.name("tfcc");
  app.set_version_flag("--version", "tfcc " TFCC_VERSION);
  app.require_subcommand(1);
  tfcc::tools::Action action;
  tfcc::tools::add_compile(app, action);
  tfcc::tools::add_run(app, action);
  tfcc::tools::add_verify(app, action);
  tfcc::tools::add_inspect(app, action);
  tfcc::tools::add_opt(app, action);
  app.footer("Start with: tfcc compile model.onnx, then tfcc run model.tfcc --random");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  try {
    tfcc::Result<void> result = action();
    if (result) return 0;
    const std::string& message = result.error().message;
    std::fprintf(stderr, "tfcc: %s\n", message.c_str());
    return message.rfind("usage: ", 0) == 0 ? 2 : 1;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "tfcc: out of memory\n");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "tfcc: internal error: %s\n", e.what());
  }
  return 1;
}
