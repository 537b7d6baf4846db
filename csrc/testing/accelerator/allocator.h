// The allocator of the test devices. It keeps nothing for later: what is freed can be used by anyone as soon
// as the streams that used it have come that far. On the way it is filled with 0xff bytes (poison), in the
// order of the stream it was allocated on, so that a read that comes too late shows.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "testing/accelerator/streams.h"

namespace remint::testing {

class TestAllocator final : public c10::DeviceAllocator {
 public:
  static TestAllocator& get();

  void set_poison(bool on);

  c10::DataPtr allocate(std::size_t nbytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t nbytes) const override;
  void free(void* address);

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override;

 private:
  struct Block {
    std::size_t nbytes;
    std::size_t requested;
    c10::DeviceIndex device;
    c10::StreamId stream;
    std::vector<c10::StreamId> other_streams;
  };
  struct Device {
    std::map<std::size_t, std::size_t> free;  // offset to bytes
    c10::CachingDeviceAllocator::DeviceStats stats;
  };

  Device& device(c10::DeviceIndex index);
  void* take(Device& device, c10::DeviceIndex index, std::size_t nbytes);
  void give_back(c10::DeviceIndex index, std::size_t offset, std::size_t nbytes);

  std::mutex mutex_;
  std::map<c10::DeviceIndex, Device> devices_;
  std::unordered_map<const void*, Block> used_;
  bool poison_ = true;
};

}  // namespace remint::testing
