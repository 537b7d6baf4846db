// BackwardSearch: the cheapest schedule of a graph, by best-first search from the end of the step to its
// beginning.
//
// A state is the op that runs for the first time next, and the set of values that must be there when it does.
// Looking back, the last thing that happened before was the first run of the op before, or another run of an
// op that makes one of the values. Either leads to an earlier state, in which the op's inputs are wanted and
// its outputs are not. There is nothing to decide about dropping values: a value is held from a run of its
// maker to the uses that this run serves. Ops run again in any order and as often as it pays; only first runs
// are in the graph's order.
//
// The search is A* with the bound of window_bound.h. Five things keep it small:
//  - a state is not looked into if another with fewer values costs no more;
//  - a first run that frees as much as it asks for, looking back, is taken at once: whatever else happens in
//    its stage can as well happen before it;
//  - of two orders of the same runs, one is looked into: an op that can as well run before the first run as
//    after it, runs before;
//  - searches for the beginnings of the step, each up to one op with nothing held for later, the shortest one
//    first. They are small, and what they find is part of the bound: Russian doll search (Verfaillie,
//    Lemaitre and Schiex, 1996);
//  - what a search with fewer values watched, or with more memory, has learned: if no schedule of it costs
//    less than a bound, and the way from the end to a state costs so much, then the way on from there costs
//    the rest (as in Adaptive A*, Koenig and Likhachev, 2005); and from a state it costs no less than from
//    the best of the states that come next.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "planner/backward_states.h"
#include "planner/watched_problem.h"
#include "planner/window_bound.h"

namespace remint {

class BackwardSearch {
 public:
  // Only `watched` values have bytes: see watched_problem.h. `easier` is a search for the same ops with no
  // smaller budget and a beginning of the same list of values; what it has learned is used. What is left to
  // pay counts `hurry` times: above 1 the search finds a schedule sooner, not the cheapest one, and no bound.
  BackwardSearch(const SearchProblem& problem, double budget, const std::vector<int>& watched,
                 std::shared_ptr<BackwardSearch> easier = nullptr, double hurry = 1);
  BackwardSearch(const BackwardSearch&) = delete;
  BackwardSearch& operator=(const BackwardSearch&) = delete;

  // Searches for the cheapest beginnings of the step that have not been searched for yet, until that many
  // states were looked into. Only before the first `run`. Returns whether all are done.
  bool learn_prefixes(std::int64_t states);

  // Looks into that many states more, or until the cheapest schedule is found. Rematerializations that cost
  // `limit` or more are of no interest.
  void run(std::int64_t states, double limit);

  bool ended() const { return ended_; }  // with a schedule, or because there is none below the limit
  bool found() const { return goal_ >= 0; }
  bool full() const { return states_.size() >= kMostStates; }  // nothing more fits into memory
  // What rematerializations cost at least: of all schedules, or infinite if there is none.
  double bound() const { return bound_; }
  std::int64_t looked_into() const { return looked_into_; }
  std::int64_t states() const { return static_cast<std::int64_t>(states_.size()); }
  std::vector<int> sequence() const { return states_.ops_from(goal_); }  // of the cheapest schedule

 private:
  // About 140 bytes each with the queue and the table. Three searches are there at a time at most, the easier
  // ones without a queue: all of them stay below 2 GiB.
  static constexpr std::size_t kMostStates = 5'000'000;
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  struct Entry {
    double total;
    double cost;
    int frontier;
    int state;
    bool operator<(const Entry& other) const {
      if (total != other.total) return total > other.total;
      if (frontier != other.frontier) return frontier > other.frontier;
      return state < other.state;
    }
  };

  void begin_at(const ValueSet& wanted, int frontier);
  void search(std::int64_t end, double limit);
  const WindowBound* bound_of(const BackwardSearch* easier) const;
  void enter(const BackwardState& state, double limit);
  void look_into(int at, double limit);
  void back_up();
  double learned(const ValueSet& wanted, int frontier) const;
  void queue(int at);

  WatchedProblem problem_;
  WindowBound window_bound_;
  std::shared_ptr<BackwardSearch> easier_;
  ValueSet easier_values_;  // those that it watches
  double hurry_;
  BackwardMoves moves_;
  BackwardStates states_;
  std::vector<Entry> heap_;
  double bound_ = 0;
  double cut_off_ = kInfinity;  // the least total of what was left out because of the limit
  std::int64_t looked_into_ = 0;
  int goal_ = -1;
  bool ended_ = false;
  bool began_ = false;   // the search for the whole step
  int next_prefix_ = 1;  // where the next beginning to search for ends
};

}  // namespace remint
