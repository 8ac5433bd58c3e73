// SPDX-License-Identifier: Apache-2.0
// The largest elements along an axis, for TopK and for what contains it. Internal to frontend/.
#pragma once

#include "frontend/import/importer.h"

namespace tfcc::frontend {

/// The first `count` elements along `axis` in falling order, if not `largest` in rising, and where
/// they stand. Of equal ones the first comes first; NaN counts as the largest, as in numpy. Needs 0
/// <= count <= the length of the axis.
struct Best {
  ValueId values, places;  // places: i64, of elements that there are
};
Best best_of(Importer& im, ValueId x, size_t axis, ExprRef count, bool largest);

}  // namespace tfcc::frontend
