// An execution provider of onnxruntime, which loads this library as a plugin. It runs graphs by the plan files that
// their models name, and writes the digests of the graphs that it is shown to the file that the option "record" names.

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "claimed_plan.hpp"
#include "graph_digest.hpp"
#include "provider_api.hpp"

using namespace iosched;

namespace {

constexpr const char* kName = "iosched";
constexpr const char* kOptionPrefix = "ep.iosched.";
constexpr int kFail = 1;     // OrtErrorCode
constexpr int kWarning = 2;  // OrtLoggingLevel
constexpr int kCpu = 0;      // OrtHardwareDeviceType

// Failures of the functions that onnxruntime calls, as its status.
template <typename Body>
OrtStatus* guarded(MakeStatus make, Body body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const std::exception& problem) {
    return make(kFail, problem.what());
  } catch (...) {
    return make(kFail, "unknown error");
  }
}

// Other processes never see a part of the file.
void write_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + "." + std::to_string(getpid()) + ".tmp";
  std::ofstream file(temporary, std::ios::binary);
  file << text;
  file.close();
  if (file && std::rename(temporary.c_str(), path.c_str()) == 0) return;
  std::remove(temporary.c_str());
  throw std::runtime_error("cannot write " + path);
}

std::string hex(uint64_t digest) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(digest));
  return text;
}

// The provider of one session. onnxruntime may release the factory first, and yet calls its ReleaseEp.
struct Provider : OrtEp {
  Provider(std::shared_ptr<const void> factory, const ProviderApi& api, const OrtApiBase* base, const OrtLogger* logger,
           ProviderOptions options)
      : OrtEp{}, factory(std::move(factory)), api(api), base(base), logger(logger), options(std::move(options)) {
    version = kTableVersion;
    OrtEp::GetName = [](const OrtEp*) { return kName; };
    OrtEp::GetCapability = [](OrtEp* self, const OrtGraph* graph, OrtEpGraphSupportInfo* support) -> OrtStatus* {
      static_cast<Provider*>(self)->decide(graph, support);
      return nullptr;
    };
    OrtEp::Compile = [](OrtEp* self, const OrtGraph**, const OrtNode** fused, size_t count, OrtNodeComputeInfo** made,
                        OrtNode**) {
      auto* provider = static_cast<Provider*>(self);
      return guarded(provider->api.CreateStatus, [&] {
        if (count != 1 || provider->claimed == nullptr) throw std::runtime_error("iosched claimed no such graph");
        provider->claimed->bind(fused[0]);
        made[0] = &provider->node;
      });
    };
    OrtEp::ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo**, size_t) {};
    node.version = kTableVersion;
    node.provider = this;
    node.CreateState = [](OrtNodeComputeInfo*, void*, void** state) -> OrtStatus* {
      *state = nullptr;
      return nullptr;
    };
    node.Compute = [](OrtNodeComputeInfo* self, void*, OrtKernelContext* context) {
      Provider* provider = static_cast<Node*>(self)->provider;
      return guarded(provider->api.CreateStatus, [&] { provider->claimed->run(context); });
    };
    node.ReleaseState = [](OrtNodeComputeInfo*, void*) {};
  }

  // Any doubt is a warning, and another provider runs the graph.
  void decide(const OrtGraph* graph, OrtEpGraphSupportInfo* support) noexcept {
    try {
      const OrtNode* parent = nullptr;
      api.check(api.Graph_GetParentNode(graph, &parent));
      if (parent != nullptr) return;
      record(graph);
      claim(graph, support);
    } catch (const std::exception& problem) {
      warn(problem.what());
    } catch (...) {
      warn("unknown error");
    }
  }

 private:
  struct Node : OrtNodeComputeInfo {
    Provider* provider;
  };

  // All nodes as one, whose constants onnxruntime need not keep.
  void claim(const OrtGraph* graph, OrtEpGraphSupportInfo* support) {
    if (options.find("record") != options.end()) return;
    const PlanPlace place = PlanPlace::of(api, graph, options);
    if (place.path.empty()) return;
    claimed = std::make_unique<ClaimedPlan>(api, base, graph, place, options);
    const auto nodes = api.list(graph, api.Graph_GetNumNodes, api.Graph_GetNodes);
    const OrtNodeFusionOptions fusion{kTableVersion, /*drop_constant_initializers*/ true};
    api.check(api.AddNodesToFuse(support, nodes.data(), nodes.size(), &fusion));
  }

  // onnxruntime asks again where it has inlined functions meanwhile; each digest stands for the same model.
  void record(const OrtGraph* graph) {
    const auto path = options.find("record");
    if (path == options.end()) return;
    const std::string line = digest_or_reason(graph) + "\n";
    if (recorded.find(line) == std::string::npos) recorded += line;
    write_file(path->second, recorded);
  }

  std::string digest_or_reason(const OrtGraph* graph) const {
    try {
      return hex(GraphDigest::of(api, graph));
    } catch (const std::exception& problem) {
      return problem.what();
    }
  }

  void warn(const char* message) const noexcept {
    api.ignore(api.Logger_LogMessage(logger, kWarning, message, __FILE__, __LINE__, kName));
  }

 public:
  const pid_t pid = getpid();

 private:
  const std::shared_ptr<const void> factory;
  const ProviderApi& api;  // of the factory
  const OrtApiBase* const base;
  const OrtLogger* const logger;
  const ProviderOptions options;
  std::string recorded;
  std::unique_ptr<ClaimedPlan> claimed;
  Node node{};
};

