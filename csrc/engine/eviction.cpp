// Bytes come and go: locks, the pool, blocks, and what happens when the program lets go. room.cpp makes room.
#include <algorithm>
#include <cassert>
#include <unordered_set>

#include "engine/engine.h"

namespace remint {

void Engine::lock(StorageId id) {
  if (records_.storage(id).locks++ == 0 && pool_.contains(id)) leave_pool(id);
}

void Engine::unlock(StorageId id) {
  Storage& s = records_.storage(id);
  assert(s.locks > 0);
  if (--s.locks > 0) return;
  if (s.resident && !s.pinned) join_pool(id);
  if (s.references > 0) return;
  const bool late = s.let_go_late;
  s.let_go_late = false;
  if (options_.deallocation == Deallocation::kBanish ||
      (!options_.reference && (late || records_.dead(id)))) {
    let_go(id);
  } else {
    evict_if_idle(id);
  }
}

// What was made again on the way to something else goes as soon as nothing waits for it, as it went when the
// program let go of it: otherwise it would look as if it had just been used.
void Engine::evict_if_idle(StorageId id) {
  const Storage& s = records_.storage(id);
  if (options_.reference || options_.deallocation != Deallocation::kEager) return;
  if (s.references > 0 || s.locks > 0 || !s.resident || s.pinned) return;
  bool waited_for = false;
  for (ValueId value : s.values) {
    for (const Value::Reader& reader : records_.value(value).readers) {
      for (ValueId output : records_.op(reader.op).outputs) {
        if (output != kNone && records_.value(output).storage != id && !defined(output)) waited_for = true;
      }
    }
  }
  if (!waited_for) evict(id, BlockChange::kLetGo);
}

void Engine::join_pool(StorageId id) {
  pool_.add(id);
  candidate_bytes_ += memory_->footprint(records_.storage(id).nbytes);
  policy_->touched(id);
}

void Engine::leave_pool(StorageId id) {
  pool_.remove(id);
  candidate_bytes_ -= memory_->footprint(records_.storage(id).nbytes);
  policy_->touched(id);
}

void Engine::access(StorageId id) {
  records_.storage(id).last = clock_;
  policy_->touched(id);
}

void Engine::make_resident(StorageId id, BlockId block) {
  Storage& s = records_.storage(id);
  s.resident = true;
  s.block = block;
  if (block != kNone) {
    memory_->own(block, id);
    forget_running(block);
  }
  note_block(BlockChange::kMade, id);
  policy_->neighbourhood().materialized(id);
  if (s.locks == 0 && !s.pinned) join_pool(id);
  device_.materialized(id);
}

// The bytes of `from` become those of `to`; `from` is a ghost from now on.
void Engine::take_over(ValueId from, ValueId to, bool keep_pinned) {
  const StorageId ghost = records_.value(from).storage;
  const StorageId heir = records_.value(to).storage;
  Storage& g = records_.storage(ghost);
  Storage& h = records_.storage(heir);
  const bool pinned = g.pinned;
  note_block(BlockChange::kGhost, ghost);
  if (pool_.contains(ghost)) leave_pool(ghost);
  h.block = g.block;
  h.resident = true;
  h.constant = g.constant && keep_pinned;
  h.fixed = g.fixed;
  g.constant = false;
  if (h.block != kNone) memory_->own(h.block, heir);
  g.block = kNone;
  g.resident = false;
  if (pinned) {
    g.pinned = false;
    pinned_bytes_ -= g.nbytes;
  }
  for (ValueId value : g.values) records_.value(value).defined = false;
  note_block(BlockChange::kMade, heir);
  policy_->neighbourhood().materialized(heir);
  policy_->neighbourhood().evicted(ghost);
  // What could not be made again still cannot.
  if (pinned && keep_pinned) {
    pin_storage(heir);
  } else if (h.locks == 0) {
    join_pool(heir);
  }
  device_.materialized(heir);
}

BlockId Engine::allocate(Bytes nbytes) {
  BlockId block = memory_->allocate(nbytes, end_);
  while (block == kNone) {
    make_room_for(nbytes);
    block = memory_->allocate(nbytes, end_);
  }
  running_.emplace_back(block, nbytes);
  note_need();
  note_running(BlockChange::kTaken, block, nbytes);
  return block;
}

void Engine::free(BlockId block) {
  auto taken = std::find_if(running_.rbegin(), running_.rend(),
                            [&](const std::pair<BlockId, Bytes>& entry) { return entry.first == block; });
  assert(taken != running_.rend());
  note_running(BlockChange::kGiven, block, taken->second);
  memory_->free(block, taken->second);
  running_.erase(std::next(taken).base());
}

BlockId Engine::allocate_kept(Bytes nbytes) {
  end_ = options_.partition ? End::kHigh : End::kLow;
  BlockId block = kNone;
  run_with_room([&] { block = allocate(nbytes); });
  keep(block);
  return block;
}

void Engine::keep(BlockId block) {
  forget_running(block);
}

void Engine::free_kept(BlockId block, Bytes nbytes) {
  note_running(BlockChange::kGiven, block, nbytes);
  memory_->free(block, nbytes);
}

void Engine::forget_running(BlockId block) {
  running_.erase(std::remove_if(running_.begin(), running_.end(),
                                [&](const std::pair<BlockId, Bytes>& taken) { return taken.first == block; }),
                 running_.end());
}

void Engine::free_running_blocks() {
  for (const auto& [block, nbytes] : running_) {
    note_running(BlockChange::kGiven, block, nbytes);
    memory_->free(block, nbytes);
  }
  running_.clear();
}

void Engine::drop_bytes(StorageId id, BlockChange why) {
  Storage& s = records_.storage(id);
  note_block(why, id);
  if (pool_.contains(id)) leave_pool(id);
  s.resident = false;
  for (ValueId value : s.values) records_.value(value).defined = false;
  // A constant elsewhere is only forgotten.
  if (s.block == kNone && !options_.reference) return;
  memory_->free(s.block, s.nbytes);
  s.block = kNone;
  ++statistics_.num_evictions;
  note('E', records_.value(s.values[0]).tag);
  device_.evicted(id);
}

void Engine::evict(StorageId id, BlockChange why) {
  drop_bytes(id, why);
  policy_->neighbourhood().evicted(id);
  if (!options_.reference) collect(id);
}

void Engine::release(ValueId value) {
  const StorageId id = records_.value(value).storage;
  Storage& s = records_.storage(id);
  assert(s.references > 0);
  if (--s.references == 0) let_go(id);
}

// The program holds the storage no more.
void Engine::let_go(StorageId id) {
  Storage& s = records_.storage(id);
  if (s.locks > 0) {
    s.let_go_late = true;
    return;
  }
  switch (options_.deallocation) {
    case Deallocation::kIgnore:
      if (!options_.reference && !s.resident) collect(id);
      return;
    case Deallocation::kEager:
      if (!options_.reference && records_.dead(id)) {
        collect(id);
      } else if (s.resident && !s.pinned) {
        evict(id, BlockChange::kLetGo);
      } else if (!s.resident) {
        note_block(BlockChange::kLetGo, id);
      } else if (!options_.reference && s.pinned && s.nbytes > 0) {
        retire_storage(id, s.nbytes);
      }
      return;
    case Deallocation::kBanish:
      if (!options_.reference && records_.dead(id)) {
        collect(id);
      } else {
        try_banish(id);
      }
      return;
  }
}

// Drops the record of `id`, and of everything that was kept only for it, if nothing can need them any more.
void Engine::collect(StorageId id) {
  std::vector<StorageId> dead = std::move(collecting_);
  dead.assign(1, id);
  while (!dead.empty()) {
    const StorageId at = dead.back();
    dead.pop_back();
    const Storage& s = records_.storage(at);
    if (!s.in_use || s.resting || s.locks > 0 || !records_.dead(at)) continue;
    // A constant elsewhere: where its caller lists it, it is used again soon.
    if (s.constant && s.block == kNone && records_.notes_dropped()) {
      note_block(BlockChange::kDropped, at);
      records_.rest(at);
      continue;
    }
    if (s.resident) {
      if (options_.deallocation == Deallocation::kIgnore) continue;
      if (s.pinned) pinned_bytes_ -= s.nbytes;
      drop_bytes(at, BlockChange::kDropped);
    } else {
      note_block(BlockChange::kDropped, at);
    }
    policy_->neighbourhood().dropping(at);
    policy_->touched(at);
    records_.drop(at, dead);
  }
  collecting_ = std::move(dead);
}

void Engine::materialize(ValueId value) {
  if (defined(value)) return;
  acquire({value}, 0, 0);
  abandon();
}

void Engine::pin(ValueId value) {
  if (options_.reference) {
    if (!defined(value)) {
      Frame frame;
      frame.op = records_.value(value).op;
      frame.target = value;
      frames_.push_back(frame);
      drive();
    }
    pin_storage(records_.value(value).storage);
    return;
  }
  // Locked, so that what nobody holds is not dropped between the two.
  acquire({value}, 0, 0);
  pin_storage(records_.value(value).storage);
  abandon();
}

void Engine::pin_storage(StorageId id) {
  Storage& s = records_.storage(id);
  if (s.pinned) return;
  if (pool_.contains(id)) leave_pool(id);
  s.pinned = true;
  pinned_bytes_ += s.nbytes;
  note_block(BlockChange::kPinned, id);
  if (options_.reference) return;
  // Pinned bytes are never made again, so what was kept to make them need not be.
  // Its views are still made from it.
  forget_recipe(s.values[0]);
}

void Engine::forget_recipe(ValueId value) {
  if (records_.value(value).op == kNone) return;
  policy_->neighbourhood().dropping(records_.value(value).storage);
  std::vector<StorageId> orphans;
  records_.drop_recipe(value, orphans);
  for (StorageId orphan : orphans) collect(orphan);
}

// What the program holds and whose recipe leads to `id`, without those behind another one that is held. Once
// these are pinned, nothing reads `id` any more: what the program does not hold is kept only for what it
// does.
std::vector<StorageId> Engine::held_descendants(StorageId id) {
  std::vector<StorageId> held;
  std::vector<StorageId> walk(1, id);
  std::unordered_set<StorageId> seen(walk.begin(), walk.end());
  while (!walk.empty()) {
    const StorageId at = walk.back();
    walk.pop_back();
    records_.for_children(at, [&](StorageId child) {
      if (!seen.insert(child).second) return;
      (records_.storage(child).references > 0 ? held : walk).push_back(child);
    });
  }
  return held;
}

// Bytes that cannot be made again are about to be overwritten. What was computed from them must not be
// computed again from what comes after: what is evicted is made now, and all of it is pinned.
void Engine::before_write(ValueId value) {
  const StorageId id = records_.value(value).storage;
  if (!records_.storage(id).pinned || records_.storage(id).readers == 0) return;
  // Where releases count, pinning what is held lets go of all that lies between.
  if (options_.deallocation == Deallocation::kEager) {
    for (StorageId held : held_descendants(id)) {
      if (records_.storage(held).in_use) pin(records_.storage(held).values[0]);
    }
    if (!records_.storage(id).in_use) return;
  }
  // What reads it still is pinned itself: views, which have recipes of their own, or what nothing let go of.
  std::vector<std::pair<ValueId, StorageId>> made;
  for (ValueId v : records_.storage(id).values) {
    for (const Value::Reader& reader : records_.value(v).readers) {
      for (ValueId output : records_.op(reader.op).outputs) {
        if (output != kNone && records_.value(output).storage != id) {
          made.emplace_back(output, records_.value(output).storage);
        }
      }
    }
  }
  for (const auto& [output, storage] : made) {
    // Pinning one can be the end of another that was kept only for it, or of itself.
    auto kept = [&] { return records_.storage(storage).in_use && records_.value(output).storage == storage; };
    if (kept()) pin(output);
    if (kept()) forget_recipe(output);
  }
}

void Engine::retire_storage(StorageId id, Bytes nbytes) {
  // In the middle of a step nearly everything was computed from it; what is left of that some ops later
  // counts.
  constexpr std::uint64_t kWait = 64;
  const std::uint64_t due = statistics_.num_ops + kWait;
  if (retired_.empty() || due < next_settled_) next_settled_ = due;
  retired_.push_back({id, nbytes, due, kWait});
}

// Constants that only recipes still need: pins what was made from them instead, where that takes no more
// bytes. So a gradient does not stay for the sake of the optimizer state that it went into.
void Engine::settle() {
  std::vector<Retired> retired;
  retired.swap(retired_);
  next_settled_ = std::numeric_limits<std::uint64_t>::max();
  for (Retired& entry : retired) {
    const Storage& s = records_.storage(entry.storage);
    if (!s.in_use || !s.pinned || s.references > 0 || s.readers == 0) continue;
    if (entry.due <= statistics_.num_ops) {
      const std::vector<StorageId> held = held_descendants(entry.storage);
      Bytes instead = 0;
      for (StorageId descendant : held) {
        if (!records_.storage(descendant).pinned) instead += records_.storage(descendant).nbytes;
      }
      if (instead <= entry.nbytes) {
        for (StorageId descendant : held) {
          if (records_.storage(descendant).in_use) pin(records_.storage(descendant).values[0]);
        }
        continue;
      }
      entry.wait *= 2;
      entry.due = statistics_.num_ops + entry.wait;
    }
    next_settled_ = std::min(next_settled_, entry.due);
    retired_.push_back(entry);
  }
}

bool Engine::evict_value(ValueId value) {
  const StorageId id = records_.value(value).storage;
  if (!pool_.contains(id)) return !records_.storage(id).resident;
  evict(id);
  return true;
}

void Engine::move_out(ValueId value) {
  const StorageId id = records_.value(value).storage;
  pin_storage(id);
  Storage& s = records_.storage(id);
  note_block(BlockChange::kDropped, id);
  memory_->free(s.block, s.nbytes);
  pinned_bytes_ -= s.nbytes;
  s.block = kNone;
  s.nbytes = 0;
  s.constant = true;
}

void Engine::evict_all() {
  std::vector<StorageId> candidates;
  for (StorageId id = 0; id < records_.num_storage_slots(); ++id) {
    if (records_.storage(id).in_use && pool_.contains(id)) candidates.push_back(id);
  }
  for (StorageId id : candidates) {
    if (records_.storage(id).in_use && pool_.contains(id)) evict(id);
  }
}

// Frees `id` for good if the program does not hold it and nothing evicted depends on it. Its children cannot
// be made again then, so they are pinned; its parents may follow it.
void Engine::try_banish(StorageId id) {
  std::vector<StorageId> candidates(1, id);
  while (!candidates.empty()) {
    const StorageId at = candidates.back();
    candidates.pop_back();
    const Storage& s = records_.storage(at);
    if (!s.in_use || s.references > 0 || s.constant || s.locks > 0 || s.values.empty()) continue;
    bool needed = false;
    std::vector<StorageId> children;
    // Per value: a view of what is resident may have to be made again, too.
    for (ValueId v : s.values) {
      for (const Value::Reader& reader : records_.value(v).readers) {
        for (ValueId output : records_.op(reader.op).outputs) {
          if (output == kNone || records_.value(output).storage == at) continue;
          if (!defined(output)) needed = true;
          children.push_back(records_.value(output).storage);
        }
      }
    }
    if (needed) continue;
    std::vector<StorageId> parents;
    records_.for_parents(at, [&](StorageId parent) {
      if (parent != at) parents.push_back(parent);
    });
    if (s.pinned) pinned_bytes_ -= s.nbytes;
    if (s.resident) drop_bytes(at, BlockChange::kDropped);
    policy_->neighbourhood().dropping(at);
    policy_->touched(at);
    records_.drop_readers(at);
    for (StorageId child : children) {
      if (records_.storage(child).in_use) pin_storage(child);
    }
    std::vector<StorageId> orphans;
    records_.drop(at, orphans);
    candidates.insert(candidates.end(), parents.begin(), parents.end());
  }
}

}  // namespace remint
