// SPDX-License-Identifier: Apache-2.0
// How a model became a plan, read off the texts of a .tfcc file: the imported graph, the final one,
// which node went where, and what belongs to which layer of the model.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "tools/tfcc/inspect.h"

namespace tfcc::tools {

/// An op of a graph that is shown: constants are left out.
struct StoryOp {
  ir::OpId op;
  std::string name;           // its first result
  std::string line;           // as in the text form
  std::string label;          // "MatMul" before, "matmul" after
  size_t part = 0;            // of Story::parts
  std::vector<size_t> nodes;  // ONNX nodes that it stands for
  std::vector<size_t>
      partners;  // before: the final ops that took it over; after: the imported ops that it stands for
  std::vector<std::string> passes;  // after: those that made it
  std::optional<size_t> launch;     // after: the launch that computes it, in the bucket that runs
};

/// A layer of the model, or what lies before or after the layers.
struct StoryPart {
  std::string title;
  std::vector<size_t> before, after;  // ops
  size_t like = SIZE_MAX;             // the first part that looks the same, if that is another one
};

struct Story {
  struct Node {
    std::string name, op;
    size_t ops = 0;
  };  // ops: how many it left in the imported graph

  ir::Graph imported, final;
  std::vector<Node> nodes;  // of the model
  std::vector<StoryOp> before, after;
  std::vector<StoryPart> parts;

  /// What a file says of one plan. Errors: invalid_argument (a text is missing), bad_file (a text
  /// makes no sense).
  static Result<Story> read(const InspectedFile& file, const runtime::Plan& plan);
};

/// The parts of a plan's launches alone, for a file without texts: titles, and the part of each
/// launch.
struct LaunchParts {
  std::vector<std::string> titles;
  std::vector<size_t> part_of_launch;
};
LaunchParts launch_parts(const InspectedFile& file, const runtime::Plan& plan,
                         const runtime::Bucket& bucket);

/// The bucket that runs at the file's sizes, else the last.
const runtime::Bucket& shown_bucket(const InspectedFile& file, const runtime::Plan& plan);

}  // namespace tfcc::tools
