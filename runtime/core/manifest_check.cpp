// SPDX-License-Identifier: Apache-2.0
// Validation of a manifest, once at load: after it, every index, offset and program can be used
// without a look.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/core/manifest.h"
#include "runtime/core/tile_table.h"

namespace tfcc::runtime {
namespace {

constexpr size_t kMaxRank = 16;
constexpr uint32_t kMaxResident = 64;  // more blocks than a multiprocessor has
constexpr uint32_t kMaxCluster = 8;    // what every GPU with clusters has room for
constexpr int64_t kMaxMultiple = int64_t{1} << 30;
constexpr uint32_t kMaxCounters = 1u << 16;
constexpr size_t kMaxPlans = 16;  // one per family; a reader goes over the symbols once for each
constexpr int64_t kMaxSize = int64_t{1} << 56;  // keeps byte counts far from overflow

class Checker {
 public:
  Checker(const Manifest& manifest, const Artifact& artifact, const std::string& name)
      : m_(manifest), artifact_(artifact), name_(name) {}

  Result<void> all() const {
    TFCC_TRY_VOID(interface());
    TFCC_TRY_VOID(weights());
    if (m_.plans.size() > kMaxPlans)
      return bad("more than " + std::to_string(kMaxPlans) + " plans");
    for (const Plan& p : m_.plans) TFCC_TRY_VOID(plan(p));
    if (m_.targets.size() > kMaxSections)
      return bad("more than " + std::to_string(kMaxSections) + " targets");
    for (const Target& t : m_.targets) TFCC_TRY_VOID(target(t));
    TFCC_TRY_VOID(texts());
    return repeated_names();
  }

 private:
  Error bad(const std::string& what) const {
    return {ErrorCode::bad_file,
            name_ + ": damaged manifest: " + what + "; compile the model again"};
  }

  bool valid(const SizeExpr& e) const { return e.valid(m_.symbols.size()); }

  /// Whether it names a size that a launch makes. Needs valid().
  bool names_made(const SizeExpr& e) const {
    bool found = false;
    e.for_each_symbol([&](size_t k) { found |= m_.symbols[k].made; });
    return found;
  }

  bool valid(const std::vector<SizeExpr>& sizes, size_t most) const {
    if (sizes.size() > most) return false;
    for (const SizeExpr& e : sizes) {
      if (!valid(e)) return false;
    }
    return true;
  }

  bool valid(const std::vector<Check>& checks) const {
    for (const Check& c : checks) {
      if (!valid(c.value)) return false;
    }
    return true;
  }

  // An output with an input's name is that input, in the same memory where the caller gives device
  // memory.
  static bool same_type(const TensorType& a, const TensorType& b) {
    bool same = a.dtype == b.dtype && a.dims.size() == b.dims.size();
    for (size_t k = 0; same && k < a.dims.size(); ++k) same = a.dims[k].code == b.dims[k].code;
    return same;
  }

