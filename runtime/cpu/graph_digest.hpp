// The digest of a graph that onnxruntime shows to a provider: a plan made for one model must not run for another.

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "checksum.hpp"
#include "provider_api.hpp"

namespace iosched {

// Values are numbered in the order in which the graph uses them, since onnxruntime generates names. Only the names of
// the graph's own inputs and outputs count.
struct GraphDigest {
  // Throws if the graph holds anything that is not covered.
  static uint64_t of(const ProviderApi& api, const OrtGraph* graph) {
    GraphDigest digest(api);
    digest.add_graph(graph, nullptr);
    return Checksum::of(digest.words.data(), digest.words.size() * sizeof(uint64_t));
  }

 private:
  struct Value {
    uint64_t number = 0;  // 0 for an initializer that is not used yet
    const OrtValueInfo* info = nullptr;
  };
  struct Scope {
    Scope* outer;
    std::unordered_map<std::string, Value> values;
  };

  // ONNXType, ONNXTensorElementDataType and OrtOpAttrType
  static constexpr int kTensor = 1, kString = 8;
  static constexpr int kInt = 1, kFloat = 3, kStrings = 6, kGraph = 7, kTensorAttribute = 8;

  static constexpr const char* kNoSubgraphs = "operators with subgraphs need onnxruntime 1.24 or newer";

  explicit GraphDigest(const ProviderApi& api) : api(api) {}

  void add(uint64_t word) { words.push_back(word); }
  void add_bytes(const void* data, size_t nbytes) {
    add(nbytes);
    add(Checksum::of(data, nbytes));
  }
  void add_text(const std::string& text) { add_bytes(text.data(), text.size()); }

  void add_graph(const OrtGraph* graph, Scope* outer) {
    Scope scope{outer, {}};
    for (const OrtValueInfo* each : api.list(graph, api.Graph_GetNumInitializers, api.Graph_GetInitializers)) {
      scope.values[name_of(each)].info = each;
    }
    const auto inputs = api.list(graph, api.Graph_GetNumInputs, api.Graph_GetInputs);
    const auto nodes = api.list(graph, api.Graph_GetNumNodes, api.Graph_GetNodes);
    const auto outputs = api.list(graph, api.Graph_GetNumOutputs, api.Graph_GetOutputs);
    add(inputs.size());
    for (const OrtValueInfo* each : inputs) {
      define(each, scope);
      if (outer == nullptr) add_name_of_input(each);
    }
    add(nodes.size());
    for (const OrtNode* each : nodes) add_node(each, scope);
    add(outputs.size());
    for (const OrtValueInfo* each : outputs) {
      refer(each, scope);
      if (outer == nullptr && each != nullptr) add_text(name_of(each));
    }
  }

  void add_name_of_input(const OrtValueInfo* info) {
    if (info == nullptr || kind_of(type_of(info)) != kTensor) throw std::runtime_error("an input of the graph is not a tensor");
    add_text(name_of(info));
  }

  // Its implicit inputs are the values around it that its subgraphs refer to.
  void add_node(const OrtNode* node, Scope& scope) {
    int version = 0;
    api.check(api.Node_GetSinceVersion(node, &version));
    add_text(api.text(node, api.Node_GetOperatorType));
    add_text(api.text(node, api.Node_GetDomain));
    add(static_cast<uint64_t>(version));
    const auto inputs = api.list(node, api.Node_GetNumInputs, api.Node_GetInputs);
    const auto outputs = api.list(node, api.Node_GetNumOutputs, api.Node_GetOutputs);
    add(inputs.size());
    for (const OrtValueInfo* each : inputs) refer(each, scope);
    add_attributes(node, scope);
    add(outputs.size());
    for (const OrtValueInfo* each : outputs) define(each, scope);
  }

  // Sorted, since onnxruntime keeps attributes in a hash table.
  void add_attributes(const OrtNode* node, Scope& scope) {
    std::map<std::string, const OrtOpAttr*> attributes;
    for (const OrtOpAttr* each : api.list(node, api.Node_GetNumAttributes, api.Node_GetAttributes)) {
      attributes[api.text(each, api.OpAttr_GetName)] = each;
    }
    const std::map<std::string, const OrtGraph*> subgraphs = subgraphs_of(node);
    add(attributes.size());
    for (const auto& [name, attribute] : attributes) {
      int type = 0;
      api.ignore(api.OpAttr_GetType(attribute, &type));  // fails for the types that it does not know
      add_text(name);
      add(static_cast<uint64_t>(type));
      const auto subgraph = subgraphs.find(name);
      if (type == kGraph && subgraph != subgraphs.end()) {
        add_graph(subgraph->second, &scope);
      } else if (type == kTensorAttribute) {
        add_tensor_of(attribute);
      } else if (type >= kInt && type <= kStrings) {
        add_content_of(attribute, type);
      } else {
        throw std::runtime_error("attribute " + name + " of an operator is of a type that has no digest");
      }
    }
  }

  std::map<std::string, const OrtGraph*> subgraphs_of(const OrtNode* node) const {
    size_t count = 0;
    api.check(api.Node_GetNumSubgraphs(node, &count));
    std::map<std::string, const OrtGraph*> found;
    if (count == 0) return found;
    if (!api.tells_subgraphs()) throw std::runtime_error(kNoSubgraphs);
    std::vector<const OrtGraph*> graphs(count);
    std::vector<const char*> names(count);
    api.check(api.Node_GetSubgraphs(node, graphs.data(), count, names.data()));
    for (size_t i = 0; i < count; ++i) found[names[i]] = graphs[i];
    return found;
  }

