// Runs the CUDA C++ of a kernel on the host under ThreadSanitizer: a thread of its own for every thread of a block, and
// block after block, since what they share is static. Memory is a file, in which whoever launches finds what was written.
#pragma once
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "device.h"

extern "C" void AnnotateIgnoreSyncBegin(const char*, int), AnnotateIgnoreSyncEnd(const char*, int);

static thread_local Index threadIdx, blockIdx;
static Index blockDim, gridDim;

namespace host {
constexpr int MOST_THREADS = 1024, WARP = 32;
static thread_local unsigned int current;
static pthread_barrier_t everyone[2], warps[MOST_THREADS / WARP];
static char* memory;
static void (*body)();

struct Address {
  unsigned long offset;
  template <typename T> operator T*() const { return reinterpret_cast<T*>(memory + offset); }
};

// Two barriers in turn: a thread that leaves one late would else be taken to have seen what others did up to the next.
inline void wait_for_everyone() {
  static thread_local unsigned char turn;
  pthread_barrier_wait(&everyone[turn ^= 1]);
}

inline void* run_thread(void* index) {
  current = (unsigned long)index;
  threadIdx = {current % blockDim.x, current / blockDim.x % blockDim.y, current / blockDim.x / blockDim.y};
  for (unsigned int block = 0; block < gridDim.x * gridDim.y * gridDim.z; ++block) {
    if (current == 0) memset(__start_shared_memory, 0xFF, __stop_shared_memory - __start_shared_memory);
    blockIdx = {block % gridDim.x, block / gridDim.x % gridDim.y, block / gridDim.x / gridDim.y};
    wait_for_everyone();
    body();
    wait_for_everyone();
  }
  return nullptr;
}

inline int launch(void (*kernel)(), Index grid, Index block, const char* path) {
  const int file = open(path, O_RDWR);
  struct stat about;
  if (file < 0 || fstat(file, &about) != 0) return 1;
  memory = (char*)mmap(nullptr, about.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return 1;
  body = kernel, gridDim = grid, blockDim = block;
  const unsigned int count = block.x * block.y * block.z;
  for (pthread_barrier_t& all : everyone) pthread_barrier_init(&all, nullptr, count);
  for (pthread_barrier_t& warp : warps) pthread_barrier_init(&warp, nullptr, WARP);
  pthread_t threads[MOST_THREADS];
  for (unsigned long t = 0; t < count; ++t)
    if (pthread_create(&threads[t], nullptr, run_thread, (void*)t) != 0) return 2;
  for (unsigned int t = 0; t < count; ++t) pthread_join(threads[t], nullptr);
  return 0;
}
}  // namespace host

inline void __syncthreads() { host::wait_for_everyone(); }

#include "warp.h"
namespace host {
// Not seen by ThreadSanitizer: an exchange orders no other reads and writes of the warp's threads.
__attribute__((no_sanitize("thread"))) inline const Given* exchange(const Given& mine) {
  static Given given[2][MOST_THREADS];
  static thread_local Given seen[WARP];
  static thread_local unsigned char turn;
  turn ^= 1;
  given[turn][current] = mine;
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
  pthread_barrier_wait(&warps[current / WARP]);
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  for (unsigned int lane = 0; lane < WARP; ++lane) seen[lane] = given[turn][current / WARP * WARP + lane];
  return seen;
}
}  // namespace host