  Result<void> interface() const {
    for (const auto* tensors : {&m_.inputs, &m_.outputs}) {
      std::set<std::string> names;
      for (const TensorType& t : *tensors) {
        if (!valid(t.dims, kMaxRank)) return bad("'" + t.name + "' has broken dims");
        for (const SizeExpr& d : t.dims) {
          if (names_made(d)) return bad("'" + t.name + "' has a dim that a launch makes");
        }
        if (!names.insert(t.name).second)
          return bad(std::string("two ") + (tensors == &m_.inputs ? "inputs" : "outputs") +
                     " are named '" + t.name + "'");
      }
    }
    std::map<std::string_view, const TensorType*> inputs;
    for (const TensorType& in : m_.inputs) inputs[in.name] = &in;
    for (const TensorType& out : m_.outputs) {
      const auto in = inputs.find(out.name);
      if (in != inputs.end() && !same_type(*in->second, out))
        return bad("input and output '" + out.name + "' differ in type");
    }
    size_t before = 0;
    for (const Symbol& s : m_.symbols) {
      if (!s.value.valid(before++)) return bad("symbol '" + s.name + "' has a broken value");
      if (s.made && !s.derived())
        return bad("symbol '" + s.name + "' is made by a launch and has no bound");
      if (s.derived() && !s.made && !is_product(s))
        return bad("symbol '" + s.name + "' is not a product of different sizes of the inputs");
      if (s.role != SizeRole::none && with_role(m_, s.role) != &s)
        return bad("two symbols have the role of '" + s.name + "'");
      if (s.min < 0 || s.max < 0 || s.typical < 0 || (s.max != 0 && s.max < s.min)) {
        return bad("symbol '" + s.name + "' has an empty range");
      }
      if (s.multiple < 0 || s.multiple > kMaxMultiple)
        return bad("symbol '" + s.name + "' has a broken multiple");
      if (s.derived()) continue;
      if (s.input >= m_.inputs.size() || s.axis >= m_.inputs[s.input].dims.size()) {
        return bad("symbol '" + s.name + "' comes from no input");
      }
    }
    if (!valid(m_.checks)) return bad("a check is broken");
    return {};
  }

  // Kernels loop over a computed size and lay out buffers by the sizes that it is made of: of this
  // version it is the product of two or more different sizes of the inputs. Anything else would
  // lead them out of their buffers.
  bool is_product(const Symbol& s) const {
    std::set<int64_t> factors;
    for (size_t i = 0; i < s.value.code.size(); ++i) {
      if (static_cast<SizeCode>(s.value.code[i]) == SizeCode::mul) continue;
      if (static_cast<SizeCode>(s.value.code[i]) != SizeCode::symbol) return false;
      const int64_t k = s.value.code[++i];
      if (m_.symbols[static_cast<size_t>(k)].derived() || !factors.insert(k).second) return false;
    }
    return factors.size() > 1;
  }

  // Stretches of a section that are parts of it and no more than it holds together, so many times
  // over: whoever reads each of them reads the section so often, not once for each.
  struct Parts {
    uint64_t total = 0, times = 1, taken = 0;
    bool take(uint64_t offset, uint64_t size) {
      if (offset > total || size > total - offset || size > total * times - taken) return false;
      taken += size;
      return true;
    }
  };

  Result<void> weights() const {
    const Section* section = artifact_.find(SectionKind::weights);
    Parts parts{section != nullptr ? section->size : 0, 2};  // each may lie in one other
    for (const Weight& w : m_.weights) {
      if (w.offset % kWeightAlignment != 0 || !parts.take(w.offset, w.size)) {
        return bad("weight '" + w.name + "' lies outside the weights section");
      }
      for (int64_t d : w.shape) {
        if (d < 0) return bad("weight '" + w.name + "' has a negative dim");
      }
      auto count = checked_product(w.shape);
      if (!count || *count > kMaxSize) return bad("weight '" + w.name + "' is too large");
      if (static_cast<uint64_t>(*count) * size_of(w.dtype) != w.size) {
        return bad("weight '" + w.name + "' has not the size of its shape");
      }
    }
    return {};
  }

  Result<void> buffer(const Plan& p, const Buffer& b) const {
    size_t bound = 0;
    switch (b.place) {
      case BufferClass::input: bound = m_.inputs.size(); break;
      case BufferClass::output: bound = m_.outputs.size(); break;
      case BufferClass::arena: bound = p.slots.size(); break;
      case BufferClass::constant: bound = m_.weights.size(); break;
      case BufferClass::state:
        bound = m_.inputs.size();
        if (b.index < bound && !m_.inputs[b.index].state)
          return bad("buffer '" + b.name + "' changes an input that is no state");
        break;
    }
    if (b.index >= bound) return bad("buffer '" + b.name + "' has no storage");
    if (!valid(b.dims, kMaxRank)) return bad("buffer '" + b.name + "' has broken dims");
    if (!valid(b.offset)) return bad("buffer '" + b.name + "' has a broken offset");
    return {};
  }

