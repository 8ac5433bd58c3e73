/* SPDX-License-Identifier: Apache-2.0
 * Compiles a model in a program of one's own, in C: what `tfcc compile MODEL -o OUTPUT --target cpu` does. */
#include <stdio.h>
#include <string.h>

#include "compiler/tfcc_compiler.h"

static void say(const char* line, void* user) {
  (void)user;
  fprintf(stderr, "note: %s\n", line);
}

int main(int count, char** words) {
  if (count != 3) {
    fprintf(stderr, "usage: compile_c MODEL.onnx OUTPUT.tfcc\n");
    return 2;
  }
  tfcc_compile_options options;
  tfcc_compile_options_init(&options);
  options.targets = "cpu";
  options.log = say;
  char* report = NULL; /* JSON: docs/report.md */
  if (tfcc_compile(words[1], words[2], &options, &report) != 0) {
    fprintf(stderr, "%s\n", tfcc_compile_last_error());
    return 1;
  }
  int kernels = 0;
  for (const char* at = report; (at = strstr(at, "\"spill_bytes\"")) != NULL; ++at) ++kernels;
  printf("wrote %s: %d kernels\n", words[2], kernels);
  tfcc_compile_free(report);
  return 0;
}
