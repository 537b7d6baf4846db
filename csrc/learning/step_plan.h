// From a step that is known to a guide through it: the engine runs the step once on memory without addresses,
// with the policy that knows the future; then every block gets an address.
#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "engine/guide.h"
#include "engine/observer.h"
#include "engine/options.h"
#include "learning/step_trace.h"
#include "memory/unplaced.h"

namespace remint {

// What runs in a step inside a limit, request by request. Addresses are not known yet.
struct SimulatedStep {
  Bytes limit = 0;
  Bytes peak = 0;
  Nanoseconds computed = 0;
  Nanoseconds rematerialized = 0;
  std::size_t num_constants = 0;             // requests that stand for what was there before
  std::vector<BlockId> blocks_of_constants;  // by constant; kNone: it is elsewhere
  std::vector<Unplaced::Lifetime> lifetimes;
  std::vector<std::uint32_t> victims;        // numbers among the values that the step makes
  std::vector<std::uint32_t> first_victims;  // per request
  std::vector<BlockId> blocks_of_tensors;    // at the end, by number; kNone: it has none
  // Of a planned step: as in a guide.
  std::vector<std::uint32_t> makes;
  std::vector<std::uint32_t> first_makes;
  std::uint64_t num_rematerializations = 0;
};

// What a plan does between the ops of a step: it evicts values, and makes others resident, in this order.
struct PlannedActions {
  struct Action {
    bool makes;
    std::uint32_t number;  // among the values that the step makes
  };
  std::vector<Action> actions;
  std::vector<std::uint32_t> first;  // per op, and one more: those before it come up to that of the next
};

// Parts of the budget, in 1/1024, that are left unused in turn when blocks do not find places.
inline constexpr Bytes kShrinks[] = {0, 5, 10, 15, 20, 30, 40, 60, 80, 100};
inline Bytes shrunk(Bytes budget, Bytes shrink) {
  return budget - budget / 1024 * shrink;
}

struct StepLimits {
  Bytes budget = 0;
  Bytes alignment = kCpuAlignment;
  std::optional<std::uint32_t> max_depth;
  double max_slowdown = 10.0;
  Nanoseconds most_rematerialized = std::numeric_limits<Nanoseconds>::max();
  // Events of simulations that learn from those before them: 20 to 40 of them take a millisecond.
  std::size_t search_events = 40'000;
  Observer* observer = nullptr;  // of a simulation that is looked into; not owned
};

// Nothing if the step does not fit, or takes too long. `sizes` are the bytes of its constants now: 0 for one
// that is evicted and only released. `held` are the tensors that are used after the step.
std::optional<SimulatedStep> simulate_step(const StepTrace& step, const std::vector<Bytes>& sizes,
                                           const std::vector<std::int32_t>& held, const StepLimits& limits);

// The cheapest ways through the step that were found, the best first: the blocks of one may find places where
// those of another do not.
std::vector<SimulatedStep> simulate_ways(const StepTrace& step, const std::vector<Bytes>& sizes,
                                         const std::vector<std::int32_t>& held, const StepLimits& limits);

// The same, with a plan to say what is evicted and made resident. If memory runs short all the same, a policy
// decides that knows only the past. Nothing, too, if the actions are not of this step.
std::optional<SimulatedStep> simulate_planned(const StepTrace& step, const std::vector<Bytes>& sizes,
                                              const std::vector<std::int32_t>& held, const StepLimits& limits,
                                              const PlannedActions& plan);

// What is lost in the step, on an arena of its own, with the policy of `engine`, which knows only the past:
// the time of what runs again, and of transfers. Nothing if it does not fit, or takes too long.
std::optional<Nanoseconds> loss_with(const EngineOptions& engine, const StepTrace& step,
                                     const StepLimits& limits);

struct Occupied {
  Bytes address;
  Bytes nbytes;  // with alignment

  bool operator==(const Occupied& other) const { return address == other.address && nbytes == other.nbytes; }
};

// What stands in the arena when the step begins.
struct Surroundings {
  std::vector<Occupied> constants;  // by constant of the step; address -1: not in the arena
  std::vector<Occupied> others;     // what the step does not touch
  // A tensor that outlives the step takes the place that a constant has now, so that the next step begins
  // with the same addresses: (number of the tensor, constant).
  std::vector<std::pair<std::uint32_t, std::uint32_t>> heirs;

  bool operator==(const Surroundings& other) const {
    return constants == other.constants && others == other.others && heirs == other.heirs;
  }
};

// Nothing if not every block finds a place.
std::optional<GuidedStep> place_step(const SimulatedStep& step, const Surroundings& surroundings,
                                     Bytes budget, Bytes alignment);

}  // namespace remint
