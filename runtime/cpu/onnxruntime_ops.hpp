// Kernels of onnxruntime without their own session, and the outer run that provides their context.

#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernel.hpp"
#include "onnx_messages.hpp"
#include "onnxruntime_api.hpp"
#include "onnxruntime_session.hpp"

// As in onnxruntime_c_api.h of version 13, with the functions that onnxruntime calls for that version.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const void* api, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void* kernel, OrtKernelContext*);
  void (*KernelDestroy)(void* kernel);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
};

namespace iosched {

constexpr const char* kOuterOperator = "Run";
constexpr const char* kOuterDomain = "iosched";

// A session of one operator that runs a body: kernels may be called only inside an operator.
struct Outer {
  using Body = std::function<void(OrtKernelContext*)>;

  explicit Outer(std::shared_ptr<Environment> environment) : environment(std::move(environment)) {
    try {
      create();
    } catch (...) {
      release();
      throw;
    }
  }
  Outer(const Outer&) = delete;
  ~Outer() { release(); }

  // Rethrows exceptions of `body`; everything that it starts must have ended when it returns.
  void around(const Body& body) {
    const Api& api = environment->api;
    const char* const input = "x";
    const char* const output = "y";
    this->body = &body;
    problem = nullptr;
    api.check(api.Run(session, nullptr, &input, &x, 1, &output, 1, &y));
    if (problem != nullptr) std::rethrow_exception(problem);
  }

  std::shared_ptr<Environment> environment;
  OrtKernelInfo* info = nullptr;

 private:
  struct Operator : OrtCustomOp {
    Outer* outer;
  };

  // One node, kOuterOperator of kOuterDomain, from the input "x" to the output "y": one float each.
  static std::string model() {
    const std::vector<int64_t> shape{1};
    MessageWriter node, graph;
    node.bytes(1, "x").bytes(2, "y").bytes(4, kOuterOperator).bytes(7, kOuterDomain);
    graph.message(1, node).bytes(2, "outer");
    graph.message(11, MessageWriter::value("x", /*float*/ 1, &shape));
    graph.message(12, MessageWriter::value("y", /*float*/ 1, &shape));
    return MessageWriter::model(graph, {{"", 17}, {kOuterDomain, 1}}).written;
  }

  void create() {
    const Api& api = environment->api;
    const std::string model = Outer::model();
    define();
    const Options options(api, {-1});
    api.check(api.CreateCustomOpDomain(kOuterDomain, &domain));
    api.check(api.CustomOpDomain_Add(domain, &definition));
    api.check(api.AddCustomOpDomain(options.options, domain));
    api.check(api.CreateSessionFromArrayPrepacked(environment->env, model.data(), model.size(), options.options,
                                                  nullptr, &session));
    if (info == nullptr) throw std::runtime_error("onnxruntime made no kernel of the outer operator");
    const int64_t shape = 1;
    x = environment->tensor(&numbers[0], sizeof(float), &shape, 1, /*float*/ 1);
    y = environment->tensor(&numbers[1], sizeof(float), &shape, 1, /*float*/ 1);
  }

  void define() {
    definition.version = kApiVersion;
    definition.outer = this;
    definition.CreateKernel = [](const OrtCustomOp* self, const void*, const OrtKernelInfo* info) -> void* {
      Outer* outer = static_cast<const Operator*>(self)->outer;
      const Api& api = outer->environment->api;
      OrtStatus* status = api.CopyKernelInfo(info, &outer->info);
      if (status != nullptr) api.ReleaseStatus(status);
      return outer;
    };
    definition.GetName = [](const OrtCustomOp*) { return kOuterOperator; };
    definition.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
    definition.GetInputType = definition.GetOutputType = [](const OrtCustomOp*, size_t) { return /*float*/ 1; };
    definition.GetInputTypeCount = definition.GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
    definition.KernelCompute = [](void* outer, OrtKernelContext* context) {
      static_cast<Outer*>(outer)->compute(context);
    };
    definition.KernelDestroy = [](void*) {};
    definition.GetInputCharacteristic = definition.GetOutputCharacteristic = definition.GetInputMemoryType =
        [](const OrtCustomOp*, size_t) { return 0; };
    definition.GetVariadicInputMinArity = definition.GetVariadicInputHomogeneity =
        definition.GetVariadicOutputMinArity = definition.GetVariadicOutputHomogeneity =
            [](const OrtCustomOp*) { return 1; };
  }

  void compute(OrtKernelContext* context) {
    try {
      (*body)(context);
    } catch (...) {
      problem = std::current_exception();
    }
  }

  void release() {
    const Api& api = environment->api;
    if (info != nullptr) api.ReleaseKernelInfo(info);
    if (session != nullptr) api.ReleaseSession(session);
    if (domain != nullptr) api.ReleaseCustomOpDomain(domain);
    if (x != nullptr) api.ReleaseValue(x);
    if (y != nullptr) api.ReleaseValue(y);
  }

