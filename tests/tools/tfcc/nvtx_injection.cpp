// SPDX-License-Identifier: Apache-2.0
// A profiler for tests, as NVTX loads one: writes the ranges it is told of to the file
// $TFCC_RANGES, a line each, indented by depth.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>

namespace {

std::FILE* out = nullptr;
int depth = 0;

int push(const char* name) {
  std::fprintf(out, "%*s%s\n", 2 * depth, "", name);
  return depth++;
}

int pop() {
  if (depth == 0) std::fprintf(out, "a range too many is closed\n");
  return --depth;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table) {
  const char* path = std::getenv("TFCC_RANGES");
  out = path ? std::fopen(path, "w") : nullptr;
  auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (!out || !callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size))
    return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  std::atexit([] {
    if (depth != 0) std::fprintf(out, "%d ranges stay open\n", depth);
    std::fclose(out);
  });
  return 1;
}
