// A plan file, mapped read-only: its head, the kernels and programs in it, and the weights. plan_file.py writes it.

#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checksum.hpp"
#include "hazards.hpp"
#include "model_check.hpp"
#include "onnxruntime_ops.hpp"
#include "onnxruntime_session.hpp"
#include "operator_check.hpp"
#include "plan_words.hpp"
#include "processor.hpp"

namespace iosched {

// A file that is mapped as long as this lives.
struct MappedFile {
  explicit MappedFile(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) throw Broken(path + ": " + std::strerror(errno));
    struct stat status {};
    const bool is_file = fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0;
    if (is_file) {
      nbytes = static_cast<size_t>(status.st_size);
      data = mmap(nullptr, nbytes, PROT_READ, MAP_PRIVATE, file, 0);
    }
    close(file);
    if (data == MAP_FAILED) throw Broken(path + " is not a plan file");
  }
  MappedFile(const MappedFile&) = delete;
  ~MappedFile() { munmap(data, nbytes); }
  const char* at(size_t offset) const { return static_cast<const char*>(data) + offset; }
  size_t nbytes = 0;
  void* data = MAP_FAILED;
};

// The words of a plan file's head, with texts between them: a length in bytes, then the bytes, padded to whole words.
struct Head : Words {
  std::string_view bytes() {
    const size_t nbytes = length_of_bytes();
    const auto* text = reinterpret_cast<const char*>(data + at);
    at += (nbytes + 7) / 8;
    return {text, nbytes};
  }

  std::string text() {
    const std::string_view found = bytes();
    if (found.find('\0') != std::string_view::npos) throw Broken("a name in the plan is broken");
    return std::string(found);
  }

  std::vector<std::string> texts() {
    std::vector<std::string> found(length());
    for (std::string& each : found) each = text();
    return found;
  }

  std::vector<int64_t> numbers() {
    std::vector<int64_t> found(length());
    for (int64_t& each : found) each = next();
    return found;
  }

 private:
  size_t length_of_bytes() {
    const int64_t word = next();
    if (word < 0 || static_cast<uint64_t>(word) > (count - at) * 8) throw Broken("the plan's head ends early");
    return static_cast<size_t>(word);
  }
};

struct PlanFile {
  static constexpr char kMagic[8] = {'i', 'o', 's', 'c', 'h', 'e', 'd', '\n'};
  static constexpr int64_t kVersion = 1;
  static constexpr size_t kPage = 4096;

  struct Start {
    char magic[8];
    int64_t version;
    uint64_t file_nbytes;
    uint64_t head_offset, head_nbytes;  // whole words, behind the weights
    uint64_t head_checksum;
    uint64_t n_lanes;  // as in the head
  };

  explicit PlanFile(const std::string& path) : file(path), head{read_start(path)} {
    onnxruntime = head.text();
    architecture = head.text();
    features = head.text();
    n_lanes = head.index(1 << 16);
    if (n_lanes != start().n_lanes) throw Broken(path + " is damaged");
    for (const int64_t digest : head.numbers()) digests.push_back(static_cast<uint64_t>(digest));
    model_sha256 = head.text();
    has_dynamic_batch = head.index(2) == 1;
    read_regions();
  }

  // Throws unless this processor, this onnxruntime and the allowed processors are those that the plan is for.
  void check_fit(const std::string& installed) const {
    if (onnxruntime != installed) throw Broken("the plan is for onnxruntime " + onnxruntime + ", not " + installed);
    if (architecture != Processor::architecture() || features != Processor::features()) {
      throw Broken("the plan is for a processor with other instructions (" + architecture + " " + features + ")");
    }
    const size_t allowed = Processor::allowed().size();
    if (n_lanes == 0 || n_lanes > allowed) {
      throw Broken("the plan needs " + std::to_string(n_lanes) + " cores, but may use " + std::to_string(allowed));
    }
  }

  uint64_t checksum() const { return start().head_checksum; }

  // A part of a region, whose checksum `read_regions` has compared.
  void* bytes(size_t region, size_t offset, size_t nbytes, size_t alignment) const {
    const size_t size = regions[region].second;
    if (offset > size || nbytes > size - offset || offset % alignment != 0) {
      throw Broken("a weight of the plan lies outside its region");
    }
    return const_cast<char*>(file.at(regions[region].first + offset));  // it is only read
  }

