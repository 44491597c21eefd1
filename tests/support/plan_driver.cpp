// Opens and runs plan files, each in turn, and prints what came of it. Compiled with the library and sanitizers.
//
//     plan_driver LIBONNXRUNTIME SECONDS FILE...
//
// onnxruntime has no sanitizer, so all memory that it gets ends at a page that nobody may touch.

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "iosched_plan.h"

namespace {

constexpr size_t kPage = 4096, kMostBytes = size_t{1} << 28;

size_t pages(size_t nbytes) { return (nbytes + kPage - 1) / kPage * kPage; }

char* mapped(char* at, size_t nbytes, int access, int flags, int file) {
  return reinterpret_cast<char*>(syscall(SYS_mmap, at, nbytes, access, flags | MAP_PRIVATE, file, 0));
}

void* guarded(size_t nbytes) {
  char* base = mapped(nullptr, pages(nbytes) + kPage, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1);
  if (base == MAP_FAILED) return nullptr;
  mprotect(base + pages(nbytes), kPage, PROT_NONE);
  return base + pages(nbytes) - nbytes;
}

void unguard(void* data, size_t nbytes) {
  syscall(SYS_munmap, reinterpret_cast<uintptr_t>(data) / kPage * kPage, pages(nbytes) + kPage);
}

// The buffers of a run, of just the sizes that are described.
struct Buffers {
  Buffers(const iosched_plan_tensor* tensors, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      sizes.push_back(tensors[i].nbytes);
      all.push_back(tensors[i].rank < 0 || tensors[i].nbytes > kMostBytes ? nullptr : guarded(tensors[i].nbytes));
      if (all.back() == nullptr) {
        is_complete &= tensors[i].rank < 0;
        continue;
      }
      auto* bytes = static_cast<uint8_t*>(all.back());
      for (size_t at = 0; at < tensors[i].nbytes; ++at) bytes[at] = at % 4 == 3 ? 63 : at % 2;  // floats near one
    }
  }
  Buffers(const Buffers&) = delete;
  ~Buffers() {
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] != nullptr) unguard(all[i], sizes[i]);
    }
  }
  std::vector<void*> all;
  std::vector<size_t> sizes;
  bool is_complete = true;
};

struct Allocated {
  ~Allocated() {
    for (const auto& [data, nbytes] : all) unguard(data, nbytes);
  }
  std::vector<std::pair<void*, size_t>> all;
};

void* allocate(void* user, size_t, const int64_t*, size_t, size_t nbytes) {
  void* found = nbytes > kMostBytes ? nullptr : guarded(nbytes);
  if (found != nullptr) static_cast<Allocated*>(user)->all.emplace_back(found, nbytes);
  return found;
}

const char* ran(iosched_plan* plan) {
  iosched_plan_description about{};
  about.size = sizeof about;
  size_t programs = 1;
  for (size_t program = 0; program < programs; ++program) {
    if (iosched_plan_describe(plan, program, &about) != 0) return iosched_plan_error();
    programs = about.n_programs;
    Buffers inputs(about.inputs, about.n_inputs), outputs(about.outputs, about.n_outputs);
    if (!inputs.is_complete || !outputs.is_complete) return "too large";
    for (int i = 0; i < 2; ++i) {
      Allocated memory;
      if (iosched_plan_run(plan, program, inputs.all.data(), outputs.all.data(), allocate, &memory) != 0) {
        return iosched_plan_error();
      }
    }
  }
  return "";
}

}  // namespace

// The library is compiled to call these for mmap and munmap.
extern "C" void* guarded_mmap(void*, size_t nbytes, int access, int, int file, off_t) noexcept {
  void* found = nbytes > kMostBytes ? nullptr : guarded(file < 0 ? nbytes : pages(nbytes));
  if (found == nullptr) return MAP_FAILED;
  return file < 0 ? found : mapped(static_cast<char*>(found), nbytes, access, MAP_FIXED, file);
}

extern "C" int guarded_munmap(void* data, size_t nbytes) noexcept {
  unguard(data, nbytes);
  return 0;
}

int main(int count, char** words) {
  void* library = dlopen(words[1], RTLD_NOW);
  if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror());
  const void* base = reinterpret_cast<const void* (*)()>(dlsym(library, "OrtGetApiBase"))();
  for (int i = 3; i < count; ++i) {
    alarm(static_cast<unsigned>(std::atoi(words[2])));
    iosched_plan* plan = iosched_plan_open(words[i], base, nullptr);
    std::printf("%s ", plan == nullptr ? "refused" : "opened");
    for (const char* text = plan == nullptr ? iosched_plan_error() : ran(plan); *text != '\0'; ++text) {
      std::putchar(*text == '\n' ? ' ' : *text);
    }
    iosched_plan_close(plan);
    std::printf("\n");
    std::fflush(stdout);
  }
  std::_Exit(0);  // onnxruntime's own memory is no leak of ours
}
