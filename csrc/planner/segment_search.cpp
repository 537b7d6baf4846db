#include "planner/segment_search.h"

#include <algorithm>
#include <stdexcept>

#include "planner/quick_search.h"

namespace remint {
namespace {
constexpr double kCheaper = 1e-9;  // in parts of the cost of the segment: what counts as cheaper
}  // namespace

SegmentSearch::SegmentSearch(const SearchProblem& problem, double budget)
    : problem_(problem, budget, every_value(problem)) {
  std::vector<ValueSet> needs(problem_.bytes.size());
  from_nothing_.assign(problem_.bytes.size(), 0);
  for (int op = 0; op < problem_.ops(); ++op) {
    ValueSet before;  // values that the op cannot do without
    for (int v : problem_.reads[op]) before = (before | needs[v]) | problem_.inputs[op];
    std::vector<char> ran(problem_.ops(), 0);
    ran[op] = 1;
    before.each([&](int v) { ran[problem_.maker[v]] = 1; });
    double cost = 0;
    for (int i = 0; i <= op; ++i)
      if (ran[i]) cost += problem_.cost[i];
    for (int v : problem_.makes[op]) {
      needs[v] = before;
      from_nothing_[v] = cost;
    }
  }
}

// What is there before the run at `begin`: what is read later, and whatever else memory had space for until
// then.
ValueSet SegmentSearch::there_at(const std::vector<int>& sequence, int begin) const {
  const int runs = static_cast<int>(sequence.size());
  std::vector<double> room(begin + 1, 0);  // while each run goes on, and at `begin`
  ValueSet wanted = problem_.results, there;
  for (int at = runs; at >= 0; --at) {
    if (at < runs) wanted = wanted.without(problem_.outputs[sequence[at]]) | problem_.inputs[sequence[at]];
    if (at == begin) there = wanted;
    if (at == begin) room[at] = problem_.space - problem_.bytes_of(wanted);
    if (at <= begin && at > 0) {
      const int op = sequence[at - 1];
      room[at - 1] = problem_.space - problem_.others[op] -
                     problem_.bytes_of(wanted | problem_.inputs[op] | problem_.outputs[op]);
    }
  }
  std::vector<int> made(problem_.bytes.size(), -1), read(problem_.bytes.size(), -1);
  for (int at = 0; at < begin; ++at) {
    for (int v : problem_.makes[sequence[at]]) made[v] = at;
    for (int v : problem_.reads[sequence[at]]) read[v] = at;
  }
  std::vector<int> others;
  for (int v = 0; v < static_cast<int>(made.size()); ++v)
    if (made[v] >= 0 && !there.has(v)) others.push_back(v);
  // First those that are made again later, then those that cost most to make, for their bytes.
  std::vector<char> runs_later(problem_.ops(), 0);
  for (int at = begin; at < runs; ++at) runs_later[sequence[at]] = 1;
  std::stable_sort(others.begin(), others.end(), [&](int v, int w) {
    const char again = runs_later[problem_.maker[v]], other = runs_later[problem_.maker[w]];
    if (again != other) return again > other;
    return from_nothing_[v] * problem_.bytes[w] > from_nothing_[w] * problem_.bytes[v];
  });
  for (int v : others) {
    // It counts already up to when it was read last.
    const int from = std::max(made[v], read[v]) + 1;
    if (std::any_of(room.begin() + from, room.end(), [&](double r) { return r < problem_.bytes[v]; }))
      continue;
    for (int at = from; at <= begin; ++at) room[at] -= problem_.bytes[v];
    there.add(v);
  }
  return there;
}

std::vector<int> SegmentSearch::improve(const std::vector<int>& sequence, int begin, int end,
                                        std::int64_t states, const std::function<bool()>& go_on) {
  const int runs = static_cast<int>(sequence.size());
  if (begin < 0 || end < begin || end > runs) throw std::invalid_argument("there is no such segment");
  int first = 0, last = 0;
  double known = 0;
  std::vector<char> ran(problem_.ops(), 0);
  for (int at = 0; at < end; ++at) {
    const int op = sequence[at];
    if (op < 0 || op >= problem_.ops()) throw std::invalid_argument("there is no such op");
    if (ran[op] && at >= begin) known += problem_.cost[op];
    if (!ran[op]) (at < begin ? first : last)++;
    ran[op] = 1;
  }
  last += first;
  if (known == 0) return {};
  ValueSet wanted = problem_.results;
  for (int at = runs; at-- > end;)
    wanted = wanted.without(problem_.outputs[sequence[at]]) | problem_.inputs[sequence[at]];
  QuickSearch search(problem_, first, there_at(sequence, begin));
  search.run(wanted, last, states, known * (1 - kCheaper), go_on);
  looked_into_ += search.looked_into();
  if (!search.found()) return {};
  std::vector<int> better(sequence.begin(), sequence.begin() + begin);
  const std::vector<int> found = search.ops();
  better.insert(better.end(), found.begin(), found.end());
  better.insert(better.end(), sequence.begin() + end, sequence.end());
  return better;
}

}  // namespace remint