  Result<void> kernel_launch(const Plan& p, const Launch& l) const {
    const KernelLaunch& k = *l.kernel;
    if (k.kernel >= p.kernels.size()) return bad("launch '" + l.name + "' has no kernel");
    for (uint32_t arg : k.args) {
      if (arg >= p.buffers.size()) return bad("launch '" + l.name + "' has a missing buffer");
    }
    if (!valid(k.grid, 3) || !valid(k.work)) return bad("launch '" + l.name + "' has broken sizes");
    const uint32_t cluster = p.kernels[k.kernel].cluster;
    if (cluster > 0 && (k.grid.size() != 3 || k.grid[2].code != std::vector<int64_t>{0, cluster}))
      return bad("launch '" + l.name + "' has another grid than its clusters");
    if (k.resident > kMaxResident) return bad("launch '" + l.name + "' has too many blocks");
    for (const TensorMap& map : k.maps) TFCC_TRY_VOID(tensor_map(p, l, map));
    if (k.tiles && (p.family != Family::cuda || k.tiles->rows.code.empty() ||
                    !valid(k.tiles->rows) || !valid(*k.tiles)))
      return bad("launch '" + l.name + "' has broken tiles");
    return {};
  }

  static bool valid(const TileChoice& choice) {
    return choice.tiles.size() >= 2 && choice.tiles.size() <= kMostTiles && choice.columns > 0 &&
           choice.columns <= kMostTileRows && std::ranges::all_of(choice.tiles, [](const Tile& t) {
             return t.rows > 0 && t.columns > 0;
           });
  }

  Result<void> tensor_map(const Plan& p, const Launch& l, const TensorMap& map) const {
    if (p.family != Family::cuda) return bad("launch '" + l.name + "' has a tensor map for a CPU");
    if (map.buffer >= p.buffers.size()) return bad("launch '" + l.name + "' has a missing buffer");
    const Buffer& b = p.buffers[map.buffer];
    if (b.place != BufferClass::arena && b.place != BufferClass::constant)
      return bad("launch '" + l.name + "' maps a graph input or output");
    const size_t size = size_of(b.dtype);
    if (size != 2 && size != 1 && b.dtype != DType::f32)
      return bad("launch '" + l.name + "' maps elements that are neither f32 nor of 16 or 8 bits");
    if (map.rows.code.empty() || map.columns.code.empty() || !valid(map.rows) ||
        !valid(map.columns))
      return bad("launch '" + l.name + "' has a map of broken sizes");
    const bool deep = size == 2 && map.box_columns % 64 == 0 && map.box_columns <= 512;
    if (map.box_rows == 0 || map.box_rows > 256 || map.box_columns == 0 ||
        (map.box_columns * size > 128 && !deep))
      return bad("launch '" + l.name + "' has a map with a broken box");
    return {};
  }

  Result<void> matmul_launch(const Plan& p, const Launch& l) const {
    const MatmulLaunch& g = *l.matmul;
    for (uint32_t b : {g.a, g.b, g.d, g.has_bias ? g.bias : g.d}) {
      if (b >= p.buffers.size()) return bad("product '" + l.name + "' has a missing buffer");
      const BufferClass place = p.buffers[b].place;
      const bool io = place == BufferClass::input || place == BufferClass::output ||
                      place == BufferClass::state;
      if (io && p.family == Family::cuda)
        return bad("product '" + l.name + "' uses a graph input or output");
    }
    if (p.buffers[g.d].place == BufferClass::constant)
      return bad("product '" + l.name + "' writes a weight");
    for (const SizeExpr* e : {&g.m, &g.n, &g.k, &g.batch}) {
      if (e->code.empty()) return bad("product '" + l.name + "' lacks a size");
    }
    for (const SizeExpr* e : {&g.m, &g.n, &g.k, &g.batch, &g.stride_a, &g.stride_b}) {
      if (!valid(*e)) return bad("product '" + l.name + "' has broken sizes");
    }
    if (g.side_by_side && (g.trans_a || g.trans_b || g.has_bias || g.stride_a.code != g.k.code ||
                           p.family == Family::cpu))
      return bad("product '" + l.name + "' has matrices that do not stand side by side");
    return {};
  }