  Operator definition{};
  OrtCustomOpDomain* domain = nullptr;
  OrtSession* session = nullptr;
  float numbers[2] = {0, 0};
  OrtValue* x = nullptr;
  OrtValue* y = nullptr;
  const Body* body = nullptr;
  std::exception_ptr problem;
};

struct Attribute {
  const char* name;
  const void* data;
  int64_t count;
  int64_t type;  // OrtOpAttrType
};

// An operator as native_kernels.py describes it.
struct OperatorDescription {
  const char* name;
  const char* domain;
  int64_t version;
  const char** constraints;
  const int* types;
  int64_t n_constraints;
  const Attribute* attributes;
  int64_t n_attributes;
  const Weight* constants;
  int64_t n_constants;
  const int64_t* sources;  // by input: index of a view, -1 for none, -2 - index of a constant
  int64_t n_sources;
  const int64_t* views;  // of each view that is read, then written: type, rank, extents
  int64_t n_reads;
  int64_t n_writes;
};

// One operator on constants and views of fixed types and shapes, which are checked here: onnxruntime does not.
struct InvokedOperator final : Kernel {
  InvokedOperator(std::shared_ptr<Outer> outer, const OperatorDescription& given)
      : outer(std::move(outer)),
        name(*given.domain == '\0' ? given.name : std::string(given.domain) + "." + given.name),
        sources(given.sources, given.sources + given.n_sources) {
    try {
      read_views(given);
      for (int64_t i = 0; i < given.n_constants; ++i) {
        const Weight& each = given.constants[i];
        constants.push_back(environment().tensor(each.data, each.nbytes, each.shape, each.rank,
                                                 static_cast<int>(each.type)));
      }
      create(given);
    } catch (...) {
      release();
      throw;
    }
  }
  InvokedOperator(const InvokedOperator&) = delete;
  ~InvokedOperator() override { release(); }

  std::unique_ptr<Call> call(Slots reads, Slots writes) const override;
  size_t n_inputs() const override { return reads.size(); }
  size_t n_outputs() const override { return writes.size(); }
  bool spans_lanes() const override { return false; }
  bool needs_context() const override { return true; }

  const Environment& environment() const { return *outer->environment; }

  struct Expected {
    int type;
    std::vector<int64_t> shape;
  };

  static void compare(const Slots& views, const std::vector<Expected>& expected) {
    for (size_t i = 0; i < expected.size(); ++i) {
      const bool fits = views[i]->type == expected[i].type && views[i]->shape == expected[i].shape;
      if (!fits || views[i]->space == kDynamic) {
        throw std::runtime_error("a task of the plan has views of another type or shape than its operator");
      }
    }
  }

  std::shared_ptr<Outer> outer;
  const std::string name;
  const std::vector<int64_t> sources;
  std::vector<Expected> reads, writes;
  std::vector<OrtValue*> constants;
  OrtOp* op = nullptr;

 private:
  void read_views(const OperatorDescription& given) {
    const int64_t* word = given.views;
    for (int64_t i = 0; i < given.n_reads + given.n_writes; ++i) {
      Expected view{static_cast<int>(word[0]), {word + 2, word + 2 + word[1]}};
      word += 2 + word[1];
      (i < given.n_reads ? reads : writes).push_back(std::move(view));
    }
  }

  void create(const OperatorDescription& given) {
    const Api& api = environment().api;
    std::vector<OrtOpAttr*> attributes;
    OrtStatus* status = nullptr;
    for (int64_t i = 0; i < given.n_attributes && status == nullptr; ++i) {
      const Attribute& each = given.attributes[i];
      OrtOpAttr* made = nullptr;
      status = api.CreateOpAttr(each.name, each.data, static_cast<int>(each.count), static_cast<int>(each.type), &made);
      if (status == nullptr) attributes.push_back(made);
    }
    if (status == nullptr) {
      status = api.CreateOp(outer->info, given.name, given.domain, static_cast<int>(given.version), given.constraints,
                            given.types, static_cast<int>(given.n_constraints), attributes.data(),
                            static_cast<int>(attributes.size()), static_cast<int>(sources.size()),
                            static_cast<int>(writes.size()), &op);
    }
    for (OrtOpAttr* each : attributes) api.ReleaseOpAttr(each);
    api.check(status);
  }

  void release() {
    const Api& api = environment().api;
    if (op != nullptr) api.ReleaseOp(op);
    for (OrtValue* value : constants) api.ReleaseValue(value);
  }
};

struct InvokedCall final : Call {
  InvokedCall(const InvokedOperator& kernel, Slots reads, Slots writes)
      : kernel(kernel),
        reads(std::move(reads)),
        writes(std::move(writes)),
        inputs(kernel.sources.size()),
        outputs(this->writes.size()) {}

  void bind() override {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const int64_t source = kernel.sources[i];
      inputs[i] = source >= 0 ? reads[source]->value : source == -1 ? nullptr : kernel.constants[-2 - source];
    }
    for (size_t i = 0; i < writes.size(); ++i) outputs[i] = writes[i]->value;
  }

  void run(OrtKernelContext* context) override {
    const Api& api = kernel.environment().api;
    OrtStatus* status = api.InvokeOp(context, kernel.op, inputs.data(), static_cast<int>(inputs.size()),
                                     outputs.data(), static_cast<int>(outputs.size()));
    if (status != nullptr) throw std::runtime_error(kernel.name + ": " + api.take_message(status));
  }

  const InvokedOperator& kernel;
  const Slots reads, writes;
  std::vector<const OrtValue*> inputs;
  std::vector<OrtValue*> outputs;
};

inline std::unique_ptr<Call> InvokedOperator::call(Slots reads, Slots writes) const {
  compare(reads, this->reads);
  compare(writes, this->writes);
  return std::make_unique<InvokedCall>(*this, std::move(reads), std::move(writes));
}

}  // namespace iosched
