// Runs execution plans: lanes of onnxruntime sessions on pinned worker threads. C interface for ctypes.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernel.hpp"
#include "onnxruntime_api.hpp"
#include "onnxruntime_ops.hpp"
#include "onnxruntime_session.hpp"
#include "runtime.hpp"
#include "threads.hpp"

using namespace iosched;

namespace {

// Increase with every change of the interface; library.py refuses other versions.
constexpr int kAbiVersion = 7;
constexpr uint32_t kAborted = INT32_MAX;

// A plan as a flat list of integers, from `PlanEncoder` of arrays.py.
struct Words {
  int64_t next() {
    if (at == count) throw std::runtime_error("the plan's description ends early");
    return data[at++];
  }
  size_t index(size_t limit) {
    const int64_t word = next();
    if (word < 0 || static_cast<size_t>(word) >= limit) throw std::runtime_error("the plan's description is broken");
    return static_cast<size_t>(word);
  }
  const int64_t* data;
  size_t count;
  size_t at = 0;
};

struct Wait {
  size_t lane;
  uint32_t steps;
  bool leaves_core = false;  // a multithreaded library runs meanwhile
};

struct Task {
  std::shared_ptr<Kernel> kernel;  // null for a copy
  std::unique_ptr<Call> call;
  std::vector<Wait> waits;
  bool fixed = true;  // uses only the arena, so its views are bound once

  bool spans_lanes() const { return kernel != nullptr && kernel->spans_lanes(); }
};

struct Bytes {
  char* data;
  size_t nbytes;
};

// Flushes caches: reads equal shares of memory on all lanes' cores, or rewrites them.
struct Sweep final : Job {
  Sweep(const std::vector<int>& cpus, bool shares, std::vector<Bytes> swept, bool writes)
      : cpus(cpus), shares(shares), swept(std::move(swept)), writes(writes) {}

  int cpu(size_t lane) const override { return cpus[lane]; }
  bool parks_after(size_t) const override { return shares; }

  void run_lane(size_t lane) override {
    for (const Bytes& bytes : swept) {
      volatile char* const data = bytes.data;
      const size_t stop = bytes.nbytes * (lane + 1) / cpus.size();
      for (size_t at = bytes.nbytes * lane / cpus.size(); at < stop; at += kCacheLine) {
        const char value = data[at];
        if (writes) data[at] = value;
      }
    }
  }

  static constexpr size_t kCacheLine = 64;
  const std::vector<int>& cpus;
  const bool shares;
  const std::vector<Bytes> swept;
  const bool writes;
};

struct Executor final : Job {
  Executor(std::shared_ptr<Runtime> runtime, Words words) : runtime(std::move(runtime)) {
    try {
      read(words);
      bind_arena();
    } catch (...) {
      release();
      throw;
    }
  }
  Executor(const Executor&) = delete;
  ~Executor() override { release(); }

  // Each run writes begin and end of each task to `spans_us`, lane after lane, unless it is null.
  // After a flush, these spans of inputs are rewritten by all cores: index, first byte, end.
  void run(void* const* inputs, void* const* outputs, size_t repeats, size_t sweep_nbytes, const int64_t* written,
           size_t n_written, double* times_us, double* spans_us) {
    const std::lock_guard<std::mutex> lock(runtime->mutex);
    failed_task = SIZE_MAX;
    bind_arrays(inputs, outputs);
    runtime->need_workers(lanes.size() - 1);
    const Pinned pinned(cpus[0]);
    std::vector<Sweep> sweeps = swept(sweep_nbytes, inputs, written, n_written);
    const auto runs = [&](OrtKernelContext* lent) {
      context = lent;
      for (size_t i = 0; i < repeats; ++i) {
        release_dynamic();
        for (Sweep& sweep : sweeps) on_all_lanes(sweep);
        spans = spans_us == nullptr ? nullptr : spans_us + i * 2 * task_count();
        started = now_us();
        run_once();
        times_us[i] = now_us() - started;
        if (failed.load()) throw std::runtime_error(message);
      }
    };
    if (needs_context) {
      outer->around(runs);
    } else {
      runs(nullptr);
    }
  }

  int cpu(size_t lane) const override { return cpus[lane]; }
  bool parks_after(size_t lane) const override { return shares_cores() || leaves_core[lane]; }
  bool shares_cores() const { return spins == 0; }

