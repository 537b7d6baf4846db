// A backend: what the runtime needs of a device. No other file of the runtime names a device, copies bytes or
// reads a clock. Copies, moves and zeros happen in the order of the device's current stream.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

#include "base/types.h"
#include "torch/backends/kernel_timer.h"
#include "torch/backends/stream_order.h"
#include "torch/backends/tensor_keys.h"

namespace remint {

// The state of a random number generator, saved so that an op can draw the same numbers again.
class RandomState {
 public:
  virtual ~RandomState() = default;
};

// The memory behind one arena: one contiguous range.
class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;
  char* base() const { return base_; }
  Bytes nbytes() const { return nbytes_; }
  // Nobody needs the content of this range any more: its pages may go back to the system.
  virtual void discard(Bytes /*offset*/, Bytes /*nbytes*/) {}
  // Nothing of it is used any more.
  virtual void release() {}
  // Work of `stream` uses it: it is not to be freed before that is done.
  virtual void used_by(const c10::Stream& /*stream*/) {}

 protected:
  ArenaMemory(char* base, Bytes nbytes) : base_(base), nbytes_(nbytes) {}
  void forget() {
    base_ = nullptr;
    nbytes_ = 0;
  }

 private:
  char* base_;
  Bytes nbytes_;
};

// How the device's allocator asks for memory from a budget.
struct AllocatorHook {
  // Memory from the budget that this thread is in; nothing if it is in none of this device.
  std::optional<c10::DataPtr> (*allocate)(c10::Device device, std::size_t nbytes);
  // Frees memory of a budget, open or ended. False: it is not of one.
  bool (*free)(void* address);
  // The program says that `stream` uses memory of a budget. False: it is not of one.
  bool (*record_stream)(void* address, const c10::Stream& stream);
  // Whether it is memory of a budget, open or ended.
  bool (*contains)(const void* address);
};

class Backend {
 public:
  virtual ~Backend() = default;

  c10::Device device() const { return device_; }
  c10::DispatchKey dispatch_key() const { return dispatch_key_; }
  // Kernels of other layouts (sparse, quantized, ...) stand above the interposed key.
  virtual const std::vector<c10::DispatchKey>& other_layouts() const = 0;
  // Where the composite kernels of an op are found.
  virtual const std::vector<c10::DispatchKey>& composite_keys() const = 0;

  // Puts the hook before the device's own allocator, once per process.
  virtual void install_allocator(const AllocatorHook& hook) = 0;
  // The device's own allocator.
  virtual c10::Allocator* ordinary_allocator() const = 0;
  // For budgets with a soft wall: the device's own allocator stays in its place. When it finds no free memory
  // of its own, it calls `free_memory`, which says whether it freed some.
  virtual bool has_soft_wall() const { return false; }
  virtual void install_soft_wall(bool (*)(c10::Device device) /*free_memory*/) {}
  virtual Bytes alignment() const = 0;
  virtual std::unique_ptr<ArenaMemory> reserve(Bytes nbytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t nbytes) = 0;
  virtual void move(void* to, const void* from, std::size_t nbytes) = 0;  // the ranges may overlap
  virtual void zero(void* at, std::size_t nbytes) = 0;

  // Memory of the host that is quick to copy from and to, and such copies. The host waits for them.
  virtual c10::DataPtr host_memory(std::size_t nbytes) const;
  virtual void copy_to_host(const c10::DataPtr& to, const void* from, std::size_t nbytes);
  virtual void copy_from_host(void* to, const c10::DataPtr& from, std::size_t nbytes);

  virtual at::Generator default_generator() const = 0;
  virtual at::Generator new_generator() const = 0;
  // Null if the generator is not of this device.
  virtual std::unique_ptr<RandomState> save_random(const at::Generator& generator) const = 0;
  virtual void restore_random(const RandomState& state, at::Generator& generator) const = 0;

  // The time of the host; also that by which the cost of kernels is measured, unless they have a timer.
  virtual Nanoseconds now() const = 0;

  // Memory that the device's own allocator has given out now, arenas included; 0 if nobody counts it.
  virtual Bytes ordinary_bytes() const { return 0; }
  // Whether the device has so little free memory that the next request may fail; then how much to free.
  virtual Bytes shortage() const { return 0; }
  // Gives what the device's own allocator has and nobody uses back to the device.
  virtual void empty_cache() const {}
  // Whether what is called now becomes part of a graph that runs later, again and again.
  virtual bool is_capturing() const { return false; }
  // Whether memory that an arena discards can be used by others while the arena is there.
  virtual bool gives_pages_back() const { return true; }
  // For devices whose kernels run after their calls have returned. Null on others.
  virtual std::unique_ptr<StreamOrder> new_stream_order() const { return nullptr; }
  virtual std::unique_ptr<KernelTimer> new_kernel_timer() const { return nullptr; }
  // Work of the current stream, or of `stream`, uses memory of the ordinary allocator.
  virtual void keep_for_stream(const c10::DataPtr& /*memory*/) const {}
  virtual void keep_for_stream(const c10::DataPtr& /*memory*/, const c10::Stream& /*stream*/) const {}

  // Whether `tensor` can be taken apart and put together again: dense, strided, on this device.
  bool is_plain(const at::Tensor& tensor) const {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    const c10::DispatchKeySet keys = keys_of(tensor).load(std::memory_order_relaxed);
    return keys.has_all(plain_) && !keys.has_any(never_plain_) && impl->has_storage() &&
           !impl->has_symbolic_sizes_strides() && (!device_.has_index() || impl->device() == device_);
  }
  // Whether `tensor` is on this device.
  bool is_here(const at::Tensor& tensor) const { return is_here(tensor.device()); }
  bool is_here(c10::Device device) const {
    return device.type() == device_.type() && (!device_.has_index() || device == device_);
  }

 protected:
  // `opaque`: the key of tensors whose bytes have a layout of their own.
  Backend(c10::Device device, c10::DispatchKey dispatch_key, c10::DispatchKey opaque);

 private:
  const c10::Device device_;
  const c10::DispatchKey dispatch_key_;
  const c10::DispatchKeySet plain_;
  const c10::DispatchKeySet never_plain_;
};

// The CPU.
Backend& cpu_backend();
// The backend of a device; of the current one, if it has no index. A ValueError if there is none.
Backend& backend_for(c10::Device device);

}  // namespace remint
