// SPDX-License-Identifier: Apache-2.0
// The CUDA compiler without a GPU: code comes out, logs are read, errors say what to do. Skipped
// without NVRTC.
#include "codegen/matmul/matmul.h"
#include "codegen/nvrtc.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "codegen/templates.h"

namespace {

using namespace tfcc::codegen;
using tfcc::DType;

const char* kKernel = R"(
#include "cuda/prelude.cuh"
TFCC_KERNEL(128, twice, const f32* a0, f32* a1) { i64 i = blockIdx.x * 128 + threadIdx.x; if (i < n[0]) a1[i] = 2 * a0[i]; }
)";

class NvrtcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (auto version = cuda_compiler_version(); !version) GTEST_SKIP() << version.error().message;
  }
};

TEST(NvrtcLog, RegistersAndSpills) {
  CudaImage image;
  read_ptxas_log(
      "ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function 'a' for 'sm_90'\n"
      "ptxas info    : Function properties for a\n"
      "    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 544 bytes cmem[0]\n",
      image);
  EXPECT_EQ(image.registers, 255);
  EXPECT_EQ(image.spill_bytes, 32);
}

TEST_F(NvrtcTest, CubinForEveryTarget) {
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90"}) {
    auto image = compile_cuda("twice", kKernel, arch);
    ASSERT_TRUE(image) << image.error().message;
    ASSERT_GT(image->bytes.size(), 4u);
    EXPECT_EQ(std::memcmp(image->bytes.data(),
                          "\x7f"
                          "ELF",
                          4),
              0);
    EXPECT_GT(image->registers, 0);
    EXPECT_EQ(image->spill_bytes, 0);
  }
}

// A cubin runs under any driver of its major version, PTX under none that is older than the compiler.
TEST_F(NvrtcTest, KnowsTheLeastDriver) {
  const std::string version = *cuda_compiler_version();  // "nvrtc 13.0 --std..."
  int major = 0, minor = 0;
  ASSERT_EQ(std::sscanf(version.c_str(), "nvrtc %d.%d", &major, &minor), 2) << version;
  EXPECT_EQ(least_driver("sm_90"), static_cast<uint32_t>(major * 1000));
  EXPECT_EQ(least_driver("compute_80"), static_cast<uint32_t>(major * 1000 + minor * 10));
}

TEST_F(NvrtcTest, PtxEndsWithNul) {
  auto image = compile_cuda("twice", kKernel, "compute_80");
  ASSERT_TRUE(image) << image.error().message;
  std::string text(reinterpret_cast<const char*>(image->bytes.data()), image->bytes.size());
  EXPECT_NE(text.find(".target sm_80"), std::string::npos);
  EXPECT_NE(text.find(".entry twice"), std::string::npos);
  EXPECT_EQ(text.back(), '\0');
}

TEST_F(NvrtcTest, SpillsAreCounted) {
  auto image = compile_cuda("spill", R"(
extern "C" __global__ void __launch_bounds__(1024) spill(float* p, int m) {
  float v[128];
  #pragma unroll
  for (int i = 0; i < 128; ++i) v[i] = p[i * 1024 + threadIdx.x];
  for (int k = 0; k < m; ++k) {
    #pragma unroll
    for (int i = 0; i < 128; ++i) v[i] = v[i] * v[(i * 7 + 3) % 128] + k;
  }
  #pragma unroll
  for (int i = 0; i < 128; ++i) p[i * 1024 + threadIdx.x] = v[i];
})",
                            "sm_80");
  ASSERT_TRUE(image) << image.error().message;
  EXPECT_GT(image->spill_bytes, 0) << image->log;
  EXPECT_LE(image->registers, 64);
}

TEST_F(NvrtcTest, ErrorNamesKernelArchAndLine) {
  auto image = compile_cuda("bad__3", "extern \"C\" __global__ void bad__3() {\n  nonsense();\n}\n",
                            "sm_80");
  ASSERT_FALSE(image);
  EXPECT_EQ(
      image.error().message,
      "kernel bad__3 does not compile for sm_80: bad__3.cu(2): error: identifier \"nonsense\" is undefined");
}

TEST_F(NvrtcTest, UnknownArchitecture) {
  auto newer = compile_cuda("twice", kKernel, "sm_999");
  ASSERT_FALSE(newer);
  EXPECT_EQ(newer.error().code, tfcc::ErrorCode::unsupported) << newer.error().message;
  auto wrong = compile_cuda("twice", kKernel, "gfx90a");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().message, "no CUDA architecture 'gfx90a'; write sm_90 or compute_80");
}

// The launch after a kernel may be started as soon as this one has what it waits for.
TEST_F(NvrtcTest, WaitsAndTriggers) {
  auto image = compile_cuda(
      "chained",
      "#include \"cuda/prelude.cuh\"\nTFCC_KERNEL(32, chained, int* a) { wait_for_predecessor(); *a = 1; }\n",
      "compute_90");
  ASSERT_TRUE(image) << image.error().message;
  const std::string ptx(reinterpret_cast<const char*>(image->bytes.data()), image->bytes.size());
  const size_t wait = ptx.find("griddepcontrol.wait"),
               trigger = ptx.find("griddepcontrol.launch_dependents"),
               store = ptx.find("st.global");
  ASSERT_NE(store, std::string::npos) << ptx;
  EXPECT_LT(wait, trigger);
  EXPECT_LT(trigger, store);
}

