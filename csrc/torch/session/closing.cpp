#include "torch/session/closing.h"

#include <exception>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch/session/owned_storages.h"
#include "torch/session/spill.h"

namespace remint {

namespace {

// What the tier has goes to ordinary memory, without a detour through the arena. One that cannot be read
// keeps no other from it.
void move_offloaded_out(SessionState& state) {
  const std::vector<OwnedStorage*> owners = state.owned->owners();
  std::exception_ptr failure;
  for (OwnedStorage* owned : owners) {
    if (owned == nullptr || state.engine->defined(owned->value) || !state.engine->is_kept(owned->value)) {
      continue;
    }
    try {
      move_out(state, owned);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

// Leaves everything that the program has resident, in the arena if it fits: first what is there is pinned, so
// that it is not evicted for the rest, then what is missing is rematerialized, in the order of the program.
// What was rematerialized is pinned, so there is less missing each time around.
void materialize_all(SessionState& state) {
  Engine& engine = *state.engine;
  for (;;) {
    std::map<std::uint64_t, OwnedStorage*> resident;
    std::map<std::uint64_t, OwnedStorage*> missing;
    for (OwnedStorage* owned : state.owned->owners()) {
      if (owned == nullptr) continue;
      if (engine.is_kept(owned->value) && !engine.defined(owned->value)) continue;
      (engine.defined(owned->value) ? resident : missing)[state.number_of(owned->value)] = owned;
    }
    if (missing.empty()) break;
    for (const auto& [number, owned] : resident) {
      try {
        engine.pin(owned->value);
      } catch (const OutOfMemory&) {
        // The engine wanted to pin something else first.
      }
    }
    for (const auto& [number, owned] : missing) {
      try {
        engine.pin(owned->value);
      } catch (const OutOfMemory&) {
        // What is there goes to ordinary memory, but for what somebody reads just now, or knows the address
        // of.
        for (const auto& [other, there] : resident) {
          const Storage& storage = state.storage_of(there->value);
          if (engine.defined(there->value) && !storage.locked() && !storage.fixed) move_out(state, there);
        }
        resident.clear();
        engine.pin(owned->value);
      }
      resident[number] = owned;
    }
  }
  move_offloaded_out(state);
}

namespace {

// Gives a tensor memory of its own, so that it does not keep the whole arena. False if there is no memory for
// that.
bool copy_out(SessionState& state, OwnedStorage* owned, c10::StorageImpl& storage) {
  const std::size_t nbytes = storage.nbytes();
  const void* address = storage._mutable_data_ptr_no_checks().get();
  try {
    c10::DataPtr memory = state.backend.ordinary_allocator()->allocate(nbytes);
    if (state.order != nullptr) state.order->before_read(address, nbytes);
    state.backend.copy(memory.get(), address, nbytes);
    state.owned->disown(owned, storage, std::move(memory));
  } catch (const c10::OutOfMemoryError&) {
    return false;
  }
  delete owned;
  return true;
}

}  // namespace

// The program's tensors have ordinary DataPtrs from now on, on memory that survives the session.
void end_ownership(SessionState& state) {
  std::unordered_map<Bytes, Bytes> survivors;
  const std::vector<OwnedStorage*> owners = state.owned->owners();
  for (OwnedStorage* owned : owners) {
    if (owned == nullptr || !state.engine->defined(owned->value)) continue;
    const c10::intrusive_ptr<c10::StorageImpl> storage = owned->storage.lock();
    if (!storage || state.owned->find(storage.get()) != owned) continue;
    if (state.options.soft) {
      const StorageId id = state.engine->records().value(owned->value).storage;
      const Bytes offset = state.arena->block(state.engine->records().storage(id).block).address;
      state.owned->disown(owned, *storage, hand_back(state, offset, storage->nbytes()));
      delete owned;
      continue;
    }
    if (!state.backend.gives_pages_back() && !state.storage_of(owned->value).fixed &&
        copy_out(state, owned, *storage)) {
      continue;
    }
    void* address = storage->_mutable_data_ptr_no_checks().get();
    survivors[state.region->offset(address)] = state.storage_of(owned->value).nbytes;
    state.owned->disown(owned, *storage,
                        c10::DataPtr(address, address, &raw_deleter, state.backend.device()));
    delete owned;
  }
  for (const auto& [offset, raw] : state.owned->raw()) survivors[offset] = raw.nbytes;
  for (BlockId id = state.arena->first(); id != kNone; id = state.arena->block(id).next) {
    const Arena::Block& block = state.arena->block(id);
    if (survivors.count(block.address) == 0) state.region->discard(block.address, block.nbytes);
  }
  state.owned->clear();
  Regions::close(state.region, std::move(survivors));
}

}  // namespace remint
