// Runs the CUDA C++ of a kernel on the host: every thread of every block, in turn. Where a kernel has barriers, the
// threads of a block are coroutines that change at each barrier, in another order each time.
#pragma once
#include "device.h"
#ifdef HAS_BARRIERS
#include <stdlib.h>
#include <ucontext.h>
#endif
static Index threadIdx, blockIdx, blockDim, gridDim;
#ifdef TRACED
#include "traced.h"
#else
namespace host {
inline bool is_chosen() { return true; }
}
#endif

namespace host {
static bool misaligned = false;
}
// What -fsanitize=alignment calls at an address that a GPU would refuse.
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(void*, void*) {
  host::misaligned = true;
}

#ifdef HAS_BARRIERS
extern "C" unsigned int host_seed = 0;  // of the order in which threads run
#endif

namespace host {
#ifdef HAS_BARRIERS
constexpr int MOST_THREADS = 1024, STACK = 32768;
static ucontext_t scheduler, threads[MOST_THREADS];
enum State : char { READY, AT_BARRIER, IN_EXCHANGE, DONE };
static State states[MOST_THREADS];
static char* stacks;
static unsigned int current, order[MOST_THREADS], chance;
static void (*body)(void**);
static void** body_arguments;

inline void trampoline() {
  body(body_arguments);
  states[current] = DONE;
  swapcontext(&threads[current], &scheduler);
}

inline void wait(State state) {
  states[current] = state;
  swapcontext(&threads[current], &scheduler);
}

// Lets `count` threads from `first` on go further if all of them wait for the same.
inline bool release(unsigned int first, unsigned int count, State waiting) {
  for (unsigned int t = first; t < first + count; ++t)
    if (states[t] != waiting) return false;
  for (unsigned int t = first; t < first + count; ++t) states[t] = READY;
  return true;
}

// Puts the threads in another order. What lies between two barriers must not depend on it.
inline void shuffle(unsigned int count) {
  for (unsigned int t = count; t > 1; --t) {
    chance = chance * 1664525 + 1013904223;
    const unsigned int other = (chance >> 16) % t, last = order[t - 1];
    order[t - 1] = order[other];
    order[other] = last;
  }
}

// 0, or 1 where threads wait for others that wait for something else, or have ended.
inline int run_block(Index block) {
  const unsigned int count = block.x * block.y * block.z;
  if (stacks == nullptr) stacks = (char*)malloc(MOST_THREADS * STACK);
  memset(__start_shared_memory, 0xFF, __stop_shared_memory - __start_shared_memory);
  for (unsigned int t = 0; t < count; ++t) {
    states[t] = READY;
    order[t] = t;
    getcontext(&threads[t]);
    threads[t].uc_stack.ss_sp = stacks + t * STACK;
    threads[t].uc_stack.ss_size = STACK;
    threads[t].uc_link = nullptr;
    makecontext(&threads[t], trampoline, 0);
  }
  for (bool going = true; going;) {
    shuffle(count);
    for (unsigned int t = 0; t < count; ++t) {
      current = order[t];
      if (states[current] != READY) continue;
      threadIdx = {current % block.x, current / block.x % block.y, current / block.x / block.y};
      swapcontext(&scheduler, &threads[current]);
    }
    going = release(0, count, AT_BARRIER);
    for (unsigned int warp = 0; warp + 32 <= count; warp += 32) going |= release(warp, 32, IN_EXCHANGE);
  }
  for (unsigned int t = 0; t < count; ++t)
    if (states[t] != DONE) return 1;
  return 0;
}
#endif

template <int... I> struct Places {};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {};
template <int... I> struct Count<0, I...> { using Type = Places<I...>; };
template <typename T> struct Size { static constexpr unsigned char value = sizeof(T); };
template <typename T> struct Size<T*> { static constexpr unsigned char value = 64 + sizeof(T*); };

template <typename... A, int... I>
void unpack(void (*kernel)(A...), void** arguments, Places<I...>) {
  kernel(*reinterpret_cast<A*>(arguments[I])...);
}

template <typename... A>
int launch(void (*kernel)(A...), const unsigned int* shape, void** arguments, const unsigned char* sizes, int count) {
  const unsigned char wanted[] = {Size<A>::value...};
  if (count != (int)sizeof...(A) || memcmp(wanted, sizes, count) != 0) return 2;
  gridDim = {shape[0], shape[1], shape[2]};
  blockDim = {shape[3], shape[4], shape[5]};
  static void (*const entry)(A...) = kernel;
  const auto call = [](void** given) { unpack(entry, given, typename Count<sizeof...(A)>::Type()); };
#ifdef HAS_BARRIERS
  body = call;
  body_arguments = arguments;
  chance = host_seed;
#endif
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        if (!is_chosen()) continue;
#ifdef HAS_BARRIERS
        if (run_block(blockDim) != 0) return 1;
#else
        for (threadIdx.z = 0; threadIdx.z < blockDim.z; ++threadIdx.z)
          for (threadIdx.y = 0; threadIdx.y < blockDim.y; ++threadIdx.y)
            for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) call(arguments);
#endif
      }
  return misaligned ? 3 : 0;
}
}  // namespace host

#ifdef HAS_BARRIERS
#include "warp.h"

namespace host {
// Two sets, since threads go on to the next exchange one after another.
static Given given[2][MOST_THREADS];
static unsigned char turns[MOST_THREADS];

inline const Given* exchange(const Given& mine) {
  const unsigned char turn = turns[current] ^= 1;
  given[turn][current] = mine;
  wait(IN_EXCHANGE);
  return given[turn] + current / 32 * 32;
}
}  // namespace host

inline void __syncthreads() { host::wait(host::AT_BARRIER); }
#endif
