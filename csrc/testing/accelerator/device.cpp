#include "testing/accelerator/device.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <map>

#include "testing/accelerator/allocator.h"
#include "testing/accelerator/generator.h"
#include "testing/accelerator/memory.h"
#include "testing/accelerator/streams.h"

namespace remint::testing {
namespace {

using Event = std::shared_ptr<DeviceEvent>;

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kDeviceType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kDeviceType, exchange_device(device.index())};
  }
  c10::Device getDevice() const override { return {kDeviceType, current_device()}; }
  void setDevice(c10::Device device) const override { exchange_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchange_device(device.index()); }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(DeviceMemory::get().num_devices());
  }

  c10::Stream getStream(c10::Device device) const override {
    return make_stream(device, current_stream_id(resolved(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return make_stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return make_stream(device, next_stream(resolved(device)));
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return make_stream(to.device(), exchange_stream(to.device_index(), to.id()));
  }
  bool queryStream(const c10::Stream& which) const override { return stream(which).idle(); }
  void synchronizeStream(const c10::Stream& which) const override {
    count(&Counts::synchronizations);
    stream(which).wait();
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    count(&Counts::synchronizations);
    wait_for_device(device);
  }

  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event(std::make_shared<DeviceEvent>());
    DeviceEvent::record(of(*event), stream(on));
  }
  void block(void* event, const c10::Stream& waiting) const override {
    if (event != nullptr) DeviceEvent::block(of(event), stream(waiting));
  }
  bool queryEvent(void* event) const override { return event == nullptr || of(event)->done(); }
  void synchronizeEvent(void* event) const override {
    count(&Counts::synchronizations);
    if (event != nullptr) of(event)->wait();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    TORCH_CHECK(of(from)->done() && of(to)->done(), "elapsed_time: both events must have come");
    return static_cast<double>(of(to)->time() - of(from)->time()) * 1e-6;
  }

  // The allocator may have been replaced: by a budget, for example.
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& on) const override {
    c10::getDeviceAllocator(kDeviceType)->recordStream(pointer, on);
  }

 private:
  static c10::DeviceIndex resolved(c10::Device device) {
    return device.has_index() ? device.index() : current_device();
  }
  static c10::Stream make_stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, resolved(device)), id);
  }
  static Event& of(void* event) { return *static_cast<Event*>(event); }
};

// Host memory that copies may use after the call has returned. Work that reads or writes it holds its
// storage.
class PinnedAllocator final : public c10::Allocator {
 public:
  static PinnedAllocator& get() {
    static auto* allocator = new PinnedAllocator();
    return *allocator;
  }
  c10::DataPtr allocate(std::size_t nbytes) override {
    const c10::Device host(c10::DeviceType::CPU);
    if (nbytes == 0) return {nullptr, nullptr, &free, host};
    void* address = std::aligned_alloc(64, (nbytes + 63) / 64 * 64);
    TORCH_CHECK_WITH(OutOfMemoryError, address != nullptr, "no ", nbytes, " bytes of host memory");
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_[address] = nbytes;
    return {address, address, &free, host};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override {
    default_copy_data(to, from, nbytes);
  }
  bool contains(const void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto after = ranges_.upper_bound(address);
    if (after == ranges_.begin()) return false;
    --after;
    return address < static_cast<const char*>(after->first) + after->second;
  }

 private:
  static void free(void* address) {
    if (address == nullptr) return;
    {
      const std::lock_guard<std::mutex> lock(get().mutex_);
      get().ranges_.erase(address);
    }
    std::free(address);
  }
  std::mutex mutex_;
  std::map<const void*, std::size_t> ranges_;
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(DeviceMemory::get().num_devices());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchange_device(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? current_device() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<TestGenerator>(device < 0 ? current_device() : device);
  }
  c10::Device getDeviceFromPtr(void* address) const override {
    return {kDeviceType, DeviceMemory::get().device_of(address)};
  }
  bool isPinnedPtr(const void* address) const override { return PinnedAllocator::get().contains(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedAllocator::get(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t nbytes) const override {
    c10::Allocator* allocator = c10::GetAllocator(kDeviceType);
    c10::DataPtr fresh = allocator->allocate(nbytes);
    const std::size_t kept = std::min(nbytes, storage.nbytes());
    if (kept > 0) allocator->copy_data(fresh.get(), storage.data(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
    storage.unsafeGetStorageImpl()->set_nbytes(nbytes);
  }
};

}  // namespace

void register_device() {
  c10::impl::registerDeviceGuard(kDeviceType, new Guard());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  c10::SetAllocator(kDeviceType, &TestAllocator::get(), /*priority=*/0);
}

}  // namespace remint::testing
