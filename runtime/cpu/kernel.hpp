// What tasks run: a model that some library compiled, called on views of the plan's buffers.

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

// A view of a buffer. Dynamic ones hold what the last run computed.
struct Slot {
  int64_t space = kArena;
  int64_t index = 0;   // of the input or output array
  int64_t offset = 0;  // from the start of arena or array
  int64_t nbytes = 0;
  int type = 0;  // of ONNX's element types
  std::vector<int64_t> shape;
  void* data = nullptr;
  OrtValue* value = nullptr;
};

using Slots = std::vector<Slot*>;

// A kernel on certain views, to be called again and again.
struct Call {
  virtual ~Call() = default;
  // Before the first `run`, and whenever the memory of a view is another than before.
  virtual void bind() = 0;
  // `context` is that of the outer run (`onnxruntime_ops.hpp`), null outside of one. Throws std::runtime_error, in the
  // library's words.
  virtual void run(OrtKernelContext* context) = 0;
};

struct Kernel {
  virtual ~Kernel() = default;
  // The views are as many as `n_inputs` and `n_outputs` say, and outlive the call; so does the kernel.
  virtual std::unique_ptr<Call> call(Slots reads, Slots writes) const = 0;
  virtual size_t n_inputs() const = 0;
  virtual size_t n_outputs() const = 0;
  // Whether the library brings threads of its own for all lanes' cores: the workers sleep meanwhile.
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
