// ONNX models as protobuf messages: what is read of the models in a plan file, and what is written for onnxruntime.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan_words.hpp"

namespace iosched {

// Fields of one message, in the order of the bytes.
struct MessageReader {
  struct Field {
    uint64_t number = 0;
    std::string_view bytes;  // of a text or message; empty for numbers
  };

  bool next(Field& field) {
    if (left.empty()) return false;
    const uint64_t key = varint();
    field = {key >> 3, {}};
    switch (key & 7) {
      case 0: varint(); return true;
      case 1: take(8); return true;
      case 2: field.bytes = take(varint()); return true;
      case 5: take(4); return true;
    }
    throw Broken("a model in the plan is broken");
  }

  std::string_view left;

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
    throw Broken("a model in the plan is broken");
  }

  std::string_view take(uint64_t nbytes) {
    if (nbytes > left.size()) throw Broken("a model in the plan is broken");
    const std::string_view taken = left.substr(0, nbytes);
    left.remove_prefix(nbytes);
    return taken;
  }
};

// Refuses a model of a plan file that could make onnxruntime open a file or run foreign code.
struct ModelCheck {
  static void check(std::string_view model) { walk(kModel, model, 0); }

 private:
  enum Kind { kModel, kGraph, kNode, kAttribute, kTensor, kSparse, kEntry };

  static void walk(Kind kind, std::string_view bytes, int depth) {
    if (depth > 64) throw Broken("a model in the plan is nested too deeply");
    MessageReader message{bytes};
    for (MessageReader::Field field; message.next(field);) visit(kind, field, depth + 1);
  }

  // Field numbers of onnx.proto.
  static void visit(Kind kind, const MessageReader::Field& field, int depth) {
    const auto is = [&](std::initializer_list<uint64_t> numbers) {
      return std::find(numbers.begin(), numbers.end(), field.number) != numbers.end();
    };
    if (kind == kModel && field.number == 7) walk(kGraph, field.bytes, depth);
    if (kind == kModel && field.number > 8) refuse("functions, metadata or configurations");
    if (kind == kGraph && field.number == 1) walk(kNode, field.bytes, depth);
    if (kind == kGraph && field.number == 5) walk(kTensor, field.bytes, depth);
    if (kind == kGraph && field.number == 15) walk(kSparse, field.bytes, depth);
    if (kind == kNode && field.number == 5) walk(kAttribute, field.bytes, depth);
    if (kind == kNode && field.number == 7) check_domain(field.bytes);
    if (kind == kAttribute && is({5, 10})) walk(kTensor, field.bytes, depth);
    if (kind == kAttribute && is({6, 11})) walk(kGraph, field.bytes, depth);
    if (kind == kAttribute && is({22, 23})) walk(kSparse, field.bytes, depth);
    if (kind == kSparse && is({1, 2})) walk(kTensor, field.bytes, depth);
    if (kind == kTensor && field.number == 13) walk(kEntry, field.bytes, depth);
    if (kind == kEntry && field.bytes != (field.number == 1 ? "location" : ".")) refuse("weights in other files");
  }

  static void check_domain(std::string_view domain) {
    for (const char* known : {"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"}) {
      if (domain == known) return;
    }
    refuse("operators of an unknown domain");
  }

  [[noreturn]] static void refuse(const char* what) {
    throw Broken(std::string("a model in the plan has ") + what);
  }
};

struct MessageWriter {
  MessageWriter& number(uint64_t field, uint64_t value) {
    varint(field << 3);
    varint(value);
    return *this;
  }
  MessageWriter& bytes(uint64_t field, std::string_view value) {
    varint(field << 3 | 2);
    varint(value.size());
    written.append(value);
    return *this;
  }
  MessageWriter& float32(uint64_t field, const float& value) {
    varint(field << 3 | 5);
    written.append(reinterpret_cast<const char*>(&value), sizeof value);  // both supported processors are little-endian
    return *this;
  }
  MessageWriter& message(uint64_t field, const MessageWriter& value) { return bytes(field, value.written); }

  // onnx.ValueInfoProto of a tensor; without a shape only its name.
  static MessageWriter value(const std::string& name, int64_t type, const std::vector<int64_t>* shape) {
    MessageWriter found;
    found.bytes(1, name);
    if (shape == nullptr) return found;
    MessageWriter dims;
    for (const int64_t extent : *shape) {
      dims.message(1, MessageWriter().number(1, static_cast<uint64_t>(extent)));
    }
    const MessageWriter tensor = MessageWriter().number(1, static_cast<uint64_t>(type)).message(2, dims);
    return found.message(2, MessageWriter().message(1, tensor));
  }

  // onnx.ModelProto of a graph.
  static MessageWriter model(const MessageWriter& graph, const std::vector<std::pair<std::string, int64_t>>& opsets) {
    MessageWriter found;
    found.number(1, /*IR version*/ 8).message(7, graph);
    for (const auto& [domain, version] : opsets) {
      found.message(8, MessageWriter().bytes(1, domain).number(2, static_cast<uint64_t>(version)));
    }
    return found;
  }

  std::string written;

 private:
  void varint(uint64_t value) {
    for (; value >= 128; value >>= 7) written.push_back(static_cast<char>(value | 128));
    written.push_back(static_cast<char>(value));
  }
};

}  // namespace iosched
