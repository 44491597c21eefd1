// Checks models that come from a plan file before onnxruntime sees them.

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "onnx_messages.hpp"
#include "onnxruntime_session.hpp"
#include "plan_words.hpp"

namespace iosched {

// Refuses a model that could make onnxruntime open a file, run foreign code, or take a weight for one of another type:
// it replaces any constant that has the name of a weight, and looks at neither type nor shape.
struct ModelCheck {
  ModelCheck(std::string_view model, const std::vector<Weight>& given) {
    for (const Weight& each : given) weights.emplace(each.name, &each);
    if (model.size() > INT32_MAX) refuse("more bytes than onnxruntime reads");
    walk(kModel, model, 0);
  }

 private:
  enum Kind { kModel, kGraph, kNode, kAttribute };

  void walk(Kind kind, std::string_view bytes, int depth) {
    if (depth > 64) refuse("too many levels");
    MessageReader message{bytes};
    for (MessageReader::Field field; message.next(field);) visit(kind, field, depth + 1);
  }

  // Field numbers of onnx.proto.
  void visit(Kind kind, const MessageReader::Field& field, int depth) {
    const uint64_t number = field.number;
    if (kind == kModel && number == 7) walk(kGraph, field.bytes, depth);
    if (kind == kModel && number > 8) refuse("functions, metadata or configurations");
    if (kind == kGraph && number == 1) walk(kNode, field.bytes, depth);
    if (kind == kGraph && number == 5) check_tensor(field.bytes, depth == 2 ? kWeight : kInitializer);
    if (kind == kNode && number == 2 && weight(field.bytes) != nullptr) refuse("a weight that it computes");
    if (kind == kNode && number == 5) walk(kAttribute, field.bytes, depth);
    if (kind == kNode && number == 7) check_domain(field.bytes);
    if (kind == kAttribute && (number == 5 || number == 10)) check_tensor(field.bytes, kConstant);
    if (kind == kAttribute && (number == 6 || number == 11)) walk(kGraph, field.bytes, depth);
    if ((kind == kGraph && number == 15) || (kind == kAttribute && (number == 22 || number == 23))) {
      refuse("sparse weights");
    }
  }

  // Only initializers of the model itself may be weights; those without data are.
  enum Place { kWeight, kInitializer, kConstant };

  void check_tensor(std::string_view bytes, Place place) const {
    std::vector<int64_t> shape;
    int32_t type = 0;
    std::string_view name;
    bool has_data = true;
    MessageReader message{bytes};
    for (MessageReader::Field field; message.next(field);) {
      const bool is_text = field.number == 8 || field.number == 13;
      if ((is_text || field.number <= 2) && field.wire_type != (is_text ? 2 : 0)) refuse("a broken weight");
      if (field.number == 1) shape.push_back(static_cast<int64_t>(field.value));
      if (field.number == 2) type = static_cast<int32_t>(field.value);
      if (field.number == 8) name = field.bytes;
      if (field.number == 13) check_entry(field.bytes);
      has_data &= field.number != 13;
    }
    const Weight* given = place == kConstant ? nullptr : weight(name);
    if (given == nullptr && has_data) return;
    if (given == nullptr || place != kWeight || given->type != type ||
        !std::equal(shape.begin(), shape.end(), given->shape, given->shape + given->rank)) {
      refuse("a weight of another type or shape");
    }
  }

  static void check_entry(std::string_view bytes) {
    MessageReader message{bytes};
    for (MessageReader::Field field; message.next(field);) {
      if (field.bytes != (field.number == 1 ? "location" : ".")) refuse("weights in other files");
    }
  }

  static void check_domain(std::string_view domain) {
    for (const char* known : {"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"}) {
      if (domain == known) return;
    }
    refuse("operators of an unknown domain");
  }

  const Weight* weight(std::string_view name) const {
    const auto found = weights.find(name);
    return found == weights.end() ? nullptr : found->second;
  }

  [[noreturn]] static void refuse(const char* what) {
    throw Broken(std::string("a model in the plan has ") + what);
  }

  std::map<std::string_view, const Weight*> weights;
};

}  // namespace iosched
