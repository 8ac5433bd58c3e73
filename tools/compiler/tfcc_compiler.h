/* SPDX-License-Identifier: Apache-2.0
 * The C API of the compiler: an ONNX model in, a .tfcc file out, by libtfcc_compiler.so. Programs that only run files do without it.
 * Needs C99 and its standard headers.
 *
 *     tfcc_compile_options options;
 *     tfcc_compile_options_init(&options);
 *     options.targets = "cpu,sm_90";
 *     options.precision = "f16";
 *     if (tfcc_compile("model.onnx", "model.tfcc", &options, NULL)) puts(tfcc_compile_last_error());
 *
 * Any number of threads may compile at the same time. No function prints or throws; a failure leaves no file behind. */
#ifndef TFCC_COMPILER_H_
#define TFCC_COMPILER_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define TFCC_COMPILER_API __attribute__((visibility("default")))
#else
#define TFCC_COMPILER_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** Options of compiling, those of `tfcc compile`: a member is the option of its name, lists are texts with commas, NULL is an option left
 * out, and so is 0. Begin with tfcc_compile_options_init(): later versions may add members at the end. */
typedef struct {
  size_t struct_size;  /**< set by tfcc_compile_options_init() */
  const char* targets; /**< "cpu,sm_90", "cuda"; NULL: the GPU that is there, else cpu */
  const char* cpu;     /**< levels of CPU that the target cpu stands for: "native,x86-64-v3" */
  const char*
      precision; /**< of products on GPUs: "f16", "bf16", "tf32" or "tf32x3"; NULL: as exported */
  const char* passes; /**< these passes in place of the default ones; "": none */
  const char* skip_passes;
  const char* min_shapes; /**< "input_ids:1x8" or "batch_size=1" */
  const char* opt_shapes;
  const char* max_shapes;
  const char* seq_buckets; /**< "64,128,512" */
  int64_t max_batch;
  int64_t max_tokens;
  const char* tokenizer;    /**< a folder whose tokenizer is kept in the file */
  const char* timing_cache; /**< a file of `tfcc tune` */
  const char* cache_dir;    /**< where compiled kernels are kept; NULL: $XDG_CACHE_HOME/tfcc */
  const char* dump_ir;      /**< a folder for the graph after every pass */
  int no_cache;
  int keep_padding;
  int allow_batch_variance;
  int literal_only;
  int strict;
  int strip;
  int threads; /**< that compile kernels and make weights, at most 4096; 0: one per core */
  /** How far it is: "compiling kernels" 3 of 40. By one thread at a time, not always the same one. NULL: nobody is told. */
  void (*progress)(const char* stage, size_t done, size_t total, void* user);
  /** Each line that there is to say: warnings, what an option came to mean, advice. By the calling thread. NULL: nobody is told. */
  void (*log)(const char* line, void* user);
  void* user;
  const char*
      roles; /**< what inputs of a decoder are for, if their names do not tell: "tokens_in=ids,where=positions" */
  const char*
      cpu_weights; /**< of products on the CPU, which computes in f32: "bf16"; NULL: as exported */
  int generate_only; /**< a decoder: leave out the graph as it was exported; excludes literal_only */
  int ragged; /**< also make a program for tokens without padding; excludes keep_padding and generate_only */
} tfcc_compile_options;

/** All options left out. Not a function of the library, so that it writes what this header declares and no more. */
static inline void tfcc_compile_options_init(tfcc_compile_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = sizeof *options;
}

/** Compiles the model in a file, .onnx or .tfir, and writes `output`, whole or not at all. Returns 0 or a tfcc_status (tfcc_c.h):
 * invalid_argument (options, or an output that is an input), unsupported, bad_file, shape, device (no NVRTC), memory, io, internal.
 * `options` may be NULL. `report`, if not NULL, receives what was done as JSON (docs/report.md), to be freed by tfcc_compile_free(). */
TFCC_COMPILER_API int tfcc_compile(const char* model, const char* output,
                                   const tfcc_compile_options* options, char** report);

/** The same of an ONNX model in memory, without external data; messages call it `name`. */
TFCC_COMPILER_API int tfcc_compile_memory(const void* model, size_t bytes, const char* name,
                                          const char* output, const tfcc_compile_options* options,
                                          char** report);

TFCC_COMPILER_API void tfcc_compile_free(char* report);

/** The line of the last failure in this thread; "" if there was none. Valid until the thread's next failure. */
TFCC_COMPILER_API const char* tfcc_compile_last_error(void);

/** "0.1.0"; a file runs with a libtfcc of the same or a later version of its major number. */
TFCC_COMPILER_API const char* tfcc_compile_version(void);

#ifdef __cplusplus
}
#endif
#endif
