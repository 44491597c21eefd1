// The compiled executor's C interface for Python's ctypes.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "checksum.hpp"
#include "executor.hpp"
#include "kernel.hpp"
#include "onnxruntime_api.hpp"
#include "onnxruntime_ops.hpp"
#include "onnxruntime_session.hpp"
#include "operator_check.hpp"
#include "plan_words.hpp"
#include "processor.hpp"
#include "runtime.hpp"

using namespace iosched;

namespace {

// Increase with every change of the interface; library.py refuses other versions.
constexpr int kAbiVersion = 9;

constexpr size_t kErrorBytes = 2048;

template <typename Body>
auto guarded(char* error, Body body) -> decltype(body()) {
  error[0] = '\0';
  try {
    return body();
  } catch (const std::exception& problem) {
    std::strncpy(error, problem.what(), kErrorBytes - 1);
    error[kErrorBytes - 1] = '\0';
    if (error[0] == '\0') std::strcpy(error, "unknown error");
  }
  return {};
}

using RuntimeHandle = std::shared_ptr<Runtime>;
using KernelHandle = std::shared_ptr<Kernel>;

std::vector<std::string> strings(const char* const* names, size_t count) { return {names, names + count}; }

}  // namespace

#define IOSCHED_EXPORT extern "C" __attribute__((visibility("default")))

IOSCHED_EXPORT int iosched_abi_version() { return kAbiVersion; }

// `base` is what onnxruntime's `OrtGetApiBase` returns.
IOSCHED_EXPORT void* iosched_runtime_create(const void* base, char* error) {
  return guarded(error, [&]() -> void* {
    return new RuntimeHandle(std::make_shared<Runtime>(static_cast<const OrtApiBase*>(base)));
  });
}

IOSCHED_EXPORT void iosched_runtime_release(void* runtime) { delete static_cast<RuntimeHandle*>(runtime); }

IOSCHED_EXPORT void* iosched_session_create(void* runtime, const void* model, size_t nbytes, const Weight* weights,
                                            size_t n_weights, const char* const* inputs, size_t n_inputs,
                                            const char* const* outputs, size_t n_outputs, const int64_t* cpus,
                                            size_t n_cpus, char* error) {
  return guarded(error, [&]() -> void* {
    const std::shared_ptr<Environment>& environment = (*static_cast<RuntimeHandle*>(runtime))->environment;
    return new KernelHandle(std::make_shared<Session>(environment, model, nbytes, weights, n_weights,
                                                      strings(inputs, n_inputs), strings(outputs, n_outputs),
                                                      Cpus(cpus, cpus + n_cpus)));
  });
}

// Prepares the runtime for operators without sessions.
IOSCHED_EXPORT int iosched_runtime_prepare(void* runtime, char* error) {
  return guarded(error, [&]() -> int {
    (*static_cast<RuntimeHandle*>(runtime))->prepare_outer();
    return 1;
  });
}

IOSCHED_EXPORT void* iosched_operator_create(void* runtime, const OperatorDescription* description, char* error) {
  return guarded(error, [&]() -> void* {
    const std::shared_ptr<Outer>& outer = (*static_cast<RuntimeHandle*>(runtime))->outer;
    if (outer == nullptr) throw std::runtime_error("the runtime has no outer run for its operators");
    return new KernelHandle(std::make_shared<InvokedOperator>(outer, *description));
  });
}

// For each of the operators, whether onnxruntime infers just the outputs that it has: only those may be in a plan file.
IOSCHED_EXPORT int iosched_operators_inferred(void* runtime, const OperatorDescription* const* operators, size_t count,
                                              int* inferred, char* error) {
  return guarded(error, [&]() -> int {
    const Environment& environment = *(*static_cast<RuntimeHandle*>(runtime))->environment;
    const std::vector<bool> found = OperatorCheck::inferred(environment, {operators, operators + count});
    std::copy(found.begin(), found.end(), inferred);
    return 1;
  });
}

// The checksum of plan files.
IOSCHED_EXPORT uint64_t iosched_checksum(const void* data, size_t nbytes) { return Checksum::of(data, nbytes); }

// What a plan file is for in this processor, on two lines: its architecture and its features.
IOSCHED_EXPORT const char* iosched_processor() {
  static const std::string found = std::string(Processor::architecture()) + "\n" + Processor::features();
  return found.c_str();
}

IOSCHED_EXPORT void iosched_kernel_release(void* kernel) { delete static_cast<KernelHandle*>(kernel); }

// The words name kernels by their position in `kernels`; `cpus` has one processor for each lane.
IOSCHED_EXPORT void* iosched_executor_create(void* runtime, const int64_t* words, size_t count, void* const* kernels,
                                             size_t n_kernels, const int64_t* cpus, size_t n_lanes, char* error) {
  return guarded(error, [&]() -> void* {
    std::vector<std::shared_ptr<Kernel>> known;
    for (size_t i = 0; i < n_kernels; ++i) known.push_back(*static_cast<KernelHandle*>(kernels[i]));
    Words given{words, count};
    return new Executor(*static_cast<RuntimeHandle*>(runtime), Plan(given, n_kernels), known,
                        std::vector<int>(cpus, cpus + n_lanes));
  });
}

IOSCHED_EXPORT size_t iosched_executor_failed_task(void* executor) {
  return static_cast<Executor*>(executor)->failed_task;
}

IOSCHED_EXPORT void iosched_executor_release(void* executor) { delete static_cast<Executor*>(executor); }

IOSCHED_EXPORT int iosched_executor_run(void* executor, void* const* inputs, void* const* outputs, size_t repeats,
                                        size_t flush_nbytes, const int64_t* written, size_t n_written,
                                        double* times_us, double* spans_us, char* error) {
  return guarded(error, [&]() -> int {
    static_cast<Executor*>(executor)->run(inputs, outputs, repeats, flush_nbytes, written, n_written,
                                          times_us, spans_us);
    return 1;
  });
}

// The last run's value of a dynamic slot: type, rank, up to 16 extents, and the data.
IOSCHED_EXPORT int iosched_executor_dynamic(void* executor, size_t slot, int64_t* description, void** data,
                                            char* error) {
  return guarded(error, [&]() -> int {
    const Dynamic value = static_cast<Executor*>(executor)->dynamic(slot);
    if (value.shape.size() > 16) throw std::runtime_error("the output has more than 16 dimensions");
    description[0] = value.type;
    description[1] = static_cast<int64_t>(value.shape.size());
    std::copy(value.shape.begin(), value.shape.end(), description + 2);
    *data = value.data;
    return 1;
  });
}

IOSCHED_EXPORT void iosched_executor_release_dynamic(void* executor) {
  static_cast<Executor*>(executor)->release_dynamic();
}
