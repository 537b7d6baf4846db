// WatchedProblem: a problem in which only some values, the watched ones, have bytes.
//
// The others are always there once they were made, and count only while an op reads or makes them. Every
// schedule of the whole problem is one of this problem, with no more memory and the same cost, so that what
// is proven here holds there.
#pragma once

#include <vector>

#include "planner/schedule_state.h"
#include "planner/value_set.h"

namespace remint {

struct WatchedProblem {
  // `watched`: the values to watch, at most ValueSet::kMost. Those without bytes are left out.
  WatchedProblem(const SearchProblem& problem, double budget, const std::vector<int>& watched);

  int ops() const { return static_cast<int>(cost.size()); }
  double bytes_of(const ValueSet& set) const {
    double sum = 0;
    set.each([&](int v) { sum += bytes[v]; });
    return sum;
  }

  std::vector<double> cost;               // per op
  std::vector<char> again;                // per op: may run again
  std::vector<ValueSet> inputs, outputs;  // per op
  std::vector<std::vector<int>> reads;    // the same as lists
  std::vector<std::vector<int>> makes;    //
  std::vector<double> bytes;              // per watched value
  std::vector<int> maker;                 // per watched value
  ValueSet results;
  std::vector<double> others;  // per op and the end, bytes of what it reads and makes and nobody watches
  double space = 0;            // the budget without constants
};

// The numbers of all values, to watch them.
std::vector<int> every_value(const SearchProblem& problem);

}  // namespace remint
