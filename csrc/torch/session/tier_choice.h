// What the tier is used for: a step is simulated with each use, and the policy goes on with the one that
// loses least.
#pragma once

#include <cstdint>
#include <string>

#include "learning/step_trace.h"
#include "torch/session/state.h"

namespace remint {

class TierChoice {
 public:
  explicit TierChoice(SessionState& state) : state_(state) {}

  // Looks at a step that was noted.
  void choose(const StepTrace& step);
  // A step begins. Whether it should be noted.
  bool is_due();
  // The use; empty: no step was looked at yet, or there is no tier.
  const std::string& chosen() const { return chosen_; }

 private:
  SessionState& state_;
  std::uint32_t num_choices_ = 0;
  std::uint32_t num_steps_since_ = 0;
  std::string chosen_;
};

}  // namespace remint
