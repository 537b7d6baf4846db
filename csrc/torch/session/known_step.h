// A step that was seen, and where its constants are when it begins again.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "learning/step_plan.h"
#include "torch/session/state.h"

namespace remint {

// What the program had when a step began, and how to find it when the step begins again: as the result of
// the step before, or as something older.
struct Role {
  std::uint32_t step;    // the known step that made it; kNone: an older one
  std::uint64_t number;  // among the tensors that the step made, or in the session
};
struct KnownStep {
  StepTrace trace;
  std::vector<Role> roles;  // of its constants
  std::vector<std::uint64_t> signatures;
  std::vector<std::int32_t> names;
  std::uint32_t next = kNone;  // the step that followed
  Nanoseconds greedy_rematerialized = 0;
  std::uint64_t greedy_evictions = 0;
  std::optional<SimulatedStep> simulated;
  std::optional<GuidedStep> guide;
  std::optional<PlannedActions> answer;  // a plan that was not looked at yet
  std::optional<PlannedActions> plan;    // the one that is followed, or was
  bool planned = false;                  // the guide is that of the plan
  std::uint32_t num_seen = 0;            // times that it was noted
  std::uint32_t num_followed = 0;        // times that its guide was followed to the end
  std::uint32_t num_questions = 0;       // that the process was asked
  Bytes plan_less = 0;                   // parts of the budget, in 1/1024, that the next plan leaves unused
  Surroundings placed_for;
  std::uint32_t num_searches = 0;  // for a way through it that costs less
  std::uint32_t failures = 0;      // to find a guide that is better than the policy
};

// The step before: which known one it was, if any, and its numbers.
struct StepBefore {
  std::uint32_t id = kNone;
  StepNumbers numbers;
};

// Where the constants of a step are now, and what else stands in the arena.
struct FoundConstants {
  Surroundings surroundings;
  std::vector<Bytes> sizes;  // 0: it has no bytes here
};

// What the step reads is made resident. Nothing if one constant is not there.
std::optional<FoundConstants> find_constants(SessionState& state, const KnownStep& known, std::uint32_t id,
                                             const StepBefore& before);

}  // namespace remint
