// SPDX-License-Identifier: Apache-2.0
// Which arm executes a product, and with what tile. Every choice is made here.
#include <fmt/format.h>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

/// Columns of a panel: the most that divide n, 0 if none do.
int panel_of(int64_t n) {
  for (int panel : {64, 48, 32, 16}) {
    if (n % panel == 0) return panel;
  }
  return 0;
}

/// Why the packed panels of the CPU do not serve; empty if they do.
std::string no_panel(const MatmulDesc& x) {
  const auto n = ir::as_int(x.n), k = ir::as_int(x.k);
  if (x.a != DType::f32 || x.b != DType::f32 || x.d != DType::f32) return "not all of f32";
  if (!x.weight) return "B is no weight, which could be packed";
  if (x.trans_a || !ir::is_int(x.batch, 1)) return "rows of A do not lie one behind the other";
  if (!n || !k || *k == 0) return "n or k is not known at compile time";
  if (panel_of(*n) == 0) return "n is no multiple of 16";
  return "";
}

}  // namespace

bool takes(Arm arm, Epilogue epilogue) {
  switch (arm) {
    case Arm::library: return epilogue == Epilogue::none || epilogue == Epilogue::bias;
    case Arm::panel: return epilogue != Epilogue::other;
    case Arm::integer: return epilogue == Epilogue::none;
  }
  return false;
}

MatmulConfig choose(const MatmulDesc& x, const TargetClass& target) {
  MatmulConfig c;
  if (!is_float(x.d)) {
    c.arm = Arm::integer;
    c.reason = "products of integers are exact";
    return c;
  }
  if (!target.cuda()) {
    const std::string why = no_panel(x);
    if (why.empty()) {
      c.arm = Arm::panel;
      c.panel = panel_of(*ir::as_int(x.n));
      c.reason = "a weight is packed when the model is compiled";
      c.rejected = {{Arm::library, "reads the weight as it lies, and takes no epilogue but a bias"}};
      return c;
    }
    c.rejected = {{Arm::panel, why}};
  }
  c.reason = "no kernel of ours takes this product";
  return c;
}

std::string print(const MatmulConfig& c) {
  std::string s = std::string(kArmNames[static_cast<int>(c.arm)]);
  if (c.panel) s += fmt::format(" of {} columns", c.panel);
  s += ": " + c.reason;
  for (const auto& [arm, why] : c.rejected) s += fmt::format("; not {}: {}", kArmNames[static_cast<int>(arm)], why);
  return s;
}

}  // namespace tfcc::codegen