// Tiles that no plan has yet are compiled too, in both types and both orders of the weight, with
// norms and without.
TEST_F(NvrtcTest, EveryTileOfAWarpgroupCompiles) {
  for (const char* type : {"f16", "bf16"}) {
    struct Form {
      const char* tiles;
      int threads;
      bool trans_b, norms;
    };
    for (
        const auto& [tiles, threads, trans_b, norms] :
        {Form{"WgmmaTile<64, 64, 8>, WgmmaTile<64, 32, 12>", 224, true, true},
         {"WgmmaTile<64, 128, 3>", 224, false, false},
         {"WgmmaTile<128, 64, 4>", 352, false, true},
         {"WgmmaTile<128, 256, 4>", 352, false, false},
         {"WgmmaTile<128, 192, 4>, WgmmaTile<128, 128, 5>, WgmmaTile<128, 64, 8>, WgmmaTile<64, 192, 5>",
          352, true, true},
         {"WgmmaTile<128, 256, 3>, WgmmaTile<128, 160, 4>, WgmmaTile<128, 96, 3, 128>, WgmmaTile<64, 32, 6, 128>",
          352, true, true},
         {"WgmmaTile<128, 240, 4>, WgmmaTile<128, 104, 6>, WgmmaTile<128, 40, 4, 128>", 352, true,
          false}}) {
      SCOPED_TRACE(tiles);
      const std::string n = norms ? "1" : "0";
      const std::string_view list(tiles);
      std::string maps = "&m1";
      const bool several = std::count(list.begin(), list.end(), '<') > 1;
      for (auto t = std::count(list.begin(), list.end(), '<'); t > 1; --t) maps += ", &m1";
      const std::string text =
          "#include \"cuda/matmul_wgmma.cuh\"\nstruct Spec { using T = " + std::string(type) +
          "; using Out = T; using Tiles = WgmmaTiles<" + tiles +
          ">; using Columns = ColumnValues<T, f32, T, f32>; static constexpr bool early = true, trans_b = " +
          (trans_b ? "true" : "false") +
          ", costly = " + (several && list.find("256") == list.npos ? "true" : "false") +
          ", moments = " + n + ", sum = " + n + ", beside = " + n + ", gated = false" +
          "; static constexpr int norm = " + n +
          ", norm_groups = 32, tiles_of_few = -1; static constexpr f32 eps = 1e-5f; };\n"
          "struct All { TFCC_FN f32 operator()(f32 s, f32 mean, f32 rstd, f32 beside, f32 c0, f32 c1, f32 c2, f32 c3, idx, idx) const { return rstd * (s - mean * c0) + c1 + beside * c2 + c3; } };\n"
          "struct Scaled { TFCC_FN f32 operator()(f32 v, f32 c0, f32, f32, f32, idx, idx) const { return v * c0; } };\n"
          "TFCC_KERNEL_RESIDENT(" +
          std::to_string(threads) + ", 1, tile" +
          (several ? ", const __grid_constant__ TilesByRows<1> tiles" : "") +
          ", const Spec::T* a0, const f32* a1, Spec::Out* a2, f32* a3, const __grid_constant__ TensorMap m0, const __grid_constant__ TensorMap m1) {\n"
          "  matmul_wgmma<Spec>(m0, {" +
          maps +
          "}, [&] { return (idx)n[0]; }, 768, 768, MatmulEnd<Spec, All, Scaled>{a2, All{}, {a0, {a1, {a0, {a1, {}}}}}, Scaled{}, a3, a2, a1, a0}" +
          std::string(several ? ", tiles" : "") + ");\n}\n";
      auto image = compile_cuda("tile", text, "sm_90a");
      ASSERT_TRUE(image) << image.error().message;
      EXPECT_EQ(image->spill_bytes, 0) << tiles;
    }
  }
}

// And every tile past which a weight may stream.
TEST_F(NvrtcTest, EveryTileOfAStreamCompiles) {
  tfcc::ir::ExprPool pool;
  for (const char* type : {"f16", "bf16"}) {
    for (const int n : {2048, 2560, 4096, 5280, 6336, 7392, 8448}) {
      MatmulDesc desc;
      desc.n = pool.integer(n);
      const StreamTile tile = stream_tile(desc, 132);
      const std::string text =
          "#include \"cuda/matmul_stream.cuh\"\nstruct Spec { using T = " + std::string(type) +
          "; using Out = f32; static constexpr int block_n = " + std::to_string(tile.block_n) +
          ", block_k = " + std::to_string(tile.block_k) +
          ", stages = " + std::to_string(tile.stages) +
          "; static constexpr bool gated = false; };\n"
          "struct Plain { TFCC_FN f32 operator()(f32 s, idx, idx) const { return s; } };\n"
          "static_assert(MatmulStreamShape<Spec>::shared_bytes == " +
          std::to_string(stream_shared_bytes(tile)) +
          ");\n"
          "TFCC_KERNEL_RESIDENT(160, 2, tile, Spec::Out* a0, const __grid_constant__ TensorMap m0, const __grid_constant__ TensorMap m1) {\n"
          "  matmul_stream<Spec>(a0, m0, m1, [&] { return (idx)n[0]; }, 768, 768, Plain{});\n}\n";
      auto image = compile_cuda("tile", text, "sm_90a");
      ASSERT_TRUE(image) << image.error().message;
      EXPECT_EQ(image->spill_bytes, 0) << tile.block_n;
    }
  }
}

