// The thrash guard: an error instead of a step that takes for ever.
//
// Near the smallest budget a policy can spend many times the time of a step on rematerialization. The guard
// limits what a step may spend, as a multiple of the time of its own ops. The first steps of a budget that
// learns may spend more: once such a step is known, it takes far less.
#pragma once

#include "torch/session/state.h"

namespace remint {

class ThrashGuard {
 public:
  // A step may take up to `max_slowdown` times its own time.
  ThrashGuard(SessionState& state, double max_slowdown) : state_(state), max_slowdown_(max_slowdown) {}

  void begin_step();
  // Something is about to be asked of the engine. Sets the limit for what it may rematerialize, and warns
  // once on the way there.
  void set_limit();
  // From here on there is no limit.
  void end();
  // The limit was reached. What comes now has a limit of its own.
  [[noreturn]] void raise();

 private:
  Nanoseconds allowed() const;
  // Time of the step's own ops: so far, or of the step before, if that took longer.
  Nanoseconds computed() const;
  Nanoseconds rematerialized() const;

  SessionState& state_;
  const double max_slowdown_;
  Nanoseconds computed_before_ = 0;
  Nanoseconds rematerialized_before_ = 0;
  std::uint64_t searches_before_ = 0;
  Nanoseconds last_step_ = 0;
  std::uint32_t num_steps_ = 0;
  bool warned_ = false;
};

}  // namespace remint
