// The plan of a graph that the provider claims, and its runs as one node of onnxruntime.

#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph_digest.hpp"
#include "opened_plan.hpp"
#include "provider_api.hpp"

namespace iosched {

using ProviderOptions = std::map<std::string, std::string>;

constexpr const char* kPlanKey = "io.iosched.plan";

// Where a model says that its plan is.
struct PlanPlace {
  // Empty where the model names no plan; throws where it names one that cannot be found.
  static PlanPlace of(const ProviderApi& api, const OrtGraph* graph, const ProviderOptions& options) {
    PlanPlace found;
    const std::string entry = metadata(api, graph);
    const auto given = options.find("plan");
    if (entry.empty() && given == options.end()) return found;
    const size_t space = entry.rfind(' ');
    if (!entry.empty() && space != std::string::npos) found.checksum = entry.substr(space + 1);
    found.model = api.text(graph, api.Graph_GetModelPath);
    if (given != options.end()) {
      found.path = given->second;
      return found;
    }
    const std::string name = entry.substr(0, space);
    if (name.empty() || name.find_first_of("/\\") != std::string::npos) throw Broken("the model names no plan file");
    if (found.model.empty()) throw Broken("the model has no path: set the option plan to that of its plan");
    found.path = found.model.substr(0, found.model.rfind('/') + 1) + name;
    return found;
  }

  std::string path, model, checksum;

 private:
  static std::string metadata(const ProviderApi& api, const OrtGraph* graph) {
    OrtModelMetadata* metadata = nullptr;
    api.check(api.Graph_GetModelMetadata(graph, &metadata));
    const std::unique_ptr<OrtModelMetadata, void (*)(OrtModelMetadata*)> owner(metadata, api.ReleaseModelMetadata);
    OrtAllocator* allocator = nullptr;
    char* text = nullptr;
    api.check(api.GetAllocatorWithDefaultOptions(&allocator));
    api.check(api.ModelMetadataLookupCustomMetadataMap(metadata, allocator, kPlanKey, &text));
    if (text == nullptr) return "";
    const std::string found = text;
    api.ignore(api.AllocatorFree(allocator, text));
    return found;
  }
};

struct ClaimedPlan {
  // Throws unless the plan is one for just this graph, here.
  ClaimedPlan(const ProviderApi& api, const OrtApiBase* base, const OrtGraph* graph, const PlanPlace& place,
              const ProviderOptions& options)
      : api(api), model(place.model) {
    auto file = std::make_unique<PlanFile>(place.path);
    char checksum[17];
    std::snprintf(checksum, sizeof checksum, "%016llx", static_cast<unsigned long long>(file->checksum()));
    if (!place.checksum.empty() && place.checksum != checksum) throw Broken("the plan is not the one that the model names");
    file->check_fit(base->GetVersionString());
    const size_t threads = number(options, "threads");
    if (threads != 0 && threads < file->n_lanes) {
      throw Broken("the plan needs " + std::to_string(file->n_lanes) + " threads, but may use " +
                   std::to_string(threads));
    }
    check_defaults(graph);
    const uint64_t digest = GraphDigest::of(api, graph);
    if (std::find(file->digests.begin(), file->digests.end(), digest) == file->digests.end()) {
      throw Broken("the plan is for another graph: export the model again");
    }
    std::vector<int> cpus;
    if (number(options, "pin") != 0) cpus = Processor::allowed();
    cpus.resize(std::min(cpus.size(), file->n_lanes));
    opened = std::make_unique<OpenedPlan>(std::move(file), base, std::move(cpus));
    check_ports(graph);
    status_of_model();
  }

  // Binds the values of the node that onnxruntime made of the graph.
  void bind(const OrtNode* fused) {
    inputs = names(api.list(fused, api.Node_GetNumInputs, api.Node_GetInputs));
    outputs = names(api.list(fused, api.Node_GetNumOutputs, api.Node_GetOutputs));
    for (const PlanProgram& program : opened->programs) {
      for (const Port& port : program.inputs) {
        if (!contains(inputs, port.name)) unread.resize(std::max(unread.size(), port.nbytes));
      }
      ports.push_back({places(program.inputs, inputs), places(program.outputs, outputs),
                       std::vector<void*>(program.outputs.size())});
    }
  }

  // Several threads may run at once: buffers are of the thread.
  void run(OrtKernelContext* context) {
    thread_local std::vector<const OrtValue*> given;
    given.resize(inputs.size());
    for (size_t i = 0; i < given.size(); ++i) api.check(api.KernelContext_GetInput(context, i, &given[i]));
    for (size_t i = 0; i < ports.size(); ++i) {
      if (fits(i, given)) return run_program(i, given, context);
    }
    run_plain(given, context);
  }