ProviderOptions options_of(const ProviderApi& api, const OrtSessionOptions* session) {
  OrtKeyValuePairs* pairs = nullptr;
  api.check(api.GetSessionOptionsConfigEntries(session, &pairs));
  const std::unique_ptr<OrtKeyValuePairs, decltype(api.ReleaseKeyValuePairs)> owner(pairs, api.ReleaseKeyValuePairs);
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  size_t count = 0;
  api.GetKeyValuePairs(pairs, &keys, &values, &count);
  ProviderOptions found;
  const size_t length = std::strlen(kOptionPrefix);
  for (size_t i = 0; i < count; ++i) {
    if (std::strncmp(keys[i], kOptionPrefix, length) == 0) found[keys[i] + length] = values[i];
  }
  return found;
}

// Owned by itself until it is released, and by its providers.
struct Factory : OrtEpFactory, std::enable_shared_from_this<Factory> {
  Factory(const OrtApiBase* base, const void* const* table, uint32_t version)
      : OrtEpFactory{}, base(base), api(table, version) {
    version = kTableVersion;
    OrtEpFactory::GetName = OrtEpFactory::GetVendor = [](const OrtEpFactory*) { return kName; };
    OrtEpFactory::GetVendorId = [](const OrtEpFactory*) -> uint32_t { return 0; };
    OrtEpFactory::GetVersion = [](const OrtEpFactory*) { return IOSCHED_VERSION; };
    OrtEpFactory::GetSupportedDevices = [](OrtEpFactory* self, const OrtHardwareDevice* const* devices,
                                           size_t n_devices, OrtEpDevice** found, size_t limit, size_t* count) {
      const ProviderApi& api = static_cast<Factory*>(self)->api;
      return guarded(api.CreateStatus, [&] {
        *count = 0;
        for (size_t i = 0; i < n_devices && *count < limit; ++i) {
          if (api.HardwareDevice_Type(devices[i]) != kCpu) continue;
          api.check(api.CreateEpDevice(self, devices[i], nullptr, nullptr, &found[*count]));
          ++*count;
        }
      });
    };
    OrtEpFactory::CreateEp = [](OrtEpFactory* self, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const*,
                                size_t, const OrtSessionOptions* session, const OrtLogger* logger, OrtEp** made) {
      auto* factory = static_cast<Factory*>(self);
      return guarded(factory->api.CreateStatus, [&] {
        ProviderOptions options = options_of(factory->api, session);
        *made = new Provider(factory->shared_from_this(), factory->api, factory->base, logger, std::move(options));
      });
    };
    OrtEpFactory::ReleaseEp = [](OrtEpFactory*, OrtEp* released) {
      // A forked child has no threads to end.
      auto* provider = static_cast<Provider*>(released);
      if (provider->pid == getpid()) delete provider;
    };
    have_no_devices_of_its_own();
  }

  static Factory* make(const OrtApiBase* base, const void* const* table, uint32_t version) {
    const auto made = std::make_shared<Factory>(base, table, version);
    made->self = made;
    return made.get();
  }

  void release() { const std::shared_ptr<Factory> last = std::move(self); }

 private:
  // onnxruntime calls these without looking whether they are there.
  void have_no_devices_of_its_own() {
    OrtEpFactory::CreateAllocator = [](OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*, void** made) {
      return nothing(made);
    };
    OrtEpFactory::ReleaseAllocator = [](OrtEpFactory*, void*) {};
    OrtEpFactory::CreateDataTransfer = [](OrtEpFactory*, void** made) { return nothing(made); };
    OrtEpFactory::IsStreamAware = [](const OrtEpFactory*) { return false; };
    OrtEpFactory::CreateSyncStreamForDevice = [](OrtEpFactory*, const void*, const OrtKeyValuePairs*, void** made) {
      return nothing(made);
    };
  }

  static OrtStatus* nothing(void** made) {
    *made = nullptr;
    return nullptr;
  }

  const OrtApiBase* const base;
  const ProviderApi api;
  std::shared_ptr<Factory> self;
};

}  // namespace

#define IOSCHED_EXPORT extern "C" __attribute__((visibility("default")))

IOSCHED_EXPORT OrtStatus* CreateEpFactories(const char*, const OrtApiBase* base, const OrtLogger*,
                                            OrtEpFactory** factories, size_t limit, size_t* count) {
  const auto table = [&](uint32_t version) { return static_cast<const void* const*>(base->GetApi(version)); };
  const auto make_status = reinterpret_cast<MakeStatus>(const_cast<void*>(table(kApiVersion)[0]));
  return guarded(make_status, [&] {
    *count = 0;
    // onnxruntime complains on stderr when it is asked for a table that it does not have.
    const bool is_oldest = std::strncmp(base->GetVersionString(), "1.23.", 5) == 0;
    const uint32_t version = is_oldest ? kOldestProviderApi : kOldestProviderApi + 1;
    if (table(version) == nullptr) throw std::runtime_error("iosched needs onnxruntime 1.23 or newer");
    if (limit == 0) return;
    factories[0] = Factory::make(base, table(version), version);
    *count = 1;
  });
}

IOSCHED_EXPORT OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) {
  static_cast<Factory*>(factory)->release();
  return nullptr;
}
