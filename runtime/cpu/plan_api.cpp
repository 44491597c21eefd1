// The C interface of plan files, see include/iosched_plan.h.

#include "include/iosched_plan.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "opened_plan.hpp"

using namespace iosched;

struct iosched_plan {
  explicit iosched_plan(std::unique_ptr<OpenedPlan> given) : opened(std::move(given)) {
    for (const PlanProgram& program : opened->programs) {
      tensors.push_back(described(program.inputs));
      tensors.push_back(described(program.outputs));
    }
  }

  static std::vector<iosched_plan_tensor> described(const std::vector<Port>& ports) {
    std::vector<iosched_plan_tensor> found;
    for (const Port& port : ports) {
      const auto rank = port.is_known ? static_cast<int32_t>(port.shape.size()) : -1;
      found.push_back({port.name.c_str(), port.type, rank, port.shape.data(), port.nbytes});
    }
    return found;
  }

  const std::unique_ptr<OpenedPlan> opened;
  std::vector<std::vector<iosched_plan_tensor>> tensors;  // of each program: inputs, then outputs
};

namespace {

constexpr size_t kErrorBytes = 2048;
thread_local char last_error[kErrorBytes];

// The error of a call stays in its thread; nothing is thrown at a caller in C.
template <typename Body>
auto answered(decltype(std::declval<Body>()()) failed, Body body) noexcept -> decltype(body()) {
  try {
    last_error[0] = '\0';
    return body();
  } catch (const std::exception& problem) {
    std::snprintf(last_error, kErrorBytes, "%s", problem.what());
  } catch (...) {
    std::snprintf(last_error, kErrorBytes, "unknown error");
  }
  return failed;
}

std::vector<int> cpus_of(const iosched_plan_options* options) {
  if (options == nullptr) return {};
  if (options->size < sizeof(iosched_plan_options)) throw Broken("the options of the plan have another size");
  if (options->cpus == nullptr) return {};
  return {options->cpus, options->cpus + options->n_cpus};
}

}  // namespace

#define IOSCHED_EXPORT extern "C" __attribute__((visibility("default")))

IOSCHED_EXPORT iosched_plan* iosched_plan_open(const char* path, const void* api_base,
                                               const iosched_plan_options* options) {
  return answered(nullptr, [&]() -> iosched_plan* {
    const auto* base = static_cast<const OrtApiBase*>(api_base);
    if (path == nullptr || base == nullptr) throw Broken("a plan needs a path and onnxruntime");
    return new iosched_plan(
        std::make_unique<OpenedPlan>(std::make_unique<PlanFile>(path), base, cpus_of(options)));
  });
}

IOSCHED_EXPORT int iosched_plan_describe(const iosched_plan* plan, size_t program,
                                         iosched_plan_description* description) {
  return answered(1, [&]() -> int {
    if (description->size < sizeof(iosched_plan_description)) throw Broken("the description has another size");
    plan->opened->program(program);
    const std::vector<iosched_plan_tensor>& inputs = plan->tensors[2 * program];
    const std::vector<iosched_plan_tensor>& outputs = plan->tensors[2 * program + 1];
    description->n_programs = plan->opened->programs.size();
    description->n_lanes = plan->opened->file->n_lanes;
    description->n_inputs = inputs.size();
    description->n_outputs = outputs.size();
    description->inputs = inputs.data();
    description->outputs = outputs.data();
    description->model_sha256 = plan->opened->file->model_sha256.c_str();
    description->checksum = plan->opened->file->checksum();
    description->has_dynamic_batch = plan->opened->file->has_dynamic_batch;
    return 0;
  });
}

IOSCHED_EXPORT int iosched_plan_run(iosched_plan* plan, size_t program, const void* const* inputs, void* const* outputs,
                                    iosched_plan_allocate allocate, void* user) {
  return answered(1, [&]() -> int {
    OpenedPlan::Allocate provides;
    if (allocate != nullptr) {
      provides = [&](size_t output, const std::vector<int64_t>& shape, size_t nbytes) {
        return allocate(user, output, shape.data(), shape.size(), nbytes);
      };
    }
    plan->opened->run(program, inputs, outputs, provides);
    return 0;
  });
}

// For Python: `repeats` runs whose outputs of unknown size are dropped, with the microseconds of each run.
IOSCHED_EXPORT int iosched_plan_time(iosched_plan* plan, size_t program, const void* const* inputs,
                                     void* const* outputs, size_t repeats, double* times_us) {
  return answered(1, [&]() -> int {
    plan->opened->time(program, inputs, outputs, repeats, times_us);
    return 0;
  });
}

IOSCHED_EXPORT void iosched_plan_close(iosched_plan* plan) {
  // A forked child has no threads to end.
  if (plan != nullptr && plan->opened->pid == getpid()) delete plan;
}

IOSCHED_EXPORT const char* iosched_plan_error() { return last_error; }
