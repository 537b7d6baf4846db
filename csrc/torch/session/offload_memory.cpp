// Memory of the host as the tier of an accelerator.
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>

#include "torch/session/offload_store.h"

namespace remint {
namespace {

class OffloadMemory final : public OffloadStore {
 public:
  explicit OffloadMemory(Backend& backend) : backend_(backend) {}

  bool write(StorageId id, const void* from, std::size_t nbytes) override {
    try {
      if (id >= copies_.size()) copies_.resize(std::max<std::size_t>(id + 1, 2 * copies_.size()));
      copies_[id] = backend_.host_memory(nbytes);
    } catch (const std::exception& error) {
      problem_ = std::string("the host has no memory for the tier (") + error.what() + ")";
      return false;
    }
    backend_.copy_to_host(copies_[id], from, nbytes);
    problem_.clear();
    return true;
  }

  void read(StorageId id, void* to, std::size_t nbytes) override {
    backend_.copy_from_host(to, copies_[id], nbytes);
  }

  void drop(StorageId id) override { copies_[id].clear(); }

  double measure_bandwidth() override {
    constexpr std::size_t kSample = 4 << 20;
    const c10::DataPtr device = backend_.ordinary_allocator()->allocate(kSample);
    c10::DataPtr host = backend_.host_memory(kSample);
    const auto started = std::chrono::steady_clock::now();
    backend_.copy_to_host(host, device.get(), kSample);
    backend_.copy_from_host(device.get(), host, kSample);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
    return took.count() > 0 ? 2.0 * static_cast<double>(kSample) / took.count() : 0.0;
  }

 private:
  Backend& backend_;
  std::vector<c10::DataPtr> copies_;  // by storage
};

}  // namespace

std::unique_ptr<OffloadStore> new_offload_memory(Backend& backend) {
  return std::make_unique<OffloadMemory>(backend);
}

}  // namespace remint
