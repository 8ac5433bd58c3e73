// SPDX-License-Identifier: Apache-2.0
// How far two tensors are apart: what verify and bench print for an output, and what verify's
// bisection goes by.
#pragma once

#include <string>

#include "ir/ir.h"
#include "tools/tfcc/verify_cases.h"

namespace tfcc::tools {

struct Difference {
  double max_abs = 0, relative = 0;  // relative L2; infinite if there is a problem
  std::string problem;               // not comparable at all
};

/// Over the elements that are defined. A real beyond the range of `got`'s type may be infinite
/// there. Elements of 1e30 and more are masks: each counts as 1, so that they do not hide the
/// others.
Difference compare(const ir::HostTensor& got, const ir::HostTensor& want, const Defined& defined);

/// "max abs error 1.2e-07, relative L2 3.4e-08", or the problem.
std::string to_string(const Difference& d);

}  // namespace tfcc::tools
