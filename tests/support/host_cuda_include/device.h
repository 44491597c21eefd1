// What CUDA C++ has beside C++, for kernels that run on the host.
#pragma once
#include <string.h>
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
#ifdef TRACED  // each call by itself
#define __forceinline__ inline __attribute__((always_inline))
#else
#define __forceinline__ inline
#endif
#define __shared__ static __attribute__((section("shared_memory")))
#define __launch_bounds__(...)

// Where the linker puts all that is shared; a block finds NaNs there, not what the last one left.
extern "C" __attribute__((weak, visibility("hidden"))) char __start_shared_memory[], __stop_shared_memory[];

struct Index { unsigned int x, y, z; };

inline float __int_as_float(int bits) { float f; memcpy(&f, &bits, 4); return f; }
inline float __uint_as_float(unsigned bits) { float f; memcpy(&f, &bits, 4); return f; }
inline double __longlong_as_double(long long bits) { double f; memcpy(&f, &bits, 8); return f; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
