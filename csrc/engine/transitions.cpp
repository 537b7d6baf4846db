#include "engine/transitions.h"

namespace remint {

void Transitions::make_resident(StorageId id, BlockId block) {
  Storage& s = state_.records.storage(id);
  s.become(Residency::kResident);
  own(id, block);
  state_.tell_block(BlockChange::kMade, id);
  state_.policy->neighbourhood().materialized(id);
  if (!s.locked() && state_.may_leave(s)) join_candidates(id);
  state_.device.materialized(id);
}

void Transitions::drop_bytes(StorageId id, BlockChange why) {
  Storage& s = state_.records.storage(id);
  state_.tell_block(why, id);
  if (state_.candidates.contains(id)) leave_candidates(id);
  make_stale(id);
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
  make_stale(ghost);
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
  if (pinned) unmark_pinned(ghost);
  if (g.read_locks > 0) follow_read_locks(ghost, heir);
  for (ValueId value : g.values) state_.records.value(value).defined = false;
  state_.tell_block(BlockChange::kMade, heir);
  state_.policy->neighbourhood().materialized(heir);
  state_.policy->neighbourhood().evicted(ghost);
  const bool pins = pinned && keep_pinned;
  if (pins) {
    mark_pinned(heir);
  } else if (!h.locked() && state_.may_leave(h)) {
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
  if (s.fixed) state_.fixed_bytes += s.nbytes;
  if (!s.locked() && state_.may_leave(s)) join_candidates(id);
  state_.tell_block(BlockChange::kPinned, id);
  return true;
}

void Transitions::unmark_pinned(StorageId id) {
  Storage& s = state_.records.storage(id);
  s.pinned = false;
  state_.pinned_bytes -= s.nbytes;
  if (s.fixed) state_.fixed_bytes -= s.nbytes;
}

void Transitions::mark_fixed(StorageId id) {
  Storage& s = state_.records.storage(id);
  s.fixed = true;
  if (!s.pinned) return;
  state_.fixed_bytes += s.nbytes;
  // Whoever knows the address may write there.
  make_stale(id);
  if (state_.candidates.contains(id)) leave_candidates(id);
}

bool Transitions::offload(StorageId id) {
  Storage& s = state_.records.storage(id);
  Tier& tier = *state_.tier;
  const bool clean = s.residency == Residency::kResidentWithCopy;
  if (!clean) {
    for (StorageId other; (other = tier.in_the_way_of(s.nbytes)) != kNone;) drop_copy(other);
    if (!state_.device.offload(id)) {
      tier.stop_growing();
      return false;
    }
    s.become(Residency::kResidentWithCopy);
    tier.copied(id);
    transferred(s.nbytes);
    state_.statistics.offloaded_bytes += s.nbytes;
  }
  state_.tell_block(BlockChange::kOffloaded, id);
  if (state_.candidates.contains(id)) leave_candidates(id);
  state_.device.evicted(id);
  s.become(Residency::kOffloaded);
  tier.left(id);
  for (ValueId v : s.values) {
    Value& value = state_.records.value(v);
    value.offloaded = value.defined;
    value.defined = false;
  }
  state_.memory->free(s.block, s.nbytes);
  s.block = kNone;
  state_.policy->neighbourhood().offloaded(id);
  ++(clean ? state_.statistics.num_clean_offloads : state_.statistics.num_offloads);
  state_.observers.tell(Observer::kDecisions,
                        [&](Observer& observer) { observer.offloaded(state_.root_tag(id)); });
  return true;
}

void Transitions::fetched(StorageId id, BlockId block) {
  Storage& s = state_.records.storage(id);
  s.become(Residency::kResidentWithCopy);
  state_.tier->came_back(id);
  own(id, block);
  for (ValueId v : s.values) {
    Value& value = state_.records.value(v);
    value.defined = value.offloaded;
    value.offloaded = false;
  }
  transferred(s.nbytes);
  state_.statistics.fetched_bytes += s.nbytes;
  ++state_.statistics.num_fetches;
  state_.tell_block(BlockChange::kFetched, id);
  state_.policy->neighbourhood().fetched(id);
  if (!s.locked() && state_.may_leave(s)) join_candidates(id);
  state_.device.materialized(id);
  state_.observers.tell(Observer::kDecisions,
                        [&](Observer& observer) { observer.fetched(state_.root_tag(id)); });
}

void Transitions::drop_copy(StorageId id) {
  Storage& s = state_.records.storage(id);
  state_.tier->drop(id);
  state_.device.dropped_copy(id);
  if (s.residency == Residency::kOffloaded) {
    state_.tell_block(BlockChange::kEvicted, id);
    s.become(Residency::kEvicted);
    for (ValueId value : s.values) state_.records.value(value).offloaded = false;
  } else {
    s.become(Residency::kResident);
    state_.policy->touched(id);
  }
}

void Transitions::abandon_copies() {
  Tier& tier = *state_.tier;
  for (StorageId id; (id = tier.any_clean()) != kNone;) drop_copy(id);
  tier.stop_growing();
}

// The program waits for each transfer.
void Transitions::transferred(Bytes nbytes) {
  const Nanoseconds took = state_.tier->transfer_time(nbytes);
  state_.clock += took;
  state_.statistics.transferring += took;
}

}  // namespace remint