  void add_tensor_of(const OrtOpAttr* attribute) {
    OrtValue* value = nullptr;
    api.check(api.OpAttr_GetTensor(attribute, &value));
    const std::unique_ptr<OrtValue, decltype(api.ReleaseValue)> owner(value, api.ReleaseValue);
    add_tensor(value);
  }

  void add_content_of(const OrtOpAttr* attribute, int type) {
    size_t nbytes = 0;
    api.ignore(api.ReadOpAttr(attribute, type, nullptr, 0, &nbytes));  // fails, but reports the size
    std::vector<char> content(nbytes + sizeof(int64_t));
    OrtStatus* status = api.ReadOpAttr(attribute, type, content.data(), content.size(), &nbytes);
    // Exporters may leave out a number that is 0; onnxruntime then reports an error here, but runs it as 0.
    if (type == kInt || type == kFloat) {
      api.ignore(status);
    } else {
      api.check(status);
    }
    add_bytes(content.data(), std::min(nbytes, content.size()));
  }

  // A value of this scope: its number, type and, of an initializer, content.
  void define(const OrtValueInfo* info, Scope& scope) {
    if (info == nullptr) return add(0);
    Value& value = scope.values[name_of(info)];
    value = {++n_values, info};
    add(value.number);
    add_type(info);
    const OrtValue* content = nullptr;
    api.check(api.ValueInfo_GetInitializerValue(info, &content));
    add(content != nullptr);
    if (content != nullptr) add_tensor(content);
  }

  // A value of this scope or one around it.
  void refer(const OrtValueInfo* info, Scope& scope) {
    if (info == nullptr) return add(0);
    const std::string name = name_of(info);
    for (Scope* at = &scope; at != nullptr; at = at->outer) {
      const auto found = at->values.find(name);
      if (found == at->values.end()) continue;
      if (found->second.number == 0) return define(found->second.info, *at);
      return add(found->second.number);
    }
    throw std::runtime_error(api.tells_subgraphs() ? "nothing computes the value " + name : kNoSubgraphs);
  }

  std::string name_of(const OrtValueInfo* info) const { return api.text(info, api.GetValueInfoName); }

  // ONNXType; 0 where onnxruntime knows none.
  int kind_of(const OrtTypeInfo* type) const {
    int kind = 0;
    if (type != nullptr) api.check(api.GetOnnxTypeFromTypeInfo(type, &kind));
    return kind;
  }

  const OrtTypeInfo* type_of(const OrtValueInfo* info) const {
    const OrtTypeInfo* type = nullptr;
    api.check(api.GetValueInfoTypeInfo(info, &type));
    return type;
  }

  void add_type(const OrtValueInfo* info) {
    const OrtTypeInfo* type = type_of(info);
    const int kind = kind_of(type);
    add(static_cast<uint64_t>(kind));
    const OrtTypeAndShape* tensor = nullptr;
    if (kind == kTensor) api.check(api.CastTypeInfoToTensorInfo(type, &tensor));
    if (tensor != nullptr) add_type_and_shape(tensor);
  }

  int add_type_and_shape(const OrtTypeAndShape* tensor) {
    int type = 0;
    size_t rank = 0;
    api.check(api.GetElementType(tensor, &type));
    api.check(api.GetDimensionsCount(tensor, &rank));
    std::vector<int64_t> extents(rank);
    std::vector<const char*> symbols(rank);
    if (rank != 0) api.check(api.GetDimensions(tensor, extents.data(), rank));
    if (std::any_of(extents.begin(), extents.end(), [](int64_t each) { return each < 0; })) {
      api.check(api.GetSymbolicDimensions(tensor, symbols.data(), rank));
    }
    add(static_cast<uint64_t>(type));
    add(api.has_shape(tensor));
    add(rank);
    for (size_t i = 0; i < rank; ++i) {
      add(static_cast<uint64_t>(extents[i]));
      if (extents[i] < 0) add_text(symbols[i] == nullptr ? "" : symbols[i]);
    }
    return type;
  }

  void add_tensor(const OrtValue* value) {
    int is_tensor = 0;
    if (value != nullptr) api.check(api.IsTensor(value, &is_tensor));
    if (is_tensor == 0) throw std::runtime_error("a constant of the graph is not a tensor");
    OrtTypeAndShape* shape = nullptr;
    api.check(api.GetTypeAndShape(value, &shape));
    const std::unique_ptr<OrtTypeAndShape, decltype(api.ReleaseTypeAndShape)> owner(shape, api.ReleaseTypeAndShape);
    if (add_type_and_shape(shape) == kString) throw std::runtime_error("a constant of the graph has strings");
    size_t nbytes = 0;
    void* data = nullptr;
    api.check(api.GetTensorSizeInBytes(value, &nbytes));
    api.check(api.GetTensorData(const_cast<OrtValue*>(value), &data));
    add_bytes(data, nbytes);
  }

  const ProviderApi& api;
  std::vector<uint64_t> words;
  uint64_t n_values = 0;
};

}  // namespace iosched
