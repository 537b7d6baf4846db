// Pinning: values that stay, and the writes that make it necessary.
//
// Bytes that cannot be recomputed (constants, pinned values) can be overwritten by the program. What was
// computed from them must not be computed from what comes after, so it is rematerialized and pinned before
// the write.
#pragma once

#include "engine/replay.h"

namespace remint {

class Pinning {
 public:
  Pinning(EngineState& state, Transitions& transitions, Lifetimes& lifetimes, Allocation& allocation,
          Replay& replay)
      : state_(state),
        transitions_(transitions),
        lifetimes_(lifetimes),
        allocation_(allocation),
        replay_(replay) {}

  // Makes the values that the innermost op acquires resident and locks them. After an error none of them is
  // locked.
  void acquire();
  // Gives the innermost op's blocks back and unlocks its values. The outermost op applies late pins.
  void release_acquired();

  void materialize(ValueId value);
  void pin(ValueId value, bool by_request);
  // `by_request`: observers are told of the pins.
  void before_write(ValueId value, bool by_request);
  // The program is about to release a constant that recipes may read. `due_back`: whether it will have the
  // same bytes again, in another value (Device::came_back).
  void before_free(ValueId value, DueBack due_back);
  // Memory ran out: frees constants that only recipes still need, if everything that was made from them is
  // there. That is pinned instead. False: there was none.
  bool give_up_sources();
  void lock_for_read(ValueId value);
  void unlock_for_read(ValueId value);

  // An op of the program wrote `from` in place: late pins go on to `to`.
  void follow_late_pins(StorageId from, ValueId to);

 private:
  // Calls act() while `value` is resident and locked.
  template <typename Act>
  void with_resident(ValueId value, Act&& act) {
    const RunningOps::Scope scope(state_.running);
    state_.running.innermost().acquired.push_back(value);
    acquire();
    act();
    release_acquired();
  }
  void pin_now(ValueId value);
  // Makes it unable to change with what it was computed from: pinned, resident or offloaded.
  void preserve(ValueId value);
  void pin_late(ValueId value, bool forget_recipe, bool by_request);
  void apply_late_pins(RunningOp& op);
  void pin_what_reads(ValueId value, bool by_request);
  void tell_pinned(ValueId value);
  void review_retired();
  // Pins what the program has of what was made from these, if that takes no more than `nbytes`.
  bool pin_instead(const std::vector<StorageId>& retired, Bytes nbytes, bool by_request = false);

  EngineState& state_;
  Transitions& transitions_;
  Lifetimes& lifetimes_;
  Allocation& allocation_;
  Replay& replay_;
  // Of the last time that the program freed bytes that are due back: when, and the newest value kept for it.
  std::uint64_t last_freed_at_ = 0;
  std::uint64_t newest_kept_ = 0;
};

}  // namespace remint
