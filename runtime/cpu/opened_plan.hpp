// A plan file that is ready to run: one program for each set of input shapes, on threads of its own.

#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include "executor.hpp"
#include "plan_file.hpp"

namespace iosched {

// An input or output of the model.
struct Port {
  enum Source : int64_t { kArray = 0, kOfUnknownSize = 1, kConstant = 2, kInputItself = 3 };

  std::string name;
  int type = 0;
  bool is_known = true;
  std::vector<int64_t> shape;
  size_t nbytes = 0;
  Source source = kArray;
  size_t index = 0;               // of an array of the plan, a slot, or an input
  const void* constant = nullptr;
};

struct PlanProgram {
  std::vector<Port> inputs, outputs;
  std::vector<size_t> used;  // for each array that the plan reads, the input
  std::vector<void*> given, sources, targets;  // of a run; an array of no bytes has no output
  std::unique_ptr<Executor> executor;
};

struct OpenedPlan {
  // Provides the memory of an output.
  using Allocate = std::function<void*(size_t output, const std::vector<int64_t>& shape, size_t nbytes)>;

  // `cpus` are the lanes' processors; empty if their threads are not pinned.
  OpenedPlan(std::unique_ptr<PlanFile> opened, const OrtApiBase* base, std::vector<int> cpus)
      : file(std::move(opened)), pid(getpid()) {
    file->check_fit(base->GetVersionString());
    runtime = std::make_shared<Runtime>(base);
    for (int lane = 0; cpus.size() < file->n_lanes; ++lane) cpus.push_back(-1 - lane);
    reader = std::make_unique<KernelReader>(*file, runtime->environment, Cpus(cpus.begin(), cpus.end()));
    kernels = reader->kernels(*runtime);
    for (size_t left = file->head.length(6); left > 0; --left) programs.push_back(read_program(cpus));
    if (programs.empty()) throw Broken("the plan file holds no plan");
  }

  // Runs once; runs of several threads follow one another. Outputs that are null come from `allocate`.
  void run(size_t number, const void* const* inputs, void* const* outputs, const Allocate& allocate) {
    PlanProgram& program = checked(number, inputs, outputs);
    const std::lock_guard<std::mutex> lock(mutex);
    std::vector<void*>& given = program.given;
    given.assign(outputs, outputs + program.outputs.size());
    for (size_t i = 0; i < given.size(); ++i) {
      const Port& port = program.outputs[i];
      if (given[i] == nullptr && port.is_known) given[i] = allocated(allocate, i, port.shape, port.nbytes);
    }
    double time_us = 0;
    run_plan(program, inputs, given.data(), 1, &time_us);
    for (size_t i = 0; i < given.size(); ++i) fill(program, i, inputs, given[i], allocate);
    program.executor->release_dynamic();
  }

  // Runs the plan `repeats` times, without outputs of unknown size. `times_us` has one element for each run.
  void time(size_t number, const void* const* inputs, void* const* outputs, size_t repeats, double* times_us) {
    PlanProgram& program = checked(number, inputs, outputs);
    const std::lock_guard<std::mutex> lock(mutex);
    run_plan(program, inputs, outputs, repeats, times_us);
    program.executor->release_dynamic();
  }

  PlanProgram& program(size_t number) {
    if (getpid() != pid) throw std::runtime_error("the plan was opened before the process forked: open it again");
    if (number >= programs.size()) throw std::runtime_error("the plan has no such program");
    return programs[number];
  }

  const Environment& environment() const { return *runtime->environment; }

  std::unique_ptr<PlanFile> file;
  const pid_t pid;
  std::vector<PlanProgram> programs;

 private:
  PlanProgram& checked(size_t number, const void* const* inputs, void* const* outputs) {
    PlanProgram& found = program(number);
    bool is_complete = outputs != nullptr || found.outputs.empty();
    for (size_t i = 0; i < found.inputs.size(); ++i) {
      is_complete = is_complete && inputs != nullptr && (inputs[i] != nullptr || found.inputs[i].nbytes == 0);
    }
    if (!is_complete) throw std::runtime_error("an input of the plan, or the array of its outputs, is null");
    return found;
  }

  static void run_plan(PlanProgram& program, const void* const* inputs, void* const* outputs, size_t repeats,
                       double* times_us) {
    for (size_t i = 0; i < program.used.size(); ++i) {
      const void* const data = inputs[program.used[i]];  // of no bytes if null
      program.sources[i] = data == nullptr ? &program : const_cast<void*>(data);
    }
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      if (program.outputs[i].source == Port::kArray) program.targets[program.outputs[i].index] = outputs[i];
    }
    program.executor->run(program.sources.data(), program.targets.data(), repeats, 0, nullptr, 0, times_us, nullptr);
  }

