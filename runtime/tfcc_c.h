/* SPDX-License-Identifier: Apache-2.0
 * The C API of the tfcc runtime, over tfcc.h: the same model, executor and rules. The stable ABI: a program built against
 * one version runs with every later version of the same major number (libtfcc.so.0). Needs C99 and its standard headers.
 *
 *     tfcc_model* model = NULL;
 *     tfcc_executor* executor = NULL;
 *     if (tfcc_model_load("model.tfcc", NULL, &model) || tfcc_executor_create(model, &executor)) puts(tfcc_last_error());
 *     int64_t shape[] = {batch, length};
 *     tfcc_tensor ids = {.data = ids_data, .dtype = TFCC_I64, .place = TFCC_HOST, .rank = 2, .shape = shape};
 *     tfcc_executor_set(executor, "input_ids", &ids);
 *     tfcc_executor_run(executor);
 *     tfcc_tensor out;
 *     tfcc_executor_output(executor, "last_hidden_state", &out);
 *     tfcc_executor_free(executor);
 *     tfcc_model_free(model);
 *
 * Every function that can fail returns a tfcc_status; 0 is success. tfcc_last_error() is then one line for this thread:
 * what it is about, where, and the way out. No function prints or throws; NULL handles are an invalid_argument. */
#ifndef TFCC_C_H_
#define TFCC_C_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TFCC_C_API __attribute__((visibility("default")))
#else
#define TFCC_C_API
#endif

