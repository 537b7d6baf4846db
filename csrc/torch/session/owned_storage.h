// A tensor storage whose bytes a session manages. The context of its DataPtr is an OwnedStorage, so that the
// deleter can tell the session that the program dropped its last tensor on it.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "base/types.h"

namespace remint {

class Session;
struct Operator;

// Why a storage is pinned, as far as the session itself decided it.
enum class PinReason : std::uint8_t {
  kNone,
  kNoRecipe,
  kParameter,
  kGradient,
  kAddressKnown,
  kCollective,
  kAsked,
  kAsleep
};

struct OwnedStorage {
  std::shared_ptr<Session> session;
  ValueId value = kNone;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  const c10::StorageImpl* key = nullptr;  // the same, to compare with
  const Operator* made_by = nullptr;
  PinReason reason = PinReason::kNone;
  bool used_for_gradients = false;  // autograd recorded an op on it
};

// The deleters of DataPtrs: of owned storages, and of all other memory in an arena.
void owned_deleter(void* owned);
void raw_deleter(void* address);
// Frees memory in an arena, of a budget that is open or has ended. False: it is in none.
bool free_in_arena(void* address);

}  // namespace remint
