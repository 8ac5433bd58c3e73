// SPDX-License-Identifier: Apache-2.0
// tfcc verify names the pass or the kernel at fault: passes and targets that are wrong on purpose.
#include <algorithm>
#include <set>

#include "tests/tools/tfcc/graphs.h"
#include "ir/elements.h"
#include "passes/passes.h"
#include "tools/tfcc/verify_target.h"

namespace tfcc::tools {
namespace {

using ir::ValueId;

Step wrong_step(const std::string& name, std::function<void(ir::Graph&)> change) {
  return {name, [change](ir::Graph& g) -> Result<void> {
            change(g);
            g.clean();
            return {};
          }};
}

// The default passes with one more after the first of that name.
std::vector<Step> passes_with(const Step& wrong, const std::string& after) {
  std::vector<Step> steps = steps_of(passes::default_pipeline());
  const auto at =
      std::find_if(steps.begin(), steps.end(), [&](const Step& s) { return s.name == after; });
  steps.insert(at + 1, wrong);
  return steps;
}

// A target that evaluates in float64 what `change` makes of the graph; counts its runs.
Target wrong_target(std::function<void(ir::Graph&)> change, size_t* runs = nullptr) {
  Target t;
  t.name = "the altered target";
  t.run = [=](const ir::Graph& graph, const HostTensors& inputs) -> Result<HostTensors> {
    if (runs) ++*runs;
    ir::Graph altered = graph;
    change(altered);
    return ir::eval(altered, inputs);
  };
  t.kernel = [](const ir::Graph&, const std::string& value) { return "kernel_of_" + value; };
  return t;
}

const Target kRight = wrong_target([](ir::Graph&) {});

Guilty searched(const ir::Graph& imported, const std::vector<Step>& steps, const Target& target) {
  const HostTensors inputs = random_tensors(imported);
  ir::Graph last = imported;
  EXPECT_TRUE(run_steps(last, steps));
  const Difference d =
      ir::eval(last, inputs) ? difference_of(imported, last, inputs, target) : Difference{};
  const Defined defined(inputs, false);
  auto guilty = bisect({imported, steps, inputs, defined, "y", d, 1e-4}, target);
  EXPECT_TRUE(guilty) << (guilty ? "" : guilty.error().message);
  return *std::move(guilty);
}

// ---- a wrong pass ----

TEST(BisectPasses, FindsAPassThatChangesAnOpInPlace) {
  const ir::Graph graph = parsed(kMlp);
  const Guilty g =
      searched(graph,
               passes_with(wrong_step("wrong-scale", [](ir::Graph& x) { add_to(x, "h", 0.02); }),
                           "raise-gelu"),
               kRight);
  EXPECT_EQ(g.pass, "wrong-scale");
  EXPECT_LT(g.before.relative, 1e-9);
  EXPECT_GT(g.after.relative, 1e-4);
  ASSERT_TRUE(g.op);
  EXPECT_EQ(g.op->value, "h");
  EXPECT_EQ(g.op->kind, "matmul");
  EXPECT_EQ(g.op->node, "node of h");
  EXPECT_EQ(g.op->makers, std::vector<std::string>{"wrong-scale"});
  EXPECT_NEAR(g.op->difference->relative, 0.02, 1e-6);
  EXPECT_LT(*g.op->operands, 1e-9);
  EXPECT_TRUE(g.op->unknown.empty());
  const std::string text = report(g, kRight);
  EXPECT_NE(text.find("pass wrong-scale (" + std::to_string(g.step) + " of " +
                      std::to_string(g.steps) + ") changed the result in float64: relative L2"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("the first value that differs: %h = matmul: max abs error"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("%h = matmul(%n, %w1) {alpha = 1.02"), std::string::npos) << text;
  EXPECT_NE(text.find("ONNX node: node of h\nmade by: wrong-scale\n"), std::string::npos) << text;
}

TEST(BisectPasses, FindsAPassThatPutsAnotherOpInItsPlace) {
  const ir::Graph graph = parsed(kMlp);
  const Step wrong = wrong_step("raise-wrong", [](ir::Graph& x) {
    const ValueId a = x.find_value("a"), hb = x.find_value("hb");
    ir::Captured other =
        ir::capture(ir::gelu_of(ir::load_of(x, hb, ir::indices_of(x, hb)), ir::GeluKind::tanh));
    x.replace_uses(a, x.add_pointwise(other.operands, other.body, x.value(a).type, "other"));
  });
  const Guilty g = searched(graph, passes_with(wrong, "raise-gelu"), kRight);
  EXPECT_EQ(g.pass, "raise-wrong");
  ASSERT_TRUE(g.op);
  EXPECT_EQ(g.op->value, "other");
  EXPECT_EQ(g.op->node, "node of a");  // what it took the place of
  EXPECT_EQ(g.op->makers, std::vector<std::string>{"raise-wrong"});
}

TEST(BisectPasses, ListsWhatThePassMadeBeforeTheFirstValueThatCanBeCompared) {
  const ir::Graph graph = parsed(kMlp);
  const Step wrong = wrong_step("split-wrong", [](ir::Graph& x) {
    const ValueId a = x.find_value("a");
    const ir::Type t = x.value(a).type;
    const auto at = ir::indices_of(x.pool(), t.dims);
    const ValueId part = x.add_pointwise(
        {a}, ir::add(x.pool().load(0, ir::Scalar::f32, at), x.pool().real(0.25)), t, "part");
    const ValueId whole = x.add_pointwise(
        {part}, ir::mul(x.pool().load(0, ir::Scalar::f32, at), x.pool().real(1.5)), t, "whole");
    x.set_operands(x.value(x.find_value("o")).def, {whole, x.find_value("w2")});
  });
  const Guilty g = searched(graph, {wrong}, kRight);
  EXPECT_EQ(g.pass, "split-wrong");
  ASSERT_TRUE(g.op);
  EXPECT_EQ(g.op->value, "whole");
  ASSERT_EQ(g.op->unknown.size(), 1u);
  EXPECT_EQ(g.op->unknown[0].find("%part = pointwise(%a)"), 0u) << g.op->unknown[0];
  EXPECT_NE(report(g, kRight).find(
                "it reads what the pass made, which has no counterpart before it:\n  %part = "),
            std::string::npos);
}

TEST(BisectPasses, TellsWhichRunOfAPassItIs) {
  const ir::Graph graph = parsed(kMlp);
  std::vector<Step> steps = {wrong_step("twice", [](ir::Graph& x) {
    if (x.find_value("marked").valid()) add_to(x, "o", 0.1);
    else x.rename(x.find_value("hb"), "marked");
  })};
  steps.push_back(steps[0]);
  const Guilty g = searched(graph, steps, kRight);
  EXPECT_EQ(g.pass, "twice");
  EXPECT_EQ(g.step, 2u);
  ASSERT_TRUE(g.op);
  EXPECT_EQ(g.op->value, "o");
}

TEST(BisectPasses, SaysWhyAGraphCannotBeEvaluatedAfterAPass) {
  const ir::Graph graph = parsed(kMlp);
  const Step wrong = wrong_step("wrong-check", [](ir::Graph& x) {
    x.checks.push_back({x.pool().boolean(false), "sizes are refused"});
  });
  const Guilty g = searched(graph, passes_with(wrong, "raise-softmax"), kRight);
  EXPECT_EQ(g.pass, "wrong-check");
  EXPECT_EQ(g.problem, "sizes are refused");
  EXPECT_FALSE(g.op);
  EXPECT_NE(report(g, kRight).find(") changed the result: sizes are refused\n"), std::string::npos);
}

TEST(BisectPasses, TheLargerOfTwoErrorsIsNamed) {
  const ir::Graph graph = parsed(kMlp);  // the passes round a little, the target is wrong by a lot
  const Step rounding = wrong_step("rounding", [](ir::Graph& x) { add_to(x, "h", 1e-6); });
  const Guilty g =
      searched(graph, {rounding}, wrong_target([](ir::Graph& x) { add_to(x, "o", 0.1); }));
  EXPECT_EQ(g.pass, "");
  ASSERT_TRUE(g.op);
  EXPECT_EQ(g.op->value, "o");
}

// ---- a wrong kernel ----

TEST(BisectKernels, FindsTheOpAndItsKernel) {
  const ir::Graph graph = parsed(kMlp);
  const Target target = wrong_target([](ir::Graph& x) { add_to(x, "h", 0.02); });
  const Guilty g = searched(graph, {}, target);
  EXPECT_EQ(g.pass, "");
  ASSERT_TRUE(g.op);
  EXPECT_EQ(g.op->value, "h");
  EXPECT_EQ(g.op->kernel, "kernel_of_h");
  EXPECT_EQ(*g.op->operands, 0);
  const std::string text = report(g, target);
  EXPECT_EQ(
      text.find(
          "the passes keep the meaning: the kernels of the altered target differ\nthe first op that differs: %h = matmul: "),
      0u)
      << text;
  EXPECT_NE(text.find("ONNX node: node of h\nmade by: the import\nkernel: kernel_of_h\n"),
            std::string::npos)
      << text;
}

TEST(BisectKernels, FindsAnOpOverPackedRows) {
  const ir::Graph graph = parsed(kPadded);
  const Guilty g = searched(graph, steps_of({"remove-padding"}),
                            wrong_target([](ir::Graph& x) { EXPECT_TRUE(add_to(x, "d", 0.02)); }));
  EXPECT_EQ(g.pass, "");
  ASSERT_TRUE(g.op);
  EXPECT_EQ(g.op->value, "d");
  EXPECT_EQ(g.op->kind, "matmul");
  EXPECT_NEAR(g.op->difference->relative, 0.02, 1e-6);
  EXPECT_EQ(g.op->makers, std::vector<std::string>{"remove-padding"});
  EXPECT_TRUE(g.op->unknown.empty());
}

TEST(BisectKernels, NamesThePassesThatMadeAndChangedTheOp) {
  const ir::Graph graph = parsed(kMlp);
  std::vector<std::string> names = passes::default_pipeline();
  std::erase(names, "fuse-epilogue");  // which would leave no op of that kind
  std::vector<Step> steps = steps_of(names);
  steps.push_back(wrong_step("touch", [](ir::Graph& x) {
    for (ir::OpId o : x.order()) {
      become_gelu(x.op(o), ir::GeluKind::tanh);
    }
  }));
  steps.push_back(wrong_step("touch-back", [](ir::Graph& x) {
    for (ir::OpId o : x.order()) {
      become_gelu(x.op(o), ir::GeluKind::erf);
    }
  }));
  const Guilty g = searched(graph, steps, wrong_target([](ir::Graph& x) {
                              for (ir::OpId o : x.order()) {
                                become_gelu(x.op(o), ir::GeluKind::tanh);
                              }
                            }));
  EXPECT_EQ(g.pass, "");
  ASSERT_TRUE(g.op);
  EXPECT_EQ(g.op->kind, "pointwise");
  EXPECT_EQ(g.op->makers, (std::vector<std::string>{"fuse-bias-gelu", "touch", "touch-back"}));
}

// The error is in a part of the product that one of its two readers does not look at.
TEST(BisectKernels, ARightValueDoesNotClearWhatItWasComputedFrom) {
  const ir::Graph graph = parsed(R"(
graph @branches(%x: f32[B,8], %w: f32[8,16]) symbols(B = x.0 in 1..) {
  %h = matmul(%x, %w) {alpha = 1.0, trans_a = false, trans_b = false} : f32[B,16]
  %f = pointwise(%h) {body = (i,j) => %h[i,j] * 2.0} : f32[B,16]
  %p = pointwise(%f) {body = (i,j) => %f[i,j]} : f32[B,8]
  %q = pointwise(%f) {body = (i,j) => %f[i,j + 8]} : f32[B,8]
  %y = pointwise(%p, %q) {body = (i,j) => %p[i,j] * %q[i,j]} : f32[B,8]
  return y = %y
}
)");
  const Guilty g =
      searched(graph, {}, wrong_target([](ir::Graph& x) {
                 ir::ExprRef& body = op_of(x, "f").as<ir::PointwiseAttrs>().body;
                 const auto at = ir::indices_of(x.pool(), x.value(x.find_value("f")).type.dims);
                 body = ir::add(body, ir::select(ir::lt(at[1], x.pool().integer(8)),
                                                 x.pool().real(0), x.pool().real(0.5)));
               }));
  ASSERT_TRUE(g.op);
  EXPECT_EQ(g.op->value, "f");
  EXPECT_EQ(*g.op->operands, 0);
}

// A buffer reused too early: wrong unless the value is kept.
TEST(BisectKernels, AValueThatIsRightOnceItIsKeptIsNamed) {
  const ir::Graph graph = parsed(kMlp);
  const Target target = wrong_target([](ir::Graph& x) {
    const bool kept = std::any_of(x.outputs.begin(), x.outputs.end(),
                                  [&](const auto& o) { return o.value == x.find_value("hb"); });
    if (!kept) add_to(x, "hb", 0.3);
  });
  const Guilty g = searched(graph, {}, target);
  ASSERT_TRUE(g.op);
  EXPECT_EQ(g.op->value, "a");  // what reads it is wrong
  ASSERT_EQ(g.op->unknown.size(), 1u);
  EXPECT_EQ(g.op->unknown[0].find("%hb = pointwise"), 0u);
  EXPECT_NE(report(g, target).find("kept as an output, these make the result right"),
            std::string::npos);
}

TEST(BisectKernels, AValueThatCannotBeKeptIsLeftOut) {
  const ir::Graph graph = parsed(kMlp);
  Target target = wrong_target([](ir::Graph& x) { add_to(x, "h", 0.05); });
  auto run = target.run;
  target.run = [run](const ir::Graph& x, const HostTensors& inputs) -> Result<HostTensors> {
    for (const auto& o : x.outputs) {
      if (x.value(o.value).name == "a")
        return Error{ErrorCode::unsupported, "there is no such output"};
    }
    return run(x, inputs);
  };
  const Guilty g = searched(graph, {}, target);
  ASSERT_TRUE(g.op);
  EXPECT_EQ(g.op->value, "h");
  EXPECT_TRUE(g.op->unknown.empty());
}

std::string chain(int length) {
  std::string text = "graph @chain(%x: f32[B,4]) symbols(B = x.0 in 1..) {\n";
  for (int i = 0; i < length; ++i) {
    const std::string from = i == 0 ? "x" : "v" + std::to_string(i - 1),
                      to = i + 1 == length ? "y" : "v" + std::to_string(i);
    text += "  %" + to + " = pointwise(%" + from + ") {body = (i,j) => sin(%" + from +
            "[i,j]) + 0.5} : f32[B,4]\n";
  }
  return text + "  return y = %y\n}\n";
}

TEST(BisectKernels, CompilesALongGraphAFewTimes) {
  const ir::Graph graph = parsed(chain(1000));
  size_t runs = 0, least = 1000;
  const Target target = wrong_target([](ir::Graph& x) { add_to(x, "v700", 0.5); }, &runs);
  const HostTensors inputs = random_tensors(graph);
  Difference d{1, 1,
               ""};  // large: the chain forgets where it came from, so look at v710 as the output
  ir::Graph shorter = graph;
  shorter.outputs = {{"y", graph.find_value("v710")}};
  shorter.clean();
  d = difference_of(shorter, shorter, inputs, target);
  runs = 0;
  auto guilty = bisect({shorter, {}, inputs, Defined(), "y", d, 1e-9}, target,
                       [&](const std::string&, size_t done, size_t total) {
                         EXPECT_LE(done, total);
                         least = std::min(least, total - done);
                       });
  ASSERT_TRUE(guilty && guilty->op);
  EXPECT_EQ(guilty->op->value, "v700");
  EXPECT_LE(runs, 4u);
  EXPECT_EQ(least, 0u);
}

TEST(BisectKernels, LooksBehindValuesThatCannotBeTold) {
  const ir::Graph graph = parsed(chain(5));
  const Measure measure = [&](const std::vector<ValueId>& values) -> Result<Differences> {
    Differences out;
    for (ValueId v : values) {
      const std::string& name = graph.value(v).name;
      out.push_back(name == "v2" || name == "v3"
                        ? std::nullopt
                        : std::optional(Difference{1, name == "v0" ? 0.0 : 1.0, ""}));
    }
    return out;
  };
  auto first = find_first_wrong(graph, graph.find_value("y"), measure, {1e-4, 1, 40, {}});
  ASSERT_TRUE(first);
  EXPECT_EQ(graph.value(first->value).name, "v1");
  EXPECT_TRUE(first->narrowed);
  EXPECT_TRUE(first->unknown.empty());
}

TEST(BisectKernels, StopsAfterSoManyMeasurements) {
  const ir::Graph graph = parsed(chain(60));
  size_t measured = 0;
  const Measure all_wrong = [&](const std::vector<ValueId>& values) -> Result<Differences> {
    ++measured;
    return Differences(values.size(), Difference{1, 1, ""});
  };
  auto first = find_first_wrong(graph, graph.find_value("y"), all_wrong, {1e-4, 1, 3, {}});
  ASSERT_TRUE(first);
  EXPECT_EQ(measured, 3u);
  EXPECT_FALSE(first->narrowed);
  EXPECT_NE(graph.value(first->value).name, "v0");
}

TEST(BisectKernels, CompilesABoundedNumberOfTimes) {
  const ir::Graph graph = parsed(chain(500));
  size_t runs = 0;  // wrong as long as nothing else is an output: every value is tried alone
  const Target target = wrong_target(
      [](ir::Graph& x) {
        if (x.outputs.size() == 1) add_to(x, "y", 0.5);
      },
      &runs);
  const Guilty g = searched(graph, {}, target);
  ASSERT_TRUE(g.op);
  EXPECT_FALSE(g.op->narrowed);
  EXPECT_LE(runs, 61u);
  EXPECT_NE(report(g, target).find("the search was cut short"), std::string::npos);
}

// Through the compiler: what is compiled is not the graph that was asked for.
TEST(BisectKernels, FindsAnAlteredOpInCompiledCode) {
  const auto targets = codegen::parse_targets({"cpu"}, {"native"});
  if (!targets) GTEST_SKIP() << targets.error().message;
  const ir::Graph graph = parsed(kMlp);
  const TargetOptions options{targets->front(), "f32", 1};
  const HostTensors inputs = random_tensors(graph);
  if (auto made = CompiledGraph::make(graph, options); !made) GTEST_SKIP() << made.error().message;
  Target target = compiling_target(options);
  const Target honest = target;
  target.run = [&](const ir::Graph& x, const HostTensors& in) -> Result<HostTensors> {
    ir::Graph altered = x;
    for (ir::OpId o : altered.order()) {
      become_gelu(altered.op(o), ir::GeluKind::tanh);
    }
    return honest.run(altered, in);
  };
  std::vector<std::string> names = passes::default_pipeline();
  std::erase(names, "fuse-epilogue");  // which would leave no op of that kind
  names.push_back("convert-precision-f32");
  const std::vector<Step> steps = steps_of(names);
  ir::Graph last = graph;
  ASSERT_TRUE(run_steps(last, steps));
  EXPECT_LT(difference_of(graph, last, inputs, honest).relative, 1e-6);
  const Difference d = difference_of(graph, last, inputs, target);
  ASSERT_GT(d.relative, 1e-5);
  auto guilty = bisect({graph, steps, inputs, Defined(), "y", d, 1e-5}, target);
  ASSERT_TRUE(guilty && guilty->op) << (guilty ? "" : guilty.error().message);
  EXPECT_EQ(guilty->pass, "");
  EXPECT_EQ(guilty->op->kind, "pointwise");
  EXPECT_EQ(guilty->op->node, "node of a");
  EXPECT_EQ(guilty->op->makers, std::vector<std::string>{"fuse-bias-gelu"});
  EXPECT_EQ(guilty->op->kernel.find("pointwise__f32"), 0u) << guilty->op->kernel;
  EXPECT_LT(*guilty->op->operands, 1e-6);
}

}  // namespace
}  // namespace tfcc::tools
