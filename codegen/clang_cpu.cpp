// SPDX-License-Identifier: Apache-2.0
// The CPU compiler: Clang and lld as libraries. The only file that includes their headers; LLVM has
// no RTTI, so it is compiled without as well (codegen/CMakeLists.txt).
#include "codegen/clang_cpu.h"

#include <clang/Basic/Diagnostic.h>
#include <clang/Basic/Version.h>
#include <clang/CodeGen/CodeGenAction.h>
#include <clang/Frontend/CompilerInstance.h>
#include <clang/Frontend/CompilerInvocation.h>
#include <lld/Common/Driver.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/VirtualFileSystem.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string_view>

#include "codegen/templates.h"

LLD_HAS_DRIVER(elf)

namespace tfcc::codegen {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRoot = "/tfcc/";

/// What every unit is compiled with, apart from the level. Integers of a graph wrap, as the
/// evaluator's do: -fwrapv.
constexpr const char* kFlags[] = {"-triple",
                                  "x86_64-unknown-linux-gnu",
                                  "-emit-obj",
                                  "-O3",
                                  "-std=c++20",
                                  "-x",
                                  "c++",
                                  "-mrelocation-model",
                                  "pic",
                                  "-pic-level",
                                  "2",
                                  "-fvisibility=hidden",
                                  "-vectorize-loops",
                                  "-vectorize-slp",
                                  "-ffp-contract=on",
                                  "-mprefer-vector-width=512",
                                  "-nostdsysteminc",
                                  "-nobuiltininc",
                                  "-ffreestanding",
                                  "-fno-builtin",
                                  "-fno-rtti",
                                  "-fno-threadsafe-statics",
                                  "-fwrapv",
                                  "-mframe-pointer=none",
                                  "-I",
                                  kRoot};

/// Calls that the code generator makes on its own for large copies; -fno-builtin keeps these from
/// calling themselves.
constexpr const char* kMemoryUnit = R"(
using size = unsigned long;
extern "C" void* memcpy(void* to, const void* from, size n) {
  for (size i = 0; i < n; ++i) ((char*)to)[i] = ((const char*)from)[i];
  return to;
}
extern "C" void* memmove(void* to, const void* from, size n) {
  if (to < from) return memcpy(to, from, n);
  for (size i = n; i > 0; --i) ((char*)to)[i - 1] = ((const char*)from)[i - 1];
  return to;
}
extern "C" void* memset(void* to, int value, size n) {
  for (size i = 0; i < n; ++i) ((char*)to)[i] = (char)value;
  return to;
}
)";

/// Keeps the first error with its place.
class FirstError : public clang::DiagnosticConsumer {
 public:
  void HandleDiagnostic(clang::DiagnosticsEngine::Level level,
                        const clang::Diagnostic& info) override {
    DiagnosticConsumer::HandleDiagnostic(level, info);
    if (level < clang::DiagnosticsEngine::Error || !text.empty()) return;
    llvm::SmallString<256> message;
    info.FormatDiagnostic(message);
    if (info.hasSourceManager() && info.getLocation().isValid()) {
      clang::PresumedLoc place = info.getSourceManager().getPresumedLoc(info.getLocation());
      if (place.isValid()) {
        std::string file = place.getFilename();
        if (file.starts_with(kRoot)) file.erase(0, std::strlen(kRoot));
        text = file + ":" + std::to_string(place.getLine()) + ": ";
      }
    }
    text += message.str();
  }
  std::string text;
};

void initialize_target() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    LLVMInitializeX86AsmParser();
  });
}

Error internal(std::string message) { return {ErrorCode::internal, std::move(message)}; }

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

Result<std::string> resolve_level(const std::string& level) {
  if (level == "native") return native_cpu_level();
  if (level == "x86-64-v2" || level == "x86-64-v3" || level == "x86-64-v4") return level;
  return Error{ErrorCode::invalid_argument,
               "no CPU level '" + level + "'; use x86-64-v2, x86-64-v3, x86-64-v4 or native"};
}

llvm::IntrusiveRefCntPtr<llvm::vfs::InMemoryFileSystem> file_system(const std::string& path,
                                                                    const std::string& text) {
  auto files = llvm::makeIntrusiveRefCnt<llvm::vfs::InMemoryFileSystem>();
  for (const TemplateFile* file : included_templates(Family::cpu, text)) {
    llvm::StringRef bytes(file->text.data(), file->text.size());
    files->addFile(kRoot + std::string(file->path), 0, llvm::MemoryBuffer::getMemBuffer(bytes));
  }
  files->addFile(path, 0, llvm::MemoryBuffer::getMemBuffer(text));
  files->setCurrentWorkingDirectory(kRoot);
  return files;
}

std::vector<std::byte> to_bytes(llvm::StringRef s) {
  auto* data = reinterpret_cast<const std::byte*>(s.data());
  return {data, data + s.size()};
}

