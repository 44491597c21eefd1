// The used part of onnxruntime's C interface, and the environment of this process.
//
// No headers of onnxruntime are needed: the caller passes what `OrtGetApiBase` returns, and functions are found by
// their position in its table, which only grows at its end.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

struct OrtStatus;
struct OrtEnv;
struct OrtSession;
struct OrtSessionOptions;
struct OrtMemoryInfo;
struct OrtValue;
struct OrtTypeInfo;
struct OrtTypeAndShape;
struct OrtPrepacked;
struct OrtCustomOp;
struct OrtCustomOpDomain;
struct OrtKernelContext;
struct OrtKernelInfo;
struct OrtOp;
struct OrtOpAttr;
struct OrtApiBase {
  const void* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

namespace iosched {

// The oldest version of the table with every entry below.
constexpr uint32_t kApiVersion = 13;

// Positions in `struct OrtApi` of onnxruntime_c_api.h; onnxruntime lists them, one a line, in
// csharp/src/Microsoft.ML.OnnxRuntime/NativeMethods.shared.cs.
struct Api {
  explicit Api(const void* const* table) {
    const auto bind = [table](auto& function, size_t position) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(const_cast<void*>(table[position]));
    };
    bind(GetErrorMessage, 2);
    bind(CreateEnv, 3);
    bind(Run, 9);
    bind(CreateSessionOptions, 10);
    bind(SetGraphOptimizationLevel, 23);
    bind(SetLogSeverityLevel, 22);
    bind(SetIntraOpNumThreads, 24);
    bind(SetInterOpNumThreads, 25);
    bind(SessionGetOutputCount, 31);
    bind(SessionGetOutputTypeInfo, 34);
    bind(CreateCustomOpDomain, 26);
    bind(CustomOpDomain_Add, 27);
    bind(AddCustomOpDomain, 28);
    bind(CreateTensorWithData, 49);
    bind(IsTensor, 50);
    bind(GetTensorData, 51);
    bind(CastToTensorInfo, 55);
    bind(GetElementType, 60);
    bind(GetDimensionsCount, 61);
    bind(GetDimensions, 62);
    bind(GetTypeAndShape, 65);
    bind(CreateCpuMemoryInfo, 69);
    bind(ReleaseEnv, 92);
    bind(ReleaseStatus, 93);
    bind(ReleaseMemoryInfo, 94);
    bind(ReleaseSession, 95);
    bind(ReleaseValue, 96);
    bind(ReleaseTypeInfo, 98);
    bind(ReleaseTypeAndShape, 99);
    bind(ReleaseSessionOptions, 100);
    bind(ReleaseCustomOpDomain, 101);
    bind(AddSessionConfigEntry, 130);
    bind(CreateAndRegisterAllocator, 144);
    bind(AddInitializer, 150);
    bind(CreatePrepacked, 166);
    bind(ReleasePrepacked, 167);
    bind(CreateSessionFromArrayPrepacked, 169);
    bind(UnregisterAllocator, 177);
    bind(AddExternalInitializers, 210);
    bind(CreateOpAttr, 211);
    bind(ReleaseOpAttr, 212);
    bind(CreateOp, 213);
    bind(InvokeOp, 214);
    bind(ReleaseOp, 215);
    bind(CopyKernelInfo, 217);
    bind(ReleaseKernelInfo, 218);
  }

  void check(OrtStatus* status) const {
    if (status == nullptr) return;
    const std::string message = take_message(status);
    throw std::runtime_error(message);
  }

  std::string take_message(OrtStatus* status) const {
    std::string message = GetErrorMessage(status);
    ReleaseStatus(status);
    return message;
  }

