// The part of onnxruntime's C interface that an execution provider uses, by position as in onnxruntime_api.hpp.

#pragma once

#include "onnxruntime_api.hpp"

struct OrtLogger;
struct OrtGraph;
struct OrtNode;
struct OrtValueInfo;
struct OrtTypeInfo;
struct OrtKeyValuePairs;
struct OrtHardwareDevice;
struct OrtEpDevice;
struct OrtEpGraphSupportInfo;
struct OrtNodeComputeInfo;
struct OrtModelMetadata;
struct OrtAllocator;

namespace iosched {

constexpr uint32_t kOldestProviderApi = 23;
// onnxruntime ignores all members of our tables that are younger.
constexpr uint32_t kTableVersion = 23;

}  // namespace iosched

// As in onnxruntime_ep_c_api.h of that version, which names the members that stay null.
struct OrtEp {
  uint32_t version;
  const char* (*GetName)(const OrtEp*);
  OrtStatus* (*GetCapability)(OrtEp*, const OrtGraph*, OrtEpGraphSupportInfo*);
  OrtStatus* (*Compile)(OrtEp*, const OrtGraph**, const OrtNode** fused, size_t count, OrtNodeComputeInfo**,
                        OrtNode** contexts);
  void (*ReleaseNodeComputeInfos)(OrtEp*, OrtNodeComputeInfo**, size_t count);
  void* optional[16];
};

struct OrtEpFactory {
  uint32_t version;
  const char* (*GetName)(const OrtEpFactory*);
  const char* (*GetVendor)(const OrtEpFactory*);
  OrtStatus* (*GetSupportedDevices)(OrtEpFactory*, const OrtHardwareDevice* const*, size_t n_devices, OrtEpDevice**,
                                    size_t limit, size_t* count);
  OrtStatus* (*CreateEp)(OrtEpFactory*, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const* metadata,
                         size_t n_devices, const OrtSessionOptions*, const OrtLogger*, OrtEp**);
  void (*ReleaseEp)(OrtEpFactory*, OrtEp*);
  uint32_t (*GetVendorId)(const OrtEpFactory*);
  const char* (*GetVersion)(const OrtEpFactory*);
  void* ValidateCompiledModelCompatibilityInfo;
  OrtStatus* (*CreateAllocator)(OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*, void** allocator);
  void (*ReleaseAllocator)(OrtEpFactory*, void* allocator);
  OrtStatus* (*CreateDataTransfer)(OrtEpFactory*, void** transfer);
  bool (*IsStreamAware)(const OrtEpFactory*);
  OrtStatus* (*CreateSyncStreamForDevice)(OrtEpFactory*, const void* device, const OrtKeyValuePairs*, void** stream);
  void* optional[8];
};

struct OrtNodeComputeInfo {
  uint32_t version;
  OrtStatus* (*CreateState)(OrtNodeComputeInfo*, void* context, void** state);
  OrtStatus* (*Compute)(OrtNodeComputeInfo*, void* state, OrtKernelContext*);
  void (*ReleaseState)(OrtNodeComputeInfo*, void* state);
};

struct OrtNodeFusionOptions {
  uint32_t version;
  bool drop_constant_initializers;
};

namespace iosched {

using MakeStatus = OrtStatus* (*)(int code, const char* message);

// A function of a table, of the type of the member that it initializes.
struct Entry {
  template <typename Function>
  operator Function*() const {
    return reinterpret_cast<Function*>(const_cast<void*>(address));
  }
  const void* address;
};

struct ProviderApi : Api {
  // `version` of the table, which has no younger entries.
  ProviderApi(const void* const* table, uint32_t version) : Api(table), table(table) {
    if (version >= 24) TensorTypeAndShape_HasShape = at(390);
  }

  // Older versions tell a scalar and an unknown shape alike.
  bool has_shape(const OrtTypeAndShape* tensor) const {
    return TensorTypeAndShape_HasShape == nullptr || TensorTypeAndShape_HasShape(tensor);
  }

  // Version 1.23 shows providers a subgraph as if it were a whole model: Graph_GetParentNode finds nothing.
  bool tells_subgraphs() const { return TensorTypeAndShape_HasShape != nullptr; }

  void ignore(OrtStatus* status) const noexcept {
    if (status != nullptr) ReleaseStatus(status);
  }

  template <typename Owner>
  using Count = OrtStatus* (*)(const Owner*, size_t*);
  template <typename Owner, typename Item>
  using List = OrtStatus* (*)(const Owner*, const Item**, size_t);
  template <typename Owner>
  using Text = OrtStatus* (*)(const Owner*, const char**);

  template <typename Owner, typename Item>
  std::vector<const Item*> list(const Owner* owner, Count<Owner> count, List<Owner, Item> fill) const {
    size_t n_items = 0;
    check(count(owner, &n_items));
    std::vector<const Item*> items(n_items);
    if (n_items != 0) check(fill(owner, items.data(), n_items));
    return items;
  }

  template <typename Owner>
  std::string text(const Owner* owner, Text<Owner> get) const {
    const char* found = nullptr;
    check(get(owner, &found));
    return found == nullptr ? "" : found;
  }

  Entry at(size_t position) const { return {table[position]}; }
  const void* const* const table;

