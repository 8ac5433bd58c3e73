// SPDX-License-Identifier: Apache-2.0
// The C API over compile(): options from C, failures as status codes with a message for the thread.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>

#include "frontend/onnx/onnx_reader.h"
#include "runtime/tfcc_c.h"
#include "tools/compiler/compiler.h"
#include "tools/compiler/report.h"
#include "tools/compiler/tfcc_compiler.h"
#include "tools/support/usage.h"

namespace {

using tfcc::Error;
using tfcc::ErrorCode;
using tfcc::Result;
using tfcc::tools::split;
namespace compiler = tfcc::compiler;

static_assert(TFCC_INVALID_ARGUMENT == static_cast<int>(ErrorCode::invalid_argument) + 1);
static_assert(TFCC_INTERNAL == static_cast<int>(ErrorCode::internal) + 1);

thread_local std::string last_error;

int failed(const Error& error) {
  last_error = tfcc::frontend::escaped_lines(error.message);
  // Of the compiler's options; in C they are arguments.
  if (error.code == ErrorCode::usage) return TFCC_INVALID_ARGUMENT;
  return static_cast<int>(error.code) + 1;
}

std::string text(const char* given) { return given ? given : ""; }

compiler::Options options_of(const tfcc_compile_options& c) {
  compiler::Options o;
  if (c.targets) o.targets = split(c.targets);
  o.cpu_levels = split(text(c.cpu));
  if (!o.cpu_levels.empty()) compiler::add_cpu(o);
  o.precision = text(c.precision);
  o.cpu_weights = text(c.cpu_weights);
  o.roles = compiler::parse_roles(split(text(c.roles)));
  if (c.passes) o.passes = split(c.passes);
  o.skip_passes = split(text(c.skip_passes));
  o.sizes = {text(c.min_shapes),  text(c.opt_shapes), text(c.max_shapes),
             text(c.seq_buckets), c.max_batch,        c.max_tokens};
  o.tokenizer = text(c.tokenizer);
  o.timing_cache = text(c.timing_cache);
  o.cache.dir = text(c.cache_dir);
  o.cache.enabled = c.no_cache == 0;
  o.keep_padding = c.keep_padding != 0;
  o.batch_variance = c.allow_batch_variance != 0;
  o.literal_only = c.literal_only != 0;
  o.generate_only = c.generate_only != 0;
  o.ragged = c.ragged != 0;
  o.strict = c.strict != 0;
  o.strip = c.strip != 0;
  o.threads = c.threads;
  if (c.progress) {
    o.progress = [=](const std::string& stage, size_t done, size_t total) {
      c.progress(stage.c_str(), done, total, c.user);
    };
  }
  return o;
}

void say(const tfcc_compile_options& c, const std::string& line) {
  if (c.log && !line.empty()) c.log(tfcc::frontend::escaped_lines(line).c_str(), c.user);
}

Result<std::string> compile(const compiler::Source& source, const char* output,
                            const tfcc_compile_options& given) {
  tfcc::tools::Files files;
  compiler::Options options = options_of(given);
  if (given.dump_ir && source.in_memory()) {
    return Error{
        ErrorCode::invalid_argument,
        "graphs of a model in memory cannot be dumped: they would name a file of weights that is not there; give the path of the model"};
  }
  options.on_graph = compiler::dump_graphs(text(given.dump_ir), source.path, files);
  TFCC_TRY(const compiler::Compiled done, compiler::compile(source, output, options, files));
  for (const std::string& line : done.optimised.import.warnings) say(given, line);
  for (const std::string& line : done.optimised.notes) say(given, line);
  for (const tfcc::codegen::KernelResult& k : done.code.kernels) {
    if (k.spill_bytes > 0)
      say(given, fmt::format("kernel {} spills {} bytes on {}", k.name, k.spill_bytes, k.target));
  }
  say(given, compiler::advice(done.optimised, done.code, options));
  return compiler::report_of(done.optimised, done.code)
      .dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// No exception crosses the boundary, and options of an older header keep the defaults of what they
// lack.
int guarded(const compiler::Source& source, const char* output, const tfcc_compile_options* options,
            char** report) {
  try {
    if (source.path.empty() || !output || !*output)
      return failed({ErrorCode::invalid_argument,
                     "a model and an output are needed, of which one is NULL or empty"});
    tfcc_compile_options all;
    tfcc_compile_options_init(&all);
    if (options && options->struct_size < sizeof all.struct_size)
      return failed({ErrorCode::invalid_argument,
                     "the options were not begun with tfcc_compile_options_init()"});
    if (options) std::memcpy(&all, options, std::min(options->struct_size, sizeof all));
    const Result<std::string> done = compile(source, output, all);
    if (!done) return failed(done.error());
    if (!report) return TFCC_OK;
    *report = static_cast<char*>(std::malloc(done->size() + 1));
    if (!*report) return failed({ErrorCode::memory, "out of memory"});
    std::memcpy(*report, done->c_str(), done->size() + 1);
    return TFCC_OK;
  } catch (const std::bad_alloc&) {
    return failed({ErrorCode::memory, "out of memory"});
  } catch (const std::exception& e) {
    return failed({ErrorCode::internal, e.what()});
  }
}

}  // namespace

extern "C" {

int tfcc_compile(const char* model, const char* output, const tfcc_compile_options* options,
                 char** report) {
  return guarded({text(model)}, output, options, report);
}

int tfcc_compile_memory(const void* model, size_t bytes, const char* name, const char* output,
                        const tfcc_compile_options* options, char** report) {
  static constexpr std::byte kNothing[1] = {};
  const std::byte* first = model && bytes > 0 ? static_cast<const std::byte*>(model) : kNothing;
  return guarded({name && *name ? name : "model.onnx", {first, model ? bytes : 0}}, output, options,
                 report);
}

void tfcc_compile_free(char* report) { std::free(report); }

const char* tfcc_compile_last_error(void) { return last_error.c_str(); }

const char* tfcc_compile_version(void) { return TFCC_VERSION; }

}  // extern "C"
