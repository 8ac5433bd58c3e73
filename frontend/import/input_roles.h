// SPDX-License-Identifier: Apache-2.0
// What the inputs of a graph say: told once, after import, and never guessed later.
#pragma once

#include "ir/graph.h"

namespace tfcc::frontend {

/// Gives inputs their roles, by type and dims, and by name where these do not decide. Needs the
/// roles of sizes.
///
/// - mask: whole numbers [batch, past and new tokens]; or a name with `mask` in it.
/// - types, positions, ids: whole numbers whose name has `type` or `segment`, `position`, or `ids`
///   or `tokens` in it, in this order.
///
/// Others have none: whole numbers [batch, length] under a strange name may be ids, and the option
/// `--role` tells.
void tell_input_roles(ir::Graph& graph);

}  // namespace tfcc::frontend
