// The memory of CUDA devices: a whole CUDAAllocator that asks budgets first. Everything that is not about
// memory of a budget goes to PyTorch's own allocator: statistics, snapshots, pools, peer access.
//
// Compiled only if the installed torch has CUDA.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "torch/backends/budget_allocator.h"
#include "torch/backends/device_memory.h"

namespace remint {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

c10::Device current_device() {
  return {c10::DeviceType::CUDA, c10::cuda::current_device()};
}

// Memory that is not a budget's though a thread inside of one asks for it: pools of captured graphs, and
// those that the program opened itself (torch.cuda.use_mem_pool, NCCL's registered buffers).
class Pools {
 public:
  void begin(c10::DeviceIndex device, c10::MempoolId_t id, std::function<bool(cudaStream_t)> filter) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_.push_back({device, id, std::move(filter)});
    num_open_ = open_.size();
  }
  void end(c10::DeviceIndex device, c10::MempoolId_t id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto pool = open_.begin(); pool != open_.end(); ++pool) {
      if (pool->device != device || pool->id != id) continue;
      open_.erase(pool);
      break;
    }
    num_open_ = open_.size();
  }
  bool takes(c10::DeviceIndex device) {
    if (num_open_ == 0) return false;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Pool& pool : open_) {
      if (pool.device == device && pool.filter(c10::cuda::getCurrentCUDAStream(device))) return true;
    }
    return false;
  }

 private:
  struct Pool {
    c10::DeviceIndex device;
    c10::MempoolId_t id;
    std::function<bool(cudaStream_t)> filter;
  };
  std::mutex mutex_;
  std::vector<Pool> open_;
  std::atomic<std::size_t> num_open_{0};
};

class CudaAllocator final : public BudgetAllocator<caching::CUDAAllocator, &current_device> {
 public:
  // ── Memory ──

  c10::DataPtr allocate(std::size_t nbytes) override {
    if (pools_.takes(c10::cuda::current_device())) return ordinary->allocate(nbytes);
    return BudgetAllocator::allocate(nbytes);
  }
  // Whoever asks for plain addresses keeps them for as long as it likes: that is no memory of a budget.
  void* raw_alloc(std::size_t nbytes) override { return ordinary->raw_alloc(nbytes); }
  void* raw_alloc_with_stream(std::size_t nbytes, cudaStream_t stream) override {
    return ordinary->raw_alloc_with_stream(nbytes, stream);
  }
  void raw_delete(void* address) override {
    if (!hook.free(address)) ordinary->raw_delete(address);
  }
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override {
    if (!hook.record_stream(pointer.get(), stream.unwrap())) ordinary->recordStream(pointer, stream);
  }
  c10::DataPtr allocateWithAddress(std::size_t nbytes, void* address) override {
    return ordinary->allocateWithAddress(nbytes, address);
  }
  cudaError_t memcpyAsync(void* to, int device_to, const void* from, int device_from, std::size_t nbytes,
                          cudaStream_t stream, bool peer_access) override {
    return ordinary->memcpyAsync(to, device_to, from, device_from, nbytes, stream, peer_access);
  }

  // ── Other processes ──

  void* getBaseAllocation(void* address, std::size_t* nbytes) override {
    refuse_to_share(address);
    return ordinary->getBaseAllocation(address, nbytes);
  }
  caching::ShareableHandle shareIpcHandle(void* address) override {
    refuse_to_share(address);
    return ordinary->shareIpcHandle(address);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return ordinary->getIpcDevPtr(std::move(handle));
  }

