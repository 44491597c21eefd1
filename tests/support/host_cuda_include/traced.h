// Records what the threads of a kernel read and write while it runs on the host: g++ calls the functions below where
// ThreadSanitizer would look. Loops count their rounds, so that what threads do in the same round of the same place
// can be told to be one instruction, whether or not others of the warp had that round.
#pragma once
#include <stdlib.h>

#define UNTRACED __attribute__((no_sanitize("thread")))

namespace host {
struct Access {
  unsigned long long address, instruction;
  unsigned int block, thread, nbytes, writes;
};
struct Range {
  unsigned long long first, last;
};
constexpr int DEEPEST = 16;
static unsigned int rounds[1024][DEEPEST], depths[1024];
static Access* accesses;
static unsigned long long count_of_accesses, room;
static const Range* ranges;
static int count_of_ranges;
static unsigned int every = 1;  // that many blocks, one is run

UNTRACED inline unsigned int thread_index() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

UNTRACED inline bool is_chosen() { return blockIdx.x % every == every / 2; }

// The variable of a loop.
struct Round {
  int value;
  Round(int first) : value(first) { rounds[thread_index()][depths[thread_index()]++] = 0; }
  ~Round() { --depths[thread_index()]; }
  operator int() const { return value; }
  Round& to(int next) {
    ++rounds[thread_index()][depths[thread_index()] - 1];
    value = next;
    return *this;
  }
  Round& operator++() { return to(value + 1); }
  Round& operator+=(int step) { return to(value + step); }
  Round& operator/=(int step) { return to(value / step); }
  Round& operator^=(int bits) { return to(value ^ bits); }
};

UNTRACED inline void record(const void* at, unsigned int nbytes, unsigned int writes, void* place) {
  const unsigned long long address = (unsigned long long)at;
  bool known = false;
  for (int k = 0; k < count_of_ranges; ++k) known |= address >= ranges[k].first && address < ranges[k].last;
  if (!known) return;
  if (count_of_accesses == room) accesses = (Access*)realloc(accesses, (room = 2 * room + 4096) * sizeof(Access));
  const unsigned int me = thread_index();
  unsigned long long instruction = (unsigned long long)place;
  for (unsigned int k = 0; k < depths[me]; ++k) instruction = instruction * 1099511628211ull + rounds[me][k] + 1;
  accesses[count_of_accesses++] = {address, instruction, blockIdx.x, me, nbytes, writes};
}
}  // namespace host

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define RECORDS(nbytes)                                                                                 \
  void __tsan_read##nbytes(void* at) { host::record(at, nbytes, 0, __builtin_return_address(0)); }     \
  void __tsan_write##nbytes(void* at) { host::record(at, nbytes, 1, __builtin_return_address(0)); }
RECORDS(1) RECORDS(2) RECORDS(4) RECORDS(8) RECORDS(16)
void __tsan_read_range(void* at, unsigned long nbytes) { host::record(at, nbytes, 0, __builtin_return_address(0)); }
void __tsan_write_range(void* at, unsigned long nbytes) { host::record(at, nbytes, 1, __builtin_return_address(0)); }

// Beside these ranges of memory, what is shared is recorded.
unsigned long long host_trace(host::Range* given, int count, unsigned int one_of) {
  given[count] = {(unsigned long long)__start_shared_memory, (unsigned long long)__stop_shared_memory};
  host::ranges = given, host::count_of_ranges = count + 1, host::every = one_of;
  host::count_of_accesses = 0;
  return 0;
}
unsigned long long host_traced(host::Access** found) {
  *found = host::accesses;
  return host::count_of_accesses;
}
}
