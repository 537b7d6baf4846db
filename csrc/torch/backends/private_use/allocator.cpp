// The memory of devices that PyTorch does not know itself (PrivateUse1).
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "torch/backends/budget_allocator.h"
#include "torch/backends/device_memory.h"
#include "torch/older_torch.h"

namespace remint {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

c10::Device current_device() {
  return c10::impl::VirtualGuardImpl(kType).getDevice();
}

// A DeviceAllocator, or torch.accelerator would not work.
class PrivateUseAllocator final : public BudgetAllocator<c10::DeviceAllocator, &current_device> {
 public:
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
  // Without `override`: before torch 2.10 there is nothing to override.
  virtual std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) {
    return memory_info(*ordinary, device);
  }
};

c10::DeviceAllocator* ordinary_allocator() {
  c10::DeviceAllocator*& ordinary = PrivateUseAllocator::ordinary;
  if (ordinary == nullptr) ordinary = c10::getDeviceAllocator(kType);
  return ordinary;
}

void install(const AllocatorHook& of_budgets) {
  PrivateUseAllocator::hook = of_budgets;
  c10::SetAllocator(kType, new PrivateUseAllocator(), /*priority=*/1);
}

// PyTorch has no graphs for such devices.
bool is_capturing(c10::DeviceIndex) {
  return false;
}

const AddDeviceMemory add({kType, &ordinary_allocator, &install, &is_capturing, /*on_shortage=*/nullptr});

}  // namespace
}  // namespace remint