  Result<void> bucket_table(const BucketTable& table) const {
    const size_t n = m_.symbols.size();
    if (table.sizes.size() != n) return bad("a bucket table that is not of the sizes of the file");
    if (n > kMaxBucketSizes)
      return bad("a bucket table of more than " + std::to_string(kMaxBucketSizes) + " sizes");
    for (const SizeCaps& s : table.sizes) {
      if (s.caps.size() > kMaxCaps)
        return bad("a bucket table with more than " + std::to_string(kMaxCaps) + " caps of a size");
      for (size_t i = 0; i < s.caps.size(); ++i) {
        if (s.caps[i] < (i > 0 ? s.caps[i - 1] + 1 : 0) || s.caps[i] > kLargestCap)
          return bad("a bucket table with broken caps");
      }
      if (s.cap.code.size() > kMaxCapCodes || !s.cap.valid(2 * n))
        return bad("a bucket table with a broken cap");
    }
    return {};
  }

  // Each size that launches make is made once in a bucket, before a launch has a size of it.
  Result<void> made_sizes(const Bucket& bucket) const {
    std::vector<bool> known;
    for (const Symbol& s : m_.symbols) known.push_back(!s.made);
    for (const Launch& l : bucket.launches) {
      bool later = false;
      const auto look = [&](const SizeExpr& e) {
        e.for_each_symbol([&](size_t k) { later |= !known[k]; });
      };
      if (l.kernel) {
        for (const SizeExpr& e : l.kernel->grid) look(e);
        look(l.kernel->work);
      } else {
        for (const SizeExpr* e : {&l.matmul->m, &l.matmul->n, &l.matmul->k, &l.matmul->batch})
          look(*e);
      }
      if (later) return bad("launch '" + l.name + "' has a size that no launch before it makes");
      if (l.makes == 0) continue;
      if (known[l.makes - 1]) return bad("launch '" + l.name + "' makes a size again");
      known[l.makes - 1] = true;
    }
    if (!bucket.launches.empty() && std::find(known.begin(), known.end(), false) != known.end())
      return bad("bucket '" + bucket.name + "' has no launch that makes a size");
    return {};
  }

  Result<void> plan(const Plan& p) const {
    const bool cuda = p.family == Family::cuda;
    if (p.buckets.empty()) return bad("a plan without buckets");
    if (!valid(p.slots, p.slots.size())) return bad("a slot has a broken size");
    if (!valid(p.limits) || !valid(p.live_bytes)) return bad("a plan has broken limits");
    if (p.counters > kMaxCounters) return bad("a plan has too many counters");
    if (p.bucket_table) TFCC_TRY_VOID(bucket_table(*p.bucket_table));
    std::set<std::string_view> names;
    for (const Kernel& k : p.kernels) {
      if (k.name.empty()) return bad("a kernel without name");
      if (!names.insert(k.name).second) return bad("two kernels are named '" + k.name + "'");
      if (cuda && (k.threads == 0 || k.threads > 1024))
        return bad("kernel '" + k.name + "' has no block");
      if (k.cluster > (cuda ? kMaxCluster : 0))
        return bad("kernel '" + k.name + "' has a cluster of " + std::to_string(k.cluster));
    }
    if (cuda && (!p.has_bind || p.bind >= p.kernels.size()))
      return bad("a plan without bind kernel");
    for (const Buffer& b : p.buffers) TFCC_TRY_VOID(buffer(p, b));
    for (const Bucket& bucket : p.buckets) TFCC_TRY_VOID(this->bucket(p, bucket));
    return same_tiles(p);
  }

