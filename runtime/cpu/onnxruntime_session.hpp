// Sessions of onnxruntime as kernels. They borrow their weights, and share packed copies of them.

#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernel.hpp"
#include "onnxruntime_api.hpp"

namespace iosched {

struct Weight {
  const char* name;
  void* data;
  int64_t nbytes;
  int64_t type;
  int64_t rank;
  const int64_t* shape;
};

// The processors of a session's threads, the caller's first; negative if unpinned.
using Cpus = std::vector<int64_t>;

struct Options {
  Options(const Api& api, const Cpus& cpus) : api(api) {
    api.check(api.CreateSessionOptions(&options));
    api.check(api.SetLogSeverityLevel(options, 3));
    api.check(api.SetGraphOptimizationLevel(options, 0));
    api.check(api.SetIntraOpNumThreads(options, static_cast<int>(cpus.size())));
    api.check(api.SetInterOpNumThreads(options, 1));
    set("session.use_env_allocators", "1");
    set("session.load_model_format", "ONNX");  // else by the first bytes, which a plan file may choose
    if (cpus.size() < 2) return;
    // Its threads spin between operators, and would continue for tens of milliseconds after a run.
    set("session.force_spinning_stop", "1");
    if (cpus[0] < 0) return;
    std::string places;  // without the caller's; onnxruntime counts processors from 1
    for (size_t i = 1; i < cpus.size(); ++i) places += (i > 1 ? ";" : "") + std::to_string(cpus[i] + 1);
    set("session.intra_op_thread_affinities", places.c_str());
  }
  Options(const Options&) = delete;
  ~Options() {
    if (options != nullptr) api.ReleaseSessionOptions(options);
  }
  void set(const char* key, const char* value) const { api.check(api.AddSessionConfigEntry(options, key, value)); }
  const Api& api;
  OrtSessionOptions* options = nullptr;
};

struct Session final : Kernel {
  Session(std::shared_ptr<Environment> environment, const void* model, size_t nbytes, const Weight* weights,
          size_t n_weights, std::vector<std::string> inputs, std::vector<std::string> outputs, const Cpus& cpus)
      : environment(std::move(environment)),
        inputs(std::move(inputs)),
        outputs(std::move(outputs)),
        n_threads(cpus.size()) {
    try {
      create(model, nbytes, weights, n_weights, Options(this->environment->api, cpus));
    } catch (...) {
      release();
      throw;
    }
    for (const std::string& name : this->inputs) input_names.push_back(name.c_str());
    for (const std::string& name : this->outputs) output_names.push_back(name.c_str());
  }
  Session(const Session&) = delete;
  ~Session() override { release(); }

  std::unique_ptr<Call> call(Slots reads, Slots writes) const override;
  size_t n_inputs() const override { return inputs.size(); }
  size_t n_outputs() const override { return outputs.size(); }
  bool spans_lanes() const override { return n_threads > 1; }

  void create(const void* model, size_t nbytes, const Weight* weights, size_t n_weights, const Options& options) {
    const Api& api = environment->api;
    std::vector<const char*> names;
    for (size_t i = 0; i < n_weights; ++i) {
      const Weight& weight = weights[i];
      values.push_back(
          environment->tensor(weight.data, weight.nbytes, weight.shape, weight.rank, static_cast<int>(weight.type)));
      names.push_back(weight.name);
      // Shares memory between sessions, also that of packed copies of the weight (Gemm, MatMul).
      api.check(api.AddInitializer(options.options, weight.name, values.back()));
    }
    OrtStatus* status = load(model, nbytes, options, environment->prepacked);
    if (status != nullptr) {
      // Some kernels, such as integer convolutions, pack weights that cannot be shared, and fail.
      api.ReleaseStatus(status);
      status = load(model, nbytes, options, nullptr);
    }
    if (status != nullptr && n_weights > 0) {
      // onnxruntime checked the placeholder's file before the values: replace the placeholders too, which costs a
      // temporary copy.
      api.ReleaseStatus(status);
      api.check(api.AddExternalInitializers(options.options, names.data(), values.data(), n_weights));
      status = load(model, nbytes, options, nullptr);
    }
    api.check(status);
  }

  OrtStatus* load(const void* model, size_t nbytes, const Options& options, OrtPrepacked* shared) {
    return environment->api.CreateSessionFromArrayPrepacked(environment->env, model, nbytes, options.options, shared,
                                                            &session);
  }

  void release() {
    if (session != nullptr) environment->api.ReleaseSession(session);
    for (OrtValue* value : values) environment->api.ReleaseValue(value);
    session = nullptr;
    values.clear();
  }

  std::shared_ptr<Environment> environment;
  std::vector<std::string> inputs, outputs;
  const size_t n_threads;
  std::vector<const char*> input_names, output_names;
  std::vector<OrtValue*> values;  // the session uses their memory
  OrtSession* session = nullptr;
};

struct SessionCall final : Call {
  SessionCall(const Session& session, Slots reads, Slots writes)
      : session(session),
        reads(std::move(reads)),
        writes(std::move(writes)),
        inputs(this->reads.size()),
        outputs(this->writes.size()) {}

  void bind() override {
    for (size_t i = 0; i < reads.size(); ++i) inputs[i] = reads[i]->value;
    for (size_t i = 0; i < writes.size(); ++i) outputs[i] = writes[i]->value;
  }

  void run(OrtKernelContext*) override {
    const Api& api = session.environment->api;
    api.check(api.Run(session.session, nullptr, session.input_names.data(), inputs.data(), inputs.size(),
                      session.output_names.data(), outputs.size(), outputs.data()));
    for (size_t i = 0; i < writes.size(); ++i) {
      if (writes[i]->space == kDynamic) writes[i]->value = outputs[i];
    }
  }

  const Session& session;
  const Slots reads, writes;
  std::vector<const OrtValue*> inputs;
  std::vector<OrtValue*> outputs;
};

inline std::unique_ptr<Call> Session::call(Slots reads, Slots writes) const {
  return std::make_unique<SessionCall>(*this, std::move(reads), std::move(writes));
}

}  // namespace iosched
