// SegmentSearch: makes schedules cheaper, a segment at a time.
//
// A segment is a few dozen runs of a schedule. What is there when it begins, and what is wanted when it ends,
// stays as it is; between them the cheapest runs are searched for, as in backward_search.h. Few runs
// have few states, so this works where a search for the whole schedule does not end. Values that
// memory had space for until the segment begins are there, too.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/watched_problem.h"

namespace remint {

class SegmentSearch {
 public:
  // All values have bytes; at most ValueSet::kMost of them.
  SegmentSearch(const SearchProblem& problem, double budget);
  SegmentSearch(const SegmentSearch&) = delete;
  SegmentSearch& operator=(const SegmentSearch&) = delete;

  // The schedule with the runs from `begin` to before `end` in the cheapest way, or an empty one if there is
  // none that is cheaper, or none was found in that many states or before `go_on` said no. `sequence` keeps
  // the budget.
  std::vector<int> improve(const std::vector<int>& sequence, int begin, int end, std::int64_t states,
                           const std::function<bool()>& go_on);

  std::int64_t looked_into() const { return looked_into_; }  // in all

 private:
  ValueSet there_at(const std::vector<int>& sequence, int begin) const;

  WatchedProblem problem_;
  std::vector<double> from_nothing_;  // per value, what it costs to make it when nothing is there
  std::int64_t looked_into_ = 0;
};

}  // namespace remint
