#include "learning/step_plan.h"

#include <algorithm>
#include <unordered_map>

#include "base/errors.h"
#include "learning/returns.h"
#include "memory/placement.h"
#include "simulator/simulation.h"

namespace remint {
namespace {

// Notes which values are evicted, and the first request before which each of them could be.
class Evictions final : public Observer {
 public:
  struct Eviction {
    std::uint64_t tag;
    BlockId block;
    std::uint32_t request;
  };
  Evictions(const Unplaced& memory, const TraceColumns& trace)
      : memory_(memory), trace_(trace), makers_(trace.num_tensors) {
    for (std::size_t event = 0; event < trace.num_events; ++event) {
      for (std::int64_t t = trace.out_offsets[event]; t < trace.out_offsets[event + 1]; ++t)
        makers_[t] = event;
    }
  }
  unsigned interests() const override { return kDecisions | kCandidates | kRequests; }
  void became_candidate(std::uint64_t tag, BlockId block) override {
    since_[tag] = {tag, block, static_cast<std::uint32_t>(memory_.lifetimes().size())};
  }
  // A read outside of all ops finds it there.
  void materialized(ValueId, std::uint64_t tag) override { found_resident(tag); }
  // Outputs of the op that are resident stay as they are, and what it makes of them again goes.
  void rematerialized(std::uint64_t tag) override {
    const std::size_t event = makers_[tag];
    for (std::int64_t t = trace_.out_offsets[event]; t < trace_.out_offsets[event + 1]; ++t)
      found_resident(static_cast<std::uint64_t>(t));
  }
  void evicted(std::uint64_t tag) override { evictions_.push_back(since_.at(tag)); }

  // In the order of the requests.
  std::vector<Eviction> sorted() {
    std::stable_sort(evictions_.begin(), evictions_.end(),
                     [](const Eviction& a, const Eviction& b) { return a.request < b.request; });
    return evictions_;
  }

 private:
  void found_resident(std::uint64_t tag) {
    auto found = since_.find(tag);
    if (found != since_.end()) found->second.request = static_cast<std::uint32_t>(memory_.lifetimes().size());
  }

