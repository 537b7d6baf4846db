#include "torch/session/spill.h"

#include <algorithm>
#include <string>
#include <vector>

#include "torch/observe/budget_error.h"
#include "torch/older_torch.h"
#include "torch/session/outside_constants.h"
#include "torch/session/owned_storages.h"

namespace remint {
namespace {

void warn(SessionState& state) {
  if (state.warned_of_spilling) return;
  state.warned_of_spilling = true;
  const std::string who = state.current != nullptr ? state.current->name : "the program";
  warn_user("the budget cannot hold what " + who +
            " asks for; what does not fit is taken from ordinary memory from here on (overflow=\"spill\"). "
            "run.spilled_bytes says how much.");
}

}  // namespace

c10::DataPtr spill(SessionState& state, std::size_t nbytes) {
  warn(state);
  state.spilled += static_cast<Bytes>(nbytes);
  return state.backend.ordinary_allocator()->allocate(nbytes);
}

bool move_out(SessionState& state, OwnedStorage* owned) {
  const c10::intrusive_ptr<c10::StorageImpl> storage = owned->storage.lock();
  if (!storage || state.owned->find(storage.get()) != owned) return false;
  const StorageId id = state.engine->records().value(owned->value).storage;
  const bool offloaded = !state.engine->defined(owned->value);
  const auto nbytes = static_cast<std::size_t>(state.engine->records().storage(id).nbytes);
  c10::DataPtr copy = state.backend.ordinary_allocator()->allocate(nbytes);
  if (offloaded) {
    state.store->read(id, copy.get(), nbytes);
    allow_access(*storage);
    state.owned->disown(owned, *storage, std::move(copy));
    state.engine->move_out(owned->value);
  } else {
    if (state.order != nullptr) state.order->before_read(state.address_of(id), nbytes);
    state.backend.copy(copy.get(), state.address_of(id), nbytes);
    const Arena::Block block = state.arena->block(state.engine->records().storage(id).block);
    state.owned->disown(owned, *storage, std::move(copy));
    state.engine->move_out(owned->value);
    state.region->discard(block.address, block.nbytes);
  }
  state.constants->adopt(owned->value, storage);
  state.engine->release(owned->value);
  delete owned;
  state.forget_dropped();
  return true;
}

bool spill_resident(SessionState& state, Bytes nbytes, const OwnedStorage* kept) {
  warn(state);
  std::vector<OwnedStorage*> candidates;
  auto storage_of = [&](const OwnedStorage* owned) -> const Storage& {
    return state.storage_of(owned->value);
  };
  for (OwnedStorage* owned : state.owned->owners()) {
    if (owned == nullptr || owned == kept || !state.engine->defined(owned->value)) continue;
    const Storage& storage = storage_of(owned);
    if (storage.block != kNone && !storage.fixed && !storage.locked()) candidates.push_back(owned);
  }
  std::sort(candidates.begin(), candidates.end(), [&](const OwnedStorage* a, const OwnedStorage* b) {
    const Storage& s = storage_of(a);
    const Storage& t = storage_of(b);
    if (s.pinned != t.pinned) return s.pinned;
    return s.nbytes != t.nbytes ? s.nbytes > t.nbytes : a->value < b->value;
  });
  Bytes moved = 0;
  for (OwnedStorage* owned : candidates) {
    if (moved >= nbytes) break;
    const Bytes size = storage_of(owned).nbytes;
    if (move_out(state, owned)) moved += size;
  }
  state.spilled += moved;
  return moved > 0;
}

}  // namespace remint
