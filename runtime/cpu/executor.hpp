// Runs a plan: lanes of kernels on worker threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernel.hpp"
#include "onnxruntime_api.hpp"
#include "onnxruntime_ops.hpp"
#include "plan_words.hpp"
#include "runtime.hpp"
#include "threads.hpp"

namespace iosched {

constexpr uint32_t kAborted = INT32_MAX;

struct Task {
  std::shared_ptr<Kernel> kernel;  // null for a copy
  std::unique_ptr<Call> call;
  std::vector<Wait> waits;
  bool fixed = true;  // uses only the arena, so its views are bound once

  bool spans_lanes() const { return kernel != nullptr && kernel->spans_lanes(); }
};

// The right to run a lane's next task, and its index.
struct alignas(64) Turn {
  std::mutex mutex;
  size_t next = 0;
};

struct Bytes {
  char* data;
  size_t nbytes;
};

// Flushes caches: reads equal shares of memory on all lanes' cores, or rewrites them.
struct CacheFlush final : Job {
  CacheFlush(const std::vector<int>& cpus, bool shares, std::vector<Bytes> touched, bool writes)
      : cpus(cpus), shares(shares), touched(std::move(touched)), writes(writes) {}

  int cpu(size_t lane) const override { return cpus[lane]; }
  bool parks_after(size_t) const override { return shares; }

