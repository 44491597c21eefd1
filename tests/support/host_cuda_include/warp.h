// What the threads of a warp do together: all of them give something, then each reads what the others gave, which
// `host::exchange` returns.
#pragma once

namespace host {
struct Given { unsigned a[4], b[2]; };
inline const Given* exchange(const Given& mine);

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
