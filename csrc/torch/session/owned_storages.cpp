#include "torch/session/owned_storages.h"

#include <algorithm>

namespace remint {

OwnedStorage* OwnedStorages::find(const c10::StorageImpl* storage) const {
  // The DataPtr of a storage of another session may change at any time: it is not read.
  if (Regions::num_open_sessions() > 1) return look_up(storage);
  by_storage_filled_ = false;
  const c10::DataPtr& pointer = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  if (pointer.get_deleter() != &owned_deleter) return nullptr;
  auto* owned = static_cast<OwnedStorage*>(pointer.get_context());
  // One of a session that ended could not be recomputed at its end.
  return owned->session.get() == state_.self ? owned : nullptr;
}

OwnedStorage* OwnedStorages::look_up(const c10::StorageImpl* storage) const {
  if (!by_storage_filled_) {
    by_storage_filled_ = true;
    by_storage_.clear();
    for (OwnedStorage* owned : owners_) {
      if (owned != nullptr) by_storage_[owned->key] = owned;
    }
  }
  auto found = by_storage_.find(storage);
  if (found == by_storage_.end()) return nullptr;
  // An owner whose storage died and whose death is still pending: the address belongs to another storage now.
  const c10::DataPtr& pointer = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  return pointer.get_context() == found->second ? found->second : nullptr;
}

void OwnedStorages::set_owner(ValueId value, OwnedStorage* owned) {
  const StorageId id = state_.engine->records().value(value).storage;
  if (id >= owners_.size()) owners_.resize(std::max<std::size_t>(id + 1, owners_.size() * 2), nullptr);
  owners_[id] = owned;
}

OwnedStorage* OwnedStorages::adopt(c10::StorageImpl* storage, void* address, ValueId value,
                                   const Operator* made_by) {
  c10::raw::weak_intrusive_ptr::incref(storage);
  auto* owned = new OwnedStorage{state_.session.lock(),
                                 value,
                                 c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(storage),
                                 storage,
                                 made_by,
                                 PinReason::kNone};
  c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
  pointer.release_context();
  pointer = c10::DataPtr(address, owned, &owned_deleter, state_.backend.device());
  set_owner(value, owned);
  if (by_storage_filled_) by_storage_[storage] = owned;
  return owned;
}

void OwnedStorages::change_value(OwnedStorage* owned, ValueId value, const Operator* made_by) {
  set_owner(owned->value, nullptr);
  owned->value = value;
  owned->made_by = made_by;
  owned->reason = PinReason::kNone;
  set_owner(value, owned);
}

void OwnedStorages::release(OwnedStorage* owned) {
  set_owner(owned->value, nullptr);
  if (by_storage_filled_) {
    auto found = by_storage_.find(owned->key);
    if (found != by_storage_.end() && found->second == owned) by_storage_.erase(found);
  }
  state_.observer->released(state_.number_of(owned->value));
  state_.engine->release(owned->value);
  delete owned;
}

void OwnedStorages::disown(OwnedStorage* owned, c10::StorageImpl& storage, c10::DataPtr memory) {
  c10::DataPtr& pointer = storage._mutable_data_ptr_no_checks();
  pointer.release_context();
  pointer = std::move(memory);
  set_owner(owned->value, nullptr);
  by_storage_.erase(&storage);
}

void OwnedStorages::clear() {
  owners_.clear();
  by_storage_.clear();
  raw_.clear();
  running_.clear();
}

// The storage may be one of another session, whose lock this thread does not have: a race on purpose, as
// tests/tsan_suppressions.txt says. Whatever is read of it then, its address is not in this arena.
bool OwnedStorages::is_raw(const c10::StorageImpl& storage) const {
  const c10::DataPtr& pointer = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &raw_deleter && state_.region->contains(pointer.get());
}

void OwnedStorages::add_raw(Bytes offset, const RawBlock& raw) {
  raw_[offset] = raw;
  if (raw.running) running_.push_back(offset);
}

RawBlock* OwnedStorages::find_raw(Bytes offset) {
  auto found = raw_.find(offset);
  return found == raw_.end() ? nullptr : &found->second;
}

OwnedStorage* OwnedStorages::adopt_raw(c10::StorageImpl* storage) {
  void* address = storage->_mutable_data_ptr_no_checks().get();
  const Bytes offset = state_.region->offset(address);
  const RawBlock* raw = find_raw(offset);
  TORCH_INTERNAL_ASSERT(raw != nullptr, "remint: memory of the arena that is not known");
  state_.forget_dropped();
  const ValueId value = state_.engine->adopt_constant(raw->block, raw->nbytes, raw->number);
  if (raw->address_known) state_.engine->fix(value);
  const PinReason reason = raw->address_known ? PinReason::kAsleep : PinReason::kNoRecipe;
  raw_.erase(offset);
  OwnedStorage* owned = adopt(storage, address, value, nullptr);
  owned->reason = reason;
  return owned;
}

void OwnedStorages::fix_raw() {
  for (auto& [offset, raw] : raw_) raw.address_known = true;
}

}  // namespace remint