 private:
  static size_t number(const ProviderOptions& options, const char* key) {
    const auto found = options.find(key);
    return found == options.end() ? 0 : std::strtoul(found->second.c_str(), nullptr, 10);
  }

  // An input with a default may be given, but the plan has the default for good.
  void check_defaults(const OrtGraph* graph) const {
    for (const OrtValueInfo* each : api.list(graph, api.Graph_GetNumInitializers, api.Graph_GetInitializers)) {
      bool is_input = false;
      api.check(api.ValueInfo_IsOptionalGraphInput(each, &is_input));
      if (is_input) throw Broken("input " + api.text(each, api.GetValueInfoName) + " of the model has a default value");
    }
  }

  // Inputs and outputs have the names, types and, where the graph tells them, shapes of a program.
  void check_ports(const OrtGraph* graph) {
    const auto graph_inputs = api.list(graph, api.Graph_GetNumInputs, api.Graph_GetInputs);
    const auto graph_outputs = api.list(graph, api.Graph_GetNumOutputs, api.Graph_GetOutputs);
    bool has_fixed = false, has_open = false;
    for (const PlanProgram& program : opened->programs) {
      if (names(graph_inputs) != names(program.inputs) || names(graph_outputs) != names(program.outputs)) {
        throw Broken("the plan has other inputs or outputs than the model");
      }
      bool fixed = true, fits = true;
      for (size_t i = 0; i < graph_inputs.size(); ++i) {
        const Shape shape = shape_of(graph_inputs[i]);
        fixed &= shape.is_fixed;
        fits &= shape.type == program.inputs[i].type && (!shape.is_fixed || shape.extents == program.inputs[i].shape);
      }
      has_fixed |= fixed && fits;
      has_open |= !fixed;
    }
    is_fixed = !has_open && opened->programs.size() == 1;
    if (has_open && model.empty()) throw Broken("the model has no path, and is needed at other input shapes");
    if (!has_fixed && !has_open) throw Broken("the plan is for inputs of other types or shapes");
  }

  struct Shape {
    int type = 0;
    bool is_fixed = false;
    std::vector<int64_t> extents;
  };

  Shape shape_of(const OrtValueInfo* info) const {
    const OrtTypeInfo* type = nullptr;
    api.check(api.GetValueInfoTypeInfo(info, &type));
    const OrtTypeAndShape* tensor = nullptr;
    if (type != nullptr) api.check(api.CastTypeInfoToTensorInfo(type, &tensor));
    if (tensor == nullptr) throw Broken("an input of the model is not a tensor");
    return shape_of(tensor);
  }

  Shape shape_of(const OrtTypeAndShape* tensor) const {
    Shape found;
    size_t rank = 0;
    api.check(api.GetElementType(tensor, &found.type));
    api.check(api.GetDimensionsCount(tensor, &rank));
    found.extents.resize(rank);
    if (rank > 0) api.check(api.GetDimensions(tensor, found.extents.data(), rank));
    found.is_fixed = std::all_of(found.extents.begin(), found.extents.end(), [](int64_t each) { return each >= 0; });
    return found;
  }

  std::vector<std::string> names(const std::vector<const OrtValueInfo*>& values) const {
    std::vector<std::string> found;
    for (const OrtValueInfo* each : values) found.push_back(api.text(each, api.GetValueInfoName));
    return found;
  }

  static bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }

  static std::vector<std::string> names(const std::vector<Port>& ports) {
    std::vector<std::string> found;
    for (const Port& each : ports) found.push_back(each.name);
    return found;
  }

  // For each port of a program, the place among the node's values.
  struct Places {
    std::vector<size_t> inputs, outputs;
    std::vector<void*> none;  // as many as outputs: onnxruntime provides them all
  };
  static constexpr size_t kNowhere = SIZE_MAX;  // no node reads the input, or onnxruntime computes the output

  static std::vector<size_t> places(const std::vector<Port>& of, const std::vector<std::string>& values) {
    std::vector<size_t> found;
    for (const Port& port : of) {
      const auto at = std::find(values.begin(), values.end(), port.name);
      found.push_back(at == values.end() ? kNowhere : static_cast<size_t>(at - values.begin()));
    }
    return found;
  }

  bool fits(size_t number, const std::vector<const OrtValue*>& given) const {
    const std::vector<Port>& expected = opened->programs[number].inputs;
    for (size_t i = 0; i < expected.size(); ++i) {
      const size_t place = ports[number].inputs[i];
      if (place != kNowhere && !fits(expected[i], given[place])) return false;
    }
    return true;
  }

  // onnxruntime has checked the shapes that the graph fixes.
  bool fits(const Port& port, const OrtValue* value) const {
    if (is_fixed) {
      size_t nbytes = 0;
      api.check(api.GetTensorSizeInBytes(value, &nbytes));
      return nbytes == port.nbytes;
    }
    OrtTypeAndShape* shape = nullptr;
    api.check(api.GetTypeAndShape(value, &shape));
    const std::unique_ptr<OrtTypeAndShape, decltype(api.ReleaseTypeAndShape)> owner(shape, api.ReleaseTypeAndShape);
    const Shape known = shape_of(shape);
    return known.type == port.type && known.extents == port.shape;
  }

