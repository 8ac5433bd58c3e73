// SPDX-License-Identifier: Apache-2.0
// What a plan leaves open, timed inside the captured graph: for `tfcc tune`. Internal: the library
// does not export it.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "runtime/result.h"
#include "runtime/tfcc.h"

namespace tfcc::runtime {

/// What tune_graph() found at the sizes of one run.
struct GraphTuning {
  size_t measured = 0;                 // tiles of products of ours, and algorithms of the library
  size_t changed = 0;                  // of these, others than would have been taken; kept
  double before_us = 0, after_us = 0;  // a run by what was there, and by what is kept
};

/// Times the executor's inputs with every tile of each product that has several, and with what the
/// library offers for those that it was asked for by this executor (LoadOptions::tune), one product
/// after the other, each in a graph of the whole run. A product timed alone has the caches and the
/// multiprocessors to itself. What makes the run shorter is taken; all of it is kept if together it
/// saves more than 2%, else the timing cache says that nothing does. What the cache knows is not
/// measured again. Nothing is measured where the sizes have no graph, as on a CPU. Values that the
/// model refuses are no error. Errors: as Executor::run(), invalid_argument for an empty run, io.
Result<GraphTuning> tune_graph(Executor& executor);

/// The sizes of inputs, by name, that fill each bucket of shapes up to these; without shapes up to
/// the largest that the file names. Empty on a CPU. Errors: as Executor::prepare_all().
Result<std::vector<std::map<std::string, int64_t>>> runs_of_buckets(Executor& executor,
                                                                    const Shapes& largest);

}  // namespace tfcc::runtime
