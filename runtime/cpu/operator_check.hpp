// Checks operators that come from a plan file before they are called without a session, which would check them.

#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnx_messages.hpp"
#include "onnxruntime_api.hpp"
#include "onnxruntime_ops.hpp"
#include "onnxruntime_session.hpp"
#include "plan_words.hpp"
#include "processor.hpp"

namespace iosched {

struct OperatorCheck {
  // Which operators are among those of kernels.py, and have outputs of just the types and shapes that onnxruntime
  // infers.
  static std::vector<bool> inferred(const Environment& environment,
                                    const std::vector<const OperatorDescription*>& operators) {
    std::vector<bool> good(operators.size());
    std::map<int64_t, std::vector<size_t>> by_version;  // a model has one version of ONNX's operators
    for (size_t i = 0; i < operators.size(); ++i) {
      if (!is_safe(*operators[i])) continue;
      by_version[*operators[i]->domain == '\0' ? operators[i]->version : kAnyVersion].push_back(i);
    }
    for (const auto& [version, numbers] : by_version) infer(environment, operators, version, numbers, good);
    return good;
  }

 private:
  static constexpr int64_t kAnyVersion = 17;
  static constexpr int64_t kMostShapeBytes = 512;  // of a constant that decides the shape of an output
  static constexpr int64_t kMostInputs = 16;
  static constexpr int64_t kFirstResize = 11;  // without a session, an earlier one reads inputs that it does not have

  struct Tensor {
    int type = 0;
    std::vector<int64_t> shape;
    const Weight* constant = nullptr;
  };

  // The inputs of an operator, then its outputs; those that are omitted have type 0.
  struct Inputs {
    explicit Inputs(const OperatorDescription& given) {
      std::vector<Tensor> views;
      const int64_t* word = given.views;
      for (int64_t i = 0; i < given.n_reads + given.n_writes; ++i, word += 2 + word[1]) {
        views.push_back({static_cast<int>(word[0]), {word + 2, word + 2 + word[1]}, nullptr});
      }
      for (int64_t i = 0; i < given.n_sources; ++i) {
        const int64_t source = given.sources[i];
        inputs.push_back(source >= 0    ? views[source]
                         : source == -1 ? Tensor{}
                                        : constant(given.constants[-2 - source]));
      }
      outputs.assign(views.begin() + given.n_reads, views.end());
    }

    static Tensor constant(const Weight& weight) {
      return {static_cast<int>(weight.type), {weight.shape, weight.shape + weight.rank}, &weight};
    }

    std::vector<Tensor> inputs, outputs;
  };

  static bool is_safe(const OperatorDescription& given) {
    if (!is_allowed(given.domain, given.name) || given.n_sources < 1 || given.n_sources > kMostInputs) return false;
    if (is(given.name, "Resize") && given.version < kFirstResize) return false;
    for (int64_t i = 0; i < given.n_sources; ++i) {
      const int64_t source = given.sources[i];
      if (source >= given.n_reads || source < -1 - given.n_constants || (i == 0 && source == -1)) return false;
    }
    const Inputs inputs(given);
    bool has_kernel_type = false;
    for (int64_t i = 0; i < given.n_constraints; ++i) {
      if (!fits_constraint(given, inputs, i)) return false;
      has_kernel_type |= is(given.constraints[i], converts(given) ? "T1" : "T") || is(given.constraints[i], "T");
    }
    return has_kernel_type && !has_empty(inputs.inputs) && !has_empty(inputs.outputs) && fits_attributes(given) &&
           fits_shapes(given, inputs);
  }

  static bool is_allowed(std::string_view domain, std::string_view name) {
    static const std::map<std::string_view, std::vector<std::string_view>> kAllowed{
        {"",
         {"Abs", "Add", "AveragePool", "BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "Conv", "DepthToSpace",
          "Div", "Elu", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather", "GlobalAveragePool", "GlobalMaxPool",
          "HardSigmoid", "HardSwish", "InstanceNormalization", "LRN", "LayerNormalization", "LeakyRelu", "Log",
          "LogSoftmax", "MaxPool", "Mul", "Neg", "Not", "PRelu", "Pad", "Pow", "Reciprocal", "ReduceMax", "ReduceMean",
          "ReduceSum", "Relu", "Reshape", "Resize", "Selu", "Sigmoid", "Slice", "Softmax", "Softplus", "Softsign",
          "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "ThresholdedRelu", "Transpose", "Unsqueeze",
          "Where"}},
        {"com.microsoft", {"FusedConv", "Gelu", "QuickGelu"}},
        {"com.microsoft.nchwc",
         {"AveragePool", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReorderInput", "ReorderOutput",
          "Upsample"}}};
    const auto found = kAllowed.find(domain);
    return found != kAllowed.end() &&
           std::find(found->second.begin(), found->second.end(), name) != found->second.end();
  }