#ifdef __cplusplus
extern "C" {
#define TFCC_INT : int /* every int is a value of the enum then, so that a wrong one can be refused */
#else
#define TFCC_INT
#endif

/** What kind of failure it is; the numbers never change. */
typedef enum TFCC_INT {
  TFCC_OK = 0,
  TFCC_INVALID_ARGUMENT = 1, /**< wrong name, dtype or value given by the caller */
  TFCC_UNSUPPORTED = 2,      /**< understood, but tfcc cannot do it */
  TFCC_BAD_FILE = 3,         /**< not the file it claims to be, truncated or altered */
  TFCC_SHAPE = 4,            /**< sizes that do not fit */
  TFCC_DEVICE = 5,           /**< no such device, driver or library, or a failure on it */
  TFCC_MEMORY = 6,           /**< allocation failed */
  TFCC_IO = 7,               /**< a file could not be read */
  TFCC_INTERNAL = 8          /**< a defect in tfcc */
} tfcc_status;

/** Element type; the numbers are those of the artifact and never change. */
typedef enum TFCC_INT {
  TFCC_F32 = 0,
  TFCC_F16 = 1,
  TFCC_BF16 = 2,
  TFCC_F64 = 3,
  TFCC_I64 = 4,
  TFCC_I32 = 5,
  TFCC_I16 = 6,
  TFCC_I8 = 7,
  TFCC_U8 = 8,
  TFCC_BOOL = 9
} tfcc_dtype;

/** Where a tensor's memory is. */
typedef enum TFCC_INT { TFCC_HOST = 0, TFCC_ON_DEVICE = 1 } tfcc_place;

/** A loaded file; immutable, may be used by any thread. */
typedef struct tfcc_model tfcc_model;
/** Runs a model; one per thread (and stream): while one call is under way, a second to the same executor is an
 * invalid_argument and does nothing. Keeps its model alive. */
typedef struct tfcc_executor tfcc_executor;

/** A tensor: row-major, dense, `rank` sizes in `shape`. Nothing here is owned by the struct. */
typedef struct {
  void* data;
  tfcc_dtype dtype;
  tfcc_place place;
  size_t rank;
  const int64_t* shape;
} tfcc_tensor;

/** One dim of an input or output. */
typedef struct {
  const char* text; /**< "768", "batch_size", "batch_size*12" */
  int64_t min;      /**< smallest and largest size accepted; equal if fixed */
  int64_t max;      /**< 0: no limit */
} tfcc_dim_info;

/** Name, type and dims of a graph input or output; valid as long as the model. */
typedef struct {
  const char* name;
  tfcc_dtype dtype;
  size_t rank;
  const tfcc_dim_info* dims;
} tfcc_tensor_info;

/** Options of loading. Begin with tfcc_load_options_init(): later versions may add members at the end. */
typedef struct {
  size_t struct_size; /**< set by tfcc_load_options_init() */
  const char* device; /**< "auto", "cpu", "cuda", "cuda:1" */
  int threads;        /**< CPU: threads of a run, at most 4096; 0 is one per physical core */
  int verify_weights; /**< also check the checksums of all weights */
  int graphs;         /**< CUDA: replay captured launches (the default, 1) */
  const char*
      code_dir; /**< CPU: where to put the code if memory files may not be executed; NULL: the default */
  void (*log)(const char* line,
              void* user); /**< receives what the library would otherwise print; NULL: nobody */
  void* log_user;
  int in_memory; /**< read the file into memory in place of mapping it: it may change afterwards */
  uint64_t
      cache_bytes; /**< most memory for what executors keep of shapes seen before, all of a model together */
} tfcc_load_options;

/** What an executor has done since it was made; the fields of tfcc::ExecutorStats. */
typedef struct {
  uint64_t graphs_made;
  uint64_t device_allocations;
  uint64_t modules_loaded;
  uint64_t plain_runs;
  uint64_t graph_runs;
} tfcc_executor_stats;

/** "0.1.0" */
TFCC_C_API const char* tfcc_version(void);
/** The line of the last failure in this thread; "" if there was none. Valid until the thread's next failure. */
TFCC_C_API const char* tfcc_last_error(void);
/** "ok", "invalid_argument", ... */
TFCC_C_API const char* tfcc_status_name(tfcc_status status);
/** "f32", ...; NULL for a number that is no type. */
TFCC_C_API const char* tfcc_dtype_name(tfcc_dtype dtype);
/** Bytes of one element; 0 for a number that is no type. */
TFCC_C_API size_t tfcc_dtype_size(tfcc_dtype dtype);

TFCC_C_API void tfcc_load_options_init(tfcc_load_options* options);
/** Loads a file; `options` may be NULL. On the CPU the weights stay in the mapped file, which must not be changed in place
 * while the model lives (replacing or removing it is fine), or `in_memory`. Errors: invalid_argument (options), io, bad_file,
 * device, memory. */
TFCC_C_API tfcc_status tfcc_model_load(const char* path, const tfcc_load_options* options,
                                       tfcc_model** model);
/** The same from memory, which must stay valid as long as the model and its executors. */
TFCC_C_API tfcc_status tfcc_model_load_memory(const void* file, size_t bytes,
                                              const tfcc_load_options* options, tfcc_model** model);
/** The program that takes tokens without padding (`tfcc compile --ragged`, docs/ragged.md): its own model, to be freed, on the
 * same device and with the same weights. Give tokens with tfcc_executor_set() as [tokens, ..], sequence after sequence, and as
 * "cu_seqlens" 0 and where each ends: TFCC_I32 or TFCC_I64 of the host, which is copied. Errors: unsupported (there is none, and
 * why), bad_file, memory, device. */
TFCC_C_API tfcc_status tfcc_model_ragged(const tfcc_model* model, tfcc_model** ragged);
TFCC_C_API void tfcc_model_free(tfcc_model* model);
TFCC_C_API size_t tfcc_model_input_count(const tfcc_model* model);
TFCC_C_API size_t tfcc_model_output_count(const tfcc_model* model);
/** Errors: invalid_argument (no such index). */
TFCC_C_API tfcc_status tfcc_model_input(const tfcc_model* model, size_t index,
                                        tfcc_tensor_info* info);
TFCC_C_API tfcc_status tfcc_model_output(const tfcc_model* model, size_t index,
                                         tfcc_tensor_info* info);
/** Name of the target that runs: "sm_90", "x86-64-v3". */
TFCC_C_API const char* tfcc_model_target(const tfcc_model* model);
/** What it runs on: "NVIDIA H200", "cpu". */
TFCC_C_API const char* tfcc_model_device(const tfcc_model* model);

/** Errors: memory, device. */
TFCC_C_API tfcc_status tfcc_executor_create(const tfcc_model* model, tfcc_executor** executor);
TFCC_C_API void tfcc_executor_free(tfcc_executor* executor);
/** Gives an input, or the memory an output is written to (optional for tfcc_executor_run). Keeps the data pointer until the
 * next set of that name; the shape is copied. Errors: invalid_argument (unknown name, wrong dtype), shape. */
TFCC_C_API tfcc_status tfcc_executor_set(tfcc_executor* executor, const char* name,
                                         const tfcc_tensor* tensor);
/** Forgets the memory given for an input or output. Errors: invalid_argument (unknown name). */
TFCC_C_API tfcc_status tfcc_executor_clear(tfcc_executor* executor, const char* name);
/** Makes everything ready for these shapes of the inputs `names`; of the tensors rank and shape alone are read.
 * Errors: invalid_argument, shape, memory. */
TFCC_C_API tfcc_status tfcc_executor_prepare(tfcc_executor* executor, size_t count,
                                             const char* const* names, const tfcc_tensor* shapes);
/** The same for these shapes and all smaller ones. */
TFCC_C_API tfcc_status tfcc_executor_prepare_all(tfcc_executor* executor, size_t count,
                                                 const char* const* names,
                                                 const tfcc_tensor* largest);
/** Host tensors in and out; returns when the results are there. Errors: invalid_argument, shape, memory, device. */
TFCC_C_API tfcc_status tfcc_executor_run(tfcc_executor* executor);
/** Launches on the caller's stream (a CUstream or cudaStream_t) with device memory set for every input and output, and
 * returns at once. Errors: as tfcc_executor_run; unsupported on the CPU. */
TFCC_C_API tfcc_status tfcc_executor_enqueue(tfcc_executor* executor, void* stream);
/** Rank and sizes of an output for the inputs set so far: writes at most `capacity` sizes. */
TFCC_C_API tfcc_status tfcc_executor_output_shape(const tfcc_executor* executor, const char* name,
                                                  size_t capacity, int64_t* shape, size_t* rank);
/** An output of the last tfcc_executor_run, in host memory; data and shape are valid until the executor's next run. */
TFCC_C_API tfcc_status tfcc_executor_output(tfcc_executor* executor, const char* name,
                                            tfcc_tensor* tensor);
/** What the kernels flagged since the last call, e.g. ids that were clamped; waits for the device. */
TFCC_C_API tfcc_status tfcc_executor_status(tfcc_executor* executor);
TFCC_C_API tfcc_status tfcc_executor_get_stats(const tfcc_executor* executor,
                                               tfcc_executor_stats* stats);
/** Bytes of the arena held now. */
TFCC_C_API size_t tfcc_executor_arena_bytes(const tfcc_executor* executor);

/* ---- text generation with a decoder: tfcc::Generator of generate.h ---- */

/** Answers many prompts at once, each as if it were alone. Its functions may be called by any thread, but for
 * tfcc_generator_free(), which no other call may overlap. Keeps its model alive. */
typedef struct tfcc_generator tfcc_generator;

/** Begin with tfcc_generator_options_init(): later versions may add members at the end. */
typedef struct {
  size_t struct_size; /**< set by tfcc_generator_options_init() */
  int64_t
      max_context; /**< most tokens of a prompt and its answer; 0: what the file allows, at most 4096 */
  int64_t max_sequences; /**< computed at a time (16); others wait, first come first served */
  int64_t prompt_chunk;  /**< most tokens of prompts in a step (512), which others wait for */
  uint64_t
      cache_bytes; /**< for keys, values and sums of linear attention; 0: for max_sequences of max_context, as far as half of the free memory goes */
  int prefix_sharing; /**< prompts that begin as an earlier one are computed from where they differ (1); not with linear attention */
  int literal; /**< run the graph as it was exported, though the file has a program for generation (0) */
  int run_ahead; /**< begin a step before the tokens of the last one are known to the host, where all sequences go on; -1: on a GPU (-1) */
  uint64_t
      swap_bytes; /**< most memory of the host for what sequences hold that give their place in the cache to older ones; the others are computed again; UINT64_MAX: as much as the cache has (UINT64_MAX) */
} tfcc_generator_options;

/** What is asked for with a prompt, and how tokens are chosen. Begin with tfcc_generate_options_init(), which makes it greedy. */
typedef struct {
  size_t struct_size; /**< set by tfcc_generate_options_init() */
  int64_t max_tokens; /**< of the answer (256) */
  size_t stop_count;  /**< the answer ends before one of so many ids */
  const int32_t* stop_ids;
  float repetition_penalty; /**< 1: none */
  float temperature;        /**< 0: the likeliest token, and the members below do nothing */
  int32_t top_k;            /**< 0: all */
  float top_p;              /**< 1: all */
  float min_p;              /**< 0: all */
  uint64_t seed;
  /** Called for each token, in order, by a thread of this sequence; what it returns but 0 cancels the sequence. It may call any function
   * of the generator but tfcc_generator_wait() for its own sequence and tfcc_generator_free(). NULL: nobody. */
  int (*on_token)(int32_t id, void* user);
  void* user;
  int log_probabilities; /**< tfcc_generated has them (0) */
} tfcc_generate_options;

/** Why an answer ended; the numbers never change. */
typedef enum TFCC_INT {
  TFCC_RUNNING = 0,
  TFCC_END_STOP = 1,    /**< at one of the stop ids */
  TFCC_END_LENGTH = 2,  /**< after max_tokens */
  TFCC_END_CONTEXT = 3, /**< no place is left in the context */
  TFCC_END_CANCELLED = 4,
  TFCC_END_FAILED = 5 /**< `error` says why */
} tfcc_generate_end;

/** What has been generated for a prompt; give it back with tfcc_generated_free(). */
typedef struct {
  const int32_t* tokens;
  size_t count;
  tfcc_generate_end end;
  const char* error;     /**< "" unless it failed */
  double first_token_ms; /**< from submit to the first token, and to the end */
  double total_ms;
  const float*
      log_probabilities; /**< of each token, by the model alone: before penalty and temperature; NULL if they were not asked for */
} tfcc_generated;

/** The fields of tfcc::GeneratorStats. */
typedef struct {
  int64_t waiting, running;
  int64_t prompt_tokens, tokens;
  uint64_t cache_bytes;
  int64_t pages, pages_held, shared_tokens, preempted;
  int64_t steps, steps_ahead;
  int64_t swapped;
  double host_ms;
  double busy_ms;
} tfcc_generator_stats;

TFCC_C_API void tfcc_generator_options_init(tfcc_generator_options* options);
TFCC_C_API void tfcc_generate_options_init(tfcc_generate_options* options);
/** `options` may be NULL. Errors: unsupported (the model is no decoder, or an input has no role), invalid_argument, memory, device. */
TFCC_C_API tfcc_status tfcc_generator_create(const tfcc_model* model,
                                             const tfcc_generator_options* options,
                                             tfcc_generator** generator);
/** Cancels what is under way, and returns when no callback runs any more. */
TFCC_C_API void tfcc_generator_free(tfcc_generator* generator);
/** Asks for an answer to `count` ids, which are copied; `options` may be NULL. Returns at once, with the sequence's number.
 * Errors: invalid_argument (an empty prompt, an id outside the vocabulary, options out of range), shape (longer than the context). */
TFCC_C_API tfcc_status tfcc_generator_submit(tfcc_generator* generator, const int32_t* prompt,
                                             size_t count, const tfcc_generate_options* options,
                                             uint64_t* id);
/** What there is so far. Errors: invalid_argument (no such sequence, or its end was waited for). */
TFCC_C_API tfcc_status tfcc_generator_poll(const tfcc_generator* generator, uint64_t id,
                                           tfcc_generated** generated);
/** Waits for the end, and forgets the sequence. Errors: as tfcc_generator_poll(). A sequence that failed is no error of the call. */
TFCC_C_API tfcc_status tfcc_generator_wait(tfcc_generator* generator, uint64_t id,
                                           tfcc_generated** generated);
/** Ends a sequence soon. One that has ended or is not known stays as it is. */
TFCC_C_API tfcc_status tfcc_generator_cancel(tfcc_generator* generator, uint64_t id);
TFCC_C_API void tfcc_generated_free(tfcc_generated* generated);
TFCC_C_API tfcc_status tfcc_generator_get_stats(const tfcc_generator* generator,
                                                tfcc_generator_stats* stats);
TFCC_C_API int64_t tfcc_generator_max_context(const tfcc_generator* generator);
TFCC_C_API int64_t tfcc_generator_vocabulary_size(const tfcc_generator* generator);

#ifdef __cplusplus
}
#endif

#endif /* TFCC_C_H_ */