  Result<void> bucket(const Plan& p, const Bucket& bucket) const {
    if (!valid(bucket.limits)) return bad("bucket '" + bucket.name + "' has broken limits");
    for (const Launch& l : bucket.launches) {
      if (l.kernel.has_value() == l.matmul.has_value())
        return bad("launch '" + l.name + "' does nothing");
      if (!valid(l.flops) || !valid(l.bytes))
        return bad("launch '" + l.name + "' has broken sizes");
      if (l.makes != 0 &&
          (l.matmul || l.makes > m_.symbols.size() || !m_.symbols[l.makes - 1].made))
        return bad("launch '" + l.name + "' makes no size");
      TFCC_TRY_VOID(l.kernel ? kernel_launch(p, l) : matmul_launch(p, l));
    }
    return made_sizes(bucket);
  }

  /// One table serves all launches whose tiles are named alike.
  Result<void> same_tiles(const Plan& p) const {
    std::map<std::string, const TileChoice*> choices;
    for (const Bucket& bucket : p.buckets) {
      for (const Launch& l : bucket.launches) {
        if (!l.kernel || !l.kernel->tiles) continue;
        const TileChoice& t = *l.kernel->tiles;
        const TileChoice& same = *choices.try_emplace(t.what, &t).first->second;
        if (t.tiles != same.tiles || t.columns != same.columns)
          return bad("launch '" + l.name + "' has other tiles than one that is named alike");
      }
    }
    return {};
  }

  Result<void> target(const Target& t) const {
    if (t.plan >= m_.plans.size()) return bad("target '" + t.name + "' has no plan");
    const Plan& p = m_.plans[t.plan];
    if (t.section >= artifact_.sections.size() ||
        artifact_.sections[t.section].kind != SectionKind::code) {
      return bad("target '" + t.name + "' has no code");
    }
    if (t.images.size() != (p.family == Family::cuda ? p.kernels.size() : 1)) {
      return bad("target '" + t.name + "' has not the code of every kernel");
    }
    Parts parts{artifact_.sections[t.section].size};
    for (const Image& i : t.images) {
      if (i.size == 0 || !parts.take(i.offset, i.size)) {
        return bad("target '" + t.name + "' has code outside its section");
      }
    }
    return {};
  }

  Result<void> texts() const {
    const Section* section = artifact_.find(SectionKind::text);
    Parts parts{section != nullptr ? section->size : 0};
    for (const Text& t : m_.texts) {
      if (!parts.take(t.offset, t.size))
        return bad("text '" + t.name + "' lies outside the text section");
    }
    return {};
  }

  // What lists launches and symbols names the kernel of each and the input of each: together these
  // names stay within what a manifest may hold, so that a long name that much refers to cannot make
  // a small file large.
  Result<void> repeated_names() const {
    uint64_t total = 0;
    for (const Symbol& s : m_.symbols) total += s.derived() ? 0 : m_.inputs[s.input].name.size();
    for (const Plan& p : m_.plans) {
      for (const Bucket& b : p.buckets) {
        for (const Launch& l : b.launches)
          total += l.kernel ? p.kernels[l.kernel->kernel].name.size() : 0;
      }
    }
    return total <= kMaxManifestBytes ? Result<void>() : bad("long names are used too often");
  }

  const Manifest& m_;
  const Artifact& artifact_;
  const std::string& name_;
};

}  // namespace

Result<void> check_manifest(const Manifest& manifest, const Artifact& artifact,
                            const std::string& name) {
  TFCC_TRY_VOID(Checker(manifest, artifact, name).all());
  if (!manifest.generation.empty())
    TFCC_TRY_VOID(Checker(generation_of(manifest), artifact, name).all());
  if (!manifest.ragged.empty()) TFCC_TRY_VOID(Checker(ragged_of(manifest), artifact, name).all());
  return {};
}

}  // namespace tfcc::runtime
