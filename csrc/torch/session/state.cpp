#include "torch/session/state.h"

#include "torch/session/freed_sources.h"
#include "torch/session/outside_constants.h"
#include "torch/session/owned_storages.h"

namespace remint {

SessionState::SessionState(const SessionOptions& options, Backend& backend)
    : options(options),
      backend(backend),
      owned(std::make_unique<OwnedStorages>(*this)),
      constants(std::make_unique<OutsideConstants>(*this)),
      freed(std::make_unique<FreedSources>(*this)),
      order(backend.new_stream_order()),
      timer(backend.new_kernel_timer()) {}

SessionState::~SessionState() = default;

void SessionState::forget() {
  std::swap(forgetting_, dropped);
  for (StorageId id : forgetting_.storages) {
    owned->forget(id);
    constants->forget(id, gone_);
    freed->forget(id);
  }
  for (StorageId id : forgetting_.cached) constants->cache(id, gone_);
  for (std::uint64_t id : forgetting_.ops) recipes.remove(id);
  forgetting_.clear();
  if (gone_.empty()) return;
  // Last, and not in a member: what a storage frees can run other ops, which come here again.
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> gone = std::move(gone_);
  gone.clear();
  gone_ = std::move(gone);
}

void* SessionState::address_of(StorageId id) const {
  const Storage& storage = engine->records().storage(id);
  if (storage.block != kNone) return region->at(arena->block(storage.block).address);
  return constants->storage(id)->_mutable_data_ptr_no_checks().get();
}

std::size_t SessionState::nbytes_of(StorageId id) const {
  const Storage& storage = engine->records().storage(id);
  return storage.block != kNone ? static_cast<std::size_t>(storage.nbytes) : constants->storage(id)->nbytes();
}

void SessionState::pin(OwnedStorage* owned, PinReason reason) {
  if (owned->reason == PinReason::kNone) owned->reason = reason;
  const bool fix =
      reason == PinReason::kAddressKnown || reason == PinReason::kAsked || reason == PinReason::kAsleep;
  // With a tier, what is pinned can be offloaded, now or before the kernel that is running ends.
  const bool may_leave = store != nullptr && fix && !storage_of(owned->value).fixed;
  if (!storage_of(owned->value).pinned || may_leave) engine->pin(owned->value);
  if (!fix) return;
  if (in_kernel) {
    // The kernel may write it, so that it has another value when the op ends. It is locked until then.
    fix_late_.push_back(owned);
  } else if (!storage_of(owned->value).fixed) {
    engine->fix(owned->value);
  }
}

void SessionState::fix_late() {
  for (OwnedStorage* owned : fix_late_) pin(owned, PinReason::kAddressKnown);
  fix_late_.clear();
}

}  // namespace remint
