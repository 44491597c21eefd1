// A plan as a flat list of integers, from `PlanEncoder` of arrays.py. It may be hostile: nothing here trusts a number.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernel.hpp"

namespace iosched {

struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Words {
  int64_t next() {
    if (at == count) throw Broken("the plan's description ends early");
    return data[at++];
  }

  // A number of things of at least `least` words each: more than the rest can hold is refused before it is allocated.
  size_t length(size_t least = 1) {
    const int64_t word = next();
    if (word < 0 || static_cast<uint64_t>(word) > (count - at) / least) {
      throw Broken("the plan's description names more than it holds");
    }
    return static_cast<size_t>(word);
  }

  size_t index(size_t limit) {
    const int64_t word = next();
    if (word < 0 || static_cast<uint64_t>(word) >= limit) throw Broken("the plan's description is broken");
    return static_cast<size_t>(word);
  }

  // A size in bytes; sums of two of them cannot overflow.
  size_t nbytes() { return index(size_t{1} << 62); }

  const int64_t* data;
  size_t count;
  size_t at = 0;
};

// Bytes of an element by its ONNX type; 0 if a plan cannot hold it.
inline size_t element_nbytes(int64_t type) {
  constexpr uint8_t kBytes[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 8, 16, 2, 1, 1, 1, 1};
  return type < 0 || type >= static_cast<int64_t>(sizeof kBytes) ? 0 : kBytes[type];
}

constexpr size_t kMostDimensions = 64;  // NumPy has no more

// Size of a tensor; an error if it has none, or if the product of some of its extents overflows.
inline size_t tensor_nbytes(int64_t type, const std::vector<int64_t>& shape) {
  size_t nbytes = element_nbytes(type);
  if (nbytes == 0) throw Broken("a tensor of the plan has an unknown element type");
  bool overflows = shape.size() > kMostDimensions, is_empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) throw Broken("a tensor of the plan has a negative extent");
    is_empty |= extent == 0;
    overflows |= __builtin_mul_overflow(nbytes, std::max<size_t>(static_cast<size_t>(extent), 1), &nbytes);
  }
  if (overflows || nbytes >> 62 != 0) throw Broken("a tensor of the plan is too large");
  return is_empty ? 0 : nbytes;
}

struct Wait {
  size_t lane;
  uint32_t steps;
  bool leaves_core = false;  // a multithreaded library runs meanwhile
};

constexpr size_t kCopy = SIZE_MAX;

struct TaskDescription {
  size_t kernel = kCopy;
  std::vector<size_t> reads, writes;  // indices of slots
  std::vector<Wait> waits;
};

struct Plan {
  // `n_kernels`: how many kernels the tasks may name.
  Plan(Words& words, size_t n_kernels) : arena_nbytes(words.nbytes()) {
    for (std::vector<size_t>* sizes : {&input_nbytes, &output_nbytes}) {
      sizes->resize(words.length());
      for (size_t& nbytes : *sizes) nbytes = words.nbytes();
    }
    slots.resize(words.length(6));
    for (Slot& slot : slots) read_slot(words, slot);
    lanes.resize(words.length());
    if (lanes.empty()) throw Broken("the plan has no lanes");
    for (std::vector<TaskDescription>& lane : lanes) {
      lane.resize(words.length(4));
      for (TaskDescription& task : lane) read_task(words, task, n_kernels);
    }
    check_waits();
  }

  size_t arena_nbytes;
  std::vector<size_t> input_nbytes, output_nbytes;  // of the caller's arrays
  std::vector<Slot> slots;
  std::vector<std::vector<TaskDescription>> lanes;

 private:
  void read_slot(Words& words, Slot& slot) {
    slot.space = static_cast<Space>(words.index(4));
    slot.index = words.next();
    slot.offset = words.next();
    slot.nbytes = words.next();
    slot.type = static_cast<int>(words.next());
    slot.shape.resize(words.length());
    for (int64_t& extent : slot.shape) extent = words.next();
    if (slot.space == kDynamic) return;
    const size_t nbytes = tensor_nbytes(slot.type, slot.shape);
    size_t end = 0;
    if (slot.nbytes < 0 || static_cast<size_t>(slot.nbytes) != nbytes || slot.offset < 0 ||
        static_cast<size_t>(slot.offset) % element_nbytes(slot.type) != 0 ||
        __builtin_add_overflow(static_cast<size_t>(slot.offset), nbytes, &end) || end > space_nbytes(slot)) {
      throw Broken("a view of the plan lies outside its memory");
    }
  }

  size_t space_nbytes(const Slot& slot) const {
    if (slot.space == kArena) return arena_nbytes;
    const std::vector<size_t>& sizes = slot.space == kInput ? input_nbytes : output_nbytes;
    if (slot.index < 0 || static_cast<size_t>(slot.index) >= sizes.size()) {
      throw Broken("a view of the plan names an array that it does not have");
    }
    return sizes[static_cast<size_t>(slot.index)];
  }

  void read_task(Words& words, TaskDescription& task, size_t n_kernels) {
    const size_t number = words.index(n_kernels + 1);
    task.kernel = number == 0 ? kCopy : number - 1;
    for (std::vector<size_t>* views : {&task.reads, &task.writes}) {
      views->resize(words.length());
      for (size_t& view : *views) view = words.index(slots.size());
    }
    task.waits.resize(words.length(2));
    if (task.waits.size() > lanes.size()) throw Broken("a task of the plan waits twice for a lane");
    for (Wait& wait : task.waits) {
      wait.lane = words.index(lanes.size());
      wait.steps = static_cast<uint32_t>(words.index(INT32_MAX));
    }
    if (task.kernel == kCopy) check_copy(task);
  }

  void check_copy(const TaskDescription& task) const {
    if (task.reads.size() != 1 || task.writes.size() != 1) throw Broken("a copy of the plan has several views");
    const Slot& source = slots[task.reads[0]];
    const Slot& target = slots[task.writes[0]];
    if (source.space == kDynamic || target.space == kDynamic || source.nbytes != target.nbytes) {
      throw Broken("a copy of the plan has views of different sizes");
    }
  }

  void check_waits() const {
    for (const std::vector<TaskDescription>& lane : lanes) {
      for (const TaskDescription& task : lane) {
        for (const Wait& wait : task.waits) {
          if (wait.steps > lanes[wait.lane].size()) throw Broken("a task of the plan waits for one that there is not");
        }
      }
    }
  }
};

}  // namespace iosched
