/* SPDX-License-Identifier: Apache-2.0
 * The smallest program in C: loads a BERT-like model, runs two short sequences, prints one number.
 *
 *     minimal_c MODEL.tfcc
 */
#include <stdio.h>

#include "runtime/tfcc_c.h"

static tfcc_status run(const char* path, tfcc_model** model, tfcc_executor** executor) {
  int64_t ids[] = {1, 5, 2, 1, 2, 0}, mask[] = {1, 1, 1, 1, 1, 0}, types[6] = {0};
  const int64_t shape[] = {2, 3};
  const char* names[] = {"input_ids", "attention_mask", "token_type_ids"};
  void* data[] = {ids, mask, types};
  tfcc_status status = tfcc_model_load(path, NULL, model);
  if (status == TFCC_OK) status = tfcc_executor_create(*model, executor);
  for (int k = 0; k < 3 && status == TFCC_OK; ++k) {
    const tfcc_tensor tensor = {data[k], TFCC_I64, TFCC_HOST, 2, shape};
    status = tfcc_executor_set(*executor, names[k], &tensor);
  }
  if (status == TFCC_OK) status = tfcc_executor_run(*executor);

  tfcc_tensor hidden;
  if (status == TFCC_OK) status = tfcc_executor_output(*executor, "last_hidden_state", &hidden);
  if (status == TFCC_OK) {
    printf("%s: %s, first value %g\n", tfcc_model_device(*model), tfcc_dtype_name(hidden.dtype), (double)((const float*)hidden.data)[0]);
  }
  return status;
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: minimal_c MODEL.tfcc\n");
    return 2;
  }
  tfcc_model* model = NULL;
  tfcc_executor* executor = NULL;
  const tfcc_status status = run(argv[1], &model, &executor);
  if (status != TFCC_OK) fprintf(stderr, "minimal_c: %s\n", tfcc_last_error());
  tfcc_executor_free(executor);
  tfcc_model_free(model);
  return status == TFCC_OK ? 0 : 1;
}