  MakeStatus CreateStatus = at(0);
  OrtStatus* (*CreateSession)(const OrtEnv*, const char* path, const OrtSessionOptions*, OrtSession**) = at(7);
  OrtStatus* (*CastTypeInfoToTensorInfo)(const OrtTypeInfo*, const OrtTypeAndShape**) = at(55);
  OrtStatus* (*GetOnnxTypeFromTypeInfo)(const OrtTypeInfo*, int*) = at(56);
  OrtStatus* (*GetSymbolicDimensions)(const OrtTypeAndShape*, const char**, size_t) = at(63);
  OrtStatus* (*AllocatorFree)(OrtAllocator*, void*) = at(76);
  OrtStatus* (*GetAllocatorWithDefaultOptions)(OrtAllocator**) = at(78);
  OrtStatus* (*KernelContext_GetInput)(const OrtKernelContext*, size_t, const OrtValue**) = at(90);
  OrtStatus* (*KernelContext_GetOutput)(OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**) = at(91);
  OrtStatus* (*ModelMetadataLookupCustomMetadataMap)(const OrtModelMetadata*, OrtAllocator*, const char* key,
                                                     char** value) = at(116);
  void (*ReleaseModelMetadata)(OrtModelMetadata*) = at(118);
  OrtStatus* (*Logger_LogMessage)(const OrtLogger*, int severity, const char* message, const char* file, int line,
                                  const char* function) = at(247);
  OrtStatus* (*ReadOpAttr)(const OrtOpAttr*, int type, void* data, size_t nbytes, size_t* needed) = at(272);
  Text<OrtValueInfo> GetValueInfoName = at(289);
  OrtStatus* (*GetValueInfoTypeInfo)(const OrtValueInfo*, const OrtTypeInfo**) = at(290);
  void (*GetKeyValuePairs)(const OrtKeyValuePairs*, const char* const** keys, const char* const** values,
                           size_t*) = at(298);
  void (*ReleaseKeyValuePairs)(OrtKeyValuePairs*) = at(300);
  int (*HardwareDevice_Type)(const OrtHardwareDevice*) = at(307);
  const void* const* (*GetEpApi)() = at(317);
  OrtStatus* (*GetTensorSizeInBytes)(const OrtValue*, size_t*) = at(318);
  OrtStatus* (*ValueInfo_GetInitializerValue)(const OrtValueInfo*, const OrtValue**) = at(326);
  OrtStatus* (*ValueInfo_IsOptionalGraphInput)(const OrtValueInfo*, bool*) = at(329);
  Text<OrtGraph> Graph_GetModelPath = at(334);
  Count<OrtGraph> Graph_GetNumInputs = at(338);
  List<OrtGraph, OrtValueInfo> Graph_GetInputs = at(339);
  Count<OrtGraph> Graph_GetNumOutputs = at(340);
  List<OrtGraph, OrtValueInfo> Graph_GetOutputs = at(341);
  Count<OrtGraph> Graph_GetNumInitializers = at(342);
  List<OrtGraph, OrtValueInfo> Graph_GetInitializers = at(343);
  Count<OrtGraph> Graph_GetNumNodes = at(344);
  List<OrtGraph, OrtNode> Graph_GetNodes = at(345);
  OrtStatus* (*Graph_GetParentNode)(const OrtGraph*, const OrtNode**) = at(346);
  Text<OrtNode> Node_GetOperatorType = at(350);
  Text<OrtNode> Node_GetDomain = at(351);
  OrtStatus* (*Node_GetSinceVersion)(const OrtNode*, int*) = at(352);
  Count<OrtNode> Node_GetNumInputs = at(353);
  List<OrtNode, OrtValueInfo> Node_GetInputs = at(354);
  Count<OrtNode> Node_GetNumOutputs = at(355);
  List<OrtNode, OrtValueInfo> Node_GetOutputs = at(356);
  Count<OrtNode> Node_GetNumAttributes = at(359);
  List<OrtNode, OrtOpAttr> Node_GetAttributes = at(360);
  OrtStatus* (*OpAttr_GetTensor)(const OrtOpAttr*, OrtValue**) = at(362);
  OrtStatus* (*OpAttr_GetType)(const OrtOpAttr*, int*) = at(363);
  Text<OrtOpAttr> OpAttr_GetName = at(364);
  Count<OrtNode> Node_GetNumSubgraphs = at(365);
  OrtStatus* (*Node_GetSubgraphs)(const OrtNode*, const OrtGraph**, size_t, const char** attributes) = at(366);
  OrtStatus* (*GetSessionOptionsConfigEntries)(const OrtSessionOptions*, OrtKeyValuePairs**) = at(379);
  OrtStatus* (*Graph_GetModelMetadata)(const OrtGraph*, OrtModelMetadata**) = at(387);
  bool (*TensorTypeAndShape_HasShape)(const OrtTypeAndShape*) = nullptr;

  // Of a table of its own, OrtEpApi.
  OrtStatus* (*CreateEpDevice)(OrtEpFactory*, const OrtHardwareDevice*, const OrtKeyValuePairs* metadata,
                               const OrtKeyValuePairs* options, OrtEpDevice**) = Entry{GetEpApi()[0]};
  OrtStatus* (*AddNodesToFuse)(OrtEpGraphSupportInfo*, const OrtNode* const*, size_t,
                               const OrtNodeFusionOptions*) = Entry{GetEpApi()[2]};
};

}  // namespace iosched