  void run_lane(size_t lane) override {
    uint32_t done = 0;
    double* span = spans == nullptr ? nullptr : spans + 2 * tasks_before(lane);
    for (Task& task : lanes[lane]) {
      for (const Wait& wait : task.waits) {
        if (wait.leaves_core) {
          progress[wait.lane].wait_elsewhere(wait.steps);
        } else {
          progress[wait.lane].wait(wait.steps, spins);
        }
      }
      if (span != nullptr) *span++ = now_us() - started;
      if (failed.load(std::memory_order_relaxed) || !execute(task, tasks_before(lane) + done)) {
        // Lanes that wait for this one continue, see `failed`, and stop too.
        progress[lane].publish(kAborted);
        return;
      }
      if (span != nullptr) *span++ = now_us() - started;
      progress[lane].publish(++done);
    }
  }

  void release_dynamic() {
    for (Slot& slot : slots) {
      if (slot.space != kDynamic || slot.value == nullptr) continue;
      api().ReleaseValue(slot.value);
      slot.value = nullptr;
    }
  }

  const Api& api() const { return runtime->environment->api; }

  std::vector<Slot> slots;
  size_t failed_task = SIZE_MAX;  // number of the task in which the last run failed, lane after lane

 private:
  void read(Words& words) {
    arena = runtime->arena(static_cast<size_t>(words.next()));
    slots.resize(static_cast<size_t>(words.next()));
    for (Slot& slot : slots) read_slot(words, slot);
    lanes.resize(static_cast<size_t>(words.next()));
    for (size_t i = 0; i < lanes.size(); ++i) cpus.push_back(static_cast<int>(words.next()));
    for (std::vector<Task>& lane : lanes) {
      lane.resize(static_cast<size_t>(words.next()));
      for (Task& task : lane) read_task(words, task);
    }
    if (needs_context) outer = runtime->outer;
    if (needs_context && outer == nullptr) throw std::runtime_error("the runtime has no outer run for its operators");
    progress = std::vector<Signal>(lanes.size());
    std::vector<int> distinct(cpus);
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    let_libraries_have_the_cores();
    // Lanes that share a core must not spin: the awaited one could not run.
    spins = distinct.size() < lanes.size() ? 0 : static_cast<int64_t>(runtime->spins_per_us * kWaitSpinUs);
  }

  // A lane that waits for a library on its core must yield to the library's thread.
  void let_libraries_have_the_cores() {
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      std::vector<size_t> seen(lanes.size());
      for (Task& task : lanes[lane]) {
        for (Wait& wait : task.waits) {
          wait.leaves_core = spans_lanes(wait.lane, seen[wait.lane], wait.steps);
          seen[wait.lane] = std::max<size_t>(seen[wait.lane], wait.steps);
        }
      }
      bool parks = false;
      for (size_t other = 0; other < lanes.size(); ++other) {
        parks |= other != lane && spans_lanes(other, seen[other], lanes[other].size());
      }
      leaves_core.push_back(parks);
    }
  }

  bool spans_lanes(size_t lane, size_t begin, size_t end) const {
    const auto spans = [](const Task& task) { return task.spans_lanes(); };
    const auto tasks = lanes[lane].begin();
    return begin < end && std::any_of(tasks + begin, tasks + std::min(end, lanes[lane].size()), spans);
  }

  void read_slot(Words& words, Slot& slot) {
    slot.space = words.next();
    slot.index = words.next();
    slot.offset = words.next();
    slot.nbytes = words.next();
    slot.type = static_cast<int>(words.next());
    slot.shape.resize(static_cast<size_t>(words.next()));
    for (int64_t& extent : slot.shape) extent = words.next();
    if (slot.space != kArena) return;
    if (slot.offset < 0 || slot.nbytes < 0 || static_cast<size_t>(slot.offset + slot.nbytes) > arena->nbytes) {
      throw std::runtime_error("a view of the plan lies outside its arena");
    }
  }

