// SPDX-License-Identifier: Apache-2.0
// What the sizes of a graph count: told once, after import, from the inputs that they are read off.
#pragma once

#include "frontend/import/import.h"

namespace tfcc::frontend {

/// Gives symbols their roles, and adds `tokens`, the product of the batch and the length (and of
/// what lies between them), where more than one number goes into it. `ranges` may bound it by that
/// name.
///
/// - batch and length: the first and the token axis of an input that has tokens, the first of these
///   forms that there is: ids and masks [batch, length], boxes [batch, length, 4], reals [batch,
///   length, features..], [batch, channels, length], [batch, heads, length, width] or [batch,
///   samples], ids [batch, choices, length], reals [batch, length, width] of no fixed size. Of
///   several ids and masks it is that of which an output has a row for each token. No batch is a
///   later axis of another input (a mask [queries, keys]). Features, channels, heads and the sides
///   of an image are no tokens; a cache has no length. Where no input has tokens, the batch is the
///   first axis of the first input.
/// - past: a size of a cache, [batch, heads, past, width] or [batch, past, heads, width] of reals,
///   that may be 0 while the outputs keep elements.
/// - context: with a past, the second axis of ids or masks [batch, context] where it is a size of
///   its own.
void tell_roles(ir::Graph& graph, const SizeRanges& ranges);

}  // namespace tfcc::frontend
