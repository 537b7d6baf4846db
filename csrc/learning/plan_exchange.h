// What a process that plans is asked and answers, as bytes: see src/remint/planners/step_planning.py, which
// is the other side.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "learning/step_plan.h"

namespace remint {

struct PlanQuestion {
  double seconds = 0.0;    // CPU time for planning
  std::uint64_t hash = 0;  // of what the step does: operators, types and sizes
  StepLimits limits;
};

std::string write_question(const PlanQuestion& question, const StepTrace& step,
                           const std::vector<Bytes>& sizes, const std::vector<std::int32_t>& held);

// Nothing if the answer is no plan.
std::optional<PlannedActions> read_answer(const std::string& answer);

}  // namespace remint
