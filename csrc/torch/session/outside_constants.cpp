#include "torch/session/outside_constants.h"

#include <algorithm>
#include <map>
#include <utility>

#include "simulator/trace_columns.h"
#include "torch/session/state.h"

namespace remint {

ValueId OutsideConstants::find(const c10::StorageImpl* storage) const {
  auto found = values_.find(storage);
  return found != values_.end() && is_read(found->second) ? found->second : kNone;
}

bool OutsideConstants::is_read(ValueId value) const {
  return entries_[state_.engine->records().value(value).storage].storage != nullptr;
}

ValueId OutsideConstants::use(c10::StorageImpl* storage) {
  auto place = values_.find(storage);
  if (place != values_.end() && is_read(place->second)) {
    state_.engine->retain(place->second);
    return place->second;
  }
  if (--until_sweep_ == 0) {
    sweep();
    state_.forget_dropped();
    place = values_.find(storage);
  }
  const std::uint64_t number = state_.next_number++;
  if (state_.learner != nullptr) state_.step_numbers.note_outside(number);
  std::uint64_t first_number = number;
  if (place == values_.end()) {
    place = values_.emplace(storage, state_.engine->adopt_constant(kNone, 0, number)).first;
  } else {
    // Of the same storage, or of one that was at its address: no recipe reads it, so it can be of any.
    first_number = entries_[state_.engine->records().value(place->second).storage].first_number;
    state_.engine->reuse_cached(place->second, number);
  }
  state_.observer->outside(static_cast<Bytes>(storage->nbytes()), first_number);
  keep(place->second, c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)).first_number =
      first_number;
  return place->second;
}

void OutsideConstants::adopt(ValueId value, c10::intrusive_ptr<c10::StorageImpl> storage) {
  ValueId& known = values_.emplace(storage.get(), value).first->second;
  // A cached record of a storage that was at the same address.
  if (known != value) state_.engine->drop_cached(std::exchange(known, value));
  keep(value, std::move(storage));
}

OutsideConstants::Entry& OutsideConstants::keep(ValueId value, c10::intrusive_ptr<c10::StorageImpl> storage) {
  const StorageId id = state_.engine->records().value(value).storage;
  if (id >= entries_.size()) entries_.resize(std::max<std::size_t>(id + 1, entries_.size() * 2));
  const std::uint64_t number = state_.number_of(value);
  entries_[id] = {std::move(storage), number, number};
  return entries_[id];
}

void OutsideConstants::forget(StorageId id, std::vector<c10::intrusive_ptr<c10::StorageImpl>>& gone) {
  if (id >= entries_.size() || !entries_[id].storage) return;
  Entry& entry = entries_[id];
  values_.erase(entry.storage.get());
  if (!entry.retired) state_.observer->released(entry.number);
  gone.push_back(std::move(entry.storage));
}

void OutsideConstants::cache(StorageId id, std::vector<c10::intrusive_ptr<c10::StorageImpl>>& gone) {
  Entry& entry = entries_[id];
  if (entry.retired) {
    values_.erase(entry.storage.get());
    state_.engine->drop_cached(state_.engine->records().storage(id).values[0]);
  } else {
    state_.observer->released(entry.number);
  }
  gone.push_back(std::move(entry.storage));
}

void OutsideConstants::clear() {
  values_.clear();
  entries_.clear();
}

// Finds the constants that the program dropped: it can be better to keep what was computed from them. Drops
// cached records that no op has used since the last sweep.
void OutsideConstants::sweep() {
  std::map<std::uint64_t, ValueId> dropped;  // in the order in which they were first used
  std::vector<std::pair<const c10::StorageImpl*, ValueId>> unused;
  for (const auto& [storage, value] : values_) {
    Entry& entry = entries_[state_.engine->records().value(value).storage];
    if (!entry.storage) {
      if (!std::exchange(entry.used, false)) unused.emplace_back(storage, value);
      continue;
    }
    if (entry.retired || entry.storage.use_count() > 1) continue;
    entry.retired = true;
    dropped[entry.number] = value;
  }
  for (const auto& [storage, value] : unused) {
    values_.erase(storage);
    state_.engine->drop_cached(value);
  }
  for (const auto& [number, value] : dropped) {
    const StorageId id = state_.engine->records().value(value).storage;
    state_.engine->retire(value, static_cast<Bytes>(entries_[id].storage->nbytes()));
    state_.observer->released(number);
  }
  until_sweep_ = 64 + values_.size();
}

}  // namespace remint