  void run_lane(size_t lane) override {
    for (const Bytes& bytes : touched) {
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
  const std::vector<Bytes> touched;
  const bool writes;
};

// The value of a dynamic slot.
struct Dynamic {
  int type = 0;
  std::vector<int64_t> shape;
  void* data = nullptr;
};

struct Executor final : Job {
  // `cpus` are the processors of the lanes: negative if unpinned, and equal if they share one.
  Executor(std::shared_ptr<Runtime> runtime, Plan plan, const std::vector<std::shared_ptr<Kernel>>& kernels,
           std::vector<int> cpus)
      : slots(std::move(plan.slots)), runtime(std::move(runtime)), cpus(std::move(cpus)) {
    if (this->cpus.size() != plan.lanes.size()) throw Broken("the plan has another number of lanes");
    try {
      arena = this->runtime->arena(plan.arena_nbytes);
      prepare(plan, kernels);
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
  void run(void* const* inputs, void* const* outputs, size_t repeats, size_t flush_nbytes, const int64_t* written,
           size_t n_written, double* times_us, double* spans_us) {
    const std::lock_guard<std::mutex> lock(runtime->mutex);
    failed_task = SIZE_MAX;
    bind_arrays(inputs, outputs);
    runtime->need_workers(lanes.size() - 1);
    const Pinned pinned(cpus[0]);
    std::vector<CacheFlush> flushes = cache_flushes(flush_nbytes, inputs, written, n_written);
    const auto runs = [&](OrtKernelContext* lent) {
      context = lent;
      for (size_t i = 0; i < repeats; ++i) {
        release_dynamic();
        for (CacheFlush& flush : flushes) on_all_lanes(flush);
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
  bool completes_on_caller() const override { return steals; }
  bool shares_cores() const { return spins == 0; }

  void run_lane(size_t lane) override {
    while (const Wait* wait = run_ready(lane)) wait_for(*wait);
    if (lane > 0 || !steals) return;
    for (size_t other = 1; other < lanes.size(); ++other) {
      const Wait end{other, static_cast<uint32_t>(lanes[other].size())};
      while (!progress[other].has_reached(end.steps)) wait_for(end);
    }
  }

  void release_dynamic() {
    for (Slot& slot : slots) {
      if (slot.space != kDynamic || slot.value == nullptr) continue;
      api().ReleaseValue(slot.value);
      slot.value = nullptr;
    }
  }

  // Of the last run, until the next one.
  Dynamic dynamic(size_t slot) const {
    OrtValue* value = slots.at(slot).value;
    int is_tensor = 0;
    if (value != nullptr) api().check(api().IsTensor(value, &is_tensor));
    if (is_tensor == 0) throw std::runtime_error("the output is not a tensor");
    OrtTypeAndShape* shape = nullptr;
    api().check(api().GetTypeAndShape(value, &shape));
    const std::unique_ptr<OrtTypeAndShape, decltype(Api::ReleaseTypeAndShape)> owner(shape, api().ReleaseTypeAndShape);
    Dynamic found;
    size_t rank = 0;
    api().check(api().GetElementType(shape, &found.type));
    api().check(api().GetDimensionsCount(shape, &rank));
    found.shape.resize(rank);
    api().check(api().GetDimensions(shape, found.shape.data(), rank));
    api().check(api().GetTensorData(value, &found.data));
    return found;
  }

  const Api& api() const { return runtime->environment->api; }

  std::vector<Slot> slots;
  size_t failed_task = SIZE_MAX;  // number of the task in which the last run failed, lane after lane

 private:
  void prepare(const Plan& plan, const std::vector<std::shared_ptr<Kernel>>& kernels) {
    for (const std::vector<TaskDescription>& described : plan.lanes) {
      lanes.emplace_back();
      for (const TaskDescription& each : described) lanes.back().push_back(task(each, kernels));
    }
    if (needs_context) outer = runtime->outer;
    if (needs_context && outer == nullptr) throw std::runtime_error("the runtime has no outer run for its operators");
    progress = std::vector<Signal>(lanes.size());
    turns = std::vector<Turn>(lanes.size());
    let_libraries_have_the_cores();
    spins = has_shared_core() ? 0 : static_cast<int64_t>(runtime->spins_per_us * kWaitSpinUs);
    spins_between = 1 + static_cast<int64_t>(runtime->spins_per_us * kStealSpinUs);
    for (size_t lane = 0; lane < lanes.size(); ++lane) steals &= !spans_lanes(lane, 0, lanes[lane].size());
  }

  // Lanes that share a core must not spin: the awaited one could not run.
  bool has_shared_core() const {
    std::vector<int> sorted(cpus);
    std::sort(sorted.begin(), sorted.end());
    return std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  }

  Task task(const TaskDescription& described, const std::vector<std::shared_ptr<Kernel>>& kernels) {
    Task task;
    task.waits = described.waits;
    Slots reads = views(described.reads, task), writes = views(described.writes, task);
    if (described.kernel == kCopy) {
      task.call = std::make_unique<CopyCall>(*reads[0], *writes[0]);
      return task;
    }
    task.kernel = kernels.at(described.kernel);
    needs_context |= task.kernel->needs_context();
    if (reads.size() != task.kernel->n_inputs() || writes.size() != task.kernel->n_outputs()) {
      throw Broken("a task of the plan does not fit its program's inputs and outputs");
    }
    task.call = task.kernel->call(std::move(reads), std::move(writes));
    return task;
  }

  Slots views(const std::vector<size_t>& indices, Task& task) {
    Slots found;
    for (const size_t index : indices) {
      found.push_back(&slots[index]);
      task.fixed &= found.back()->space == kArena;
    }
    return found;
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

  // Runs a lane's tasks up to one that has to wait, whose wait it returns, or to the end.
  const Wait* run_ready(size_t lane) {
    const std::lock_guard<std::mutex> lock(turns[lane].mutex);
    while (turns[lane].next < lanes[lane].size()) {
      if (const Wait* wait = pending(lane)) return wait;
      run_next(lane);
    }
    return nullptr;
  }

  // Runs a task of the awaited lane if its thread does not, or of the lane that this one waits for.
  bool steal(size_t lane) {
    while (true) {
      const std::unique_lock<std::mutex> lock(turns[lane].mutex, std::try_to_lock);
      if (!lock || turns[lane].next == lanes[lane].size()) return false;
      const Wait* wait = pending(lane);
      if (wait == nullptr) {
        run_next(lane);
        return true;
      }
      lane = wait->lane;
    }
  }

  // Returns early if it has run a task of another lane.
  void wait_for(const Wait& wait) {
    if (wait.leaves_core) return progress[wait.lane].wait_elsewhere(wait.steps);
    if (!steals) return progress[wait.lane].wait(wait.steps, spins);
    for (int64_t left = spins; left > 0; left -= spins_between) {
      if (progress[wait.lane].spin(wait.steps, spins_between) || steal(wait.lane)) return;
    }
    progress[wait.lane].wait(wait.steps, 0);
  }

  // What the lane's next task waits for. For this and the next one, the caller has the lane's turn.
  const Wait* pending(size_t lane) const {
    for (const Wait& wait : lanes[lane][turns[lane].next].waits) {
      if (!progress[wait.lane].has_reached(wait.steps)) return &wait;
    }
    return nullptr;
  }

  void run_next(size_t lane) {
    size_t& next = turns[lane].next;
    const size_t number = tasks_before(lane) + next;
    if (spans != nullptr) spans[2 * number] = now_us() - started;
    if (failed.load(std::memory_order_relaxed) || !execute(lanes[lane][next], number)) {
      // Lanes that wait for this one continue, see `failed`, and stop too.
      next = lanes[lane].size();
      return progress[lane].publish(kAborted);
    }
    if (spans != nullptr) spans[2 * number + 1] = now_us() - started;
    progress[lane].publish(static_cast<uint32_t>(++next));
  }

  void run_once() {
    for (Signal& lane : progress) lane.value.store(0, std::memory_order_relaxed);
    for (Turn& turn : turns) turn.next = 0;
    failed.store(false, std::memory_order_relaxed);
    on_all_lanes(*this);
  }

  void on_all_lanes(Job& job) {
    for (size_t i = 1; i < lanes.size(); ++i) runtime->workers[i - 1]->begin(&job);
    job.run_lane(0);
    for (size_t i = 1; i < lanes.size(); ++i) runtime->workers[i - 1]->finish(spins, job.completes_on_caller());
  }

  size_t tasks_before(size_t lane) const {
    size_t count = 0;
    for (size_t i = 0; i < lane; ++i) count += lanes[i].size();
    return count;
  }

  size_t task_count() const { return tasks_before(lanes.size()); }

  // The cache flush before each run: other bytes, then the inputs, which in a larger plan other cores have just
  // computed. Empty if `nbytes` is 0.
  std::vector<CacheFlush> cache_flushes(size_t nbytes, void* const* inputs, const int64_t* written, size_t n_written) {
    std::vector<CacheFlush> found;
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
  std::vector<Turn> turns;
  bool needs_context = false;
  OrtKernelContext* context = nullptr;  // of the current outer run
  int64_t spins = 0, spins_between = 0;
  bool steals = true;  // whether a thread may run tasks of other lanes
  double started = 0;
  double* spans = nullptr;
  std::atomic<bool> failed{false};
  std::mutex message_mutex;
  std::string message;
};

}  // namespace iosched
