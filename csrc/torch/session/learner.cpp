#include "torch/session/learner.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "learning/plan_exchange.h"
#include "torch/dispatch/autograd.h"
#include "torch/session/outside_constants.h"
#include "torch/session/owned_storages.h"

namespace remint {
namespace {

// Steps that are known at most, and events of one step.
constexpr std::size_t kMostSteps = 8;
constexpr std::size_t kMostEvents = 4'000'000;
// A step for which no guide was found so often is left to the policy.
constexpr std::uint32_t kMostFailures = 3;
// For a step, something better than the policy's own choice is searched for so often: once per limit.
constexpr std::uint32_t kMostSearches = sizeof kShrinks / sizeof *kShrinks;
// Where so many steps in a row were others than those that are known, learning rests: for 2 steps, 4, 8 and
// so on. A program whose steps never repeat loses next to nothing then.
constexpr std::uint32_t kPatience = 3;
constexpr std::uint32_t kLongestRest = 5;  // two to the power of it
// A trace has numbers of 32 bits.
constexpr std::uint64_t kLargestNumber = std::uint64_t{1} << 30;
// CPU seconds of the plans of a step, one after the other: a quick one, and better ones. A step that loses
// less than one part in kWorthPlanning is not planned, nor is one of very many ops.
constexpr double kPlanningSeconds[] = {4.0, 20.0, 20.0, 20.0};
constexpr std::uint32_t kMostQuestions = sizeof kPlanningSeconds / sizeof *kPlanningSeconds;
constexpr Nanoseconds kWorthPlanning = 100;
// A program that ends after a few steps needs no plans.
constexpr std::uint32_t kFollowedBeforePlanning = 2;
constexpr std::size_t kMostPlannedOps = 20'000;
// Parts of the budget, in 1/1024, that a plan leaves unused after one whose blocks did not find places.
constexpr Bytes kLessPerPlan = 15;

const char* reason_of(Departure departure) {
  switch (departure) {
    case Departure::kSize:
      return "another request for memory";
    case Departure::kVictim:
      return "a tensor lived on";
    case Departure::kAddress:
      return "memory was still in use";
    default:
      return "another op";
  }
}

}  // namespace

bool Learner::find_boundary() {
  const bool backward = is_in_backward();
  if (!std::exchange(backward_, backward) || backward) return false;
  note_peak();
  boundary();
  return true;
}

void Learner::boundary() {
  collect_answer();
  times_.step_ended(state_);
  figures_before_ = figures_;
  std::uint32_t ended = kNone;
  const bool tried = following_ != kNone || recording_;
  // A step that fits has nothing to learn.
  const bool pressed = state_.engine->statistics().num_evicted() > at_begin_.num_evicted();
  if (following_ != kNone) {
    const Guide& guide = state_.engine->guide();
    KnownStep& known = known_[following_];
    if (guide.active() && op_ == known.signatures.size()) {
      ended = following_;
      note_outcome(known);
    } else {
      depart(guide.active() ? "the step ended early" : reason_of(guide.departure()));
    }
    following_ = kNone;
    state_.engine->stop_following();
    count(known.planned ? figures_.planned : figures_.learned);
  } else if (recording_) {
    ended = learn();
    count(figures_.greedy);
  } else if (pressed && !counted_) {
    count(figures_.greedy);
  }
  stop_recording();
  if (tried) rest_if_in_vain(ended);
  if (ended != kNone && last_.id != kNone) known_[last_.id].next = ended;
  last_.id = ended;
  last_.numbers = std::exchange(state_.step_numbers, {});
  counted_ = false;
  at_last_begin_ = at_begin_;
  at_begin_ = state_.engine->statistics();
  state_.step_numbers.begin(state_.next_number);
  used_at_begin_ = state_.arena->used();
  if (ended == kNone && !pressed) return;
  if (state_.store != nullptr) {
    if (ended != kNone) tier_choice_.choose(known_[ended].trace);
    if (tier_choice_.is_due()) record();
    return;
  }
  if (rest_ > 0) {
    --rest_;
    last_.id = kNone;
    return;
  }
  if (ended == kNone || !follow(next_of(ended))) record();
}

// A step was noted or followed; `ended` is the known one that it was, if any.
void Learner::rest_if_in_vain(std::uint32_t ended) {
  const bool came_before = ended != kNone && (known_[ended].num_seen > 1 || known_[ended].num_followed > 0);
  num_in_vain_ = came_before ? 0 : num_in_vain_ + 1;
  if (num_in_vain_ > kPatience) rest_ = 1U << std::min(num_in_vain_ - kPatience, kLongestRest);
}

void Learner::forget_steps() {
  known_.clear();
  planner_.end();
  asked_ = kNone;
  last_.id = kNone;
}

// The program tells of the end of a step for the first time. Until now, steps were thought to end with
// backward passes: the step that ends here began before the last one of them.
void Learner::forget_found_steps() {
  if (following_ != kNone) state_.engine->stop_following();
  following_ = kNone;
  stop_recording();
  forget_steps();
  state_.step_numbers.extend(last_.numbers);
  at_begin_ = at_last_begin_;
  figures_ = figures_before_;
  counted_ = false;
}

// A step that was seen once is thought to come again.
std::uint32_t Learner::next_of(std::uint32_t id) const {
  return known_[id].next == kNone ? id : known_[id].next;
}

void Learner::end() {
  if (following_ != kNone) state_.engine->stop_following();
  following_ = kNone;
  stop_recording();
  planner_.end();
  asked_ = kNone;
}

void Learner::interrupted() {
  if (following_ != kNone) state_.engine->stop_following();
  following_ = kNone;
  stop_recording();
  last_.id = kNone;
  backward_ = false;
  times_.step_ended(state_);
  at_begin_ = state_.engine->statistics();
  state_.step_numbers.begin(state_.next_number);
}

void Learner::count(StepFigures& figures) {
  const Statistics& now = state_.engine->statistics();
  counted_ = true;
  ++figures.num_steps;
  figures.computed += now.computed - at_begin_.computed;
  figures.rematerialized += now.bringing_back() - at_begin_.bringing_back();
  figures.searching += now.searching - at_begin_.searching;
}

void Learner::check_op(const Operator& op, std::uint64_t signature) {
  const KnownStep& known = known_[following_];
  if (state_.engine->guide().active() && op_ < known.signatures.size() &&
      known.signatures[op_] == signature) {
    state_.engine->prepare(op_++);
    return;
  }
  std::string why = reason_of(state_.engine->guide().departure());
  if (state_.engine->guide().active()) {
    const std::string expected =
        op_ < known.names.size() ? recorder_.names()[known.names[op_]] : "the end of the step";
    why = op.name + (expected == op.name ? " of other sizes" : " instead of " + expected);
  }
  depart("op " + std::to_string(op_) + ": " + why);
  state_.engine->stop_following();
  count(known.planned ? figures_.planned : figures_.learned);
  following_ = kNone;
}

void Learner::depart(const std::string& why) {
  ++figures_.num_departures;
  figures_.last_departure = why;
}

// ── Noting a step ──

void Learner::record() {
  if (state_.next_number > kLargestNumber) return;
  recording_ = true;
  recorder_.clear();
  existing_.clear();
  for (OwnedStorage* owned : state_.owned->owners()) {
    if (owned == nullptr) continue;
    existing_[state_.number_of(owned->value)] = {state_.storage_of(owned->value).nbytes, kFresh, 0};
  }
  for (const auto& [offset, raw] : state_.owned->raw()) existing_[raw.number] = {raw.nbytes, kRaw, 0};
  state_.constants->for_each([&](std::uint64_t number, Bytes nbytes, std::uint64_t first_number) {
    existing_[number] = {nbytes, kElsewhere, first_number};
  });
  state_.engine->add_observer(&recorder_);
  state_.observer = &recorder_;
}

void Learner::stop_recording() {
  if (!recording_) return;
  recording_ = false;
  state_.engine->remove_observer(&recorder_);
  state_.observer = &state_.no_observer;
}

// Returns which step was noted: a new one, or one that was known. kNone if it cannot be learned.
std::uint32_t Learner::learn() {
  const RecordedColumns& recorded = recorder_.columns();
  const StepNumbers& numbers = state_.step_numbers;
  if (recorded.kinds.empty() || recorded.kinds.size() > kMostEvents || !numbers.complete()) return kNone;
  std::optional<StepTrace> step =
      cut_step(recorded, recorder_.outside(), numbers.first(), [&](std::uint64_t number) {
        auto found = existing_.find(number);
        return found == existing_.end() ? std::nullopt : std::optional<Existing>(found->second);
      });
  if (!step) return kNone;
  std::uint32_t id = 0;
  while (id < known_.size() && !known_[id].trace.same_as(*step)) ++id;
  if (id == known_.size()) {
    if (known_.size() == kMostSteps) {
      // Those that were seen once are many, where every step is another one.
      forget_steps();
      id = 0;
    }
    known_.emplace_back();
  }
  KnownStep& known = known_[id];
  ++known.num_seen;
  known.trace = std::move(*step);
  // A step that nobody noted came before: it is thought to have been the same as this one. If it was not, the
  // constants are not found where they should be, and the step is noted again.
  const std::uint32_t before = last_.id == kNone ? id : last_.id;
  known.roles.clear();
  for (std::size_t i = 0; i < known.trace.num_constants(); ++i) {
    const std::uint64_t number = known.trace.constants[i];
    const bool from_last = number >= last_.numbers.first() && known.trace.columns.aliases[i] != kElsewhere;
    known.roles.push_back(from_last ? Role{before, last_.numbers.index_of(number)} : Role{kNone, number});
  }
  if (known.signatures.empty()) {
    const RecordedColumns& columns = known.trace.columns;
    for (std::size_t event = 0; event < columns.kinds.size(); ++event) {
      const auto kind = static_cast<EventKind>(columns.kinds[event]);
      if (kind != EventKind::kCall && kind != EventKind::kMutate) continue;
      known.signatures.push_back(columns.signatures[event]);
      known.names.push_back(columns.names[event]);
    }
  }
  const Statistics& now = state_.engine->statistics();
  known.greedy_rematerialized = now.rematerialized - at_begin_.rematerialized;
  known.greedy_evictions = now.num_evictions - at_begin_.num_evictions;
  known.simulated.reset();
  known.guide.reset();
  known.planned = false;
  return id;
}

// ── Following a step ──

bool Learner::follow(std::uint32_t id) {
  KnownStep& known = known_[id];
  if (known.greedy_evictions == 0) return false;
  // A plan may come where no guide was found.
  if (known.failures == kMostFailures && asked_ != id && !known.answer) return false;
  std::optional<FoundConstants> there = find_constants(state_, known, id, last_);
  if (!there) return false;
  if (!known.guide || !(known.placed_for == there->surroundings)) {
    known.guide.reset();
    if (known.simulated)
      known.guide = place_step(*known.simulated, there->surroundings, state_.arena->budget(),
                               state_.backend.alignment());
    if (!known.guide) {
      state_.engine->compact();
      there = find_constants(state_, known, id, last_);
      if (!there) return false;
      search_guide(known, *there);
    }
    known.placed_for = there->surroundings;
    if (!known.guide) known.simulated.reset();
  } else if (known.num_followed == kFollowedBeforePlanning && !known.planned) {
    take_warm_costs(known, *there);
  }
  take_plan(id, *there);
  ask_for_plan(id, *there);
  if (!known.guide) {
    known.failures = std::min(known.failures + 1, kMostFailures);
    return false;
  }
  following_ = id;
  op_ = 0;
  used_by_others_ = 0;
  for (const Occupied& other : there->surroundings.others) used_by_others_ += other.nbytes;
  state_.arena->reset_recent_peak();
  predicted_cpu_ = times_.predict(known.simulated->computed + known.simulated->rematerialized,
                                  known.signatures.size() + known.simulated->num_rematerializations);
  state_.engine->follow(*known.guide, state_.step_numbers);
  return true;
}

// ── Guides ──

// In smaller and smaller parts of the budget.
bool Learner::search_guide(KnownStep& known, const FoundConstants& found) {
  for (Bytes shrink : kShrinks) {
    if (!make_guide(known, shrink, found) || known.guide) break;
  }
  return known.guide.has_value();
}

// What a step is noted with are the costs of a cold start: the first steps of a program touch new memory, and
// measure each kernel once. Once it was followed a few times, the guide is made again with what kernels take
// by now, unless that makes it worse.
void Learner::take_warm_costs(KnownStep& known, const FoundConstants& found) {
  // Only once: this step counts as followed, however it ends.
  ++known.num_followed;
  RecordedColumns& columns = known.trace.columns;
  Nanoseconds cold = 0;
  Nanoseconds warm = 0;
  for (std::size_t event = 0; event < columns.kinds.size(); ++event) {
    const auto kind = static_cast<EventKind>(columns.kinds[event]);
    if (kind != EventKind::kCall && kind != EventKind::kMutate) continue;
    const CostEstimates::Estimate& estimate = state_.costs.of(columns.signatures[event]);
    cold += columns.nanoseconds[event];
    if (estimate.count > 0) columns.nanoseconds[event] = estimate.cost;
    warm += columns.nanoseconds[event];
  }
  if (cold <= 0 || warm == cold) return;
  const double ratio = static_cast<double>(warm) / static_cast<double>(cold);
  auto warmed = [&](Nanoseconds cost) { return static_cast<Nanoseconds>(static_cast<double>(cost) * ratio); };
  known.greedy_rematerialized = warmed(known.greedy_rematerialized);
  SimulatedStep before = std::move(*known.simulated);
  GuidedStep guide = std::move(*known.guide);
  before.computed = warmed(before.computed);
  before.rematerialized = warmed(before.rematerialized);
  known.guide.reset();
  if (search_guide(known, found) && known.simulated->rematerialized <= before.rematerialized) return;
  known.simulated = std::move(before);
  known.guide = std::move(guide);
  known.planned = false;
}

// ── Plans of another process ──

void Learner::ask_for_plan(std::uint32_t id, const FoundConstants& found) {
  KnownStep& known = known_[id];
  if (known.guide && known.num_followed < kFollowedBeforePlanning) return;
  if (state_.options.planner.empty() || asked_ != kNone || known.num_questions == kMostQuestions) return;
  if (known.simulated && known.simulated->rematerialized * kWorthPlanning < known.simulated->computed) return;
  if (known.signatures.size() > kMostPlannedOps) return;
  PlanQuestion question;
  question.seconds = kPlanningSeconds[known.num_questions++];
  question.limits = limits_with(found.surroundings, known.plan_less);
  question.hash = 0;
  for (std::uint64_t signature : known.signatures) question.hash = question.hash * 0x100000001b3 + signature;
  if (planner_.start(write_question(question, known.trace, found.sizes, used_afterwards(id)))) asked_ = id;
}

// Another step may come before the one that was planned.
void Learner::collect_answer() {
  if (asked_ == kNone) return;
  const std::optional<std::string> answer = planner_.answer();
  if (!answer && planner_.running()) return;
  if (answer) known_[asked_].answer = read_answer(*answer);
  asked_ = kNone;
}

void Learner::take_plan(std::uint32_t id, const FoundConstants& found) {
  KnownStep& known = known_[id];
  std::optional<PlannedActions> plan;
  std::swap(plan, known.answer);
  if (!plan) return;
  std::optional<SimulatedStep> planned = simulate_planned(
      known.trace, found.sizes, used_afterwards(id), limits_with(found.surroundings, known.plan_less), *plan);
  const Nanoseconds so_far = known.simulated ? known.simulated->rematerialized : known.greedy_rematerialized;
  if (!planned || planned->rematerialized >= so_far) return;
  std::optional<GuidedStep> guide =
      place_step(*planned, found.surroundings, state_.arena->budget(), state_.backend.alignment());
  if (!guide) {
    known.plan_less += kLessPerPlan;
    return;
  }
  known.plan = std::move(plan);
  known.planned = true;
  known.simulated = std::move(planned);
  known.guide = std::move(guide);
  ++figures_.num_plans;
}

void Learner::note_outcome(KnownStep& known) {
  ++known.num_followed;
  const Statistics& now = state_.engine->statistics();
  figures_.predicted = {known.simulated->peak + used_by_others_, known.simulated->num_rematerializations,
                        known.simulated->computed, known.simulated->rematerialized, predicted_cpu_};
  figures_.measured = {peak_, now.num_rematerializations - at_begin_.num_rematerializations,
                       now.computed - at_begin_.computed, now.rematerialized - at_begin_.rematerialized,
                       times_.last()};
}

StepLimits Learner::limits_with(const Surroundings& surroundings, Bytes shrink) const {
  StepLimits limits;
  limits.alignment = state_.backend.alignment();
  limits.max_depth = state_.options.engine.max_depth;
  limits.budget = shrunk(state_.arena->budget(), shrink);
  for (const Occupied& other : surroundings.others) limits.budget -= other.nbytes;
  return limits;
}

// False if there is no use in trying with less.
bool Learner::make_guide(KnownStep& known, Bytes shrink, const FoundConstants& found) {
  const auto id = static_cast<std::uint32_t>(&known - known_.data());
  StepLimits limits = limits_with(found.surroundings, shrink);
  // A step can begin in other found.surroundings again and again, and what was seen once may never come
  // again. A search takes longer than many steps: it is for those that were followed, or that come in a row
  // and have no guide yet.
  const bool comes_again =
      known.num_followed >= kFollowedBeforePlanning || (known.num_seen >= kMostFailures && known.next == id);
  if (!comes_again || known.num_searches++ >= kMostSearches) limits.search_events = 0;
  known.simulated.reset();
  known.planned = false;
  auto take_if_placed = [&](SimulatedStep& way, bool planned) {
    if (way.rematerialized >= known.greedy_rematerialized) return;
    known.guide = place_step(way, found.surroundings, state_.arena->budget(), state_.backend.alignment());
    if (!known.guide) return;
    known.simulated = std::move(way);
    known.planned = planned;
  };
  std::vector<SimulatedStep> ways = simulate_ways(known.trace, found.sizes, used_afterwards(id), limits);
  std::optional<SimulatedStep> planned;
  if (known.plan)
    planned = simulate_planned(known.trace, found.sizes, used_afterwards(id), limits, *known.plan);
  bool useful = false;
  if (planned && (ways.empty() || planned->rematerialized < ways.front().rematerialized)) {
    useful = planned->rematerialized < known.greedy_rematerialized;
    take_if_placed(*planned, true);
  }
  for (SimulatedStep& way : ways) {
    useful = useful || way.rematerialized < known.greedy_rematerialized;
    if (!known.guide) take_if_placed(way, false);
  }
  return useful;
}

// Which of the tensors that outlive the step are more than released by the step after it, as far as that is
// known.
std::vector<std::int32_t> Learner::used_afterwards(std::uint32_t id) const {
  const KnownStep& known = known_[id];
  const KnownStep& next = known_[next_of(id)];
  const auto num_constants = static_cast<std::int32_t>(known.trace.num_constants());
  std::unordered_set<std::uint64_t> only_released;
  for (std::size_t i = 0; i < next.roles.size(); ++i) {
    if (next.roles[i].step == id && !next.trace.read[i]) only_released.insert(next.roles[i].number);
  }
  std::vector<std::int32_t> used;
  for (std::int32_t tensor : known.trace.held) {
    const bool made = tensor >= num_constants;
    if (!made || only_released.count(static_cast<std::uint64_t>(tensor - num_constants)) == 0)
      used.push_back(tensor);
  }
  return used;
}

Bytes Learner::budget_for(double max_slowdown) const {
  const std::uint32_t id = following_ != kNone ? following_ : last_.id;
  if (id == kNone) return 0;
  const StepTrace& trace = known_[id].trace;
  // What the step does not touch takes its place, too.
  Bytes others = used_at_begin_;
  for (std::size_t i = 0; i < trace.num_constants(); ++i) {
    if (trace.columns.aliases[i] != kElsewhere) others -= state_.arena->footprint(trace.columns.nbytes[i]);
  }
  others = std::max<Bytes>(others, 0);
  auto fits = [&](Bytes budget) {
    StepLimits limits;
    limits.alignment = state_.backend.alignment();
    limits.max_depth = state_.options.engine.max_depth;
    limits.max_slowdown = 1.0 + (max_slowdown - 1.0) / 2.0;
    limits.budget = budget - others;
    return limits.budget > 0 && loss_with(state_.options.engine, trace, limits);
  };
  Bytes too_small = state_.arena->budget();
  Bytes enough = too_small + too_small / 4;
  for (int doublings = 0; !fits(enough); ++doublings) {
    if (doublings == 8) return 0;
    too_small = enough;
    enough *= 2;
  }
  while (enough - too_small > enough / 32) {
    const Bytes middle = too_small + (enough - too_small) / 2;
    (fits(middle) ? enough : too_small) = middle;
  }
  // Addresses, other tensors and other costs take more than the simulation says: half of the allowed loss and
  // this are to spare.
  return enough + enough / 16;
}

LearningFigures Learner::figures() const {
  LearningFigures figures = figures_;
  figures.planning = planner_.running();
  figures.tier_use = tier_choice_.chosen();
  figures.num_known = known_.size();
  for (const KnownStep& known : known_) {
    figures.known_bytes += known.trace.num_bytes();
    if (known.guide)
      figures.known_bytes +=
          known.guide->requests.size() * sizeof(GuidedRequest) + known.guide->victims.size() * 4;
    if (known.simulated)
      figures.known_bytes += known.simulated->lifetimes.size() * (sizeof(Unplaced::Lifetime) + 8);
    if (known.plan)
      figures.known_bytes += known.plan->actions.size() * sizeof(PlannedActions::Action) +
                             known.plan->first.size() * sizeof(std::uint32_t);
  }
  return figures;
}

}  // namespace remint
