#include "torch/session/requests.h"

#include <utility>

#include "torch/dispatch/arguments.h"
#include "torch/observe/budget_error.h"
#include "torch/session/freed_sources.h"
#include "torch/session/outside_constants.h"
#include "torch/session/owned_storages.h"
#include "torch/session/spill.h"

namespace remint {

bool Requests::materialize(const c10::StorageImpl* storage) {
  OwnedStorage* owned = state_.owned->find(storage);
  if (owned == nullptr) return false;
  if (state_.in_kernel && !call_.touches(storage)) call_.note_hidden_input();
  if (!state_.busy) releases_.apply();
  work([&] { state_.engine->materialize(owned->value); }, owned);
  return true;
}

bool Requests::pin(c10::StorageImpl* storage, PinReason reason) {
  if (!state_.busy) releases_.apply();
  OwnedStorage* owned = state_.owned->find(storage);
  const bool raw = owned == nullptr && state_.owned->is_raw(*storage);
  if (owned == nullptr && !raw) return false;
  if (owned != nullptr && state_.in_kernel && !call_.touches(storage)) call_.note_hidden_input();
  if (raw && state_.busy) {
    // A kernel hands out the address of what may become its output.
    state_.owned->find_raw(state_.region->offset(storage->_mutable_data_ptr_no_checks().get()))
        ->address_known = true;
    return true;
  }
  work(
      [&] {
        if (owned == nullptr) owned = state_.owned->adopt_raw(storage);
        state_.pin(owned, reason);
      },
      owned);
  return true;
}

bool Requests::before_write(const c10::StorageImpl* storage, PinReason reason) {
  if (!state_.busy) releases_.apply();
  OwnedStorage* owned = state_.owned->find(storage);
  const ValueId value = owned != nullptr ? owned->value : state_.constants->find(storage);
  if (value == kNone) return false;
  // What can still be recomputed is pinned first: after the write its recipe would be wrong.
  work(
      [&] {
        if (owned != nullptr) state_.pin(owned, reason);
        state_.engine->before_write(value);
      },
      owned);
  return owned != nullptr;
}

// FSDP frees gathered parameters, and gathers them again into the same storage. The bytes that recipes read
// are a record of their own by then. Nobody may use an address in them any more.
void Requests::before_free(const c10::StorageImpl* storage) {
  OwnedStorage* owned = state_.owned->find(storage);
  if (owned == nullptr || state_.busy) {
    before_write(storage, PinReason::kAddressKnown);
    return;
  }
  releases_.apply();
  work(
      [&] {
        state_.engine->materialize(owned->value);
        state_.engine->before_free(owned->value, state_.freed->before_free(*owned));
      },
      owned);
}

std::optional<bool> Requests::is_resident(const c10::StorageImpl* storage) {
  OwnedStorage* owned = state_.owned->find(storage);
  if (owned == nullptr) return std::nullopt;
  return state_.engine->defined(owned->value);
}

std::optional<bool> Requests::evict(const c10::StorageImpl* storage) {
  OwnedStorage* owned = state_.owned->find(storage);
  if (owned == nullptr) return std::nullopt;
  if (state_.busy) return false;
  releases_.apply();
  const bool gone = state_.engine->evict_value(owned->value);
  state_.forget_dropped();
  return gone;
}

ValueId Requests::lock_for_read(const c10::StorageImpl* storage) {
  OwnedStorage* owned = state_.owned->find(storage);
  if (owned == nullptr) return kNone;
  if (state_.in_kernel && !call_.touches(storage)) call_.note_hidden_input();
  if (!state_.busy) releases_.apply();
  const ValueId value = owned->value;
  work(
      [&] {
        state_.engine->materialize(value);
        state_.engine->lock_for_read(value);
      },
      owned);
  note_read(value);
  return value;
}

void Requests::unlock_for_read(ValueId value) {
  const Busy busy(state_.busy);
  // Meanwhile the stream of the reader was given its work.
  note_read(value);
  state_.engine->unlock_for_read(value);
  state_.forget_dropped();
}

// Who reads it goes on outside of the session: the current stream waits for what it reads.
void Requests::note_read(ValueId value) {
  if (state_.order == nullptr) return;
  const StorageId id = state_.engine->records().value(value).storage;
  state_.order->before_read(state_.address_of(id), state_.nbytes_of(id));
}

// The gradient of a leaf stays: its inputs are dropped right after, so to recompute it would take the whole
// backward, and the optimizer needs all gradients at once, because it writes what they were computed from.
void Requests::pin_results(const torch::jit::Stack& stack, std::size_t first, PinReason reason) {
  for (std::size_t i = first; i < stack.size(); ++i) {
    for_tensors(stack[i], [&](const at::Tensor& tensor, std::int32_t) {
      if (!tensor.defined() || !state_.backend.is_plain(tensor)) return;
      const c10::StorageImpl* storage = storage_of(tensor);
      OwnedStorage* owned = state_.owned->find(storage);
      if (owned != nullptr) work([&] { state_.pin(owned, reason); }, owned);
    });
  }
}

void Requests::keep_for(CollectiveInFlight& collective, const torch::jit::Stack& stack, std::size_t first) {
  for (std::size_t i = first; i < stack.size(); ++i) {
    for_tensors(stack[i], [&](const at::Tensor& tensor, std::int32_t) {
      c10::StorageImpl* storage = storage_of(tensor);
      if (storage == nullptr || storage->nbytes() == 0) return;
      OwnedStorage* owned = state_.owned->find(storage);
      const bool raw = owned == nullptr && state_.owned->is_raw(*storage);
      if (owned == nullptr && !raw) return;
      releases_.pending().note_collective(storage);
      // A Work says nothing about streams. Memory that the running kernel asked for has no record yet.
      if (state_.order != nullptr || (raw && state_.busy)) {
        pin(storage, PinReason::kAddressKnown);
        return;
      }
      if (raw) {
        work([&] { owned = state_.owned->adopt_raw(storage); });
        owned->reason = PinReason::kCollective;
      }
      collective.locks.push_back(lock_for_read(storage));
      state_.engine->make_stale(collective.locks.back());
    });
  }
}

void Requests::started(CollectiveInFlight collective, Nanoseconds took) {
  state_.collectives += took;
  if (collective.works.unknown) {
    for (ValueId value : collective.locks) {
      OwnedStorage* owned = state_.owned->owner(state_.engine->records().value(value).storage);
      if (owned != nullptr) work([&] { state_.pin(owned, PinReason::kAddressKnown); }, owned);
    }
  }
  if (!collective.locks.empty()) releases_.add(std::move(collective));
  if (!state_.busy) releases_.apply();
}

void Requests::make_room(const OutOfMemory& error, const OwnedStorage* subject) {
  if (releases_.apply_late()) return;
  // A kernel, or an op that begins, knows where its tensors are.
  const bool may_spill = state_.options.spill && !state_.busy;
  if (!may_spill || !spill_resident(state_, error.at_once, subject)) raise_shortage(state_, error);
}

}  // namespace remint
