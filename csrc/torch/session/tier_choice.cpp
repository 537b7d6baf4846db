#include "torch/session/tier_choice.h"

#include <optional>

#include "learning/step_plan.h"

namespace remint {
namespace {

// So many steps are looked at first, because the first ones differ from the rest, and then one in so many.
constexpr std::uint32_t kFirstChoices = 3;
constexpr std::uint32_t kStepsPerChoice = 64;
// A step is simulated to its end unless it becomes so many times slower.
constexpr double kMostSlowdown = 1000.0;

const char* name_of(TierUse use) {
  switch (use) {
    case TierUse::kRecompute:
      return "recompute";
    case TierUse::kOffload:
      return "offload";
    default:
      return "either";
  }
}

}  // namespace

void TierChoice::choose(const StepTrace& step) {
  ++num_choices_;
  num_steps_since_ = 0;
  Tier& tier = *state_.engine->tier();
  EngineOptions engine = state_.options.engine;
  engine.tier.bandwidth = tier.bandwidth();
  engine.check = false;
  StepLimits limits;
  limits.alignment = state_.backend.alignment();
  limits.max_slowdown = kMostSlowdown;
  limits.budget = state_.arena->budget();
  std::optional<TierUse> best;
  for (TierUse use : {TierUse::kEither, TierUse::kRecompute, TierUse::kOffload}) {
    engine.tier.use = use;
    const std::optional<Nanoseconds> lost = loss_with(engine, step, limits);
    if (!lost || (best && *lost >= limits.most_rematerialized)) continue;
    best = use;
    limits.most_rematerialized = *lost;
  }
  if (!best) return;
  tier.set_use(*best);
  chosen_ = name_of(*best);
}

bool TierChoice::is_due() {
  if (state_.options.engine.tier.use != TierUse::kEither) return false;
  return num_choices_ < kFirstChoices || ++num_steps_since_ >= kStepsPerChoice;
}

}  // namespace remint
