// Transitions: bytes come and go. Each function changes the residency or the locks of one storage, and with
// them the candidates, the policy's view, and what observers and the device are told.
#pragma once

#include <cassert>

#include "engine/state.h"

namespace remint {

class Transitions {
 public:
  explicit Transitions(EngineState& state) : state_(state) {}

  void lock(StorageId id) {
    if (state_.records.storage(id).locks++ == 0 && state_.candidates.contains(id)) leave_candidates(id);
  }
  // True if nothing locks it any more.
  bool unlock(StorageId id) {
    Storage& s = state_.records.storage(id);
    assert(s.locks > 0);
    --s.locks;
    return unlocked(id);
  }
  void lock_for_read(StorageId id) {
    if (state_.records.storage(id).read_locks++ == 0 && state_.candidates.contains(id)) leave_candidates(id);
  }
  bool unlock_for_read(StorageId id) {
    Storage& s = state_.records.storage(id);
    assert(s.read_locks > 0);
    --s.read_locks;
    return unlocked(id, true);
  }

  void access(StorageId id) {
    state_.records.storage(id).last = state_.clock;
    state_.policy->touched(id);
  }

  // The bytes are in `block`, which the innermost op asked for, or a raw one.
  void own(StorageId id, BlockId block) {
    Storage& s = state_.records.storage(id);
    s.block = block;
    if (block == kNone) return;
    state_.memory->own(block, id);
    state_.running.innermost().forget(block);
  }

  // The storage gets bytes: an op made them, in `block` (kNone: ideal memory).
  void make_resident(StorageId id, BlockId block);
  // The bytes leave for the tier. False: the device could not copy them, and they stay.
  bool offload(StorageId id);
  // They came back, in `block`.
  void fetched(StorageId id, BlockId block);
  // The tier's copy is given up: it is stale, or needed no more. An offloaded storage is evicted then.
  void drop_copy(StorageId id);
  void abandon_copies();
  // The bytes are about to be written.
  void make_stale(StorageId id) {
    if (state_.records.storage(id).residency == Residency::kResidentWithCopy) drop_copy(id);
  }
  // The bytes are freed.
  void drop_bytes(StorageId id, BlockChange why);
  // The bytes of `from` become those of `to`; `from` is a ghost from now on. With `keep_pinned`, bytes that
  // could not be recomputed still cannot: true if `to` was pinned.
  bool take_over(ValueId from, ValueId to, bool keep_pinned);
  // The storage is never evicted from now on; false if it was pinned before.
  bool mark_pinned(StorageId id);
  // It is no candidate any more, if it was one.
  void leave(StorageId id) {
    if (state_.candidates.contains(id)) leave_candidates(id);
  }
  void unmark_pinned(StorageId id);
  // Its address is known elsewhere: it is neither moved nor offloaded from now on.
  void mark_fixed(StorageId id);

 private:
  // A read from outside is no use by the program: it does not make a value look younger.
  bool unlocked(StorageId id, bool keeps_order = false) {
    const Storage& s = state_.records.storage(id);
    if (s.locked()) return false;
    if (state_.may_leave(s) && !state_.candidates.contains(id)) {
      keeps_order ? state_.candidates.put_back(id) : state_.candidates.add(id);
      state_.policy->touched(id);
      state_.tell_candidate(id);
    }
    return true;
  }
  void join_candidates(StorageId id) {
    state_.candidates.add(id);
    state_.policy->touched(id);
    state_.tell_candidate(id);
  }
  void leave_candidates(StorageId id) {
    state_.candidates.remove(id);
    state_.policy->touched(id);
  }
  void transferred(Bytes nbytes);
  void follow_read_locks(StorageId ghost, StorageId heir);

  EngineState& state_;
};

}  // namespace remint
