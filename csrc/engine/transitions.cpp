#include "engine/transitions.h"

namespace remint {

void Transitions::make_resident(StorageId id, BlockId block) {
  Storage& s = state_.records.storage(id);
  s.become(Residency::kResident);
  own(id, block);
  state_.tell_block(BlockChange::kMade, id);
  state_.policy->neighbourhood().materialized(id);
  if (!s.locked() && !s.pinned) join_candidates(id);
  state_.device.materialized(id);
}

void Transitions::drop_bytes(StorageId id, BlockChange why) {
  Storage& s = state_.records.storage(id);
  state_.tell_block(why, id);
  if (state_.candidates.contains(id)) leave_candidates(id);
  const bool resident = s.residency == Residency::kResident;
  // The device gets the bytes while they are still there.
  if (resident) state_.device.evicted(id);
  s.become(Residency::kEvicted);
  for (ValueId value : s.values) state_.records.value(value).defined = false;
  // A constant elsewhere is only forgotten.
  if (!resident) return;
  state_.memory->free(s.block, s.nbytes);
  s.block = kNone;
  const std::uint64_t tag = state_.records.value(s.values[0]).tag;
  if (why == BlockChange::kEvicted) {
    ++state_.statistics.num_evictions;
    state_.observers.tell(Observer::kDecisions, [&](Observer& observer) { observer.evicted(tag); });
  } else {
    ++state_.statistics.num_frees;
    state_.observers.tell(Observer::kDecisions, [&](Observer& observer) { observer.freed(tag); });
  }
}

bool Transitions::take_over(ValueId from, ValueId to, bool keep_pinned) {
  const StorageId ghost = state_.records.value(from).storage;
  const StorageId heir = state_.records.value(to).storage;
  Storage& g = state_.records.storage(ghost);
  Storage& h = state_.records.storage(heir);
  const bool pinned = g.pinned;
  state_.tell_block(BlockChange::kGhost, ghost);
  if (state_.candidates.contains(ghost)) leave_candidates(ghost);
  h.become(g.residency);
  h.block = g.block;
  h.constant = g.constant && keep_pinned;
  h.fixed = g.fixed;
  g.become(Residency::kEvicted);
  g.block = kNone;
  g.constant = false;
  if (h.block != kNone) state_.memory->own(h.block, heir);
  if (pinned) {
    g.pinned = false;
    state_.pinned_bytes -= g.nbytes;
  }
  if (g.read_locks > 0) follow_read_locks(ghost, heir);
  for (ValueId value : g.values) state_.records.value(value).defined = false;
  state_.tell_block(BlockChange::kMade, heir);
  state_.policy->neighbourhood().materialized(heir);
  state_.policy->neighbourhood().evicted(ghost);
  const bool pins = pinned && keep_pinned;
  if (pins) {
    mark_pinned(heir);
  } else if (!h.locked()) {
    join_candidates(heir);
  }
  state_.device.materialized(heir);
  return pins;
}

// Readers outside of all ops go on reading the same bytes.
void Transitions::follow_read_locks(StorageId ghost, StorageId heir) {
  for (ReadLock& lock : state_.read_locks) {
    if (lock.bytes != ghost) continue;
    lock.bytes = heir;
    ++state_.records.storage(heir).read_locks;
    // The record that the reader's ValueId names stays locked as well.
    if (state_.records.value(lock.value).storage != ghost) --state_.records.storage(ghost).read_locks;
  }
}

bool Transitions::mark_pinned(StorageId id) {
  Storage& s = state_.records.storage(id);
  if (s.pinned) return false;
  if (state_.candidates.contains(id)) leave_candidates(id);
  s.pinned = true;
  state_.pinned_bytes += s.nbytes;
  state_.tell_block(BlockChange::kPinned, id);
  return true;
}

}  // namespace remint
