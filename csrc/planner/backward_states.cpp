#include "planner/backward_states.h"

#include <algorithm>

namespace remint {

int BackwardStates::find(const ValueSet& wanted, int frontier) const {
  const std::size_t mask = table_.size() - 1;
  std::size_t at = wanted.hash(frontier) & mask;
  while (table_[at] != 0) {
    const BackwardState& state = states_[table_[at] - 1];
    if (state.frontier == frontier && state.wanted == wanted) return table_[at] - 1;
    at = (at + 1) & mask;
  }
  return -1;
}

int BackwardStates::add(const BackwardState& state) {
  if (2 * (states_.size() + 1) > table_.size()) grow_table();
  const int at = static_cast<int>(states_.size());
  states_.push_back(state);
  const std::size_t mask = table_.size() - 1;
  std::size_t place = state.wanted.hash(state.frontier) & mask;
  while (table_[place] != 0) place = (place + 1) & mask;
  table_[place] = at + 1;
  return at;
}

void BackwardStates::grow_table() {
  table_.assign(std::max<std::size_t>(1 << 12, 2 * table_.size()), 0);
  const std::size_t mask = table_.size() - 1;
  for (std::size_t k = 0; k < states_.size(); ++k) {
    std::size_t at = states_[k].wanted.hash(states_[k].frontier) & mask;
    while (table_[at] != 0) at = (at + 1) & mask;
    table_[at] = static_cast<int>(k) + 1;
  }
}

bool BackwardStates::dominated(const BackwardState& state) const {
  bool result = false;
  state.wanted.each([&](int v) {
    if (result) return;
    ValueSet fewer = state.wanted;
    fewer.remove(v);
    const int at = find(fewer, state.frontier);
    result = at >= 0 && states_[at].cost <= state.cost;
  });
  return result;
}

// A run that leads to state `at` is taken out, and put back after `op`. If all still fits, both orders are
// possible, and the one that keeps less for longer is the one to look into. Among rematerializations, the
// last one is then that of the earliest op: no two orders rule each other out. What costs nothing stays where
// it is, unless it is the last: each order that is ruled out must cost more than the way to the one that is
// not.
bool BackwardMoves::out_of_order(const BackwardStates& states, int at, int op, bool again) const {
  std::vector<int> between;  // what runs between the two, looking back, the last one first
  for (;;) {
    const BackwardState& state = states[at];
    if (state.parent < 0 || states[state.parent].frontier != state.frontier) return false;
    const int moved = state.op;
    const bool may_move =
        again ? moved < op && problem_.cost[moved] > 0 : between.empty() || problem_.cost[moved] > 0;
    if (may_move) {
      ValueSet wanted = states[state.parent].wanted;
      auto runs = [&](int other) {
        if (problem_.outputs[other].meets(problem_.inputs[moved]) || !fits(wanted, other)) return false;
        wanted = wanted.without(problem_.outputs[other]) | problem_.inputs[other];
        return true;
      };
      if (std::all_of(between.rbegin(), between.rend(), runs) && runs(op) && fits(wanted, moved)) return true;
    }
    between.push_back(moved);
    at = state.parent;
  }
}

std::vector<int> BackwardStates::ops_from(int at) const {
  std::vector<int> ops;
  for (; at >= 0 && states_[at].op >= 0; at = states_[at].parent) ops.push_back(states_[at].op);
  return ops;
}

}  // namespace remint
