// Loops that cpu_roofline.py times: what the cores and their memory can do.

typedef float lanes __attribute__((vector_size(64)));
enum { kChains = 12 };

extern "C" float multiply_add(long count) {
  lanes sums[kChains], a, b;
  for (int i = 0; i < 16; ++i) a[i] = 0.999f, b[i] = 0.001f;
  for (int c = 0; c < kChains; ++c) sums[c] = a + (float)c;
  for (long i = 0; i < count; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sums[c] = sums[c] * a + b;
  }
  float total = 0;
  for (int c = 0; c < kChains; ++c) for (int i = 0; i < 16; ++i) total += sums[c][i];
  return total;
}

extern "C" float read(const float* x, long count, long times) {
  lanes sums[8] = {};
  for (long time = 0; time < times; ++time) {
    for (long i = 0; i + 128 <= count; i += 128) {
#pragma GCC unroll 8
      for (int c = 0; c < 8; ++c) sums[c] += *(const lanes*)(x + i + 16 * c);
    }
    asm volatile("" ::: "memory");
  }
  float total = 0;
  for (int c = 0; c < 8; ++c) for (int i = 0; i < 16; ++i) total += sums[c][i];
  return total;
}

extern "C" void triad(float* a, const float* b, const float* c, long count, long times) {
  for (long time = 0; time < times; ++time) {
    for (long i = 0; i + 16 <= count; i += 16) {
      *(lanes*)(a + i) = *(const lanes*)(b + i) + 3.0f * *(const lanes*)(c + i);
    }
    asm volatile("" ::: "memory");
  }
}
