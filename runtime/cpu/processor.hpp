// What kernels and their layouts depend on in this processor.

#pragma once

#include <sched.h>

#include <cstdint>
#include <string>
#include <vector>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace iosched {

struct Processor {
  static const char* architecture() {
#if defined(__x86_64__)
    return "x86_64";
#elif defined(__aarch64__)
    return "aarch64";
#else
    return "other";
#endif
  }

  // Instruction sets by which onnxruntime chooses kernels.
  static std::string features() {
    std::string found;
#if defined(__x86_64__)
    const auto add = [&](bool has, const char* name) {
      if (has) found += (found.empty() ? "" : " ") + std::string(name);
    };
    add(__builtin_cpu_supports("sse4.1"), "sse4.1");
    add(__builtin_cpu_supports("avx"), "avx");
    add(__builtin_cpu_supports("avx2"), "avx2");
    add(__builtin_cpu_supports("fma"), "fma");
    add(__builtin_cpu_supports("avx512f"), "avx512f");
    add(__builtin_cpu_supports("avx512bw"), "avx512bw");
    add(__builtin_cpu_supports("avx512dq"), "avx512dq");
    add(__builtin_cpu_supports("avx512vl"), "avx512vl");
    add(__builtin_cpu_supports("avx512vnni"), "avx512vnni");
#elif defined(__aarch64__)
    found = std::to_string(getauxval(AT_HWCAP)) + " " + std::to_string(getauxval(AT_HWCAP2));
#endif
    return found;
  }

  // The largest number of channels that onnxruntime's blocked layout can have in a block here.
  static int64_t channel_block() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") ? 16 : 8;
#else
    return 16;
#endif
  }

  // The processors that this thread may run on.
  static std::vector<int> allowed() {
    std::vector<int> found;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return {0};
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) found.push_back(cpu);
    }
    return found;
  }
};

}  // namespace iosched