  // The kernel is chosen by the types of type parameters, so they must be those of the tensors.
  static bool fits_constraint(const OperatorDescription& given, const Inputs& inputs, int64_t number) {
    const std::string_view op = given.name, parameter = given.constraints[number];
    size_t place = 0;
    if (parameter == "T") place = op == "Where" ? 1 : 0;
    if (parameter == "T1") place = converts(given) ? 0 : 1;
    if (parameter == "T2") place = op == "Resize" ? 1 : 3;
    if (parameter == "Tind") place = op == "Pad" ? 3 : 1;
    if (parameter == "U") place = 3;
    const bool is_output = parameter == "I" || (op == "Cast" && parameter == "T2") ||
                           (op == "LayerNormalization" && parameter == "U");
    if (is_output) place = op == "Cast" ? 0 : 1;
    const std::vector<Tensor>& tensors = is_output ? inputs.outputs : inputs.inputs;
    return place < tensors.size() && tensors[place].type == given.types[number];
  }

  static bool converts(const OperatorDescription& given) { return is(given.name, "Cast") || is(given.name, "Resize"); }
  static bool is(std::string_view one, std::string_view other) { return one == other; }

  // Whether a view is empty: pools in blocked layout divide by the extents.
  static bool has_empty(const std::vector<Tensor>& tensors) {
    return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& each) {
      return each.constant == nullptr && std::find(each.shape.begin(), each.shape.end(), 0) != each.shape.end();
    });
  }

  // Kernels ignore the shapes that onnxruntime infers for other values, or inferring crashes, or attributes differ.
  static bool fits_attributes(const OperatorDescription& given) {
    std::set<std::string_view> names;
    for (int64_t i = 0; i < given.n_attributes; ++i) {
      const Attribute& each = given.attributes[i];
      const std::string_view name = each.name;
      const bool is_pool = std::string_view(given.name).find("Pool") != std::string_view::npos;
      if (!names.insert(name).second || (is_pool && name == "ceil_mode" && whole(each) != 0) ||
          (is_pool && name == "auto_pad" && text(each) != "NOTSET") ||
          (name == "keep_aspect_ratio_policy" && text(each) != "stretch") ||
          (name == "num_outputs" && whole(each) != given.n_writes)) {
        return false;
      }
    }
    return true;
  }

  static int64_t whole(const Attribute& given) {
    return given.type == 1 ? *static_cast<const int64_t*>(given.data) : -1;
  }
  static std::string_view text(const Attribute& given) {
    return given.type == 5 ? std::string_view(static_cast<const char*>(given.data), size_t(given.count)) : "";
  }

  // Kernels trust these shapes.
  static bool fits_shapes(const OperatorDescription& given, const Inputs& inputs) {
    const std::vector<Tensor>& tensors = inputs.inputs;
    if (is(given.name, "PRelu")) {  // onnxruntime infers the first shape, but broadcasts both
      return tensors.size() == 2 && extends(tensors[0].shape, tensors[1].shape);
    }
    if (std::string_view(given.name).find("Conv") == std::string_view::npos) return true;
    if (tensors.size() < 2 || tensors[1].shape.size() < 2 || inputs.outputs.size() != 1) return false;
    const int64_t filters = tensors[1].shape[0], channels = tensors[1].shape[1], block = Processor::channel_block();
    const bool has_bias = tensors.size() > 2 && tensors[2].type != 0;
    const bool has_summand = tensors.size() > 3 && tensors[3].type != 0;
    if ((has_bias && tensors[2].shape != std::vector<int64_t>{filters}) ||
        (has_summand && tensors[3].shape != inputs.outputs[0].shape)) {
      return false;
    }
    if (!is(given.domain, "com.microsoft.nchwc")) return true;
    int64_t groups = 1;
    for (int64_t i = 0; i < given.n_attributes; ++i) {
      if (is(given.attributes[i].name, "group")) groups = std::max<int64_t>(whole(given.attributes[i]), 1);
    }
    const bool is_depthwise = channels == 1 && groups == filters;
    return filters % block == 0 && (is_depthwise || (filters % groups == 0 && filters / groups % block == 0 &&
                                                     (channels < block || channels % block == 0)));
  }

  // Whether broadcasting `other` to `shape` keeps it.
  static bool extends(const std::vector<int64_t>& shape, const std::vector<int64_t>& other) {
    return other.size() <= shape.size() && std::equal(other.rbegin(), other.rend(), shape.rbegin(),
                                                      [](int64_t one, int64_t own) { return one == 1 || one == own; });
  }

  static void infer(const Environment& environment, const std::vector<const OperatorDescription*>& operators,
                    int64_t version, const std::vector<size_t>& numbers, std::vector<bool>& good) {
    std::vector<std::vector<Tensor>> outputs;
    if (!infer_together(environment, operators, version, numbers, outputs)) {
      if (numbers.size() == 1) return;
      const auto half = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
      infer(environment, operators, version, {numbers.begin(), half}, good);
      infer(environment, operators, version, {half, numbers.end()}, good);
      return;
    }
    for (size_t i = 0; i < numbers.size(); ++i) {
      const std::vector<Tensor> expected = Inputs(*operators[numbers[i]]).outputs;
      bool same = expected.size() == outputs[i].size();
      for (size_t j = 0; same && j < expected.size(); ++j) {
        // onnxruntime tells a scalar and an unknown shape alike.
        same = !expected[j].shape.empty() && expected[j].type == outputs[i][j].type &&
               expected[j].shape == outputs[i][j].shape;
      }
      good[numbers[i]] = same;
    }
  }

  // Opens a model of all these operators, only to ask for its outputs; false if onnxruntime refuses it.
  static bool infer_together(const Environment& environment, const std::vector<const OperatorDescription*>& operators,
                             int64_t version, const std::vector<size_t>& numbers,
                             std::vector<std::vector<Tensor>>& outputs) {
    const Api& api = environment.api;
    MessageWriter graph;
    graph.bytes(2, "operators");
    for (const size_t number : numbers) write(graph, *operators[number], std::to_string(number));
    const std::string model =
        MessageWriter::model(graph, {{"", version}, {"com.microsoft", 1}, {"com.microsoft.nchwc", 1}}).written;
    if (model.size() > INT32_MAX) return false;
    const Options options(api, {-1});
    OrtSession* session = nullptr;
    OrtStatus* status = api.CreateSessionFromArrayPrepacked(environment.env, model.data(), model.size(),
                                                            options.options, nullptr, &session);
    if (status != nullptr) {
      api.ReleaseStatus(status);
      return false;
    }
    const std::unique_ptr<OrtSession, decltype(api.ReleaseSession)> owner(session, api.ReleaseSession);
    size_t at = 0;
    for (const size_t number : numbers) {
      outputs.emplace_back();
      for (int64_t i = 0; i < operators[number]->n_writes; ++i) outputs.back().push_back(output(api, session, at++));
    }
    return true;
  }

  static Tensor output(const Api& api, const OrtSession* session, size_t number) {
    OrtTypeInfo* info = nullptr;
    api.check(api.SessionGetOutputTypeInfo(session, number, &info));
    const std::unique_ptr<OrtTypeInfo, decltype(api.ReleaseTypeInfo)> owner(info, api.ReleaseTypeInfo);
    const OrtTypeAndShape* tensor = nullptr;
    api.check(api.CastToTensorInfo(info, &tensor));
    Tensor found;
    if (tensor == nullptr) return found;
    size_t rank = 0;
    api.check(api.GetElementType(tensor, &found.type));
    api.check(api.GetDimensionsCount(tensor, &rank));
    found.shape.resize(rank);
    api.check(api.GetDimensions(tensor, found.shape.data(), rank));
    return found;
  }

  static void write(MessageWriter& graph, const OperatorDescription& given, const std::string& prefix) {
    MessageWriter node;
    const Inputs tensors(given);
    for (size_t i = 0; i < tensors.inputs.size(); ++i) {
      const Tensor& tensor = tensors.inputs[i];
      const std::string name = tensor.type == 0 ? "" : prefix + "i" + std::to_string(i);
      node.bytes(1, name);
      if (name.empty()) continue;
      if (i > 0 && tensor.constant != nullptr && tensor.constant->nbytes <= kMostShapeBytes) {
        graph.message(5, initializer(name, *tensor.constant));
      } else {
        graph.message(11, MessageWriter::value(name, tensor.type, &tensor.shape));
      }
    }
    for (size_t i = 0; i < tensors.outputs.size(); ++i) {
      const std::string name = prefix + "o" + std::to_string(i);
      node.bytes(2, name);
      graph.message(12, MessageWriter::value(name, 0, nullptr));
    }
    node.bytes(4, given.name).bytes(7, given.domain);
    for (int64_t i = 0; i < given.n_attributes; ++i) node.message(5, attribute(given.attributes[i]));
    graph.message(1, node);
  }

  static MessageWriter initializer(const std::string& name, const Weight& weight) {
    MessageWriter tensor;
    for (int64_t i = 0; i < weight.rank; ++i) tensor.number(1, static_cast<uint64_t>(weight.shape[i]));
    tensor.number(2, static_cast<uint64_t>(weight.type)).bytes(8, name);
    return tensor.bytes(9, {static_cast<const char*>(weight.data), static_cast<size_t>(weight.nbytes)});
  }

  // In ONNX's numbers of types and fields; `given.type` is onnxruntime's.
  static MessageWriter attribute(const Attribute& given) {
    MessageWriter found;
    found.bytes(1, given.name);
    const auto* ints = static_cast<const int64_t*>(given.data);
    const auto* floats = static_cast<const float*>(given.data);
    const auto* texts = static_cast<const char* const*>(given.data);
    switch (given.type) {
      case 1: return found.number(3, static_cast<uint64_t>(*ints)).number(20, 2);
      case 3: return found.float32(2, *floats).number(20, 1);
      case 5: return found.bytes(4, {static_cast<const char*>(given.data), size_t(given.count)}).number(20, 3);
    }
    for (int64_t i = 0; i < given.count; ++i) {
      if (given.type == 2) found.number(8, static_cast<uint64_t>(ints[i]));
      if (given.type == 4) found.float32(7, floats[i]);
      if (given.type == 6) found.bytes(9, texts[i]);
    }
    return found.number(20, given.type == 2 ? 7 : given.type == 4 ? 6 : 8);
  }
};

}  // namespace iosched
