// The memory of devices that PyTorch does not know itself (PrivateUse1).
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "torch/backends/device_memory.h"

namespace remint {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

c10::DeviceAllocator* ordinary = nullptr;
AllocatorHook hook;

void free_any(void* address) {
  if (address != nullptr && !hook.free(address)) ordinary->raw_deleter()(address);
}

// Stands before the device's own allocator. It is a DeviceAllocator, or torch.accelerator would not work.
class BudgetAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t nbytes) override {
    const c10::Device device = c10::impl::VirtualGuardImpl(kType).getDevice();
    if (std::optional<c10::DataPtr> memory = hook.allocate(device, nbytes)) return *std::move(memory);
    return ordinary->allocate(nbytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override {
    ordinary->copy_data(to, from, nbytes);
  }
  bool initialized() override { return ordinary->initialized(); }
  void emptyCache(c10::MempoolId_t pool) override { ordinary->emptyCache(pool); }
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    if (!hook.record_stream(pointer.get(), stream)) ordinary->recordStream(pointer, stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return ordinary->getDeviceStats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { ordinary->resetAccumulatedStats(device); }
  void resetPeakStats(c10::DeviceIndex device) override { ordinary->resetPeakStats(device); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return ordinary->getMemoryInfo(device);
  }
};

c10::DeviceAllocator* install(const AllocatorHook& of_budgets) {
  ordinary = c10::getDeviceAllocator(kType);
  hook = of_budgets;
  c10::SetAllocator(kType, new BudgetAllocator(), /*priority=*/1);
  return ordinary;
}

// PyTorch has no graphs for such devices.
bool is_capturing(c10::DeviceIndex) {
  return false;
}

const AddDeviceMemory add({kType, &install, &is_capturing});

}  // namespace
}  // namespace remint
