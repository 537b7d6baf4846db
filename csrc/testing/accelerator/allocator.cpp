#include "testing/accelerator/allocator.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "testing/accelerator/memory.h"

namespace remint::testing {
namespace {

constexpr std::size_t kAlignment = 512;
constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

void free_block(void* address) {
  TestAllocator::get().free(address);
}

}  // namespace

TestAllocator& TestAllocator::get() {
  // Never destroyed: tensors can die after all static objects.
  static auto* allocator = new TestAllocator();
  return *allocator;
}

void TestAllocator::set_poison(bool on) {
  const std::lock_guard<std::mutex> lock(mutex_);
  poison_ = on;
}

c10::DeleterFnPtr TestAllocator::raw_deleter() const {
  return &free_block;
}

TestAllocator::Device& TestAllocator::device(c10::DeviceIndex index) {
  auto [found, fresh] = devices_.try_emplace(index);
  if (fresh) found->second.free[0] = DeviceMemory::get().nbytes_per_device();
  return found->second;
}

// First fit, so that few pages are touched. Null if nothing fits.
void* TestAllocator::take(Device& device, c10::DeviceIndex index, std::size_t nbytes) {
  for (auto range = device.free.begin(); range != device.free.end(); ++range) {
    if (range->second < nbytes) continue;
    const std::size_t offset = range->first;
    const std::size_t left = range->second - nbytes;
    device.free.erase(range);
    if (left > 0) device.free[offset + nbytes] = left;
    return DeviceMemory::get().base(index) + offset;
  }
  return nullptr;
}

c10::DataPtr TestAllocator::allocate(std::size_t requested) {
  const c10::DeviceIndex index = current_device();
  const c10::Device where(kDeviceType, index);
  if (requested == 0) return {nullptr, nullptr, &free_block, where};
  const std::size_t nbytes = (requested + kAlignment - 1) / kAlignment * kAlignment;
  std::unique_lock<std::mutex> lock(mutex_);
  void* address = take(device(index), index, nbytes);
  if (address == nullptr) {
    // What was freed comes back when the streams have come that far.
    lock.unlock();
    count(&Counts::synchronizations);
    wait_for_device(index);
    lock.lock();
    address = take(device(index), index, nbytes);
  }
  c10::CachingDeviceAllocator::DeviceStats& stats = device(index).stats;
  if (address == nullptr) ++stats.num_ooms;
  TORCH_CHECK_WITH(OutOfMemoryError, address != nullptr, "remint.testing.accelerator: device ",
                   static_cast<int>(index), " has no ", nbytes, " bytes left of ",
                   DeviceMemory::get().nbytes_per_device());
  used_[address] = {nbytes, requested, index, current_stream_id(index), {}};
  stats.allocation[kAll].increase(1);
  stats.allocated_bytes[kAll].increase(nbytes);
  stats.active_bytes[kAll].increase(nbytes);
  stats.reserved_bytes[kAll].increase(nbytes);
  stats.requested_bytes[kAll].increase(requested);
  lock.unlock();
  count(&Counts::allocations);
  return {address, address, &free_block, where};
}

void TestAllocator::free(void* address) {
  if (address == nullptr) return;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = used_.find(address);
  TORCH_INTERNAL_ASSERT(found != used_.end(), "remint.testing.accelerator: freed twice");
  const Block block = found->second;
  used_.erase(found);
  c10::CachingDeviceAllocator::DeviceStats& stats = device(block.device).stats;
  stats.allocation[kAll].decrease(1);
  stats.allocated_bytes[kAll].decrease(block.nbytes);
  stats.active_bytes[kAll].decrease(block.nbytes);
  stats.requested_bytes[kAll].decrease(block.requested);
  const bool poison = poison_;
  lock.unlock();
  DeviceStream& own = stream(block.device, block.stream);
  for (c10::StreamId other : block.other_streams) {
    const auto event = std::make_shared<DeviceEvent>();
    DeviceEvent::record(event, stream(block.device, other));
    DeviceEvent::block(event, own);
  }
  own.push(0, [this, address, block, poison] {
    if (poison) std::memset(DeviceMemory::get().for_streams(address), 0xff, block.nbytes);
    give_back(block.device,
              static_cast<std::size_t>(static_cast<char*>(address) - DeviceMemory::get().base(block.device)),
              block.nbytes);
  });
}

void TestAllocator::give_back(c10::DeviceIndex index, std::size_t offset, std::size_t nbytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::map<std::size_t, std::size_t>& free = device(index).free;
  device(index).stats.reserved_bytes[kAll].decrease(nbytes);
  auto next = free.lower_bound(offset);
  if (next != free.end() && next->first == offset + nbytes) {
    nbytes += next->second;
    next = free.erase(next);
  }
  if (next != free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += nbytes;
      return;
    }
  }
  free[offset] = nbytes;
}

void TestAllocator::copy_data(void* to, const void* from, std::size_t nbytes) const {
  const DeviceMemory& memory = DeviceMemory::get();
  current_stream(memory.device_of(to)).push(0, [&memory, to, from, nbytes] {
    std::memcpy(memory.for_streams(to), memory.for_streams(from), nbytes);
  });
}

void TestAllocator::recordStream(const c10::DataPtr& pointer, c10::Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = used_.find(pointer.get());
  if (found == used_.end() || found->second.stream == stream.id()) return;
  std::vector<c10::StreamId>& others = found->second.other_streams;
  if (std::find(others.begin(), others.end(), stream.id()) == others.end()) others.push_back(stream.id());
}

c10::CachingDeviceAllocator::DeviceStats TestAllocator::getDeviceStats(c10::DeviceIndex index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return device(index).stats;
}

void TestAllocator::resetAccumulatedStats(c10::DeviceIndex index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  c10::CachingDeviceAllocator::DeviceStats& stats = device(index).stats;
  for (auto* stat : {&stats.allocation, &stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes,
                     &stats.requested_bytes}) {
    (*stat)[kAll].reset_accumulated();
  }
  stats.num_ooms = 0;
}

void TestAllocator::resetPeakStats(c10::DeviceIndex index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  c10::CachingDeviceAllocator::DeviceStats& stats = device(index).stats;
  for (auto* stat : {&stats.allocation, &stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes,
                     &stats.requested_bytes}) {
    (*stat)[kAll].reset_peak();
  }
}

std::pair<std::size_t, std::size_t> TestAllocator::getMemoryInfo(c10::DeviceIndex index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::size_t free = 0;
  for (const auto& [offset, nbytes] : device(index).free) free += nbytes;
  return {free, DeviceMemory::get().nbytes_per_device()};
}

}  // namespace remint::testing
