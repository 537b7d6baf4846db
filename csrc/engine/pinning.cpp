#include "engine/pinning.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace remint {

void Pinning::acquire() {
  try {
    // A review pins, which has to wait while a kernel runs.
    if (lifetimes_.review_is_due() && !state_.running.in_kernel()) review_retired();
    replay_.acquire();
  } catch (...) {
    state_.running.innermost().acquired.clear();
    release_acquired();
    throw;
  }
  state_.note_need();
}

void Pinning::release_acquired() {
  allocation_.free_blocks();
  RunningOp& op = state_.running.innermost();
  for (std::size_t i = 0; i < op.acquired.size(); ++i) {
    lifetimes_.unlock(state_.records.value(op.acquired[i]).storage);
  }
  op.acquired.clear();
  if (!op.late_pins.empty()) apply_late_pins(op);
}

void Pinning::materialize(ValueId value) {
  if (state_.defined(value)) return;
  with_resident(value, [] {});
}

void Pinning::tell_pinned(ValueId value) {
  if (state_.storage_of(value).pinned) return;
  const std::uint64_t tag = state_.records.value(value).tag;
  state_.observers.tell(Observer::kRequests, [&](Observer& observer) { observer.pinned(value, tag); });
}

void Pinning::pin(ValueId value, bool by_request) {
  if (state_.running.in_kernel()) {
    pin_late(value, false, by_request);
    return;
  }
  if (by_request) tell_pinned(value);
  pin_now(value);
}

void Pinning::preserve(ValueId value) {
  if (state_.records.value(value).offloaded) {
    lifetimes_.pin_storage(state_.records.value(value).storage);
  } else {
    pin_now(value);
  }
}

void Pinning::pin_now(ValueId value) {
  if (state_.settings.reference) {
    if (!state_.defined(value)) replay_.make(state_.records.value(value).op, value, false);
    lifetimes_.pin_storage(state_.records.value(value).storage);
    return;
  }
  // Locked, so that a value without references is not dropped between the two.
  with_resident(value, [&] { lifetimes_.pin_storage(state_.records.value(value).storage); });
}

// A kernel runs: the value is locked until the outermost op ends, and pinned then. Its recipe, and those of
// others that lead to it, may be in the middle of a replay, or may be needed for the value before an in-place
// write.
void Pinning::pin_late(ValueId value, bool forget_recipe, bool by_request) {
  with_resident(value, [&] { transitions_.lock(state_.records.value(value).storage); });
  state_.running.outermost().late_pins.push_back({value, forget_recipe, by_request});
}

void Pinning::apply_late_pins(RunningOp& op) {
  const std::vector<LatePin> pins = std::move(op.late_pins);
  op.late_pins.clear();
  for (const LatePin& pin : pins) {
    if (pin.by_request) tell_pinned(pin.value);
    lifetimes_.pin_storage(state_.records.value(pin.value).storage);
    if (pin.forget_recipe) lifetimes_.forget_recipe(pin.value);
  }
  for (const LatePin& pin : pins) lifetimes_.unlock(state_.records.value(pin.value).storage);
}

void Pinning::follow_late_pins(StorageId from, ValueId to) {
  const StorageId heir = state_.records.value(to).storage;
  for (std::size_t i = 0; i < state_.running.size(); ++i) {
    for (LatePin& pin : state_.running[i].late_pins) {
      if (state_.records.value(pin.value).storage != from) continue;
      transitions_.lock(heir);
      lifetimes_.unlock(from);
      pin.value = to;
    }
  }
}

void Pinning::before_write(ValueId value, bool by_request) {
  pin_what_reads(value, by_request);
  if (by_request) transitions_.make_stale(state_.records.value(value).storage);
}

void Pinning::pin_what_reads(ValueId value, bool by_request) {
  const StorageId id = state_.records.value(value).storage;
  const Records& records = state_.records;
  if (!records.storage(id).pinned || records.storage(id).readers == 0) return;
  // Where releases count, pinning what the program has drops all recipes that lie between.
  if (state_.deallocation == Deallocation::kEager || state_.deallocation == Deallocation::kLazy) {
    for (StorageId referenced : lifetimes_.referenced_descendants({id})) {
      if (!records.storage(referenced).in_use()) continue;
      const ValueId root = records.storage(referenced).values[0];
      if (state_.running.in_kernel()) {
        pin_late(root, false, by_request);
        continue;
      }
      if (by_request) tell_pinned(root);
      preserve(root);
    }
    if (!records.storage(id).in_use()) return;
  }
  // Values that still read it are pinned themselves: views, which have recipes of their own, or values that
  // were never released.
  std::vector<std::pair<ValueId, StorageId>> made;
  for (ValueId v : records.storage(id).values) {
    for (const Value::Reader& reader : records.value(v).readers) {
      for (ValueId output : records.op(reader.op).outputs) {
        if (output != kNone && records.value(output).storage != id) {
          made.emplace_back(output, records.value(output).storage);
        }
      }
    }
  }
  for (const auto& [output, storage] : made) {
    if (state_.running.in_kernel()) {
      pin_late(output, true, by_request);
      continue;
    }
    // Pinning one can be the end of another that was kept only for it, or of itself.
    const StorageId its = storage;
    const ValueId that = output;
    auto exists = [&] { return records.storage(its).in_use() && records.value(that).storage == its; };
    if (exists() && by_request) tell_pinned(output);
    if (exists()) preserve(output);
    if (exists()) lifetimes_.forget_recipe(output);
  }
}