/// A directory that goes away with its contents.
class TempDir {
 public:
  static Result<TempDir> create() {
    std::error_code ec;
    std::string path = (fs::temp_directory_path(ec) / "tfcc-XXXXXX").string();
    if (ec || !mkdtemp(path.data())) {
      return Error{ErrorCode::io, "cannot make a directory for the linker: " + path +
                                      "; set TMPDIR to a writable one"};
    }
    return TempDir(path);
  }
  TempDir(TempDir&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TempDir& operator=(TempDir&&) = delete;
  ~TempDir() {
    std::error_code ec;
    if (!path_.empty()) fs::remove_all(path_, ec);
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  explicit TempDir(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

Result<void> write_file(const std::string& path, const std::vector<std::byte>& bytes) {
  std::FILE* f = std::fopen(path.c_str(), "wb");
  bool ok = f && std::fwrite(bytes.data(), 1, bytes.size(), f) == bytes.size();
  if (f && std::fclose(f) != 0) ok = false;
  if (!ok)
    return Error{ErrorCode::io,
                 path + ": cannot write an object for the linker; is the disk full?"};
  return {};
}

}  // namespace

namespace {

// One run of Clang.
struct Compilation {
  FirstError error;
  llvm::SmallVector<char, 0> object;
  clang::CompilerInstance compiler;
  clang::EmitObjAction action;
};

Result<std::vector<std::byte>> run(Compilation& c, const CpuSource& unit, const std::string& cpu) {
  std::string path = kRoot + unit.name + ".cpp";
  std::vector<const char*> args(std::begin(kFlags), std::end(kFlags));
  args.insert(args.end(), {"-target-cpu", cpu.c_str(), path.c_str()});
  auto& [error, object, compiler, action] = c;
  compiler.createDiagnostics(&error, /*ShouldOwnClient=*/false);
  auto invocation = std::make_shared<clang::CompilerInvocation>();
  if (!clang::CompilerInvocation::CreateFromArgs(*invocation, args, compiler.getDiagnostics())) {
    return internal("kernel " + unit.name + ": clang refuses its options: " + error.text);
  }
  compiler.setInvocation(invocation);
  compiler.createFileManager(file_system(path, unit.text));
  compiler.setOutputStream(std::make_unique<llvm::raw_svector_ostream>(object));
  compiler.setVerboseOutputStream(llvm::nulls());  // else "1 error generated" appears on stderr
  if (!compiler.ExecuteAction(action) || !error.text.empty()) {
    return internal("kernel " + unit.name + " does not compile: " + first_line(error.text));
  }
  return to_bytes({object.data(), object.size()});
}

}  // namespace

Result<std::vector<std::byte>> compile_cpu_object(const CpuSource& unit, const std::string& level) {
  initialize_target();
  TFCC_TRY(std::string cpu, resolve_level(level));
  // Where memory runs out an exception goes through LLVM, which is not made for it: what it leaves
  // half-made cannot be destroyed, and stays.
  auto* compilation = new Compilation;
  auto object = run(*compilation, unit, cpu);
  delete compilation;
  return object;
}

namespace {

// Whether an object names one of the memory unit's functions.
bool copies_memory(const std::vector<std::byte>& object) {
  const std::string_view bytes(reinterpret_cast<const char*>(object.data()), object.size());
  constexpr std::array<std::string_view, 3> kFunctions = {{"memcpy", "memmove", "memset"}};
  return std::any_of(kFunctions.begin(), kFunctions.end(),
                     [&](std::string_view f) { return bytes.find(f) != bytes.npos; });
}

}  // namespace

Result<std::vector<std::byte>> link_cpu(const std::vector<std::vector<std::byte>>& objects,
                                        const std::string& level) {
  TFCC_TRY(TempDir dir, TempDir::create());
  std::vector<std::string> inputs;
  const auto add = [&](const std::vector<std::byte>& object) {
    inputs.push_back(dir.file(std::to_string(inputs.size()) + ".o"));
    return write_file(inputs.back(), object);
  };
  for (const auto& object : objects) TFCC_TRY_VOID(add(object));
  if (std::any_of(objects.begin(), objects.end(), copies_memory)) {
    TFCC_TRY(auto memory, compile_cpu_object({"memory", kMemoryUnit}, level));
    TFCC_TRY_VOID(add(memory));
  }
  std::string output = dir.file("kernels.so");
  std::vector<const char*> args = {"ld.lld",
                                   "-shared",
                                   "--no-undefined",
                                   "-nostdlib",
                                   "--gc-sections",
                                   "--strip-all",
                                   "--build-id=none",
                                   "-z",
                                   "noexecstack",
                                   "--threads=1",
                                   "-o",
                                   output.c_str()};
  for (const std::string& input : inputs) args.push_back(input.c_str());

  static std::mutex one_at_a_time;  // lld keeps its state in globals
  static bool usable = true;
  std::lock_guard lock(one_at_a_time);
  if (!usable) return internal("the linker failed earlier in this process and cannot run again");
  std::string messages, ignored;
  llvm::raw_string_ostream err(messages), out(ignored);
  lld::Result result = lld::lldMain(args, out, err, {{lld::Gnu, &lld::elf::link}});
  usable = result.canRunAgain;
  if (result.retCode != 0) return internal("kernels do not link: " + first_line(err.str()));
  auto file =
      llvm::MemoryBuffer::getFile(output, /*IsText=*/false, /*RequiresNullTerminator=*/false);
  if (!file)
    return Error{ErrorCode::io,
                 output + ": cannot read the linked kernels: " + file.getError().message()};
  return to_bytes((*file)->getBuffer());
}

std::string cpu_compiler_version() {
  std::string version = "clang " CLANG_VERSION_STRING;
  for (const char* flag : kFlags) version += std::string(" ") + flag;
  return version;
}

std::string native_cpu_level() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return "x86-64-v4";
  if (__builtin_cpu_supports("x86-64-v3")) return "x86-64-v3";
  return "x86-64-v2";
}

}  // namespace tfcc::codegen
