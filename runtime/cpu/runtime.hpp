// Shared by all executors of one runtime: threads, memory, and onnxruntime's environment and outer run.

#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "onnxruntime_api.hpp"
#include "onnxruntime_ops.hpp"
#include "threads.hpp"

namespace iosched {

struct Memory {
  explicit Memory(size_t nbytes) : nbytes(std::max<size_t>(nbytes, 1 << 16)) {
    data = mmap(nullptr, this->nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::runtime_error("no memory for an arena of " + std::to_string(nbytes) + " bytes");
    madvise(data, this->nbytes, MADV_HUGEPAGE);
  }
  Memory(const Memory&) = delete;
  ~Memory() { munmap(data, nbytes); }
  const size_t nbytes;
  void* data;
};

struct Runtime {
  explicit Runtime(const OrtApiBase* base) : environment(std::make_shared<Environment>(base)) {}

  // Executors with a smaller arena keep it; new ones share the larger one.
  std::shared_ptr<Memory> arena(size_t nbytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (memory == nullptr || memory->nbytes < nbytes) memory = std::make_shared<Memory>(nbytes);
    return memory;
  }

  // Written once: unwritten pages are all the same zero page, and reading them evicts nothing.
  char* ballast_of(size_t nbytes) {
    if (ballast == nullptr || ballast->nbytes < nbytes) {
      ballast = std::make_unique<Memory>(nbytes);
      std::memset(ballast->data, 1, ballast->nbytes);
    }
    return static_cast<char*>(ballast->data);
  }

  void need_workers(size_t count) {
    while (workers.size() < count) {
      workers.push_back(
          std::make_unique<Worker>(workers.size() + 1, static_cast<int64_t>(spins_per_us * kIdleSpinUs)));
    }
  }

  // Created when first needed: it takes as long as a session.
  void prepare_outer() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (outer == nullptr) outer = std::make_shared<Outer>(environment);
  }

  std::shared_ptr<Environment> environment;
  std::shared_ptr<Outer> outer;
  std::mutex mutex;  // held for a run
  std::shared_ptr<Memory> memory;
  std::unique_ptr<Memory> ballast;
  const double spins_per_us = pauses_per_us();
  std::vector<std::unique_ptr<Worker>> workers;
};

}  // namespace iosched
