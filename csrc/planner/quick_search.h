// QuickSearch: the cheapest runs between two moments of a step, by best-first search from the later one back.
//
// It is the search of backward_search.h with a worse bound that takes a hundredth of the time: every op that
// is needed runs once more, however much memory that takes. Where the moments are not far apart, that finds
// more. No ops run for the first time but those between the moments.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/backward_states.h"
#include "planner/watched_problem.h"

namespace remint {

class QuickSearch {
 public:
  // The earlier moment: ops before `begin` have run for the first time, and `there` is held.
  QuickSearch(const WatchedProblem& problem, int begin, const ValueSet& there);

  // Begins at the later moment: `frontier` runs next, and `wanted` is held. Looks into so many states. Ways
  // whose rematerializations cost `limit` or more are of no interest.
  void run(const ValueSet& wanted, int frontier, std::int64_t states, double limit,
           const std::function<bool()>& go_on);

  bool found() const { return goal_ >= 0; }
  std::int64_t looked_into() const { return looked_into_; }
  std::vector<int> ops() const { return states_.ops_from(goal_); }  // of the cheapest way

 private:
  struct Entry {
    double total;
    double left;
    int state;
    bool operator<(const Entry& other) const {
      if (total != other.total) return total > other.total;
      if (left != other.left) return left > other.left;
      return state < other.state;
    }
  };

  double left(const ValueSet& wanted, int frontier) const;
  void enter(BackwardState state, double limit);
  void queue(int at);

  const WatchedProblem& problem_;
  const int begin_;
  const ValueSet there_;
  // Ops that must run again: per value, to make it; per frontier, for the first runs before.
  std::vector<ValueSet> needs_, needs_before_;
  BackwardMoves moves_;
  BackwardStates states_;
  std::vector<Entry> heap_;
  std::int64_t looked_into_ = 0;
  int goal_ = -1;
};

}  // namespace remint