  // ── Pools and graphs ──

  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t id,
                           std::function<bool(cudaStream_t)> filter) override {
    pools_.begin(device, id, filter);
    ordinary->beginAllocateToPool(device, id, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t id) override {
    ordinary->endAllocateToPool(device, id);
    pools_.end(device, id);
  }
  void markCaptureBegin(c10::DeviceIndex device) override {
    ++captures_.at(static_cast<std::size_t>(device));
    ordinary->markCaptureBegin(device);
  }
  void markCaptureEnd(c10::DeviceIndex device) override {
    ordinary->markCaptureEnd(device);
    --captures_.at(static_cast<std::size_t>(device));
  }
  bool is_capturing(c10::DeviceIndex device) const {
    return captures_.at(static_cast<std::size_t>(device)).load(std::memory_order_relaxed) > 0;
  }
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t id) override {
    ordinary->releasePool(device, id);
  }
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t id) override {
    return ordinary->getPoolUseCount(device, id);
  }
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t id,
                          std::shared_ptr<CUDAAllocator> allocator) override {
    ordinary->createOrIncrefPool(device, id, std::move(allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t id, bool use_on_oom) override {
    ordinary->setUseOnOOM(device, id, use_on_oom);
  }
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t id) override { ordinary->setNoSplit(device, id); }
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t id,
                                const std::unordered_set<void*>& expected) override {
    return ordinary->checkPoolLiveAllocations(device, id, expected);
  }
  std::shared_ptr<caching::AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                              c10::MempoolId_t id) override {
    return ordinary->getCheckpointState(device, id);
  }
  caching::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                                  std::shared_ptr<caching::AllocatorState> state) override {
    return ordinary->setCheckpointPoolState(device, std::move(state));
  }

  // ── The device ──

  void init(int num_devices) override { ordinary->init(num_devices); }
  bool initialized() override { return ordinary->initialized(); }
  void enable(bool value) override { ordinary->enable(value); }
  bool isEnabled() const override { return ordinary->isEnabled(); }
  void emptyCache(c10::MempoolId_t id) override { ordinary->emptyCache(id); }
  double getMemoryFraction(c10::DeviceIndex device) override { return ordinary->getMemoryFraction(device); }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    ordinary->setMemoryFraction(fraction, device);
  }
  // Libraries choose their algorithms by this. So they choose as they would without a budget, and the bits
  // are the same. What does not fit into the budget then is an error, not another algorithm.
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override {
    ordinary->cacheInfo(device, largest);
  }
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) override {
    ordinary->enablePeerAccess(device, other);
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return ordinary->getMemoryInfo(device);
  }

  // ── What it says about itself: an arena is one block of PyTorch's allocator ──

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return ordinary->getDeviceStats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { ordinary->resetAccumulatedStats(device); }
  void resetPeakStats(c10::DeviceIndex device) override { ordinary->resetPeakStats(device); }
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
    return ordinary->getExpandableSegmentSizes(device);
  }
  caching::SnapshotInfo snapshot(c10::MempoolId_t id, bool include_traces) override {
    return ordinary->snapshot(id, include_traces);
  }
  bool isHistoryEnabled() override { return ordinary->isHistoryEnabled(); }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* address) override {
    return ordinary->getContextForPointer(address);
  }
  void recordHistory(bool enabled, caching::CreateContextFn context, std::size_t max_entries,
                     caching::RecordContext when, bool clear,
                     const std::vector<std::string>& skip_actions) override {
    ordinary->recordHistory(enabled, context, max_entries, when, clear, skip_actions);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& annotation) override {
    ordinary->recordAnnotation(annotation);
  }
  void pushCompileContext(std::string& context) override { ordinary->pushCompileContext(context); }
  void popCompileContext() override { ordinary->popCompileContext(); }
  void setUserMetadata(const std::string& metadata) override { ordinary->setUserMetadata(metadata); }
  std::string getUserMetadata() override { return ordinary->getUserMetadata(); }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    ordinary->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachOomRejectionObserver(caching::OomRejectionObserver observer) override {
    ordinary->attachOomRejectionObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    ordinary->attachAllocatorTraceTracker(std::move(tracker));
  }
  // PyTorch asks for it where it depends on how its own allocator works.
  std::string name() override { return ordinary->name(); }

 private:
  static void refuse_to_share(const void* address) {
    TORCH_CHECK(!hook.contains(address),
                "remint: a tensor of a budget cannot be shared with another process, because its memory is a "
                "part of the budget's arena. Share a copy that was made before the budget, or after it.");
  }

  Pools pools_;
  std::array<std::atomic<int>, C10_COMPILE_TIME_MAX_GPUS> captures_{};
};

CudaAllocator* installed = nullptr;

c10::DeviceAllocator* ordinary_allocator() {
  caching::CUDAAllocator*& ordinary = CudaAllocator::ordinary;
  if (ordinary == nullptr) ordinary = caching::get();
  return ordinary;
}

void install(const AllocatorHook& of_budgets) {
  CudaAllocator::hook = of_budgets;
  installed = new CudaAllocator();
  caching::allocator.store(installed);
  c10::SetAllocator(c10::DeviceType::CUDA, installed, /*priority=*/1);
}

bool is_capturing(c10::DeviceIndex device) {
  if (installed != nullptr) return installed->is_capturing(device);
  return c10::cuda::isStreamCapturingMayInitCtx(c10::cuda::getCurrentCUDAStream(device));
}

// PyTorch's allocator asks before it takes more memory from the device. It does not say how much it needs,
// and it has its lock meanwhile.
bool (*free_memory)(c10::Device) = nullptr;

class OnShortage final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override { return free_memory(current_device()); }
};

void on_shortage(bool (*call)(c10::Device)) {
  free_memory = call;
  c10::FreeCudaMemoryCallbacksRegistry()->Register(
      "remint", [] { return std::unique_ptr<c10::FreeMemoryCallback>(new OnShortage()); });
}

const AddDeviceMemory add({c10::DeviceType::CUDA, &ordinary_allocator, &install, &is_capturing,
                           &on_shortage});

}  // namespace
}  // namespace remint