  const Unplaced& memory_;
  const TraceColumns& trace_;
  std::vector<std::size_t> makers_;  // by tensor: the event
  std::unordered_map<std::uint64_t, Eviction> since_;
  std::vector<Eviction> evictions_;
};

}  // namespace

namespace {

bool is_op(EventKind kind) {
  return kind == EventKind::kCall || kind == EventKind::kView || kind == EventKind::kMutate;
}

// Does what the plan says before an op.
void act(Simulation& simulation, const PlannedActions& plan, std::size_t op, std::size_t num_constants,
         SimulatedStep& found) {
  Engine& engine = simulation.engine();
  found.first_makes.push_back(static_cast<std::uint32_t>(found.makes.size()));
  for (std::size_t i = plan.first[op]; i < plan.first[op + 1]; ++i) {
    const PlannedActions::Action& action = plan.actions[i];
    const ValueId value = simulation.first_value_of(static_cast<std::int32_t>(num_constants + action.number));
    if (value == kNone || engine.defined(value) == action.makes) continue;
    if (!action.makes) {
      engine.evict_value(value);
      continue;
    }
    engine.materialize(value);
    found.makes.push_back(action.number);
  }
}

// The most that is in use at a request.
Bytes peak_of(const std::vector<Unplaced::Lifetime>& lifetimes, const Unplaced& memory) {
  std::vector<Bytes> freed(lifetimes.size() + 1, 0);
  for (const Unplaced::Lifetime& lifetime : lifetimes) {
    if (lifetime.dies != kNone) freed[lifetime.dies] += memory.footprint(lifetime.nbytes);
  }
  Bytes used = 0;
  Bytes peak = 0;
  for (std::size_t request = 0; request < lifetimes.size(); ++request) {
    used += memory.footprint(lifetimes[request].nbytes) - freed[request];
    peak = std::max(peak, used);
  }
  return peak;
}

// Which scores of `clairvoyant` do best differs from step to step.
struct ScoreChoice {
  double time_exponent = 1.0;
  SharedAncestors shared = SharedAncestors::kNone;
  std::size_t looks = 200;
};
constexpr ScoreChoice kScores[] = {
    {1.0, SharedAncestors::kNone},  {0.5, SharedAncestors::kNone},   {2.0, SharedAncestors::kNone},
    {0.25, SharedAncestors::kNone}, {0.25, SharedAncestors::kLater}, {0.5, SharedAncestors::kAll},
    {0.25, SharedAncestors::kAll},  {1.0, SharedAncestors::kAll},    {2.0, SharedAncestors::kAll},
};
// Where less than one part in so many is lost, scores that take longer to compute are not tried, and no
// simulation learns from another.
constexpr Nanoseconds kWorthSharing = 100;

// Where states of a loop of hundreds of ops are evicted, more must be looked at. That takes long, so it is
// for steps that are not long themselves.
constexpr ScoreChoice kFarScore = {1.0, SharedAncestors::kAll, 1000};
constexpr std::size_t kMostEventsForFar = 10'000;
// Where less than one part in so many is lost, such simulations do not learn from each other.
constexpr Nanoseconds kWorthFarRounds = 2;

// Simulations that learn from each other what it takes to have values back. What was noted long ago fades in
// some of them: it need not be true any more.
struct Rounds {
  ScoreChoice choice;
  double fading;  // of the notes, from one simulation to the next
  int most;
};
constexpr Rounds kRounds[] = {
    {kFarScore, 0.7, 5}, {{1.0}, 0.7, 12},  {{0.5}, 0.7, 12}, {{1.0}, 1.0, 12},  {{0.5}, 1.0, 12},
    {{2.0}, 0.7, 12},    {{0.25}, 0.7, 12}, {{2.0}, 1.0, 12}, {{0.25}, 1.0, 12},
};
// One that loses so many times as much as the best may still be noted from.
constexpr Nanoseconds kWorthNoting = 3;
// Ways that are kept: the blocks of the cheapest may find no places.
constexpr std::size_t kMostWays = 4;

// By tensor, what it took to have its value back; empty: nothing was noted.
using Notes = std::vector<Nanoseconds>;

std::optional<SimulatedStep> simulate_once(const StepTrace& step, const std::vector<Bytes>& sizes,
                                           const std::vector<std::int32_t>& held, const StepLimits& limits,
                                           const ScoreChoice& choice, const PlannedActions* plan = nullptr,
                                           const Notes& known = {}, Notes* noted = nullptr) {
  std::vector<std::int64_t> nbytes = step.columns.nbytes;
  std::copy(sizes.begin(), sizes.end(), nbytes.begin());
  TraceColumns trace = step.view();
  trace.nbytes = nbytes.data();
  trace.held = held.data();
  trace.num_held = held.size();

  SimulatedStep found;
  found.limit = limits.budget;
  for (Nanoseconds nanoseconds : step.columns.nanoseconds) found.computed += nanoseconds;
  SimulationOptions options;
  options.budget = limits.budget;
  options.arena = true;
  options.placed = false;
  options.alignment = limits.alignment;
  options.ghosts = true;
  options.foresees = plan == nullptr;
  options.engine.policy = "clairvoyant";
  options.engine.time_exponent = choice.time_exponent;
  options.engine.shared_ancestors = choice.shared;
  options.looks = choice.looks;
  options.engine.deallocation = Deallocation::kLazy;
  options.engine.partition = false;
  options.engine.moving = false;
  options.engine.max_depth = limits.max_depth;
  options.engine.max_rematerialized =
      std::min(limits.most_rematerialized,
               static_cast<Nanoseconds>((limits.max_slowdown - 1.0) * static_cast<double>(found.computed)));
  options.returns = known.empty() ? nullptr : &known;
  Simulation simulation(options);
  Engine& engine = simulation.engine();
  const auto& memory = static_cast<const Unplaced&>(engine.memory());
  Evictions evictions(memory, trace);
  std::optional<Returns> returns;
  if (noted != nullptr) engine.add_observer(&returns.emplace(trace, *noted, choice.shared));
  try {
    for (std::size_t event = 0; event < step.num_constants(); ++event) {
      const std::size_t before = memory.lifetimes().size();
      simulation.step(trace, event);
      found.blocks_of_constants.push_back(memory.lifetimes().size() > before ? static_cast<BlockId>(before)
                                                                             : kNone);
    }
    found.num_constants = memory.lifetimes().size();
    engine.add_observer(&evictions);
    if (limits.observer != nullptr) engine.add_observer(limits.observer);
    std::size_t op = 0;
    for (std::size_t event = step.num_constants(); event < trace.num_events; ++event) {
      if (plan != nullptr && is_op(trace.kind(event)))
        act(simulation, *plan, op++, step.num_constants(), found);
      simulation.step(trace, event);
    }
    found.first_makes.push_back(static_cast<std::uint32_t>(found.makes.size()));
  } catch (const OutOfMemory&) {
    return std::nullopt;
  } catch (const Thrash&) {
    return std::nullopt;
  }
  found.rematerialized = engine.statistics().rematerialized;
  found.num_rematerializations = engine.statistics().num_rematerializations;
  found.lifetimes = memory.lifetimes();
  // A value is evicted as soon as it is not used any more. So blocks live shorter, and are easier to place.
  for (const Evictions::Eviction& eviction : evictions.sorted()) {
    if (eviction.request == found.lifetimes.size()) break;  // no request needs its space
    found.first_victims.resize(eviction.request + 1, static_cast<std::uint32_t>(found.victims.size()));
    found.victims.push_back(static_cast<std::uint32_t>(eviction.tag - step.num_constants()));
    found.lifetimes[eviction.block].dies = eviction.request;
  }
  found.first_victims.resize(found.lifetimes.size() + 1, static_cast<std::uint32_t>(found.victims.size()));
  found.peak = peak_of(found.lifetimes, memory);
  found.blocks_of_tensors.assign(trace.num_tensors - step.num_constants(), kNone);
  for (std::int32_t tensor : step.held) {
    const auto number = static_cast<std::size_t>(tensor);
    if (number < step.num_constants()) continue;
    found.blocks_of_tensors[number - step.num_constants()] = simulation.block_of(tensor);
  }
  return found;
}

}  // namespace

namespace {

// A way through a step, and how the policy found it.
struct Way {
  SimulatedStep found;
  ScoreChoice choice;
  Notes known;
};

// The cheapest ways, each with another loss.
class Ways {
 public:
  void add(Way way) {
    auto place = std::find_if(ways_.begin(), ways_.end(), [&](const Way& other) {
      return way.found.rematerialized <= other.found.rematerialized;
    });
    if (place != ways_.end() && place->found.rematerialized == way.found.rematerialized) return;
    ways_.insert(place, std::move(way));
    if (ways_.size() > kMostWays) ways_.pop_back();
  }
  bool empty() const { return ways_.empty(); }
  const Way& best() const { return ways_.front(); }
  // Whether at least one part in so many is lost.
  bool lose(Nanoseconds part) const {
    return empty() || best().found.rematerialized * part >= best().found.computed;
  }
  std::vector<SimulatedStep> take() {
    std::vector<SimulatedStep> found;
    for (Way& way : ways_) found.push_back(std::move(way.found));
    return found;
  }

