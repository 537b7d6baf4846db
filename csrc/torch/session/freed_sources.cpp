#include "torch/session/freed_sources.h"

#include <utility>

#include "torch/session/owned_storages.h"

namespace remint {

// Only what autograd needs is sure to be gathered again. Without streams, the bytes are there when they are
// read.
DueBack FreedSources::before_free(const OwnedStorage& owned) {
  if (!owned.used_for_gradients || state_.order != nullptr) return DueBack::kNo;
  freed_at_ = state_.next_number;
  freed_.insert_or_assign(state_.engine->records().value(owned.value).storage, Freed{owned.storage, {}});
  return came_back_.count(owned.key) > 0 ? DueBack::kSurely : DueBack::kPerhaps;
}

void FreedSources::note_bytes(StorageId id) {
  auto found = freed_.find(id);
  if (found != freed_.end()) found->second.digest = digest_of(state_.address_of(id), state_.nbytes_of(id));
}

ValueId FreedSources::came_back(StorageId id) {
  auto found = freed_.find(id);
  if (found == freed_.end()) return kNone;
  const c10::intrusive_ptr<c10::StorageImpl> storage = found->second.storage.lock();
  if (!storage) return kNone;
  const OwnedStorage* owned = state_.owned->find(storage.get());
  if (owned == nullptr || state_.engine->records().value(owned->value).storage == id) return kNone;
  const Storage& s = state_.storage_of(owned->value);
  // A collective that is in flight may write it.
  const bool written = s.read_locks > 0;
  return written || s.nbytes != state_.engine->records().storage(id).nbytes ? kNone : owned->value;
}

bool FreedSources::has_bytes_of(ValueId value, StorageId id) {
  const Freed& freed = freed_.at(id);
  const StorageId now = state_.engine->records().value(value).storage;
  if (digest_of(state_.address_of(now), state_.nbytes_of(now)) != freed.digest) return false;
  if (const auto storage = freed.storage.lock()) came_back_.insert_or_assign(storage.get(), freed.storage);
  return true;
}

}  // namespace remint
