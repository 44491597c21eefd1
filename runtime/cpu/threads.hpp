// Threads pinned to cores, and signals between them that spin before they park.

#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

namespace iosched {

// How long to spin before parking: waking a parked thread costs tens of microseconds.
constexpr double kWaitSpinUs = 300.0;
constexpr double kIdleSpinUs = 100.0;
constexpr double kStealSpinUs = 1.0;
constexpr double kYieldUs = 50.0;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

inline double now_us() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

// One pause takes 5 to 50 ns, depending on the processor.
inline double pauses_per_us() {
  const double start = now_us();
  for (int i = 0; i < 2000; ++i) pause();
  return 2000.0 / std::max(now_us() - start, 1.0);
}

// A counter that one thread increases and others wait for; it may wrap around. Both sides are sequentially consistent:
// either the waiter sees the new value, or the writer sees the sleeper.
struct alignas(64) Signal {
  void publish(uint32_t next) {
    value.store(next, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) {
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
    }
  }

  static bool reached(uint32_t seen, uint32_t least) { return static_cast<int32_t>(seen - least) >= 0; }

  bool has_reached(uint32_t least) const { return reached(value.load(std::memory_order_acquire), least); }

  bool spin(uint32_t least, int64_t spins) const {
    for (int64_t i = 0; i <= spins; ++i) {
      if (has_reached(least)) return true;
      pause();
    }
    return false;
  }

  void wait(uint32_t least, int64_t spins) {
    if (spin(least, spins)) return;
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    for (uint32_t seen; !reached(seen = value.load(std::memory_order_seq_cst), least);) {
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    }
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }

  // Leaves the core to other threads, at first by yielding: waking another thread on a sleeping core takes as long as
  // waking this one later.
  void wait_elsewhere(uint32_t least) {
    const double stop = now_us() + kYieldUs;
    while (!has_reached(least)) {
      if (now_us() > stop) return wait(least, 0);
      sched_yield();
    }
  }

  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};
};

inline bool pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

// Moves the calling thread from a core that another thread needs, if it may run on another one.
inline void leave(int cpu) {
  cpu_set_t allowed, others;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  others = allowed;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof(others), &others) == 0) {
    sched_setaffinity(0, sizeof(allowed), &allowed);
  }
}

// Pins the calling thread for one run and restores its affinity; negative numbers mean unpinned.
struct Pinned {
  explicit Pinned(int cpu) { restore = cpu >= 0 && sched_getaffinity(0, sizeof(before), &before) == 0 && pin(cpu); }
  Pinned(const Pinned&) = delete;
  ~Pinned() {
    if (restore) sched_setaffinity(0, sizeof(before), &before);
  }
  cpu_set_t before;
  bool restore = false;
};

struct Job {
  virtual ~Job() = default;
  virtual void run_lane(size_t lane) = 0;
  virtual int cpu(size_t lane) const = 0;
  // Whether to leave the lane's core at once when the lane is done, since a library or another lane needs it.
  virtual bool parks_after(size_t) const { return false; }
  // Whether all lanes are complete when the caller's is.
  virtual bool completes_on_caller() const { return false; }
};

struct Worker {
  Worker(size_t lane, int64_t idle_spins) : lane(lane), idle_spins(idle_spins), thread([this] { loop(); }) {}
  Worker(const Worker&) = delete;
  ~Worker() {
    job = nullptr;
    start.publish(++runs);
    thread.join();
  }

  void begin(Job* next) {
    job = next;
    caller_cpu = sched_getcpu();
    start.publish(++runs);
  }

  // A complete job does not need the thread, unless it has begun. Threads that are not pinned may share a core, where
  // only one that sleeps lets the other run.
  void finish(int64_t spins, bool complete) {
    if (complete && claim(runs)) return;
    done.wait(runs, own_cpu.load(std::memory_order_relaxed) == sched_getcpu() ? 0 : spins);
  }

  void loop() {
    int64_t spins = idle_spins;
    for (uint32_t seen = 1;; ++seen) {
      start.wait(seen, spins);
      if (!claim(seen)) continue;
      if (job == nullptr) return;
      if (job->cpu(lane) != cpu) {
        cpu = job->cpu(lane);
        pin(cpu);
      }
      if (cpu < 0 && sched_getcpu() == caller_cpu) leave(caller_cpu);
      job->run_lane(lane);
      const int at = sched_getcpu();
      own_cpu.store(at, std::memory_order_relaxed);
      // The job may be freed after `done` is published.
      spins = at == caller_cpu || job->parks_after(lane) ? 0 : idle_spins;
      done.publish(seen);
    }
  }

  // Whether a run is the thread's, or the caller's to give up.
  bool claim(uint32_t run) {
    uint32_t before = run - 1;
    return claimed.compare_exchange_strong(before, run);
  }

  const size_t lane;
  const int64_t idle_spins;
  Job* job = nullptr;
  uint32_t runs = 0;
  int cpu = -1;
  int caller_cpu = -1;           // when it began the last run
  std::atomic<int> own_cpu{-1};  // at the end of the last run
  std::atomic<uint32_t> claimed{0};
  Signal start, done;
  std::thread thread;  // last: it reads the others
};

}  // namespace iosched
