// Runs the CUDA C++ of a kernel on the host: every thread of every block, in turn. Where a kernel has barriers, the
// threads of a block are coroutines that change at each barrier.
#pragma once
#include <string.h>
#ifdef HAS_BARRIERS
#include <stdlib.h>
#include <ucontext.h>
#endif
#ifdef HALVES
#include "cuda_fp16.h"
#endif

// Declared one by one: the headers that hold them take longer to compile than all kernels.
extern "C" {
float expf(float), expm1f(float), logf(float), log1pf(float), tanhf(float), erff(float), sqrtf(float), powf(float, float);
float fabsf(float), floorf(float), ceilf(float), rintf(float), sinf(float), cosf(float), fmodf(float, float);
float fmaxf(float, float), fminf(float, float), fmaf(float, float, float), truncf(float);
}

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

struct Index { unsigned int x, y, z; };
static Index threadIdx, blockIdx, blockDim, gridDim;

inline float __int_as_float(int bits) { float f; memcpy(&f, &bits, 4); return f; }
inline float __uint_as_float(unsigned bits) { float f; memcpy(&f, &bits, 4); return f; }
inline double __longlong_as_double(long long bits) { double f; memcpy(&f, &bits, 8); return f; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

namespace host {
static bool misaligned = false;
}
// What -fsanitize=alignment calls at an address that a GPU would refuse.
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(void*, void*) {
  host::misaligned = true;
}

namespace host {
#ifdef HAS_BARRIERS
constexpr int MOST_THREADS = 1024, STACK = 32768;
static ucontext_t scheduler, threads[MOST_THREADS];
enum State : char { READY, AT_BARRIER, IN_EXCHANGE, DONE };
static State states[MOST_THREADS];
static char* stacks;
static unsigned int current;
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

// 0, or 1 where threads wait for others that wait for something else, or have ended.
inline int run_block(Index block) {
  const unsigned int count = block.x * block.y * block.z;
  if (stacks == nullptr) stacks = (char*)malloc(MOST_THREADS * STACK);
  for (unsigned int t = 0; t < count; ++t) {
    states[t] = READY;
    getcontext(&threads[t]);
    threads[t].uc_stack.ss_sp = stacks + t * STACK;
    threads[t].uc_stack.ss_size = STACK;
    threads[t].uc_link = nullptr;
    makecontext(&threads[t], trampoline, 0);
  }
  for (bool going = true; going;) {
    for (current = 0; current < count; ++current) {
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
#endif
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
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
// Exchanges within a warp: all of its threads give something, then each reads what the others gave. Two sets, since
// threads go on to the next exchange one after another.
struct Given { unsigned a[4], b[2]; };
namespace host {
static Given given[2][MOST_THREADS];
static unsigned char turns[MOST_THREADS];

inline const Given* exchange(const Given& mine) {
  const unsigned char turn = turns[current] ^= 1;
  given[turn][current] = mine;
  wait(IN_EXCHANGE);
  return given[turn] + current / 32 * 32;
}

inline float element(unsigned word, int, float) { return __uint_as_float(word); }
#ifdef HALVES
inline float element(unsigned word, int which, __half) { return __half2float({(uint16_t)(word >> 16 * which)}); }
#endif

// d += a (16 x K) * b (K x 8) as mma.sync has them (PTX ISA, "Matrix fragments for mma.m16n8k16" and m16n8k8 of .tf32).
template <typename T, int K>
inline void mma_of(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const Given* lanes = exchange({{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
  constexpr int PER_WORD = K / 8;
  const unsigned lane = current % 32;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < K; ++k) {
      const int word = k / PER_WORD % 4, far = k / (K / 2), which = k % PER_WORD;
      const float left = element(lanes[row % 8 * 4 + word].a[far * 2 + row / 8], which, T());
      const float right = element(lanes[column * 4 + word].b[far], which, T());
      d[i] = fmaf(left, right, d[i]);
    }
  }
}
}  // namespace host

inline unsigned __shfl_sync(unsigned, unsigned value, int lane) {
  return host::exchange({{value, 0, 0, 0}, {0, 0}})[lane].a[0];
}
#ifndef __CUDACC__
#ifdef HALVES
inline void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { host::mma_of<__half, 16>(d, a, b); }
#else
inline void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { host::mma_of<float, 8>(d, a, b); }
inline float round_to_tf32(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return __uint_as_float((bits + 0x1000) & ~0x1fffu);
}
#endif
#endif

inline void __syncthreads() { host::wait(host::AT_BARRIER); }
#endif