  MappedFile file;
  Head head;  // its position is behind what is read here
  std::string onnxruntime, architecture, features, model_sha256;
  size_t n_lanes = 0;
  bool has_dynamic_batch = false;
  std::vector<uint64_t> digests;
  std::vector<std::pair<size_t, size_t>> regions;  // offset and size in the file

 private:
  const Start& start() const { return *static_cast<const Start*>(file.data); }

  Words read_start(const std::string& path) const {
    if (file.nbytes < sizeof(Start) || std::memcmp(start().magic, kMagic, sizeof kMagic) != 0) {
      throw Broken(path + " is not a plan file");
    }
    if (start().version != kVersion) throw Broken(path + " was written by another version of iosched: export it again");
    const size_t offset = start().head_offset, end = start().file_nbytes;
    if (end != file.nbytes || offset > end || start().head_nbytes != end - offset || offset % 8 + end % 8 != 0) {
      throw Broken(path + " is incomplete");
    }
    const char* words = file.at(offset);
    if (Checksum::of(words, start().head_nbytes) != start().head_checksum) throw Broken(path + " is damaged");
    return {reinterpret_cast<const int64_t*>(words), static_cast<size_t>(start().head_nbytes) / 8};
  }

  // Regions follow each other. Between them are zeros, which no checksum covers.
  void read_regions() {
    size_t end = sizeof(Start);
    for (size_t left = head.length(3); left > 0; --left) {
      const size_t offset = head.nbytes(), nbytes = head.nbytes();
      const auto checksum = static_cast<uint64_t>(head.next());
      if (offset % kPage != 0 || offset > file.nbytes || nbytes > file.nbytes - offset) {
        throw Broken("a region of weights lies outside the plan file");
      }
      check_zeros(end, offset);
      end = offset + nbytes;
      if (Checksum::of(file.at(offset), nbytes) != checksum) throw Broken("weights in the plan file are damaged");
      regions.emplace_back(offset, nbytes);
    }
    check_zeros(end, start().head_offset);
  }

  void check_zeros(size_t begin, size_t end) const {
    const auto is_zero = [](char byte) { return byte == 0; };
    if (begin > end || !std::all_of(file.at(begin), file.at(end), is_zero)) {
      throw Broken("the plan file is damaged between its parts");
    }
  }
};

// Reads the kernels of a plan file and opens them.
struct KernelReader {
  KernelReader(PlanFile& file, std::shared_ptr<Environment> environment, Cpus spanning)
      : file(file), head(file.head), environment(std::move(environment)), spanning(std::move(spanning)) {}

  // Operators need `outer`, which is created for the first.
  std::vector<std::shared_ptr<Kernel>> kernels(Runtime& runtime) {
    std::vector<std::shared_ptr<Kernel>> found(head.length(2));
    std::vector<size_t> called;
    for (size_t i = 0; i < found.size(); ++i) {
      if (head.index(2) == 0) {
        found[i] = session();
      } else {
        read_operator();
        called.push_back(i);
      }
    }
    if (called.empty()) return found;
    std::vector<const OperatorDescription*> pointers;
    for (const OperatorDescription& each : operators) pointers.push_back(&each);
    for (const bool good : OperatorCheck::inferred(*environment, pointers)) {
      if (!good) throw Broken("an operator of the plan does not fit its inputs and outputs, or needs a session");
    }
    runtime.prepare_outer();
    for (size_t i = 0; i < called.size(); ++i) {
      found[called[i]] = std::make_shared<InvokedOperator>(runtime.outer, operators[i]);
    }
    return found;
  }

 private:
  std::shared_ptr<Kernel> session() {
    const std::string_view model = head.bytes();
    std::vector<std::string> inputs = head.texts(), outputs = head.texts();
    const size_t cores = head.index(file.n_lanes + 1);
    std::vector<Weight> weights(head.length(5));
    for (Weight& each : weights) {
      const char* name = keep(head.text());
      each = constant();
      each.name = name;
    }
    ModelCheck(model, weights);
    return std::make_shared<Session>(environment, model.data(), model.size(), weights.data(), weights.size(),
                                     std::move(inputs), std::move(outputs), cores > 1 ? spanning : Cpus{-1});
  }

