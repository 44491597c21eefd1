// A program without Python that runs an exported model in onnxruntime, with iosched as a provider and no other:
//     provider_host LIBONNXRUNTIME IOSCHED_LIBRARY MODEL INPUT OUTPUT N_FLOATS [release]
// It writes the bytes of the output to stdout and ends with the session open, unless it is to release all.

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

struct OrtStatus;

namespace {

// Positions in `struct OrtApi` of onnxruntime_c_api.h, which only grows.
enum Position {
  kGetErrorMessage = 2, kCreateEnv = 3, kCreateSession = 7, kRun = 9, kCreateSessionOptions = 10,
  kSessionGetInputTypeInfo = 33, kCreateTensorWithData = 49, kGetTensorMutableData = 51, kCastTypeInfoToTensorInfo = 55,
  kGetDimensionsCount = 61, kGetDimensions = 62, kCreateCpuMemoryInfo = 69, kReleaseEnv = 92, kReleaseMemoryInfo = 94,
  kReleaseSession = 95, kReleaseValue = 96, kReleaseTypeInfo = 98, kReleaseSessionOptions = 100,
  kAddSessionConfigEntry = 130, kRegisterLibrary = 301, kUnregisterLibrary = 302, kGetEpDevices = 303,
  kAppendProvider = 304, kEpDeviceName = 312, kGetTensorSizeInBytes = 318
};

const void* const* table;

// Calls a function that returns a status; an error ends the program.
template <typename... Arguments>
void call(Position position, Arguments... arguments) {
  const auto function = reinterpret_cast<OrtStatus* (*)(Arguments...)>(const_cast<void*>(table[position]));
  OrtStatus* status = function(arguments...);
  if (status == nullptr) return;
  const auto message = reinterpret_cast<const char* (*)(OrtStatus*)>(const_cast<void*>(table[kGetErrorMessage]));
  std::fprintf(stderr, "%s\n", message(status));
  std::exit(1);
}

void release(Position position, void* object) {
  reinterpret_cast<void (*)(void*)>(const_cast<void*>(table[position]))(object);
}

const char* provider_of(const void* device) {
  return reinterpret_cast<const char* (*)(const void*)>(const_cast<void*>(table[kEpDeviceName]))(device);
}

void* opened(const char* library, const char* function) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  void* found = handle == nullptr ? nullptr : dlsym(handle, function);
  if (found == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  if (found == nullptr) std::exit(1);
  return found;
}

}  // namespace

int main(int count, char** words) {
  if (count < 7) return 2;
  struct Base {
    const void* const* (*GetApi)(uint32_t);
    const char* (*GetVersionString)();
  };
  const auto get_base = reinterpret_cast<const Base* (*)()>(opened(words[1], "OrtGetApiBase"));
  table = get_base()->GetApi(23);
  if (table == nullptr) return 3;

  void *env = nullptr, *options = nullptr, *session = nullptr, *memory = nullptr;
  call(kCreateEnv, /*warning*/ 2, static_cast<const char*>("host"), &env);
  call(kRegisterLibrary, env, static_cast<const char*>("iosched"), static_cast<const char*>(words[2]));
  const void* const* devices = nullptr;
  size_t n_devices = 0;
  call(kGetEpDevices, static_cast<const void*>(env), &devices, &n_devices);
  std::vector<const void*> own;
  for (size_t i = 0; i < n_devices; ++i) {
    if (std::strcmp(provider_of(devices[i]), "iosched") == 0) own.push_back(devices[i]);
  }
  call(kCreateSessionOptions, &options);
  call(kAddSessionConfigEntry, options, static_cast<const char*>("session.disable_cpu_ep_fallback"),
       static_cast<const char*>("1"));
  const char* const* nothing = nullptr;
  call(kAppendProvider, options, env, static_cast<const void* const*>(own.data()), own.size(), nothing, nothing,
       size_t{0});
  call(kCreateSession, static_cast<const void*>(env), static_cast<const char*>(words[3]),
       static_cast<const void*>(options), &session);

  void* type = nullptr;
  const void* tensor = nullptr;
  size_t rank = 0;
  call(kSessionGetInputTypeInfo, static_cast<const void*>(session), size_t{0}, &type);
  call(kCastTypeInfoToTensorInfo, static_cast<const void*>(type), &tensor);
  call(kGetDimensionsCount, tensor, &rank);
  std::vector<int64_t> shape(rank);
  call(kGetDimensions, tensor, shape.data(), rank);

  std::vector<float> x(std::strtoul(words[6], nullptr, 10));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3.0F;
  call(kCreateCpuMemoryInfo, /*arena*/ 1, /*default*/ 0, &memory);
  void* input = nullptr;
  call(kCreateTensorWithData, static_cast<const void*>(memory), static_cast<void*>(x.data()), x.size() * sizeof(float),
       static_cast<const int64_t*>(shape.data()), rank, /*float*/ 1, &input);
  for (int repeat = 0; repeat < 3; ++repeat) {
    void *output = nullptr, *data = nullptr;
    size_t nbytes = 0;
    call(kRun, session, static_cast<const void*>(nullptr), static_cast<const char* const*>(words + 4),
         static_cast<const void* const*>(&input), size_t{1}, static_cast<const char* const*>(words + 5), size_t{1},
         &output);
    call(kGetTensorMutableData, output, &data);
    call(kGetTensorSizeInBytes, static_cast<const void*>(output), &nbytes);
    if (repeat == 2) std::fwrite(data, 1, nbytes, stdout);
    release(kReleaseValue, output);
  }
  release(kReleaseValue, input);
  release(kReleaseTypeInfo, type);
  release(kReleaseMemoryInfo, memory);
  release(kReleaseSessionOptions, options);
  if (count == 7) return 0;
  release(kReleaseSession, session);
  call(kUnregisterLibrary, env, static_cast<const char*>("iosched"));
  release(kReleaseEnv, env);
  return 0;
}