// Constants that only recipes still need: pins what was made from them instead, where that takes no more
// bytes. So a gradient does not stay for the sake of the optimizer state that it went into.
void Pinning::review_retired() {
  std::vector<Retired> kept;
  for (Retired& entry : lifetimes_.take_retired()) {
    if (!lifetimes_.still_retired(entry)) continue;
    if (entry.due <= state_.statistics.num_ops) {
      if (pin_instead({entry.storage}, entry.nbytes)) continue;
      entry.wait *= 2;
      entry.due = state_.statistics.num_ops + entry.wait;
    }
    kept.push_back(entry);
  }
  // Each step leaves gradients for the same weights and state. One by one they are smaller, together they are
  // not.
  std::vector<StorageId> together;
  Bytes nbytes = 0;
  for (const Retired& entry : kept) {
    if (entry.wait == Lifetimes::kFirstReview || !lifetimes_.still_retired(entry)) continue;
    together.push_back(entry.storage);
    nbytes += entry.nbytes;
  }
  if (together.size() > 1) pin_instead(together, nbytes);
  for (const Retired& entry : kept) {
    if (lifetimes_.still_retired(entry)) lifetimes_.put_back(entry);
  }
}

bool Pinning::pin_instead(const std::vector<StorageId>& retired, Bytes nbytes, bool by_request) {
  const std::vector<StorageId> referenced = lifetimes_.referenced_descendants(retired);
  Bytes instead = 0;
  for (StorageId descendant : referenced) {
    const Storage& s = state_.records.storage(descendant);
    if (!s.pinned) instead += s.nbytes;
  }
  if (instead > nbytes) return false;
  for (StorageId descendant : referenced) {
    const Storage& s = state_.records.storage(descendant);
    if (!s.in_use()) continue;
    if (by_request) tell_pinned(s.values[0]);
    preserve(s.values[0]);
  }
  return true;
}

// Otherwise the bytes stay for the recipes when the program releases them, and are reviewed later.
void Pinning::before_free(ValueId value, DueBack due_back) {
  const StorageId id = state_.records.value(value).storage;
  Storage& s = state_.records.storage(id);
  if (!s.pinned || s.readers == 0) return;
  const bool releases_count =
      state_.deallocation == Deallocation::kEager || state_.deallocation == Deallocation::kLazy;
  if (state_.running.in_kernel() || !releases_count) {
    pin_what_reads(value, true);
  } else if (due_back != DueBack::kNo) {
    s.due_back = due_back;
    // The program goes on with what it made last. It is needed before the bytes are back: they are freed
    // block by block, and come back in the opposite order. All parameters of a block are freed at once.
    const StorageId last = lifetimes_.last_descendant(id);
    if (last_freed_at_ != state_.statistics.num_ops) newest_kept_ = 0;
    last_freed_at_ = state_.statistics.num_ops;
    if (last != kNone && state_.root_tag(last) > newest_kept_) {
      newest_kept_ = state_.root_tag(last);
      pin(state_.records.storage(last).values[0], true);
    }
  } else {
    pin_instead({id}, s.nbytes, true);
  }
}

bool Pinning::give_up_sources() {
  if (state_.running.in_kernel()) return false;
  bool any = false;
  for (const Retired& entry : lifetimes_.take_retired()) {
    if (!lifetimes_.still_retired(entry)) continue;
    const std::vector<StorageId> referenced = lifetimes_.referenced_descendants({entry.storage});
    if (std::all_of(referenced.begin(), referenced.end(),
                    [&](StorageId id) { return is_kept(state_.records.storage(id).residency); })) {
      for (StorageId id : referenced) {
        if (state_.records.storage(id).in_use()) preserve(state_.records.storage(id).values[0]);
      }
    }
    if (lifetimes_.still_retired(entry)) {
      lifetimes_.put_back(entry);
    } else {
      any = true;
    }
  }
  return any;
}

void Pinning::lock_for_read(ValueId value) {
  const StorageId id = state_.records.value(value).storage;
  auto lock = [&] {
    transitions_.lock_for_read(id);
    state_.read_locks.push_back({value, id});
  };
  if (state_.defined(value)) {
    lock();
  } else {
    with_resident(value, lock);
  }
}

void Pinning::unlock_for_read(ValueId value) {
  auto& locks = state_.read_locks;
  auto found =
      std::find_if(locks.begin(), locks.end(), [&](const ReadLock& lock) { return lock.value == value; });
  if (found == locks.end())
    throw std::logic_error("engine: a value is unlocked that was not locked for a read");
  const StorageId bytes = found->bytes;
  const StorageId named = state_.records.value(value).storage;
  locks.erase(found);
  lifetimes_.unlock_for_read(bytes);
  if (named != bytes) lifetimes_.unlock_for_read(named);
}

}  // namespace remint
