// BackwardStates: what searches from the end of the step to its beginning share: states, and the moves
// between them.
//
// A state is the op that runs for the first time next, and the set of values that must be there when it does.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "planner/watched_problem.h"

namespace remint {

struct BackwardState {
  ValueSet wanted;
  double cost;  // of the rematerializations from here to the end
  double left;  // at least this is still to come
  int parent;
  std::int16_t frontier;  // the op whose first run is next
  std::int16_t op;        // that runs between this state and its parent
  bool measured;          // `left` is the bound of this state, not only what follows from its parent's
  bool closed;            // what can have happened before it has been entered
};

// States by number, found by what they are.
class BackwardStates {
 public:
  BackwardStates() { grow_table(); }

  BackwardState& operator[](int at) { return states_[at]; }
  const BackwardState& operator[](int at) const { return states_[at]; }
  std::size_t size() const { return states_.size(); }
  int find(const ValueSet& wanted, int frontier) const;  // -1 if it is not there
  int add(const BackwardState& state);                   // it must not be there yet
  // Whether the same state with one value less is known and costs no more.
  bool dominated(const BackwardState& state) const;
  // The ops that run from a state to the end, in order.
  std::vector<int> ops_from(int at) const;

 private:
  void grow_table();

  std::deque<BackwardState> states_;  // it grows without a copy of all
  std::vector<int> table_;            // open addressing: 1 + the number of a state, or 0
};

// What can have happened just before a state.
class BackwardMoves {
 public:
  explicit BackwardMoves(const WatchedProblem& problem) : problem_(problem) {}

  // Whether `op` can run when `wanted` is held after it.
  bool fits(const ValueSet& wanted, int op) const {
    return problem_.bytes_of(wanted | problem_.inputs[op] | problem_.outputs[op]) + problem_.others[op] <=
           problem_.space;
  }

  // Whether a rematerialization among those that led to state `at` since the last first run could as well
  // come before `op`, which leads on from there. Then the order with `op` later in time is looked into, too,
  // and has the same end or a better one; so this one need not be.
  bool out_of_order(const BackwardStates& states, int at, int op, bool again) const;

  // Visits an op, whether it ran again, and what was wanted then. First runs of ops before `begin` are not
  // looked at.
  template <class Visit>
  void each_before(const ValueSet& wanted, int frontier, Visit&& visit, int begin = 0) const {
    const int first = frontier - 1;
    auto run_before = [&](int op, bool again) {
      if (!again || fits(wanted, op))
        visit(op, again, wanted.without(problem_.outputs[op]) | problem_.inputs[op]);
    };
    if (first >= begin && fits(wanted, first)) {
      run_before(first, false);
      const ValueSet asked = problem_.inputs[first].without(wanted);
      if (problem_.bytes_of(asked) <= problem_.bytes_of(problem_.outputs[first] & wanted)) return;
    }
    // To run the op before once more is never better than to run it later.
    for (int op = 0; op < (first >= begin ? first : frontier); ++op)
      if (problem_.again[op] && problem_.outputs[op].meets(wanted)) run_before(op, true);
  }

 private:
  const WatchedProblem& problem_;
};

}  // namespace remint