 private:
  std::vector<Way> ways_;
};

Ways find_ways(const StepTrace& step, const std::vector<Bytes>& sizes, const std::vector<std::int32_t>& held,
               const StepLimits& limits) {
  StepLimits unobserved = limits;
  unobserved.observer = nullptr;
  Ways ways;
  auto try_score = [&](const ScoreChoice& choice) {
    if (choice.shared != SharedAncestors::kNone && !ways.lose(kWorthSharing)) return;
    std::optional<SimulatedStep> found = simulate_once(step, sizes, held, unobserved, choice);
    if (!found) return;
    ways.add({std::move(*found), choice, {}});
    // One that loses more is not looked at to its end.
    unobserved.most_rematerialized = ways.best().found.rematerialized;
  };
  for (const ScoreChoice& choice : kScores) try_score(choice);
  const std::size_t num_events = step.columns.kinds.size();
  if (num_events <= kMostEventsForFar) try_score(kFarScore);
  std::size_t events_left = limits.search_events;
  for (const Rounds& rounds : kRounds) {
    const bool far = rounds.choice.looks == kFarScore.looks;
    if (far && (num_events > kMostEventsForFar || !ways.lose(kWorthFarRounds))) continue;
    Notes notes(step.columns.nbytes.size(), 0);
    for (int round = 0; round < rounds.most && ways.lose(kWorthSharing) && events_left >= num_events;
         ++round) {
      events_left -= num_events;
      unobserved.most_rematerialized = limits.most_rematerialized;
      if (!ways.empty())
        unobserved.most_rematerialized =
            std::min(limits.most_rematerialized, (far ? 1 : kWorthNoting) * ways.best().found.rematerialized);
      for (Nanoseconds& note : notes)
        note = static_cast<Nanoseconds>(static_cast<double>(note) * rounds.fading);
      const Notes known = notes;
      std::optional<SimulatedStep> found =
          simulate_once(step, sizes, held, unobserved, rounds.choice, nullptr, known, &notes);
      if (found) ways.add({std::move(*found), rounds.choice, known});
      if (notes == known) break;  // the next one would be the same
    }
  }
  return ways;
}

}  // namespace

std::vector<SimulatedStep> simulate_ways(const StepTrace& step, const std::vector<Bytes>& sizes,
                                         const std::vector<std::int32_t>& held, const StepLimits& limits) {
  return find_ways(step, sizes, held, limits).take();
}

std::optional<SimulatedStep> simulate_step(const StepTrace& step, const std::vector<Bytes>& sizes,
                                           const std::vector<std::int32_t>& held, const StepLimits& limits) {
  Ways ways = find_ways(step, sizes, held, limits);
  if (ways.empty()) return std::nullopt;
  if (limits.observer != nullptr)
    simulate_once(step, sizes, held, limits, ways.best().choice, nullptr, ways.best().known);
  return std::move(ways.take().front());
}

std::optional<SimulatedStep> simulate_planned(const StepTrace& step, const std::vector<Bytes>& sizes,
                                              const std::vector<std::int32_t>& held, const StepLimits& limits,
                                              const PlannedActions& plan) {
  std::size_t num_ops = 0;
  for (std::uint8_t kind : step.columns.kinds) num_ops += is_op(static_cast<EventKind>(kind)) ? 1 : 0;
  const std::size_t num_made = step.columns.nbytes.size() - step.num_constants();
  if (plan.first.size() != num_ops + 1 || plan.first[0] != 0 || plan.first.back() != plan.actions.size())
    return std::nullopt;
  if (!std::is_sorted(plan.first.begin(), plan.first.end())) return std::nullopt;
  for (const PlannedActions::Action& action : plan.actions) {
    if (action.number >= num_made) return std::nullopt;
  }
  return simulate_once(step, sizes, held, limits, {}, &plan);
}

std::optional<Nanoseconds> loss_with(const EngineOptions& engine, const StepTrace& step,
                                     const StepLimits& limits) {
  const TraceColumns trace = step.view();
  Nanoseconds computed = 0;
  for (Nanoseconds nanoseconds : step.columns.nanoseconds) computed += nanoseconds;
  SimulationOptions options;
  options.budget = limits.budget;
  options.arena = true;
  options.alignment = limits.alignment;
  options.ghosts = true;
  options.engine = engine;
  const auto most =
      std::min(limits.most_rematerialized,
               static_cast<Nanoseconds>((limits.max_slowdown - 1.0) * static_cast<double>(computed)));
  Simulation simulation(options);
  Nanoseconds before = 0;
  try {
    for (std::size_t event = 0; event < trace.num_events; ++event) {
      if (event == step.num_constants()) {
        // What the program had before does not all fit: with a tier, some of it was offloaded until now.
        before = simulation.engine().statistics().bringing_back();
        simulation.engine().limit_rematerialization(before + most);
      }
      simulation.step(trace, event);
    }
  } catch (const OutOfMemory&) {
    return std::nullopt;
  } catch (const Thrash&) {
    return std::nullopt;
  }
  return simulation.engine().statistics().bringing_back() - before;
}

namespace {

// How many moves the search for addresses has. Few blocks are placed quickly or not at all. Among many, a
// move takes time in proportion to the blocks, and they leave few gaps: a slightly smaller limit does the
// same. So placing takes no longer than the ops of the step, or thereabouts.
std::uint64_t moves_for(std::size_t num_blocks) {
  constexpr std::uint64_t kPerBlock = 40;
  constexpr std::uint64_t kWork = 200'000'000;
  const std::uint64_t blocks = std::max<std::uint64_t>(num_blocks, 1);
  return std::min(kPerBlock * blocks, kWork / blocks);
}

std::optional<GuidedStep> place_blocks(const SimulatedStep& step, const Surroundings& surroundings,
                                       bool keeps_places, Bytes budget, Bytes alignment) {
  const auto end = static_cast<std::uint32_t>(step.lifetimes.size());
  auto footprint = [&](Bytes nbytes) {
    return std::max<Bytes>((nbytes + alignment - 1) / alignment * alignment, alignment);
  };
  std::vector<PlacedBlock> blocks(step.lifetimes.size());
  for (std::uint32_t request = 0; request < end; ++request) {
    const Unplaced::Lifetime& lifetime = step.lifetimes[request];
    blocks[request].nbytes = footprint(lifetime.nbytes);
    blocks[request].born = request;
    blocks[request].dies = lifetime.dies == kNone ? end : lifetime.dies;
  }
  std::vector<char> absent(step.num_constants, 0);
  for (std::size_t constant = 0; constant < surroundings.constants.size(); ++constant) {
    const BlockId block = step.blocks_of_constants[constant];
    if (block == kNone) continue;
    const Occupied& there = surroundings.constants[constant];
    if (there.address < 0) {
      absent[block] = 1;
      continue;
    }
    blocks[block].born = 0;
    blocks[block].nbytes = there.nbytes;
    blocks[block].address = there.address;
  }
  for (const auto& [number, constant] : surroundings.heirs) {
    if (!keeps_places) break;
    const BlockId heir = step.blocks_of_tensors[number];
    const BlockId before = step.blocks_of_constants[constant];
    if (heir == kNone || before == kNone || heir < step.num_constants) continue;
    if (blocks[before].address == kNoAddress || blocks[before].nbytes != blocks[heir].nbytes) continue;
    if (blocks[before].dies <= blocks[heir].born) blocks[heir].address = blocks[before].address;
  }
  // Constants that are not in the arena take no place: their entries become empty.
  std::vector<PlacedBlock> placed;
  std::vector<std::size_t> index(blocks.size(), 0);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if ((i < step.num_constants && absent[i]) || step.lifetimes[i].refused) continue;
    index[i] = placed.size();
    placed.push_back(blocks[i]);
  }
  for (const Occupied& other : surroundings.others) {
    PlacedBlock block;
    block.nbytes = other.nbytes;
    block.born = 0;
    block.dies = end;
    block.address = other.address;
    placed.push_back(block);
  }
  if (!place(placed, budget, moves_for(placed.size()), 0).fits) return std::nullopt;
  GuidedStep guide;
  for (std::size_t request = step.num_constants; request < blocks.size(); ++request) {
    const Unplaced::Lifetime& lifetime = step.lifetimes[request];
    const Bytes address = lifetime.refused ? kNoAddress : placed[index[request]].address;
    guide.requests.push_back({lifetime.nbytes, address, step.first_victims[request]});
  }
  guide.victims = step.victims;
  guide.makes = step.makes;
  guide.first_makes = step.first_makes;
  return guide;
}

}  // namespace

std::optional<GuidedStep> place_step(const SimulatedStep& step, const Surroundings& surroundings,
                                     Bytes budget, Bytes alignment) {
  std::optional<GuidedStep> guide = place_blocks(step, surroundings, true, budget, alignment);
  // The next step then begins with other addresses, which are chosen well.
  if (!guide) guide = place_blocks(step, surroundings, false, budget, alignment);
  return guide;
}

}  // namespace remint