  struct Outputs {
    const ClaimedPlan& plan;
    const Places& places;
    OrtKernelContext* context;
    std::vector<std::vector<char>> unwanted;

    void* memory(size_t output, const std::vector<int64_t>& shape, size_t nbytes) {
      const size_t place = places.outputs[output];
      if (place == kNowhere) return unwanted.emplace_back(nbytes + 1).data();
      OrtValue* value = nullptr;
      void* data = nullptr;
      plan.api.check(plan.api.KernelContext_GetOutput(context, place, shape.data(), shape.size(), &value));
      plan.api.check(plan.api.GetTensorData(value, &data));
      return data;
    }
  };

  void run_program(size_t number, const std::vector<const OrtValue*>& given, OrtKernelContext* context) {
    thread_local std::vector<const void*> sources;
    sources.clear();
    for (const size_t place : ports[number].inputs) {
      void* data = unread.data();
      if (place != kNowhere) api.check(api.GetTensorData(const_cast<OrtValue*>(given[place]), &data));
      sources.push_back(data);
    }
    Outputs made{*this, ports[number], context, {}};
    const auto allocate = [&made](size_t output, const std::vector<int64_t>& shape, size_t nbytes) {
      return made.memory(output, shape, nbytes);
    };
    opened->run(number, sources.data(), ports[number].none.data(), allocate);
  }

  // Other input shapes than those of the programs: plain onnxruntime, on a session that is opened when first needed.
  void run_plain(const std::vector<const OrtValue*>& given, OrtKernelContext* context) {
    opened->program(0);  // throws in a forked child
    OrtSession* session = plain_session();
    std::vector<const char*> input_names, output_names;
    for (const std::string& name : inputs) input_names.push_back(name.c_str());
    for (const std::string& name : outputs) output_names.push_back(name.c_str());
    std::vector<OrtValue*> results(outputs.size());
    api.check(api.Run(session, nullptr, input_names.data(), given.data(), given.size(), output_names.data(),
                      output_names.size(), results.data()));
    for (size_t i = 0; i < results.size(); ++i) {
      const std::unique_ptr<OrtValue, decltype(api.ReleaseValue)> owner(results[i], api.ReleaseValue);
      copy(results[i], i, context);
    }
  }

  void copy(OrtValue* value, size_t output, OrtKernelContext* context) const {
    OrtTypeAndShape* tensor = nullptr;
    api.check(api.GetTypeAndShape(value, &tensor));
    const std::unique_ptr<OrtTypeAndShape, decltype(api.ReleaseTypeAndShape)> owner(tensor, api.ReleaseTypeAndShape);
    const Shape shape = shape_of(tensor);
    OrtValue* target = nullptr;
    void *from = nullptr, *to = nullptr;
    api.check(api.KernelContext_GetOutput(context, output, shape.extents.data(), shape.extents.size(), &target));
    api.check(api.GetTensorData(value, &from));
    api.check(api.GetTensorData(target, &to));
    const size_t nbytes = tensor_nbytes(shape.type, shape.extents);
    if (nbytes > 0) std::memcpy(to, from, nbytes);
  }

  // The file must still be the one that was claimed.
  OrtSession* plain_session() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (plain != nullptr) return plain.get();
    const auto before = stamp;
    status_of_model();
    if (model.empty() || stamp != before) throw Broken("the model's file has changed since it was opened");
    const Environment& environment = opened->environment();
    const Options settings(api, Cpus(opened->file->n_lanes, -1));
    api.check(api.SetGraphOptimizationLevel(settings.options, /*all*/ 99));
    OrtSession* made = nullptr;
    api.check(api.CreateSession(environment.env, model.c_str(), settings.options, &made));
    plain = {made, api.ReleaseSession};
    return made;
  }

  void status_of_model() {
    struct stat status {};
    if (model.empty() || stat(model.c_str(), &status) != 0) return;
    stamp = {static_cast<int64_t>(status.st_ino), status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
  }

  const ProviderApi& api;
  const std::string model;
  std::vector<int64_t> stamp = std::vector<int64_t>(4);  // of the model's file
  std::unique_ptr<OpenedPlan> opened;
  bool is_fixed = false;                     // inputs have one shape
  std::vector<std::string> inputs, outputs;  // of the node
  std::vector<char> unread;                  // stands for inputs that no node reads
  std::vector<Places> ports;                 // of each program
  std::mutex mutex;
  std::unique_ptr<OrtSession, void (*)(OrtSession*)> plain{nullptr, nullptr};
};

}  // namespace iosched