  void read_operator() {
    OperatorDescription found{};
    found.name = keep(head.text());
    found.domain = keep(head.text());
    found.version = static_cast<int64_t>(head.index(INT32_MAX));
    std::vector<const char*> names;
    std::vector<int> types;
    for (size_t left = head.length(2); left > 0; --left) {
      names.push_back(keep(head.text()));
      types.push_back(static_cast<int>(head.next()));
    }
    std::tie(found.constraints, found.n_constraints) = kept(constraint_names, std::move(names));
    std::tie(found.types, found.n_constraints) = kept(constraint_types, std::move(types));
    std::vector<Attribute> own;
    for (size_t left = head.length(3); left > 0; --left) own.push_back(attribute());
    std::tie(found.attributes, found.n_attributes) = kept(attributes, std::move(own));
    std::vector<Weight> weights;
    for (size_t left = head.length(4); left > 0; --left) weights.push_back(constant());
    std::tie(found.constants, found.n_constants) = kept(constants, std::move(weights));
    std::tie(found.sources, found.n_sources) = kept(numbers, head.numbers());
    std::vector<int64_t> views;
    for (int64_t* count : {&found.n_reads, &found.n_writes}) {
      *count = static_cast<int64_t>(head.length(2));
      for (int64_t i = 0; i < *count; ++i) read_view(views);
    }
    found.views = kept(numbers, std::move(views)).first;
    operators.push_back(found);
  }

  void read_view(std::vector<int64_t>& views) {
    const int64_t type = head.next();
    const std::vector<int64_t> shape = head.numbers();
    tensor_nbytes(type, shape);  // refuses what is no tensor
    views.push_back(type);
    views.push_back(static_cast<int64_t>(shape.size()));
    views.insert(views.end(), shape.begin(), shape.end());
  }

  Weight constant() {
    Weight found{"", nullptr, 0, head.next(), 0, nullptr};
    std::tie(found.shape, found.rank) = kept(numbers, head.numbers());
    const size_t nbytes = tensor_nbytes(found.type, numbers.back());
    const size_t region = head.index(file.regions.size());
    found.data = file.bytes(region, head.nbytes(), nbytes, element_nbytes(found.type));
    found.nbytes = static_cast<int64_t>(nbytes);
    return found;
  }

  // Numbers are words, floats the low halves of words.
  Attribute attribute() {
    Attribute found{keep(head.text()), nullptr, 0, static_cast<int64_t>(head.index(7))};
    if (found.type == 5) {
      const std::string& text = texts.emplace_back(head.text());  // onnxruntime reads up to a NUL
      found.data = text.data();
      found.count = static_cast<int64_t>(text.size());
    } else if (found.type == 6) {
      std::vector<const char*> own;
      for (const std::string& each : head.texts()) own.push_back(keep(each));
      std::tie(found.data, found.count) = kept(constraint_names, std::move(own));
    } else if (found.type == 3 || found.type == 4) {
      std::vector<float> own;
      for (const int64_t word : head.numbers()) std::memcpy(&own.emplace_back(), &word, sizeof(float));
      std::tie(found.data, found.count) = kept(floats, std::move(own));
    } else {
      std::tie(found.data, found.count) = kept(numbers, head.numbers());
    }
    if (found.type == 0 || ((found.type == 1 || found.type == 3) && found.count != 1)) {
      throw Broken("an attribute of the plan is broken");
    }
    return found;
  }

  const char* keep(std::string text) { return texts.emplace_back(std::move(text)).c_str(); }

  template <typename Value>
  static std::pair<Value*, int64_t> kept(std::deque<std::vector<Value>>& all, std::vector<Value> values) {
    std::vector<Value>& own = all.emplace_back(std::move(values));
    return {own.data(), static_cast<int64_t>(own.size())};
  }

  PlanFile& file;
  Head& head;
  const std::shared_ptr<Environment> environment;
  const Cpus spanning;  // of sessions that span the lanes
  // What descriptions point to.
  std::deque<std::string> texts;
  std::deque<std::vector<const char*>> constraint_names;
  std::deque<std::vector<int>> constraint_types;
  std::deque<std::vector<int64_t>> numbers;
  std::deque<std::vector<float>> floats;
  std::deque<std::vector<Attribute>> attributes;
  std::deque<std::vector<Weight>> constants;
  std::vector<OperatorDescription> operators;
};

}  // namespace iosched
