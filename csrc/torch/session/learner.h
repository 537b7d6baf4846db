// Learns the steps of a program: notes what each step does, and guides the engine through a step that it
// knows.
//
//   a boundary ─▶ the step that ended is compared with the known ones ─▶ if the one that comes next is known,
//   the engine follows its guide; otherwise it is noted
//
// A step is guided when it was seen once under pressure. Its guide comes from a simulation of it with the
// policy that knows the future (learning/step_plan.h). Meanwhile another process plans the step; a plan that
// costs less takes the place of the guide when the step begins again.
//
// With a tier there are no guides: a step is noted now and then, and says what the tier is best used for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "learning/step_plan.h"
#include "torch/observe/recorder.h"
#include "torch/session/known_step.h"
#include "torch/session/planning_process.h"
#include "torch/session/state.h"
#include "torch/session/step_times.h"
#include "torch/session/tier_choice.h"

namespace remint {

// What came of the steps of one kind: those that the policy decided on, and those that followed a known step.
struct StepFigures {
  std::uint64_t num_steps = 0;
  Nanoseconds computed = 0;
  Nanoseconds rematerialized = 0;
  Nanoseconds searching = 0;
};

struct StepOutcome {
  Bytes peak = 0;
  std::uint64_t num_rematerializations = 0;
  Nanoseconds computed = 0;
  Nanoseconds rematerialized = 0;
  // Of the thread's CPU time, all of it: kernels, the program's own code, and what the session does. 0:
  // unknown.
  Nanoseconds cpu = 0;
};

struct LearningFigures {
  StepFigures greedy;
  StepFigures learned;
  StepFigures planned;
  std::uint64_t num_departures = 0;
  std::string last_departure;  // empty: there was none
  std::uint64_t num_known = 0;
  std::uint64_t known_bytes = 0;  // what is known takes
  std::uint64_t num_plans = 0;    // plans that took the place of a guide
  bool planning = false;          // a process plans a step
  // Of the step that was followed last to its end: what was predicted, and what came of it.
  StepOutcome predicted;
  StepOutcome measured;
  // What a tier is used for since a step was simulated; empty: none was, or there is no tier.
  std::string tier_use;
};

class Learner {
 public:
  explicit Learner(SessionState& state)
      : state_(state), planner_(state.options.planner), tier_choice_(state) {}

  // Comes before `step_ended`, while the memory still knows the peak of the step.
  void note_peak() { peak_ = state_.arena->recent_peak(); }
  // The program says that a step ends, and another one begins. Not while an op runs.
  void step_ended() {
    if (!told_) forget_found_steps();
    told_ = true;
    boundary();
  }
  // Whether nobody says where steps end. Then they end with a backward pass, and an op of the program comes
  // next.
  bool finds_steps() const { return !told_; }
  // True: one ended.
  bool find_boundary();
  // An op is about to run.
  void before_op(const Operator& op, std::uint64_t signature) {
    if (following_ != kNone) check_op(op, signature);
  }
  // What comes now does not follow on what was seen last.
  void interrupted();
  // The session closes.
  void end();

  // The smallest budget in which the step that was seen last would not become slower than that; 0 if no step
  // is known, or none was found.
  Bytes budget_for(double max_slowdown) const;

  LearningFigures figures() const;

 private:
  std::uint32_t next_of(std::uint32_t id) const;
  void boundary();
  void rest_if_in_vain(std::uint32_t ended);
  void forget_steps();
  void forget_found_steps();
  void check_op(const Operator& op, std::uint64_t signature);
  void depart(const std::string& why);
  void record();
  void stop_recording();
  std::uint32_t learn();
  bool follow(std::uint32_t id);
  bool make_guide(KnownStep& known, Bytes shrink, const FoundConstants& found);
  StepLimits limits_with(const Surroundings& surroundings, Bytes shrink) const;
  void ask_for_plan(std::uint32_t id, const FoundConstants& found);
  void collect_answer();
  void take_plan(std::uint32_t id, const FoundConstants& found);
  std::vector<std::int32_t> used_afterwards(std::uint32_t id) const;
  void count(StepFigures& figures);
  void note_outcome(KnownStep& known);
  bool search_guide(KnownStep& known, const FoundConstants& found);
  void take_warm_costs(KnownStep& known, const FoundConstants& found);

  SessionState& state_;
  Recorder recorder_;
  bool recording_ = false;
  bool told_ = false;                                     // somebody says where steps end
  bool backward_ = false;                                 // the last op was part of a backward pass
  std::unordered_map<std::uint64_t, Existing> existing_;  // when the step began
  std::vector<KnownStep> known_;
  std::uint32_t following_ = kNone;
  PlanningProcess planner_;
  std::uint32_t asked_ = kNone;  // the step that a plan was asked for
  std::size_t op_ = 0;           // the next op of the step that is followed
  StepBefore last_;
  TierChoice tier_choice_;
  // Steps in a row that were noted or followed, and were no step that came before; boundaries until the next
  // try.
  std::uint32_t num_in_vain_ = 0;
  std::uint32_t rest_ = 0;
  Statistics at_begin_;
  StepTimes times_;
  Nanoseconds predicted_cpu_ = 0;
  Statistics at_last_begin_;
  bool counted_ = false;            // the step at hand is among the figures
  LearningFigures figures_before_;  // without the step before
  Bytes used_at_begin_ = 0;
  Bytes peak_ = 0;            // of the step
  Bytes used_by_others_ = 0;  // bytes that the step which is followed does not touch
  LearningFigures figures_;
};

}  // namespace remint
