// Flushes lines of memory from all levels of the caches.

#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace iosched {

#if defined(__x86_64__)
inline bool has_clflushopt() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & (1u << 23)) != 0;
}
inline const bool kHasClflushopt = has_clflushopt();

inline void flush_line(char* at) {
  if (kHasClflushopt) {
    asm volatile("clflushopt %0" : "+m"(*at));
  } else {
    _mm_clflush(at);
  }
}
inline void end_flush() { _mm_sfence(); }
#elif defined(__aarch64__)
inline void flush_line(char* at) { asm volatile("dc civac, %0" : : "r"(at) : "memory"); }
inline void end_flush() { asm volatile("dsb ish" : : : "memory"); }
#else
inline void flush_line(char*) {}
inline void end_flush() {}
#endif

}  // namespace iosched
