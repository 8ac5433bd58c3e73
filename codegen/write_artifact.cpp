// SPDX-License-Identifier: Apache-2.0
// The only writer of .tfcc files: weights are made from their recipes one tensor at a time and
// streamed out, then code and text, then the manifest (runtime/core/manifest.proto) by libprotobuf.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/artifact_file.h"
#include "codegen/compile.h"
#include "codegen/plan/sizes.h"
#include "codegen/plan/size_limit.h"
#include "ir/elements.h"
#include "ir/ir.h"
#include "runtime/core/checksum.h"
#include "runtime/core/manifest.pb.h"
#include "runtime/cuda/timing_cache.h"

namespace tfcc::codegen {
namespace {

namespace pb = tfcc::manifest;
using runtime::SectionKind;

void set(pb::SizeExpr* to, const runtime::SizeExpr& from) {
  for (int64_t c : from.code) to->add_code(c);
  to->set_text(from.text);
}

void set(pb::Check* to, const runtime::Check& from) {
  set(to->mutable_value(), from.value);
  to->set_equal(from.equal);
  to->set_message(from.message);
}

void set(pb::Launch* to, const runtime::Launch& from) {
  to->set_name(from.name);
  for (const std::string& op : from.ops) to->add_ops(op);
  if (from.kernel) {
    pb::KernelLaunch* k = to->mutable_kernel();
    k->set_kernel(from.kernel->kernel);
    for (uint32_t a : from.kernel->args) k->add_args(a);
    for (const auto& g : from.kernel->grid) set(k->add_grid(), g);
    set(k->mutable_work(), from.kernel->work);
    k->set_grain(from.kernel->grain);
    for (const runtime::TensorMap& map : from.kernel->maps) {
      pb::TensorMap* m = k->add_maps();
      m->set_buffer(map.buffer);
      set(m->mutable_rows(), map.rows);
      set(m->mutable_columns(), map.columns);
      m->set_box_rows(map.box_rows);
      m->set_box_columns(map.box_columns);
    }
  }
  if (from.gemm) {
    pb::GemmLaunch* g = to->mutable_gemm();
    g->set_a(from.gemm->a);
    g->set_b(from.gemm->b);
    g->set_d(from.gemm->d);
    g->set_has_bias(from.gemm->has_bias);
    g->set_bias(from.gemm->bias);
    set(g->mutable_m(), from.gemm->m);
    set(g->mutable_n(), from.gemm->n);
    set(g->mutable_k(), from.gemm->k);
    set(g->mutable_batch(), from.gemm->batch);
    set(g->mutable_stride_a(), from.gemm->stride_a);
    set(g->mutable_stride_b(), from.gemm->stride_b);
    g->set_trans_a(from.gemm->trans_a);
    g->set_trans_b(from.gemm->trans_b);
    g->set_alpha(from.gemm->alpha);
    g->set_in_order(from.gemm->in_order);
  }
  set(to->mutable_flops(), from.flops);
  set(to->mutable_bytes(), from.bytes);
  to->set_why(from.why);
  to->set_makes(from.makes);
}

void set(pb::Plan* to, const runtime::Plan& from) {
  to->set_family(std::string(to_string(from.family)));
  to->set_name(from.name);
  for (const runtime::Buffer& b : from.buffers) {
    pb::Buffer* x = to->add_buffers();
    x->set_class_(static_cast<pb::Buffer_Class>(b.place));
    x->set_name(b.name);
    x->set_dtype(static_cast<uint32_t>(b.dtype));
    for (const auto& d : b.dims) set(x->add_dims(), d);
    x->set_index(b.index);
    if (!b.offset.code.empty()) set(x->mutable_offset(), b.offset);
    x->set_first_use(b.first_use);
    x->set_last_use(b.last_use);
  }
  for (const auto& s : from.slots) set(to->add_slots(), s);
  for (const runtime::Bucket& b : from.buckets) {
    pb::Bucket* x = to->add_buckets();
    x->set_name(b.name);
    for (const auto& c : b.limits) set(x->add_limits(), c);
    for (const auto& l : b.launches) set(x->add_launches(), l);
  }
  for (const runtime::Kernel& k : from.kernels) {
    pb::Kernel* x = to->add_kernels();
    x->set_name(k.name);
    x->set_op(k.op);
    x->set_threads(k.threads);
    x->set_shared_bytes(k.shared_bytes);
    x->set_starts_early(k.starts_early);
  }
  to->set_has_bind(from.has_bind);
  to->set_bind(from.bind);
  to->set_precision(from.precision);
  to->set_counters(from.counters);
  if (from.bucket_table) {
    for (const runtime::SizeCaps& caps : from.bucket_table->sizes) {
      pb::SizeCaps* x = to->mutable_bucket_table()->add_sizes();
      x->mutable_caps()->Add(caps.caps.begin(), caps.caps.end());
      set(x->mutable_cap(), caps.cap);
    }
    to->mutable_bucket_table();  // present, also for a graph without sizes
  }
  to->set_no_bucket_table(from.no_bucket_table);
  set(to->mutable_live_bytes(), from.live_bytes);
  for (const auto& c : from.limits) set(to->add_limits(), c);
}

// A condition over sizes as checks of the runtime: conjunctions of p >= 0 and p == 0.
template <class Interface>  // Manifest or Program
Result<void> add_checks(Interface& m, ir::ExprRef condition, const std::string& message,
                        const std::vector<std::string>& symbols) {
  using ir::ExprKind;
  if (condition->kind == ExprKind::btrue) return {};
  if (condition->kind == ExprKind::band) {
    for (ir::ExprRef a : condition->args) TFCC_TRY_VOID(add_checks(m, a, message, symbols));
    return {};
  }
  if (condition->kind != ExprKind::ge0 && condition->kind != ExprKind::eq0) {
    return Error{
        ErrorCode::unsupported,
        fmt::format("the size condition '{}' cannot be checked at run time", ir::print(condition))};
  }
  pb::Check* c = m.add_checks();
  set(c->mutable_value(), size_program(condition->args[0], symbols));
  c->set_equal(condition->kind == ExprKind::eq0);
  c->set_message(message);
  return {};
}

void set_tensor(pb::Tensor* to, const std::string& name, const ir::Type& type,
                const std::vector<std::string>& symbols) {
  to->set_name(name);
  to->set_dtype(static_cast<uint32_t>(type.dtype));
  for (ir::ExprRef d : type.dims) set(to->add_dims(), size_program(d, symbols));
}

template <class Interface>
Result<void> set_interface(Interface& m, const ir::Graph& g, const LowerOptions& options) {
  const std::vector<std::string> symbols =
      Sizes(g).names();  // shapes and checks are over the graph's own expressions
  for (const ir::SizeSymbol* s : Sizes::told(g)) {
    const ir::SymbolRange range = g.pool().range(s->name);
    pb::Symbol* x = m.add_symbols();
    x->set_name(s->name);
    x->set_max(range.max.value_or(0));
    x->set_role(static_cast<uint32_t>(s->role));
    if (!s->read()) {
      set(x->mutable_value(), size_program(s->made() ? s->bound : s->formula, symbols));
      x->set_made(s->made());
    } else {
      x->set_min(range.min);
      x->set_input(s->input);
      x->set_axis(s->axis);
      if (s->multiple > 1) x->set_multiple(s->multiple);
    }
    const auto said = options.sizes.find(s->name);
    if (said == options.sizes.end()) continue;
    x->set_min_from(said->second.min_from);
    x->set_max_from(said->second.max_from);
    x->set_typical(said->second.typical);
  }
  const size_t outputs = ir::plain_outputs(g);
  for (ir::ValueId v : g.inputs()) {
    set_tensor(m.add_inputs(), g.value(v).name, g.value(v).type, symbols);
    const bool is_state =
        std::any_of(g.outputs.begin() + static_cast<std::ptrdiff_t>(outputs), g.outputs.end(),
                    [&](const auto& o) { return ir::state_before(g, o.value) == v; });
    m.mutable_inputs(m.inputs_size() - 1)->set_state(is_state);
  }
  for (size_t i = 0; i < outputs; ++i)
    set_tensor(m.add_outputs(), g.outputs[i].name, g.value(g.outputs[i].value).type, symbols);
  for (const ir::SizeCheck& c : g.checks)
    TFCC_TRY_VOID(add_checks(m, c.condition, c.message, symbols));
  if (ir::ExprRef condition = sizes_fit(g)) {
    TFCC_TRY_VOID(add_checks(
        m, condition,
        "the sizes of the inputs are too large: an index made of them would not fit 64 bits; use smaller shapes",
        symbols));
  }
  for (const std::string& f : g.flags) m.add_flags()->set_message(f);
  return {};
}

uint64_t checksum(std::span<const std::byte> bytes) {
  runtime::Checksum sum;
  sum.update(bytes.data(), bytes.size());
  return sum.value();
}

Result<void> write_weights(ArtifactFile& file, pb::Manifest& m, const WeightPool& weights,
                           const CompileOptions& options) {
  if (weights.entries().empty()) return {};
  TFCC_TRY_VOID(file.begin_section(SectionKind::weights));
  size_t done = 0;
  for (const WeightPool::Entry& e : weights.entries()) {
    TFCC_TRY(std::vector<std::byte> bytes, ir::materialize(e.constant));
    TFCC_TRY(uint64_t offset, file.align(runtime::kWeightAlignment));
    TFCC_TRY_VOID(file.write(bytes));
    pb::Weight* w = m.add_weights();
    w->set_name(e.name);
    w->set_dtype(static_cast<uint32_t>(e.constant.result_dtype()));
    for (int64_t d : e.constant.result_dims()) w->add_shape(d);
    w->set_offset(offset);
    w->set_size(bytes.size());
    w->set_checksum(checksum(bytes));
    if (options.progress) options.progress("writing weights", ++done, weights.entries().size());
  }
  file.end_section();
  return {};
}

template <class Interface>
Result<void> write_code(ArtifactFile& file, Interface& m, const std::vector<TargetCode>& code) {
  for (const TargetCode& c : code) {
    TFCC_TRY_VOID(file.begin_section(SectionKind::code));
    pb::Target* t = m.add_targets();
    t->set_name(c.target.name);
    t->set_plan(static_cast<uint32_t>(c.plan));
    for (const auto& image : c.images) {
      TFCC_TRY(uint64_t offset, file.align(runtime::kWeightAlignment));
      TFCC_TRY_VOID(file.write(image));
      pb::Image* i = t->add_images();
      i->set_offset(offset);
      i->set_size(image.size());
    }
    t->set_section(file.end_section());
  }
  return {};
}

Result<void> write_texts(ArtifactFile& file, pb::Manifest& m,
                         const std::vector<BuiltProgram>& programs, const CompileOptions& options) {
  if (options.strip && options.timings.empty() && options.attachments.empty()) return {};
  TFCC_TRY_VOID(file.begin_section(SectionKind::text));
  auto add = [&](const std::string& name, const std::string& text) -> Result<void> {
    pb::Text* t = m.add_texts();
    t->set_name(name);
    t->set_offset(file.section_bytes());
    t->set_size(text.size());
    return file.write(std::as_bytes(std::span(text.data(), text.size())));
  };
  if (!options.timings.empty()) TFCC_TRY_VOID(add(runtime::kTimingText, options.timings));
  for (const auto& [name, bytes] : options.attachments)
    TFCC_TRY_VOID(add(runtime::kAttachmentPrefix + name, bytes));
  if (!options.strip) {
    for (const auto& [name, text] : options.texts) TFCC_TRY_VOID(add(name, text));
    for (const BuiltProgram& program : programs) {
      for (const Lowered& l : program.plans) {
        for (const KernelSource& k : l.kernels)
          TFCC_TRY_VOID(add("kernels/" + runtime::source_file(l.plan, k.name), k.text));
      }
    }
    for (const BuiltProgram& program : programs) {
      for (const PlanInput* in : program.inputs) {
        TFCC_TRY_VOID(add(
            fmt::format("ir/{}{}.tfir", to_string(in->family), in->generates ? ".generate" : ""),
            ir::print(in->graph)));
      }
    }
  }
  file.end_section();
  return {};
}

// What a reader must know of to run these plans.
uint64_t features_of(const std::vector<Lowered>& plans) {
  uint64_t features = 0;
  for (const Lowered& p : plans) {
    if (p.plan.counters > 0) features |= runtime::kCounters;
    for (const runtime::Buffer& b : p.plan.buffers)
      features |= b.place == runtime::BufferClass::state ? runtime::kStates : 0;
  }
  for (const Lowered& p : plans) {
    for (const runtime::Bucket& b : p.plan.buckets) {
      for (const runtime::Launch& l : b.launches) {
        if (l.kernel && !l.kernel->maps.empty()) features |= runtime::kTensorMaps;
        if (l.makes) features |= runtime::kMadeSizes;
      }
    }
  }
  return features;
}

}  // namespace

namespace {

template <class Interface>
Result<void> write_program(ArtifactFile& file, Interface& m, const BuiltProgram& program,
                           const CompileOptions& options) {
  TFCC_TRY_VOID(set_interface(m, program.inputs[0]->graph, program.inputs[0]->options));
  TFCC_TRY_VOID(write_code(file, m, program.code));
  for (const Lowered& p : program.plans) set(m.add_plans(), p.plan);
  for (pb::Plan& p : *m.mutable_plans()) {
    for (pb::Bucket& b : *p.mutable_buckets()) {
      for (pb::Launch& l : *b.mutable_launches()) options.strip ? l.clear_why() : void();
    }
  }
  return {};
}

}  // namespace

Result<void> write_artifact(const std::string& path, const std::vector<BuiltProgram>& programs,
                            const WeightPool& weights, const CompileOptions& options,
                            CompileResult& result) {
  TFCC_TRY(ArtifactFile file, ArtifactFile::create(path));
  pb::Manifest m;
  m.set_producer("tfcc " TFCC_VERSION);
  m.set_model(options.model_name);
  m.set_report(options.report);
  m.set_no_generation(options.no_generation);
  TFCC_TRY_VOID(write_weights(file, m, weights, options));
  TFCC_TRY_VOID(write_program(file, m, programs[0], options));
  if (programs.size() > 1)
    TFCC_TRY_VOID(write_program(file, *m.mutable_generation(), programs[1], options));
  TFCC_TRY_VOID(write_texts(file, m, programs, options));
  for (const pb::Weight& w : m.weights()) result.weight_bytes += w.size();
  uint64_t features = 0;
  for (const BuiltProgram& p : programs) features |= features_of(p.plans);
  for (const auto* symbols : {&m.symbols(), &m.generation().symbols()}) {
    for (const pb::Symbol& s : *symbols) features |= s.multiple() > 1 ? runtime::kMultiples : 0;
  }
  const std::string bytes = m.SerializeAsString();
  TFCC_TRY_VOID(file.finish(std::as_bytes(std::span(bytes.data(), bytes.size())), features));
  return {};
}

}  // namespace tfcc::codegen
