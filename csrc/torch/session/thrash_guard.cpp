#include "torch/session/thrash_guard.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>

#include "torch/observe/budget_error.h"
#include "torch/session/learner.h"

namespace remint {
namespace {

// A step may always spend this much: the first ops of a step are no measure of it.
constexpr Nanoseconds kPatience = 1'000'000'000;
// A step is followed when it was seen under pressure, and then noted twice. Until then it may take so many
// times longer.
constexpr std::uint32_t kStepsUntilLearned = 3;
constexpr double kUntilLearned = 10.0;

std::string times(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3gx", ratio);
  return text;
}

}  // namespace

Nanoseconds ThrashGuard::computed() const {
  return std::max<Nanoseconds>(state_.engine->statistics().computed - computed_before_, last_step_);
}

Nanoseconds ThrashGuard::rematerialized() const {
  return state_.engine->statistics().bringing_back() - rematerialized_before_;
}

void ThrashGuard::begin_step() {
  const Statistics& now = state_.engine->statistics();
  ++num_steps_;
  last_step_ = now.computed - computed_before_;
  computed_before_ = now.computed;
  rematerialized_before_ = now.bringing_back();
  searches_before_ = now.num_searches;
}

Nanoseconds ThrashGuard::allowed() const {
  const bool learning = state_.learner != nullptr && num_steps_ < kStepsUntilLearned;
  const double slowdown = max_slowdown_ * (learning ? kUntilLearned : 1.0);
  return std::max(static_cast<Nanoseconds>((slowdown - 1.0) * static_cast<double>(computed())), kPatience);
}

void ThrashGuard::set_limit() {
  // Where memory was not short, somebody asked for the evictions.
  if (state_.engine->statistics().num_searches == searches_before_) {
    end();
    return;
  }
  const Nanoseconds most = allowed();
  state_.engine->limit_rematerialization(rematerialized_before_ + most);
  if (warned_ || rematerialized() < kPatience || rematerialized() < most / 3) return;
  warned_ = true;
  const double slowdown = 1.0 + static_cast<double>(rematerialized()) / static_cast<double>(computed());
  warn_user("this step is " + times(slowdown) + " slower so far, because the budget of " +
            format_bytes(state_.options.budget) + " is small for it. At " + times(max_slowdown_) +
            " it ends in a BudgetError (max_slowdown" +
            (num_steps_ < kStepsUntilLearned ? "; the first steps may take longer" : "") + ").");
}

void ThrashGuard::end() {
  state_.engine->limit_rematerialization(std::numeric_limits<Nanoseconds>::max());
}

void ThrashGuard::raise() {
  const double slowdown =
      1.0 + static_cast<double>(rematerialized()) / static_cast<double>(std::max<Nanoseconds>(computed(), 1));
  begin_step();
  std::string message = "a step became " + times(slowdown) +
                        " slower, more than max_slowdown=" + times(max_slowdown_) + " allows.\n" +
                        "Its tensors do not fit into " + format_bytes(state_.options.budget) +
                        " together, so they are recomputed again and again.\n";
  const Bytes enough = state_.learner == nullptr ? 0 : state_.learner->budget_for(max_slowdown_);
  if (enough > 0) {
    message += "Use a budget of about " + format_bytes(enough, Rounding::kUp) +
               ". That is an estimate, from a simulation of the step before, with some room to spare.";
  } else {
    message += "Use a larger budget. Which one works is not known, as no step has ended; try " +
               format_bytes(state_.options.budget + state_.options.budget / 4, Rounding::kUp) +
               (state_.backend.device().is_cpu() ? ", or find one with `remint advise`." : ".");
  }
  message += " Or allow more time with max_slowdown.";
  raise_budget_error(message, state_.engine->needed_bytes(), enough);
}

}  // namespace remint
