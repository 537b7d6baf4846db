#include "engine/lifetimes.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

namespace remint {

void Lifetimes::after_unlock(StorageId id) {
  Storage& s = state_.records.storage(id);
  if (s.references > 0) return;
  const bool late = s.released_while_locked;
  s.released_while_locked = false;
  if (state_.deallocation == Deallocation::kBanish ||
      (!state_.settings.reference && (late || state_.records.dead(id)))) {
    on_last_release(id);
  } else {
    evict_if_idle(id);
  }
}

// A released value that was rematerialized for another one goes as soon as nothing waits for it. Otherwise it
// would look as if the program had just used it.
void Lifetimes::evict_if_idle(StorageId id) {
  const Storage& s = state_.records.storage(id);
  const bool lazy = state_.deallocation == Deallocation::kLazy;
  if (state_.settings.reference || (!lazy && state_.deallocation != Deallocation::kEager)) return;
  if (s.references > 0 || s.locked() || !s.has_bytes() || s.pinned) return;
  if (lazy) {
    if (state_.policy->is_useless(id)) evict(id);
    return;
  }
  for (ValueId value : s.values) {
    for (const Value::Reader& reader : state_.records.value(value).readers) {
      for (ValueId output : state_.records.op(reader.op).outputs) {
        if (output == kNone || state_.records.value(output).storage == id) continue;
        if (!state_.records.value(output).is_kept()) return;
      }
    }
  }
  evict(id, BlockChange::kReleased);
}

void Lifetimes::evict(StorageId id, BlockChange why) {
  if (state_.tier != nullptr && why == BlockChange::kEvicted) {
    if (state_.policy->offloads(id) && transitions_.offload(id)) return;
    // Others took the room that there was when it was chosen: it stays.
    if (state_.records.storage(id).pinned) return;
  }
  transitions_.drop_bytes(id, why);
  state_.policy->neighbourhood().evicted(id);
  if (!state_.settings.reference) collect(id);
}

bool Lifetimes::evict_value(ValueId value) {
  const StorageId id = state_.records.value(value).storage;
  if (!state_.candidates.contains(id)) return !state_.records.storage(id).has_bytes();
  if (!state_.policy->can_leave(id)) return false;
  evict(id);
  return !state_.records.storage(id).has_bytes();
}

void Lifetimes::evict_released() {
  std::vector<StorageId> released;
  for (StorageId id : state_.candidates.ids()) {
    const Storage& s = state_.records.storage(id);
    if (s.references == 0 && !s.pinned) released.push_back(id);
  }
  for (StorageId id : released) {
    // Evicting one can free another for good.
    if (state_.records.storage(id).in_use() && state_.candidates.contains(id))
      evict(id, BlockChange::kReleased);
  }
}

void Lifetimes::evict_all() {
  std::vector<StorageId> candidates;
  for (StorageId id = 0; id < state_.records.num_storage_slots(); ++id) {
    if (state_.records.storage(id).in_use() && state_.candidates.contains(id)) candidates.push_back(id);
  }
  for (StorageId id : candidates) {
    if (!state_.records.storage(id).in_use() || !state_.candidates.contains(id)) continue;
    if (state_.policy->can_leave(id)) evict(id);
  }
}

// The program has no reference to the storage any more.
void Lifetimes::on_last_release(StorageId id) {
  Storage& s = state_.records.storage(id);
  const bool reference = state_.settings.reference;
  if (s.locked()) {
    s.released_while_locked = true;
    return;
  }
  switch (state_.deallocation) {
    case Deallocation::kIgnore:
      if (!reference && !s.has_bytes()) collect(id);
      return;
    case Deallocation::kLazy:
    case Deallocation::kEager:
      if (!reference && state_.records.dead(id)) {
        collect(id);
      } else if (s.has_bytes() && !s.pinned) {
        if (state_.deallocation == Deallocation::kEager) {
          evict(id, BlockChange::kReleased);
        } else {
          evict_if_idle(id);
        }
      } else if (!s.has_bytes() && !s.pinned) {
        state_.tell_block(BlockChange::kReleased, id);
        if (s.residency == Residency::kOffloaded) recompute_instead(id);
      } else if (!reference && s.pinned && s.nbytes > 0) {
        if (s.due_back == DueBack::kNo) {
          retire_storage(id, s.nbytes);
        } else {
          due_back_.push_back(id);
        }
      }
      return;
    case Deallocation::kBanish:
      if (!reference && state_.records.dead(id)) {
        collect(id);
      } else {
        banish(id);
      }
      return;
  }
}

void Lifetimes::collect(StorageId id) {
  std::vector<StorageId> dead = std::move(collecting_);
  dead.assign(1, id);
  while (!dead.empty()) {
    const StorageId at = dead.back();
    dead.pop_back();
    const Storage& s = state_.records.storage(at);
    if (!s.in_use() || s.residency == Residency::kCached || s.locked() || !state_.records.dead(at)) continue;
    // Where the caller has a table of constants elsewhere, this one is used again soon.
    if (s.residency == Residency::kElsewhere && s.constant && state_.records.notes_dropped()) {
      state_.tell_block(BlockChange::kDropped, at);
      state_.records.cache_constant(at);
      continue;
    }
    if (s.has_bytes() && state_.deallocation == Deallocation::kIgnore) continue;
    if (!s.has_bytes()) state_.tell_block(BlockChange::kDropped, at);
    drop_bytes_for_good(at);
    state_.policy->neighbourhood().dropping(at);
    state_.policy->touched(at);
    state_.records.drop(at, dead);
  }
  collecting_ = std::move(dead);
}

// From memory, and from the tier.
void Lifetimes::drop_bytes_for_good(StorageId id) {
  const Storage& s = state_.records.storage(id);
  if (s.pinned) transitions_.unmark_pinned(id);
  if (s.residency == Residency::kOffloaded) transitions_.drop_copy(id);
  if (s.has_bytes()) transitions_.drop_bytes(id, BlockChange::kDropped);
}

// An offloaded value that a recipe can make, and that only recipes need, takes no room in the tier.
void Lifetimes::recompute_instead(StorageId id) {
  transitions_.drop_copy(id);
  state_.policy->neighbourhood().evicted(id);
}

void Lifetimes::pin_storage(StorageId id) {
  if (!transitions_.mark_pinned(id) || state_.settings.reference) return;
  forget_recipe(state_.records.storage(id).values[0]);
}

void Lifetimes::forget_recipe(ValueId value) {
  if (state_.records.value(value).op == kNone) return;
  state_.policy->neighbourhood().dropping(state_.records.value(value).storage);
  std::vector<StorageId> orphans;
  state_.records.drop_recipe(value, orphans);
  for (StorageId orphan : orphans) collect(orphan);
}

void Lifetimes::take_over(ValueId from, ValueId to, bool keep_pinned) {
  if (transitions_.take_over(from, to, keep_pinned)) forget_recipe(state_.storage_of(to).values[0]);
}

std::vector<StorageId> Lifetimes::referenced_descendants(const std::vector<StorageId>& ids) {
  std::vector<StorageId> referenced;
  std::vector<StorageId> walk = ids;
  std::unordered_set<StorageId> seen(walk.begin(), walk.end());
  while (!walk.empty()) {
    const StorageId at = walk.back();
    walk.pop_back();
    state_.records.for_children(at, [&](StorageId child) {
      if (!seen.insert(child).second) return;
      (state_.records.storage(child).references > 0 ? referenced : walk).push_back(child);
    });
  }
  return referenced;
}

StorageId Lifetimes::last_descendant(StorageId id) {
  StorageId last = kNone;
  std::vector<StorageId> walk(1, id);
  std::unordered_set<StorageId> seen(walk.begin(), walk.end());
  while (!walk.empty()) {
    const StorageId at = walk.back();
    walk.pop_back();
    state_.records.for_children(at, [&](StorageId child) {
      if (!seen.insert(child).second) return;
      walk.push_back(child);
      if (state_.records.storage(child).references == 0) return;
      if (last == kNone || state_.root_tag(child) > state_.root_tag(last)) last = child;
    });
  }
  return last;
}

bool Lifetimes::depends_on_away(ValueId value) {
  std::vector<StorageId> walk(1, state_.records.value(value).storage);
  std::unordered_set<StorageId> seen(walk.begin(), walk.end());
  bool found = false;
  while (!walk.empty() && !found) {
    const StorageId at = walk.back();
    walk.pop_back();
    state_.records.for_parents(at, [&](StorageId parent) {
      const Storage& s = state_.records.storage(parent);
      found = found || s.due_back != DueBack::kNo;
      if (!s.pinned && seen.insert(parent).second) walk.push_back(parent);
    });
  }
  return found;
}

bool Lifetimes::drop_due_back(DueBack at_least) {
  for (std::size_t i = 0; i < due_back_.size();) {
    const StorageId id = due_back_[i];
    const Storage& s = state_.records.storage(id);
    const bool waits =
        s.in_use() && s.due_back != DueBack::kNo && s.pinned && s.has_bytes() && s.references == 0;
    const bool drops = waits && s.due_back >= at_least && !s.locked();
    if (!waits || drops) due_back_.erase(due_back_.begin() + static_cast<std::ptrdiff_t>(i));
    if (drops) {
      transitions_.unmark_pinned(id);
      transitions_.drop_bytes(id, BlockChange::kReleased);
      state_.policy->neighbourhood().evicted(id);
      return true;
    }
    if (waits) ++i;
  }
  return false;
}

void Lifetimes::retire_storage(StorageId id, Bytes nbytes) {
  put_back({id, nbytes, state_.statistics.num_ops + kFirstReview, kFirstReview});
}

void Lifetimes::put_back(Retired entry) {
  if (retired_.empty() || entry.due < next_review_) next_review_ = entry.due;
  retired_.push_back(entry);
}

std::vector<Retired> Lifetimes::take_retired() {
  std::vector<Retired> retired;
  retired.swap(retired_);
  next_review_ = std::numeric_limits<std::uint64_t>::max();
  return retired;
}

bool Lifetimes::still_retired(const Retired& entry) const {
  const Storage& s = state_.records.storage(entry.storage);
  return s.in_use() && s.pinned && s.references == 0 && s.readers > 0;
}

// Frees `id` for good if the program has no reference to it and nothing evicted depends on it. Its children
// cannot be recomputed then, so they are pinned; its parents may follow it.
void Lifetimes::banish(StorageId id) {
  std::vector<StorageId> candidates(1, id);
  while (!candidates.empty()) {
    const StorageId at = candidates.back();
    candidates.pop_back();
    const Storage& s = state_.records.storage(at);
    if (!s.in_use() || s.references > 0 || s.constant || s.locked() || s.values.empty()) continue;
    bool needed = false;
    std::vector<StorageId> children;
    // Per value: a view of what is resident may have to be recomputed, too.
    for (ValueId v : s.values) {
      for (const Value::Reader& reader : state_.records.value(v).readers) {
        for (ValueId output : state_.records.op(reader.op).outputs) {
          if (output == kNone || state_.records.value(output).storage == at) continue;
          if (!state_.records.value(output).is_kept()) needed = true;
          children.push_back(state_.records.value(output).storage);
        }
      }
    }
    if (needed) continue;
    std::vector<StorageId> parents;
    state_.records.for_parents(at, [&](StorageId parent) {
      if (parent != at) parents.push_back(parent);
    });
    drop_bytes_for_good(at);
    state_.policy->neighbourhood().dropping(at);
    state_.policy->touched(at);
    state_.records.drop_readers(at);
    for (StorageId child : children) {
      if (state_.records.storage(child).in_use()) pin_storage(child);
    }
    std::vector<StorageId> orphans;
    state_.records.drop(at, orphans);
    candidates.insert(candidates.end(), parents.begin(), parents.end());
  }
}

}  // namespace remint
