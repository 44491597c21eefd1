// Proves that a plan from a file ends and that its result cannot depend on timing, as hazards.py does for plans that
// are made here.

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "plan_words.hpp"

namespace iosched {

struct Hazards {
  // Throws unless tasks cannot deadlock, those that share bytes are ordered, what they read was written before, and
  // every output is written.
  static void check(const Plan& plan) { Hazards(plan).check(); }

 private:
  static constexpr size_t kMostPairs = size_t{1} << 26;

  struct Access {
    size_t task;  // numbered lane after lane
    size_t slot;
    size_t begin, end;
    bool writes;
  };
  using Place = std::pair<int64_t, int64_t>;  // space, and number of the array or dynamic slot
  using Clock = std::vector<uint32_t>;        // tasks of each lane that precede a task, itself included

  explicit Hazards(const Plan& plan) : plan(plan) {
    for (const auto& lane : plan.lanes) {
      first.push_back(lane_of.size());
      lane_of.resize(lane_of.size() + lane.size(), first.size() - 1);
    }
    clocks.resize(lane_of.size());
  }

  void check() {
    order_tasks();
    for (size_t lane = 0; lane < plan.lanes.size(); ++lane) {
      for (size_t step = 0; step < plan.lanes[lane].size(); ++step) {
        const TaskDescription& task = plan.lanes[lane][step];
        for (const size_t slot : task.reads) add(first[lane] + step, slot, false);
        for (const size_t slot : task.writes) add(first[lane] + step, slot, true);
      }
    }
    for (auto& [place, accesses] : places) check_place(place, accesses);
    check_outputs();
  }

  // Runs the lanes as far as they go; a lane that never gets on is a deadlock.
  void order_tasks() {
    std::vector<size_t> done(plan.lanes.size());
    size_t left = lane_of.size();
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t lane = 0; lane < done.size(); ++lane) {
        for (; done[lane] < plan.lanes[lane].size() && is_ready(plan.lanes[lane][done[lane]], done); ++done[lane]) {
          clocks[first[lane] + done[lane]] = clock(lane, done[lane]);
          moves = true;
          --left;
        }
      }
    }
    if (left > 0) throw Broken("lanes of the plan wait for each other");
  }

  static bool is_ready(const TaskDescription& task, const std::vector<size_t>& done) {
    return std::all_of(task.waits.begin(), task.waits.end(),
                       [&](const Wait& wait) { return done[wait.lane] >= wait.steps; });
  }

  Clock clock(size_t lane, size_t step) const {
    Clock found = step == 0 ? Clock(plan.lanes.size()) : clocks[first[lane] + step - 1];
    for (const Wait& wait : plan.lanes[lane][step].waits) {
      if (wait.steps == 0) continue;
      const Clock& other = clocks[first[wait.lane] + wait.steps - 1];
      for (size_t i = 0; i < found.size(); ++i) found[i] = std::max(found[i], other[i]);
    }
    found[lane] = static_cast<uint32_t>(step + 1);
    return found;
  }

  bool precedes(size_t one, size_t other) const {
    const size_t lane = lane_of[one];
    return one != other && clocks[other][lane] > one - first[lane];
  }

  void add(size_t task, size_t number, bool writes) {
    const Slot& slot = plan.slots[number];
    if (slot.space == kInput && writes) throw Broken("a task of the plan writes to an input");
    if (slot.space == kInput) return;
    const auto begin = static_cast<size_t>(slot.space == kDynamic ? 0 : slot.offset);
    const size_t end = slot.space == kDynamic ? 1 : begin + static_cast<size_t>(slot.nbytes);
    if (begin == end) return;
    const int64_t array = slot.space == kDynamic ? static_cast<int64_t>(number) : slot.space == kArena ? 0 : slot.index;
    places[{slot.space, array}].push_back({task, number, begin, end, writes});
  }

  void check_place(const Place& place, std::vector<Access>& accesses) {
    std::sort(accesses.begin(), accesses.end(), [](const Access& a, const Access& b) { return a.begin < b.begin; });
    std::vector<std::vector<std::pair<size_t, size_t>>> written(accesses.size());  // for each read: earlier writes
    for (size_t i = 0; i < accesses.size(); ++i) {
      for (size_t j = i + 1; j < accesses.size() && accesses[j].begin < accesses[i].end; ++j) {
        if (++pairs > kMostPairs) throw Broken("tasks of the plan share too many bytes");
        const Access &a = accesses[i], &b = accesses[j];
        if (!a.writes && !b.writes) continue;
        if (a.task == b.task ? !adds_in_place(a, b) : !precedes(a.task, b.task) && !precedes(b.task, a.task)) {
          throw Broken("tasks of the plan share bytes, but not in a fixed order");
        }
        if (a.writes && b.writes && place.first == kDynamic) throw Broken("a value of the plan is written twice");
        if (a.writes && !b.writes && precedes(a.task, b.task)) written[j].emplace_back(a.begin, a.end);
        if (b.writes && !a.writes && precedes(b.task, a.task)) written[i].emplace_back(b.begin, b.end);
      }
    }
    for (size_t i = 0; i < accesses.size(); ++i) {
      const Access& read = accesses[i];
      if (!read.writes && !covers(written[i], read.begin, read.end)) {
        throw Broken("a task of the plan reads bytes that none has written before");
      }
    }
  }

  // Of floats only: a kernel reads whole numbers again after it checked that they are indices.
  bool adds_in_place(const Access& a, const Access& b) const {
    return a.slot == b.slot && a.writes != b.writes && plan.slots[a.slot].type == /*float*/ 1;
  }

  static bool covers(std::vector<std::pair<size_t, size_t>>& spans, size_t begin, size_t end) {
    std::sort(spans.begin(), spans.end());
    for (const auto& [start, stop] : spans) {
      if (start <= begin) begin = std::max(begin, stop);
    }
    return begin >= end;
  }

  void check_outputs() {
    for (size_t i = 0; i < plan.output_nbytes.size(); ++i) {
      std::vector<std::pair<size_t, size_t>> spans;
      for (const Access& each : places[{kOutput, static_cast<int64_t>(i)}]) {
        if (each.writes) spans.emplace_back(each.begin, each.end);
      }
      if (!covers(spans, 0, plan.output_nbytes[i])) throw Broken("the plan does not write all of its outputs");
    }
  }

  const Plan& plan;
  std::vector<size_t> first;    // number of each lane's first task
  std::vector<size_t> lane_of;  // by task
  std::vector<Clock> clocks;    // by task
  std::map<Place, std::vector<Access>> places;
  size_t pairs = 0;
};

}  // namespace iosched
