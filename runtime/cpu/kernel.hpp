// Kernels: models that a library compiled, called on views of the plan's buffers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

struct OrtKernelContext;
struct OrtValue;

namespace iosched {

enum Space : int64_t { kArena = 0, kInput = 1, kOutput = 2, kDynamic = 3 };

// A view of a buffer. A dynamic one holds the result of the last run.
struct Slot {
  int64_t space = kArena;
  int64_t index = 0;   // of the input or output array
  int64_t offset = 0;  // from the start of arena or array
  int64_t nbytes = 0;
  int type = 0;  // ONNX element type
  std::vector<int64_t> shape;
  void* data = nullptr;
  OrtValue* value = nullptr;
};

using Slots = std::vector<Slot*>;

// A kernel on fixed views.
struct Call {
  virtual ~Call() = default;
  // Call before the first `run`, and whenever the memory of a view changes.
  virtual void bind() = 0;
  // `context` is that of the outer run (`onnxruntime_ops.hpp`), or null. Throws std::runtime_error with the library's
  // message.
  virtual void run(OrtKernelContext* context) = 0;
};

struct Kernel {
  virtual ~Kernel() = default;
  // There are `n_inputs` and `n_outputs` views. They and the kernel must outlive the call.
  virtual std::unique_ptr<Call> call(Slots reads, Slots writes) const = 0;
  virtual size_t n_inputs() const = 0;
  virtual size_t n_outputs() const = 0;
  // Whether the library has its own threads on all lanes' cores; the workers sleep meanwhile.
  virtual bool spans_lanes() const = 0;
  // Whether its calls need the context of an outer run.
  virtual bool needs_context() const { return false; }
};

// Copies the bytes of one view to another.
struct CopyCall final : Call {
  CopyCall(const Slot& source, const Slot& target) : source(source), target(target) {}
  void bind() override {}
  void run(OrtKernelContext*) override { std::memmove(target.data, source.data, static_cast<size_t>(target.nbytes)); }
  const Slot& source;
  const Slot& target;
};

}  // namespace iosched
