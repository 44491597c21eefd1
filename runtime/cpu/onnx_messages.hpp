// ONNX models as protobuf messages: read from a plan file, and written for onnxruntime.

#pragma once

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
    uint64_t wire_type = 0;
    uint64_t value = 0;      // of a number of any size
    std::string_view bytes;  // of a text or message; empty for numbers
  };

  bool next(Field& field) {
    if (left.empty()) return false;
    const uint64_t key = varint();
    if (key > UINT32_MAX) throw Broken("a model in the plan is broken");  // protobuf drops the upper bits
    field = {key >> 3, key & 7, 0, {}};
    switch (field.wire_type) {
      case 0: field.value = varint(); return true;
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
