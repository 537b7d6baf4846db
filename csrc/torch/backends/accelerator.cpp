// Accelerators as backends, through what PyTorch asks of every device: streams and events by its guard,
// copies as tensors of bytes, generators by seed and offset, memory from its own allocator. What
// differs between types of accelerators is in device_memory.h.
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>

#include "torch/backends/device_memory.h"
#include "torch/dispatch/threads.h"
#include "torch/older_torch.h"

namespace remint {
namespace {

// A seed and an offset, as the counter-based generators of accelerators have.
class CounterState final : public RandomState {
 public:
  CounterState(std::uint64_t seed, std::uint64_t offset) : seed_(seed), offset_(offset) {}
  void restore(c10::GeneratorImpl& generator) const {
    generator.set_current_seed(seed_);
    generator.set_offset(offset_);
  }

 private:
  const std::uint64_t seed_;
  const std::uint64_t offset_;
};

// The memory of the accelerator, of which PyTorch has one type in a process, and its own allocator.
const DeviceMemory* taken_over = nullptr;
c10::DeviceAllocator* ordinary = nullptr;

// The device's own allocator, for one device whichever is the current one.
class OnDevice final : public c10::Allocator {
 public:
  explicit OnDevice(c10::Device device) : device_(device) {}
  c10::DataPtr allocate(std::size_t nbytes) override {
    const c10::DeviceGuard guard(device_);
    return ordinary->allocate(nbytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return ordinary->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override {
    ordinary->copy_data(to, from, nbytes);
  }

 private:
  const c10::Device device_;
};

class DeviceArenaMemory final : public ArenaMemory {
 public:
  DeviceArenaMemory(c10::DataPtr memory, Bytes nbytes)
      : ArenaMemory(static_cast<char*>(memory.get()), nbytes), memory_(std::move(memory)) {}
  void release() override {
    forget();
    memory_.clear();
  }
  // It is given back in the order of all streams that used it.
  void used_by(const c10::Stream& stream) override {
    if (memory_.get() != nullptr) ordinary->recordStream(memory_, stream);
  }

 private:
  c10::DataPtr memory_;
};

class AcceleratorBackend final : public Backend {
 public:
  explicit AcceleratorBackend(c10::Device device)
      : Backend(device, c10::computeDispatchKey(std::nullopt, c10::kStrided, device),
                c10::DispatchKey::MkldnnCPU),
        on_device_(device),
        other_layouts_(layouts_of(dispatch_key())) {}

  const std::vector<c10::DispatchKey>& other_layouts() const override { return other_layouts_; }
  const std::vector<c10::DispatchKey>& composite_keys() const override {
    // Nobody reads memory of a device by address.
    static const std::vector<c10::DispatchKey> none;
    return none;
  }

  void install_allocator(const AllocatorHook& hook) override {
    take_over();
    static bool installed = false;
    if (!std::exchange(installed, true)) taken_over->install(hook);
  }
  bool has_soft_wall() const override { return device_memory(device().type())->on_shortage != nullptr; }
  void install_soft_wall(bool (*free_memory)(c10::Device)) override {
    take_over();
    static bool installed = false;
    if (!std::exchange(installed, true)) taken_over->on_shortage(free_memory);
  }
  c10::Allocator* ordinary_allocator() const override { return &on_device_; }
  Bytes alignment() const override { return 512; }
  std::unique_ptr<ArenaMemory> reserve(Bytes nbytes) override {
    c10::DataPtr memory;
    if (nbytes > 0) memory = on_device_.allocate(static_cast<std::size_t>(nbytes));
    return std::make_unique<DeviceArenaMemory>(std::move(memory), nbytes);
  }
  bool gives_pages_back() const override { return false; }
  Bytes ordinary_bytes() const override {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return ordinary->getDeviceStats(device().index()).allocated_bytes[kAll].current;
  }
  Bytes shortage() const override {
    const auto [free, total] = memory_info(*ordinary, device().index());
    return free < total / 16 ? static_cast<Bytes>(total / 16) : 0;
  }
  void empty_cache() const override { ordinary->emptyCache({0, 0}); }
  bool is_capturing() const override { return taken_over->is_capturing(device().index()); }

  void copy(void* to, const void* from, std::size_t nbytes) override {
    if (nbytes == 0) return;
    const Unseen unseen;
    bytes(to, nbytes).copy_(bytes(const_cast<void*>(from), nbytes), /*non_blocking=*/true);
  }
  c10::DataPtr host_memory(std::size_t nbytes) const override {
    return at::globalContext().getPinnedMemoryAllocator(device().type())->allocate(nbytes);
  }
  void copy_to_host(const c10::DataPtr& to, const void* from, std::size_t nbytes) override {
    const Unseen unseen;
    host_bytes(to, nbytes).copy_(bytes(const_cast<void*>(from), nbytes));
  }
  void copy_from_host(void* to, const c10::DataPtr& from, std::size_t nbytes) override {
    const Unseen unseen;
    bytes(to, nbytes).copy_(host_bytes(from, nbytes));
  }
  // Kernels copy in any order, so each copy is of ranges that do not overlap.
  void move(void* to, const void* from, std::size_t nbytes) override {
    auto* target = static_cast<char*>(to);
    const auto* source = static_cast<const char*>(from);
    const auto step = static_cast<std::size_t>(target < source ? source - target : target - source);
    if (step == 0) return;
    if (target < source) {
      for (std::size_t at = 0; at < nbytes; at += step) {
        copy(target + at, source + at, std::min(step, nbytes - at));
      }
      return;
    }
    for (std::size_t end = nbytes; end > 0;) {
      const std::size_t part = std::min(step, end);
      end -= part;
      copy(target + end, source + end, part);
    }
  }
  void zero(void* at, std::size_t nbytes) override {
    if (nbytes == 0) return;
    const Unseen unseen;
    bytes(at, nbytes).zero_();
  }

  at::Generator default_generator() const override { return at::globalContext().defaultGenerator(device()); }
  at::Generator new_generator() const override {
    return at::globalContext()
        .getAcceleratorHooksInterface(device().type())
        .getNewGenerator(device().index());
  }
  std::unique_ptr<RandomState> save_random(const at::Generator& generator) const override {
    c10::GeneratorImpl* impl = generator.unsafeGetGeneratorImpl();
    if (impl->device() != device()) return nullptr;
    const std::lock_guard<std::mutex> lock(impl->mutex_);
    return std::make_unique<CounterState>(impl->current_seed(), impl->get_offset());
  }
  void restore_random(const RandomState& state, at::Generator& generator) const override {
    c10::GeneratorImpl* impl = generator.unsafeGetGeneratorImpl();
    const std::lock_guard<std::mutex> lock(impl->mutex_);
    static_cast<const CounterState&>(state).restore(*impl);
  }

  // What the host spends; kernels are timed by events.
  Nanoseconds now() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  std::unique_ptr<StreamOrder> new_stream_order() const override {
    return std::make_unique<StreamOrder>(device());
  }
  std::unique_ptr<KernelTimer> new_kernel_timer() const override {
    return std::make_unique<KernelTimer>(device());
  }
  void keep_for_stream(const c10::DataPtr& memory) const override {
    keep_for_stream(memory, c10::impl::VirtualGuardImpl(device().type()).getStream(device()));
  }
  void keep_for_stream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    ordinary->recordStream(memory, stream);
  }

 private:
  void take_over() const {
    if (ordinary != nullptr) return;
    at::globalContext().lazyInitDevice(device().type());
    taken_over = device_memory(device().type());
    ordinary = taken_over->ordinary();
  }

  // A copy of the runtime is no op of the program.
  struct Unseen {
    c10::impl::ExcludeDispatchKeyGuard interposed{kKey};
    at::AutoDispatchBelowADInplaceOrView below;
  };

  static std::vector<c10::DispatchKey> layouts_of(c10::DispatchKey dense) {
    const c10::BackendComponent backend = c10::toBackendComponent(dense);
    std::vector<c10::DispatchKey> keys;
    for (c10::DispatchKey layout : {c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr,
                                    c10::DispatchKey::NestedTensor, c10::DispatchKey::Quantized}) {
      keys.push_back(c10::toRuntimePerBackendFunctionalityKey(layout, backend));
    }
    return keys;
  }

  at::Tensor bytes(void* address, std::size_t nbytes) const {
    return bytes_of(c10::DataPtr(address, device()), dispatch_key(), nbytes);
  }
  static at::Tensor host_bytes(const c10::DataPtr& memory, std::size_t nbytes) {
    return bytes_of(c10::DataPtr(memory.get(), memory.device()), c10::DispatchKey::CPU, nbytes);
  }
  static at::Tensor bytes_of(c10::DataPtr memory, c10::DispatchKey key, std::size_t nbytes) {
    c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, std::move(memory),
                         /*allocator=*/nullptr, /*resizable=*/false);
    at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                                 caffe2::TypeMeta::Make<std::uint8_t>());
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<std::int64_t>(nbytes)});
    return tensor;
  }

  mutable OnDevice on_device_;
  const std::vector<c10::DispatchKey> other_layouts_;
};

}  // namespace

Backend& backend_for(c10::Device device) {
  if (device.type() == cpu_backend().device().type()) return cpu_backend();
  TORCH_CHECK_VALUE(
      device_memory(device.type()) != nullptr, "remint has no budgets for the device ", device,
      device.is_cuda() ? ": its runtime was built without CUDA. It is built for the torch that is installed: "
                         "install torch 2.13 or newer with CUDA, and the CUDA headers, then run "
                         "`remint build --again`."
                       : ". It has them for the CPU, for CUDA, and for devices that PyTorch does not know "
                         "itself (PrivateUse1).");
  TORCH_CHECK_VALUE(taken_over == nullptr || taken_over->type == device.type(),
                    "remint has budgets for one type of accelerator in a process, and one of another type "
                    "than ",
                    device, " was opened before.");
  static std::mutex mutex;
  static auto* backends = new std::map<c10::DeviceIndex, AcceleratorBackend*>();
  const std::lock_guard<std::mutex> lock(mutex);
  const c10::Device exact =
      device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
  AcceleratorBackend*& backend = (*backends)[exact.index()];
  if (backend == nullptr) backend = new AcceleratorBackend(exact);
  return *backend;
}

}  // namespace remint