// And tiles of codes, with as many columns as a block may have and with few: of digits in pairs, and of
// values that share four numbers.
TEST_F(NvrtcTest, TilesOfCodesCompile) {
  tfcc::ir::ExprPool pool;
  for (const auto& [type, per, digits] : {std::tuple{DType::f16, 2, true},
                                          {DType::f16, 1, true},
                                          {DType::f16, 4, false},
                                          {DType::bf16, 2, false},
                                          {DType::bf16, 1, false}}) {
    for (const int n : {2048, 6144, 22016}) {
      for (const char* target : {"sm_80", "sm_90"}) {
        PackedFactor packed{1, DType::u8, per, 16 * per, {pool.real(1)}};
        if (digits) packed.scale = pool.real(1);
        else packed.shared.assign(4, pool.real(1));
        const TargetClass c = class_of(target);
        const CodedTile t = coded_tile(type, packed, n, 1, c, c.shared_bytes);
        const std::string numbers = fmt::format(
            "threads = {}, loaders = {}, block_n = {}, turns = {}, "
            "block_k = {}, stages = {}, ahead = {}, copy = 16, per_code = {}, "
            "shared_size = {}",
            t.threads(), t.loaders, t.block_n, t.turns, t.block_k, t.stages, t.ahead, per,
            packed.shared_bytes());
        const std::string text =
            fmt::format(R"(#include "cuda/matmul_coded.cuh"
struct Spec {{ using T = {0}; using Out = {0}; using Code = u8; static constexpr bool gated = false, early = true, digits = {1}; static constexpr int {2}; }};
static_assert(CodedTileShape<Spec>::shared_bytes == {3});
struct Weight {{
  const f16* s; const u8* z;
  struct Raw {{ f16 s; u8 z; }};
  struct Shared {{ f32 v[{4}]; }};
  TFCC_FN Raw raw(idx i, idx j) const {{ return {{s[i * 64 + j], z[i * 32 + j / 2]}}; }}
  TFCC_FN Shared shared(idx, idx, const Raw& r) const {{ Shared v; for (f32& x : v.v) x = f16_to_f32(*(const u16*)&r.s) + (f32)r.z; return v; }}
  TFCC_FN Shared shared(idx i, idx j) const {{ return shared(i, j, raw(i, j)); }}
  TFCC_FN f32 scale(const Shared& v) const {{ return v.v[0]; }}
  TFCC_FN f32 zero(const Shared&) const {{ return 8.0f; }}
  TFCC_FN f32 value(const Shared& v, int place, int code) const {{ return v.v[0] * (f32)(code >> place % {5} * {6} & {7}) - v.v[{4} - 1]; }}
}};
struct Plain {{ TFCC_FN f32 operator()(f32 s, idx, idx) const {{ return s; }} }};
TFCC_KERNEL({8}, tile, const Spec::T* a0, const u8* a1, const f16* a2, const u8* a3, Spec::Out* a4) {{
  matmul_coded<Spec>(a4, a0, a1, [n] {{ return (idx)n[0]; }}, {9}, 4096, Plain{{}}, Weight{{a2, a3}});
}}
)",
                        to_string(type), digits, numbers, coded_shared_bytes(type, packed, t),
                        packed.shared.size(), per, 8 / per, (1 << 8 / per) - 1, t.threads(), n);
        auto image = compile_cuda("tile", text, std::string(target) == "sm_90" ? "sm_90a" : target);
        ASSERT_TRUE(image) << image.error().message;
        EXPECT_EQ(image->spill_bytes, 0) << numbers;
      }
    }
  }
}

TEST_F(NvrtcTest, SeveralThreadsAtOnce) {
  std::vector<std::thread> threads;
  std::vector<int> good(4);
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] { good[t] = bool(compile_cuda("twice", kKernel, "sm_90")); });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(good, std::vector<int>(4, 1));
}

TEST_F(NvrtcTest, EveryTemplateCompilesAlone) {
  for (const TemplateFile& file : template_files()) {
    if (!belongs_to(file, tfcc::Family::cuda) || file.path.ends_with(".md")) continue;
    auto image = compile_cuda(
        "one", "#include \"cuda/prelude.cuh\"\n#include \"" + std::string(file.path) + "\"\n",
        "sm_80");
    EXPECT_TRUE(image) << file.path << ": " << (image ? "" : image.error().message);
  }
}

}  // namespace