  PlanProgram read_program(const std::vector<int>& cpus) {
    Head& head = file->head;
    PlanProgram found;
    for (size_t left = head.length(3); left > 0; --left) found.inputs.push_back(port());
    for (size_t left = head.length(5); left > 0; --left) found.outputs.push_back(output(found));
    for (const std::vector<Port>* ports : {&found.inputs, &found.outputs}) {
      std::set<std::string_view> names;
      for (const Port& each : *ports) {
        if (!names.insert(each.name).second) throw Broken("the plan has two inputs or outputs of one name");
      }
    }
    for (const int64_t word : head.numbers()) {
      if (word < 0 || static_cast<size_t>(word) >= found.inputs.size()) throw Broken("the plan reads an unknown input");
      found.used.push_back(static_cast<size_t>(word));
    }
    std::vector<std::shared_ptr<Kernel>> own;
    for (const int64_t word : head.numbers()) {
      if (word < 0 || static_cast<size_t>(word) >= kernels.size()) throw Broken("the plan names an unknown kernel");
      own.push_back(kernels[static_cast<size_t>(word)]);
    }
    const size_t n_words = head.length();
    Words words{head.data + head.at, n_words};
    head.at += n_words;
    Plan plan(words, own.size());
    if (words.at != words.count || plan.lanes.size() != file->n_lanes) throw Broken("the plan's description is broken");
    found.sources.resize(found.used.size());
    found.targets.assign(plan.output_nbytes.size(), file.get());
    check_arrays(found, plan);
    check_arena(plan);
    Hazards::check(plan);
    found.executor = std::make_unique<Executor>(runtime, std::move(plan), own, cpus);
    return found;
  }

  Port port() {
    Port found;
    found.name = file->head.text();
    found.type = static_cast<int>(file->head.index(1 << 8));
    found.shape = file->head.numbers();
    found.nbytes = tensor_nbytes(found.type, found.shape);
    return found;
  }

  Port output(const PlanProgram& program) {
    Head& head = file->head;
    const auto source = static_cast<Port::Source>(head.index(4));
    Port found = port();
    found.source = source;
    found.index = head.nbytes();
    if (source == Port::kOfUnknownSize) {
      found.is_known = false;
      found.shape.clear();
      found.nbytes = 0;
    } else if (source == Port::kConstant) {
      if (found.index >= file->regions.size()) throw Broken("an output of the plan has no value");
      found.constant = file->bytes(found.index, head.nbytes(), found.nbytes, element_nbytes(found.type));
    } else if (source == Port::kInputItself) {
      if (found.index >= program.inputs.size() || program.inputs[found.index].nbytes != found.nbytes) {
        throw Broken("an output of the plan has no input");
      }
    }
    return found;
  }

  // The arrays that the plan reads and writes are just those of the model's inputs and outputs.
  static void check_arrays(const PlanProgram& program, const Plan& plan) {
    bool fits = program.used.size() == plan.input_nbytes.size();
    for (size_t i = 0; fits && i < program.used.size(); ++i) {
      fits = program.inputs[program.used[i]].nbytes == plan.input_nbytes[i];
    }
    std::vector<size_t> left = plan.output_nbytes;
    for (const Port& port : program.outputs) {
      if (port.source == Port::kArray) {
        fits = fits && port.index < left.size() && left[port.index] == port.nbytes;
        if (fits) left[port.index] = SIZE_MAX;
      }
      if (port.source == Port::kOfUnknownSize) {
        fits = fits && port.index < plan.slots.size() && plan.slots[port.index].space == kDynamic;
      }
    }
    for (const size_t nbytes : left) fits = fits && (nbytes == SIZE_MAX || nbytes == 0);
    if (!fits) throw Broken("the plan's arrays are not those of its inputs and outputs");
  }

  // The arena is no larger than its views, and fits this machine.
  static void check_arena(const Plan& plan) {
    size_t end = 0;
    for (const Slot& slot : plan.slots) {
      if (slot.space == kArena) end = std::max(end, static_cast<size_t>(slot.offset + slot.nbytes));
    }
    if (plan.arena_nbytes > end + PlanFile::kPage) throw Broken("the plan's arena is larger than what it holds");
    const auto memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    if (plan.arena_nbytes > memory) {
      throw Broken("the plan needs " + std::to_string(plan.arena_nbytes) + " bytes, more than this machine has");
    }
  }

  static void* allocated(const Allocate& allocate, size_t output, const std::vector<int64_t>& shape, size_t nbytes) {
    void* found = allocate ? allocate(output, shape, nbytes) : nullptr;
    if (found == nullptr) throw std::runtime_error("there is no memory for an output of the plan");
    return found;
  }

  void fill(PlanProgram& program, size_t number, const void* const* inputs, void* given, const Allocate& allocate) {
    const Port& port = program.outputs[number];
    if (port.source == Port::kConstant && port.nbytes > 0) std::memcpy(given, port.constant, port.nbytes);
    if (port.source == Port::kInputItself && port.nbytes > 0) std::memcpy(given, inputs[port.index], port.nbytes);
    if (port.source != Port::kOfUnknownSize) return;
    const Dynamic value = program.executor->dynamic(port.index);
    if (value.type != port.type) throw std::runtime_error("an output of the plan has another type");
    const size_t nbytes = tensor_nbytes(value.type, value.shape);
    void* const target = allocated(allocate, number, value.shape, nbytes);
    if (nbytes > 0) std::memcpy(target, value.data, nbytes);
  }

  std::shared_ptr<Runtime> runtime;
  std::unique_ptr<KernelReader> reader;  // kernels point to what it keeps
  std::vector<std::shared_ptr<Kernel>> kernels;
  std::mutex mutex;
};

}  // namespace iosched