  void read_task(Words& words, Task& task) {
    const auto* kernel = reinterpret_cast<const std::shared_ptr<Kernel>*>(words.next());
    if (kernel != nullptr) task.kernel = *kernel;
    needs_context |= kernel != nullptr && task.kernel->needs_context();
    Slots reads = read_views(words, task), writes = read_views(words, task);
    task.waits.resize(static_cast<size_t>(words.next()));
    for (Wait& wait : task.waits) {
      wait.lane = words.index(lanes.size());
      wait.steps = static_cast<uint32_t>(words.next());
    }
    const size_t n_inputs = kernel == nullptr ? 1 : task.kernel->n_inputs();
    const size_t n_outputs = kernel == nullptr ? 1 : task.kernel->n_outputs();
    if (reads.size() != n_inputs || writes.size() != n_outputs) {
      throw std::runtime_error("a task of the plan does not fit its program's inputs and outputs");
    }
    if (kernel == nullptr) {
      task.call = std::make_unique<CopyCall>(*reads[0], *writes[0]);
    } else {
      task.call = task.kernel->call(std::move(reads), std::move(writes));
    }
  }

  Slots read_views(Words& words, Task& task) {
    Slots views(static_cast<size_t>(words.next()));
    for (Slot*& view : views) {
      view = &slots[words.index(slots.size())];
      task.fixed &= view->space == kArena;
    }
    return views;
  }

  void bind(Slot& slot, void* data) {
    if (slot.value != nullptr && slot.data == data) return;
    if (slot.value != nullptr) api().ReleaseValue(slot.value);
    slot.value = nullptr;
    slot.value = runtime->environment->tensor(data, static_cast<size_t>(slot.nbytes), slot.shape.data(),
                                              slot.shape.size(), slot.type);
    slot.data = data;
  }

  void bind_arena() {
    for (Slot& slot : slots) {
      if (slot.space == kArena) bind(slot, static_cast<char*>(arena->data) + slot.offset);
    }
    for (std::vector<Task>& lane : lanes) {
      for (Task& task : lane) {
        if (task.fixed) task.call->bind();
      }
    }
  }

  void bind_arrays(void* const* inputs, void* const* outputs) {
    for (Slot& slot : slots) {
      if (slot.space == kInput) bind(slot, static_cast<char*>(inputs[slot.index]) + slot.offset);
      if (slot.space == kOutput) bind(slot, static_cast<char*>(outputs[slot.index]) + slot.offset);
    }
  }

  void run_once() {
    for (Signal& lane : progress) lane.value.store(0, std::memory_order_relaxed);
    failed.store(false, std::memory_order_relaxed);
    on_all_lanes(*this);
  }

  void on_all_lanes(Job& job) {
    for (size_t i = 1; i < lanes.size(); ++i) runtime->workers[i - 1]->begin(&job);
    job.run_lane(0);
    for (size_t i = 1; i < lanes.size(); ++i) runtime->workers[i - 1]->finish(spins);
  }

  size_t tasks_before(size_t lane) const {
    size_t count = 0;
    for (size_t i = 0; i < lane; ++i) count += lanes[i].size();
    return count;
  }

  size_t task_count() const { return tasks_before(lanes.size()); }

  // The cache flush before each run: other bytes, then the inputs, which in a larger plan other cores have just
  // computed. Empty if `nbytes` is 0.
  std::vector<Sweep> swept(size_t nbytes, void* const* inputs, const int64_t* written, size_t n_written) {
    std::vector<Sweep> found;
    if (nbytes == 0) return found;
    const std::vector<Bytes> others{{runtime->ballast_of(nbytes), nbytes}};
    found.emplace_back(cpus, shares_cores(), others, /*writes*/ false);
    found.emplace_back(cpus, shares_cores(), written_bytes(inputs, written, n_written), /*writes*/ true);
    return found;
  }

  // Spans of inputs: index, first byte, end.
  static std::vector<Bytes> written_bytes(void* const* inputs, const int64_t* words, size_t count) {
    std::vector<Bytes> found;
    for (const int64_t* span = words; span < words + 3 * count; span += 3) {
      if (span[1] < span[2]) {
        found.push_back({static_cast<char*>(inputs[span[0]]) + span[1], static_cast<size_t>(span[2] - span[1])});
      }
    }
    return found;
  }

  bool execute(Task& task, size_t number) {
    try {
      if (!task.fixed) task.call->bind();
      task.call->run(context);
      return true;
    } catch (const std::exception& problem) {
      return fail(problem.what(), number);
    }
  }