  const char* (*GetErrorMessage)(const OrtStatus*);
  OrtStatus* (*CreateEnv)(int severity, const char* name, OrtEnv**);
  OrtStatus* (*Run)(OrtSession*, const void* options, const char* const* input_names, const OrtValue* const* inputs,
                    size_t n_inputs, const char* const* output_names, size_t n_outputs, OrtValue** outputs);
  OrtStatus* (*CreateSessionOptions)(OrtSessionOptions**);
  OrtStatus* (*SetGraphOptimizationLevel)(OrtSessionOptions*, int);
  OrtStatus* (*SetLogSeverityLevel)(OrtSessionOptions*, int);
  OrtStatus* (*SetIntraOpNumThreads)(OrtSessionOptions*, int);
  OrtStatus* (*SetInterOpNumThreads)(OrtSessionOptions*, int);
  OrtStatus* (*SessionGetOutputCount)(const OrtSession*, size_t*);
  OrtStatus* (*SessionGetOutputTypeInfo)(const OrtSession*, size_t, OrtTypeInfo**);
  OrtStatus* (*CastToTensorInfo)(const OrtTypeInfo*, const OrtTypeAndShape**);
  void (*ReleaseTypeInfo)(OrtTypeInfo*);
  OrtStatus* (*CreateTensorWithData)(const OrtMemoryInfo*, void*, size_t, const int64_t*, size_t, int, OrtValue**);
  OrtStatus* (*IsTensor)(const OrtValue*, int*);
  OrtStatus* (*GetTensorData)(OrtValue*, void**);
  OrtStatus* (*GetElementType)(const OrtTypeAndShape*, int*);
  OrtStatus* (*GetDimensionsCount)(const OrtTypeAndShape*, size_t*);
  OrtStatus* (*GetDimensions)(const OrtTypeAndShape*, int64_t*, size_t);
  OrtStatus* (*GetTypeAndShape)(const OrtValue*, OrtTypeAndShape**);
  OrtStatus* (*CreateCpuMemoryInfo)(int allocator, int memory, OrtMemoryInfo**);
  void (*ReleaseEnv)(OrtEnv*);
  void (*ReleaseStatus)(OrtStatus*);
  void (*ReleaseMemoryInfo)(OrtMemoryInfo*);
  void (*ReleaseSession)(OrtSession*);
  void (*ReleaseValue)(OrtValue*);
  void (*ReleaseTypeAndShape)(OrtTypeAndShape*);
  void (*ReleaseSessionOptions)(OrtSessionOptions*);
  OrtStatus* (*AddSessionConfigEntry)(OrtSessionOptions*, const char*, const char*);
  OrtStatus* (*CreateAndRegisterAllocator)(OrtEnv*, const OrtMemoryInfo*, const void* arena_config);
  OrtStatus* (*UnregisterAllocator)(OrtEnv*, const OrtMemoryInfo*);
  OrtStatus* (*AddInitializer)(OrtSessionOptions*, const char*, const OrtValue*);
  OrtStatus* (*AddExternalInitializers)(OrtSessionOptions*, const char* const* names, const OrtValue* const*, size_t);
  OrtStatus* (*CreatePrepacked)(OrtPrepacked**);
  void (*ReleasePrepacked)(OrtPrepacked*);
  OrtStatus* (*CreateSessionFromArrayPrepacked)(const OrtEnv*, const void*, size_t, const OrtSessionOptions*,
                                                OrtPrepacked*, OrtSession**);
  OrtStatus* (*CreateCustomOpDomain)(const char*, OrtCustomOpDomain**);
  OrtStatus* (*CustomOpDomain_Add)(OrtCustomOpDomain*, const OrtCustomOp*);
  OrtStatus* (*AddCustomOpDomain)(OrtSessionOptions*, OrtCustomOpDomain*);
  void (*ReleaseCustomOpDomain)(OrtCustomOpDomain*);
  OrtStatus* (*CreateOpAttr)(const char* name, const void* data, int count, int type, OrtOpAttr**);
  void (*ReleaseOpAttr)(OrtOpAttr*);
  OrtStatus* (*CreateOp)(const OrtKernelInfo*, const char* name, const char* domain, int version,
                         const char** constraints, const int* types, int n_constraints, const OrtOpAttr* const*,
                         int n_attributes, int n_inputs, int n_outputs, OrtOp**);
  OrtStatus* (*InvokeOp)(const OrtKernelContext*, const OrtOp*, const OrtValue* const* inputs, int n_inputs,
                         OrtValue* const* outputs, int n_outputs);
  void (*ReleaseOp)(OrtOp*);
  OrtStatus* (*CopyKernelInfo)(const OrtKernelInfo*, OrtKernelInfo**);
  void (*ReleaseKernelInfo)(OrtKernelInfo*);
};

inline const Api load_api(const OrtApiBase* base) {
  const void* table = base == nullptr ? nullptr : base->GetApi(kApiVersion);
  if (table == nullptr) throw std::runtime_error("onnxruntime does not offer version 13 of its C interface");
  return Api(static_cast<const void* const*>(table));
}

// Outlives every session: with shared ownership, Python may release objects in any order.
struct Environment {
  explicit Environment(const OrtApiBase* base) : api(load_api(base)) {
    api.check(api.CreateEnv(/*error*/ 3, "iosched", &env));
    api.check(api.CreateCpuMemoryInfo(/*arena*/ 1, /*default*/ 0, &memory));
    api.check(api.CreatePrepacked(&prepacked));
    // One allocator for all sessions: hundreds of private arenas would be cold and large. onnxruntime has one
    // environment per process, so for a second runtime the allocator is already registered.
    OrtStatus* status = api.CreateAndRegisterAllocator(env, memory, nullptr);
    registered = status == nullptr;
    if (!registered) api.ReleaseStatus(status);
  }
  Environment(const Environment&) = delete;
  ~Environment() {
    if (registered) unregister();
    if (prepacked != nullptr) api.ReleasePrepacked(prepacked);
    if (memory != nullptr) api.ReleaseMemoryInfo(memory);
    if (env != nullptr) api.ReleaseEnv(env);
  }

  OrtValue* tensor(void* data, size_t nbytes, const int64_t* shape, size_t rank, int type) const {
    OrtValue* value = nullptr;
    api.check(api.CreateTensorWithData(memory, data, nbytes, shape, rank, type, &value));
    return value;
  }

  // The host's other sessions shall not use it when this is gone; ours keep it.
  void unregister() {
    OrtStatus* status = api.UnregisterAllocator(env, memory);
    if (status != nullptr) api.ReleaseStatus(status);
  }

  const Api api;
  bool registered = false;
  OrtEnv* env = nullptr;
  OrtMemoryInfo* memory = nullptr;
  OrtPrepacked* prepacked = nullptr;
};

}  // namespace iosched
