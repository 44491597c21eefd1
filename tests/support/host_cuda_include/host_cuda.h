// Runs the CUDA C++ of a kernel on the host: every thread of every block, in turn. Where a kernel has barriers, the
// threads of a block are coroutines that change at each barrier.
#pragma once
#include <string.h>
#ifdef HAS_BARRIERS
#include <stdlib.h>
#include <ucontext.h>
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
static bool done[MOST_THREADS];
static char* stacks;
static unsigned int current;
static void (*body)(void**);
static void** body_arguments;

inline void trampoline() {
  body(body_arguments);
  done[current] = true;
  swapcontext(&threads[current], &scheduler);
}

// 0, or 1 where some threads of the block end while others wait at a barrier.
inline int run_block(Index block) {
  const unsigned int count = block.x * block.y * block.z;
  if (stacks == nullptr) stacks = (char*)malloc(MOST_THREADS * STACK);
  for (unsigned int t = 0; t < count; ++t) {
    done[t] = false;
    getcontext(&threads[t]);
    threads[t].uc_stack.ss_sp = stacks + t * STACK;
    threads[t].uc_stack.ss_size = STACK;
    threads[t].uc_link = nullptr;
    makecontext(&threads[t], trampoline, 0);
  }
  for (unsigned int ended = 0; ended < count;) {
    for (current = 0; current < count; ++current) {
      threadIdx = {current % block.x, current / block.x % block.y, current / block.x / block.y};
      swapcontext(&scheduler, &threads[current]);
    }
    ended = 0;
    for (unsigned int t = 0; t < count; ++t) ended += done[t];
    if (ended != 0 && ended != count) return 1;
  }
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
inline void __syncthreads() { swapcontext(&host::threads[host::current], &host::scheduler); }
#endif
