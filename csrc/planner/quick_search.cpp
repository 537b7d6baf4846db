#include "planner/quick_search.h"

#include <algorithm>
#include <limits>

namespace remint {
namespace {
constexpr std::int64_t kAskEvery = 1000;  // states between two looks at the clock
}  // namespace

QuickSearch::QuickSearch(const WatchedProblem& problem, int begin, const ValueSet& there)
    : problem_(problem),
      begin_(begin),
      there_(there),
      needs_(problem.bytes.size()),
      needs_before_(problem.ops() + 1),
      moves_(problem) {
  for (int op = 0; op < begin; ++op) {
    ValueSet ops;
    ops.add(op);
    for (int v : problem.reads[op]) ops = ops | needs_[v];
    for (int v : problem.makes[op])
      if (!there.has(v)) needs_[v] = ops;
  }
  for (int op = begin; op < problem.ops(); ++op) {
    needs_before_[op + 1] = needs_before_[op];
    for (int v : problem.reads[op]) needs_before_[op + 1] = needs_before_[op + 1] | needs_[v];
  }
}

double QuickSearch::left(const ValueSet& wanted, int frontier) const {
  ValueSet ops = needs_before_[frontier];
  wanted.each([&](int v) { ops = ops | needs_[v]; });
  double cost = 0;
  ops.each([&](int op) {
    cost += problem_.again[op] ? problem_.cost[op] : std::numeric_limits<double>::infinity();
  });
  return cost;
}

void QuickSearch::queue(int at) {
  heap_.push_back({states_[at].cost + states_[at].left, states_[at].left, at});
  std::push_heap(heap_.begin(), heap_.end());
}

void QuickSearch::enter(BackwardState state, double limit) {
  const int at = states_.find(state.wanted, state.frontier);
  if (at >= 0) {
    BackwardState& known = states_[at];
    if (known.cost <= state.cost) return;
    known.cost = state.cost;
    known.parent = state.parent;
    known.op = state.op;
    queue(at);
    return;
  }
  state.left = left(state.wanted, state.frontier);
  if (state.cost + state.left < limit) queue(states_.add(state));
}

void QuickSearch::run(const ValueSet& wanted, int frontier, std::int64_t states, double limit,
                      const std::function<bool()>& go_on) {
  enter({wanted, 0, 0, -1, static_cast<std::int16_t>(frontier), -1, true, false}, limit);
  while (!heap_.empty() && looked_into_ < states) {
    const Entry entry = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.pop_back();
    const BackwardState state = states_[entry.state];
    if (entry.total != state.cost + state.left) continue;
    if (state.frontier == begin_ && state.wanted.without(there_) == ValueSet{}) {
      goal_ = entry.state;
      return;
    }
    if (states_.dominated(state)) continue;
    if (++looked_into_ % kAskEvery == 0 && !go_on()) return;
    moves_.each_before(
        state.wanted, state.frontier,
        [&](int op, bool again, const ValueSet& before) {
          if (moves_.out_of_order(states_, entry.state, op, again)) return;
          const int next = again ? state.frontier : state.frontier - 1;
          const double cost = state.cost + (again ? problem_.cost[op] : 0);
          enter({before, cost, 0, entry.state, static_cast<std::int16_t>(next), static_cast<std::int16_t>(op),
                 true, false},
                limit);
        },
        begin_);
  }
}

}  // namespace remint
