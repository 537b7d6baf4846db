#include "planner/watched_problem.h"

#include <numeric>
#include <stdexcept>

namespace remint {

WatchedProblem::WatchedProblem(const SearchProblem& problem, double budget, const std::vector<int>& watched)
    : cost(problem.cost), again(problem.again), space(budget - problem.constant_bytes) {
  const int n = problem.ops();
  std::vector<int> number(problem.values(), -1);
  for (int v : watched) {
    if (v < 0 || v >= problem.values()) throw std::invalid_argument("there is no such value");
    if (number[v] >= 0 || problem.bytes[v] <= 0) continue;
    number[v] = static_cast<int>(bytes.size());
    bytes.push_back(problem.bytes[v]);
  }
  if (static_cast<int>(bytes.size()) > ValueSet::kMost)
    throw std::invalid_argument("too many values to watch");
  maker.assign(bytes.size(), 0);
  inputs.resize(n);
  outputs.resize(n);
  reads.resize(n);
  makes.resize(n);
  others.assign(n + 1, 0);
  for (int i = 0; i < n; ++i) {
    for (int v : problem.inputs[i])
      if (number[v] >= 0) {
        inputs[i].add(number[v]);
        reads[i].push_back(number[v]);
      } else {
        others[i] += problem.bytes[v];
      }
    for (int v : problem.outputs[i])
      if (number[v] >= 0) {
        outputs[i].add(number[v]);
        makes[i].push_back(number[v]);
        maker[number[v]] = i;
      } else {
        others[i] += problem.bytes[v];
      }
  }
  for (int v : problem.results)
    if (number[v] >= 0)
      results.add(number[v]);
    else
      others[n] += problem.bytes[v];
}

std::vector<int> every_value(const SearchProblem& problem) {
  std::vector<int> all(problem.values());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace remint
