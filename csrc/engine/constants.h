// Constants: bytes that the program owns and that no op made. They are pinned.
#pragma once

#include "engine/allocation.h"

namespace remint {

class Constants {
 public:
  Constants(EngineState& state, Transitions& transitions, Lifetimes& lifetimes, Allocation& allocation)
      : state_(state), transitions_(transitions), lifetimes_(lifetimes), allocation_(allocation) {}

  ValueId add(Bytes nbytes, std::uint64_t tag) {
    allocation_.place_long_lived();
    return adopt(allocation_.allocate(nbytes), nbytes, tag);
  }

  ValueId adopt(BlockId block, Bytes nbytes, std::uint64_t tag) {
    const StorageId id = state_.records.add_storage(nbytes);
    const ValueId value = state_.records.add_value(id, tag);
    Storage& s = state_.records.storage(id);
    s.constant = true;
    s.become(block == kNone ? Residency::kElsewhere : Residency::kResident);
    transitions_.own(id, block);
    state_.records.value(value).defined = true;
    used_from_now_on(id, tag);
    state_.tell_block(BlockChange::kMade, id);
    lifetimes_.pin_storage(id);
    tell(tag);
    return value;
  }

  void reuse_cached(ValueId value, std::uint64_t tag) {
    const StorageId id = state_.records.value(value).storage;
    state_.records.reuse_cached(id);
    used_from_now_on(id, tag);
    state_.tell_block(BlockChange::kMade, id);
    state_.tell_block(BlockChange::kPinned, id);
    tell(tag);
  }

  void drop_cached(ValueId value) { state_.records.drop_cached(state_.records.value(value).storage); }

  void move_out(ValueId value) {
    const StorageId id = state_.records.value(value).storage;
    lifetimes_.pin_storage(id);
    Storage& s = state_.records.storage(id);
    state_.tell_block(BlockChange::kDropped, id);
    // It stays pinned, and counts no bytes from now on.
    transitions_.unmark_pinned(id);
    s.pinned = true;
    transitions_.leave(id);
    if (s.residency == Residency::kOffloaded) {
      transitions_.drop_copy(id);
      for (ValueId each : s.values) state_.records.value(each).defined = true;
    } else {
      transitions_.make_stale(id);
      state_.memory->free(s.block, s.nbytes);
    }
    s.become(Residency::kElsewhere);
    s.block = kNone;
    s.nbytes = 0;
    s.constant = true;
  }

 private:
  void used_from_now_on(StorageId id, std::uint64_t tag) {
    Storage& s = state_.records.storage(id);
    state_.records.value(s.values[0]).tag = tag;
    s.references = 1;
    s.last = state_.clock;
  }
  void tell(std::uint64_t tag) {
    state_.tell_computed(tag);
    state_.tell_used();
  }

  EngineState& state_;
  Transitions& transitions_;
  Lifetimes& lifetimes_;
  Allocation& allocation_;
};

}  // namespace remint