  bool fail(const std::string& why, size_t number) {
    const std::lock_guard<std::mutex> lock(message_mutex);
    if (!failed.load()) {
      message = why;
      failed_task = number;
    }
    failed.store(true);
    return false;
  }

  void release() {
    for (Slot& slot : slots) {
      if (slot.value != nullptr) api().ReleaseValue(slot.value);
      slot.value = nullptr;
    }
  }

  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<Memory> arena;
  std::shared_ptr<Outer> outer;
  std::vector<std::vector<Task>> lanes;
  std::vector<int> cpus;
  std::vector<bool> leaves_core;  // by lane: whether a library needs the core when the lane is done
  std::vector<Signal> progress;
  bool needs_context = false;
  OrtKernelContext* context = nullptr;  // of the current outer run
  int64_t spins = 0;
  double started = 0;
  double* spans = nullptr;
  std::atomic<bool> failed{false};
  std::mutex message_mutex;
  std::string message;
};

// --- C interface --------------------------------------------------------------------------------------------------

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

IOSCHED_EXPORT void* iosched_runtime_create(const void* get_base, char* error) {
  return guarded(error, [&]() -> void* {
    using GetBase = const OrtApiBase* (*)();
    return new RuntimeHandle(std::make_shared<Runtime>(reinterpret_cast<GetBase>(const_cast<void*>(get_base))));
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

// Prepares the runtime for operators without sessions; for `model` see `Outer`.
IOSCHED_EXPORT int iosched_runtime_prepare(void* runtime, const void* model, size_t nbytes, char* error) {
  return guarded(error, [&]() -> int {
    (*static_cast<RuntimeHandle*>(runtime))->outer_of(model, nbytes);
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

IOSCHED_EXPORT void iosched_kernel_release(void* kernel) { delete static_cast<KernelHandle*>(kernel); }

IOSCHED_EXPORT void* iosched_executor_create(void* runtime, const int64_t* words, size_t count, char* error) {
  return guarded(error, [&]() -> void* {
    return new Executor(*static_cast<RuntimeHandle*>(runtime), Words{words, count});
  });
}

IOSCHED_EXPORT size_t iosched_executor_failed_task(void* executor) {
  return static_cast<Executor*>(executor)->failed_task;
}

IOSCHED_EXPORT void iosched_executor_release(void* executor) { delete static_cast<Executor*>(executor); }

IOSCHED_EXPORT int iosched_executor_run(void* executor, void* const* inputs, void* const* outputs, size_t repeats,
                                        size_t sweep_nbytes, const int64_t* written, size_t n_written,
                                        double* times_us, double* spans_us, char* error) {
  return guarded(error, [&]() -> int {
    static_cast<Executor*>(executor)->run(inputs, outputs, repeats, sweep_nbytes, written, n_written,
                                          times_us, spans_us);
    return 1;
  });
}

// The last run's value of a dynamic slot: type, rank, up to 16 extents, and the data.
IOSCHED_EXPORT int iosched_executor_dynamic(void* executor, size_t slot, int64_t* description, void** data,
                                            char* error) {
  return guarded(error, [&]() -> int {
    const auto* self = static_cast<Executor*>(executor);
    const Api& api = self->api();
    OrtValue* value = self->slots.at(slot).value;
    int is_tensor = 0;
    if (value != nullptr) api.check(api.IsTensor(value, &is_tensor));
    if (is_tensor == 0) throw std::runtime_error("the output is not a tensor");
    OrtTypeAndShape* shape = nullptr;
    api.check(api.GetTypeAndShape(value, &shape));
    const std::unique_ptr<OrtTypeAndShape, decltype(api.ReleaseTypeAndShape)> owner(shape, api.ReleaseTypeAndShape);
    int type = 0;
    size_t rank = 0;
    api.check(api.GetElementType(shape, &type));
    api.check(api.GetDimensionsCount(shape, &rank));
    if (rank > 16) throw std::runtime_error("the output has more than 16 dimensions");
    api.check(api.GetDimensions(shape, description + 2, rank));
    description[0] = type;
    description[1] = static_cast<int64_t>(rank);
    api.check(api.GetTensorData(value, data));
    return 1;
  });
}

IOSCHED_EXPORT void iosched_executor_release_dynamic(void* executor) {
  static_cast<Executor*>(executor)->release_dynamic();
}
