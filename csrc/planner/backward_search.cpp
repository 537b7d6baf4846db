#include "planner/backward_search.h"

#include <algorithm>
#include <stdexcept>

namespace remint {

BackwardSearch::BackwardSearch(const SearchProblem& problem, double budget, const std::vector<int>& watched,
                               std::shared_ptr<BackwardSearch> easier, double hurry)
    : problem_(problem, budget, watched),
      window_bound_(problem_, bound_of(easier.get())),
      easier_(std::move(easier)),
      hurry_(hurry) {
  if (problem_.ops() > std::numeric_limits<std::int16_t>::max()) throw std::invalid_argument("too many ops");
  if (easier_ != nullptr) {
    for (std::size_t v = 0; v < easier_->problem_.bytes.size(); ++v) easier_values_.add(static_cast<int>(v));
    easier_->back_up();
    easier_->easier_ = nullptr;  // only one is kept
  }
  grow_table();
  State end{problem_.results, 0, 0, -1, static_cast<std::int16_t>(problem_.ops()), -1, false, false};
  if (problem_.bytes_of(end.wanted) + problem_.others[problem_.ops()] <= problem_.space)
    enter(end, kInfinity);
}

const WindowBound* BackwardSearch::bound_of(const BackwardSearch* easier) const {
  if (easier == nullptr) return nullptr;
  const WatchedProblem& other = easier->problem_;
  if (other.cost != problem_.cost || other.space < problem_.space ||
      other.bytes.size() > problem_.bytes.size() ||
      !std::equal(other.maker.begin(), other.maker.end(), problem_.maker.begin()))
    throw std::invalid_argument("the other search is not one for an easier problem");
  return &easier->window_bound_;
}

// Whether `op` can run when `wanted` is held after it.
bool BackwardSearch::fits(const ValueSet& wanted, int op) const {
  return problem_.bytes_of(wanted | problem_.inputs[op] | problem_.outputs[op]) + problem_.others[op] <=
         problem_.space;
}

int BackwardSearch::find(const ValueSet& wanted, int frontier) const {
  const std::size_t mask = table_.size() - 1;
  std::size_t at = wanted.hash(frontier) & mask;
  while (table_[at] != 0) {
    const State& state = states_[table_[at] - 1];
    if (state.frontier == frontier && state.wanted == wanted) return table_[at] - 1;
    at = (at + 1) & mask;
  }
  return -1;
}

double BackwardSearch::learned(const ValueSet& wanted, int frontier) const {
  if (easier_ == nullptr) return 0;
  const int at = easier_->find(wanted & easier_values_, frontier);
  return at < 0 ? 0 : easier_->states_[at].left;
}

void BackwardSearch::grow_table() {
  table_.assign(std::max<std::size_t>(1 << 12, 2 * table_.size()), 0);
  const std::size_t mask = table_.size() - 1;
  for (std::size_t k = 0; k < states_.size(); ++k) {
    std::size_t at = states_[k].wanted.hash(states_[k].frontier) & mask;
    while (table_[at] != 0) at = (at + 1) & mask;
    table_[at] = static_cast<int>(k) + 1;
  }
}

void BackwardSearch::queue(int at) {
  const State& state = states_[at];
  heap_.push_back({state.cost + hurry_ * state.left, state.cost, state.frontier, at});
  std::push_heap(heap_.begin(), heap_.end());
}

void BackwardSearch::enter(const State& state, double limit) {
  int at = find(state.wanted, state.frontier);
  if (at >= 0) {
    State& known = states_[at];
    if (known.cost <= state.cost) return;
    known.cost = state.cost;
    known.left = std::max(known.left, state.left);
    known.parent = state.parent;
    known.op = state.op;
  } else {
    const double left = std::max(state.left, learned(state.wanted, state.frontier));
    if (state.cost + left >= limit) {
      cut_off_ = std::min(cut_off_, state.cost + left);
      return;
    }
    if (2 * (states_.size() + 1) > table_.size()) grow_table();
    at = static_cast<int>(states_.size());
    states_.push_back(state);
    states_.back().left = left;
    const std::size_t mask = table_.size() - 1;
    std::size_t place = state.wanted.hash(state.frontier) & mask;
    while (table_[place] != 0) place = (place + 1) & mask;
    table_[place] = at + 1;
  }
  queue(at);
}

// Whether the same state with one value less is known and costs no more.
bool BackwardSearch::dominated(const State& state) const {
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

// Whether the run that led here could as well have come before the first run that is next.
bool BackwardSearch::can_wait(const State& state) const {
  if (state.parent < 0) return false;
  const State& parent = states_[state.parent];
  const int first = state.frontier - 1;
  if (parent.frontier != state.frontier || !fits(parent.wanted, first)) return false;
  return fits(parent.wanted.without(problem_.outputs[first]) | problem_.inputs[first], state.op);
}

// Visits what can have happened last before a state: an op, whether it ran again, and what was wanted then.
template <class Visit>
void BackwardSearch::each_before(const ValueSet& wanted, int frontier, Visit&& visit) const {
  const int first = frontier - 1;
  auto run_before = [&](int op, bool again) {
    if (!again || fits(wanted, op))
      visit(op, again, wanted.without(problem_.outputs[op]) | problem_.inputs[op]);
  };
  if (fits(wanted, first)) {
    run_before(first, false);
    const ValueSet asked = problem_.inputs[first].without(wanted);
    if (problem_.bytes_of(asked) <= problem_.bytes_of(problem_.outputs[first] & wanted)) return;
  }
  // To run the op before once more is never better than to run it later.
  for (int op = 0; op < first; ++op)
    if (problem_.again[op] && problem_.outputs[op].meets(wanted)) run_before(op, true);
}

void BackwardSearch::look_into(int at, double limit) {
  const State state = states_[at];
  states_[at].closed = true;
  each_before(state.wanted, state.frontier, [&](int op, bool again, const ValueSet& wanted) {
    if (!again && can_wait(state)) return;
    const double cost = again ? problem_.cost[op] : 0;
    const int frontier = again ? state.frontier : state.frontier - 1;
    State before{wanted,
                 state.cost + cost,
                 std::max(state.left - cost, window_bound_.of_prefix(frontier)),
                 at,
                 static_cast<std::int16_t>(frontier),
                 static_cast<std::int16_t>(op),
                 false,
                 false};
    enter(before, limit);
  });
}

// What is still to come is at least the least over what can have happened last. Every order of doing this
// gives bounds; looking at states before those that follow them gives good ones.
void BackwardSearch::back_up() {
  std::vector<int> order;
  for (std::size_t k = 0; k < states_.size(); ++k) {
    State& state = states_[k];
    state.left = std::max(state.left, bound_ - state.cost);
    if (state.closed) order.push_back(static_cast<int>(k));
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const State &s = states_[a], &t = states_[b];
    if (s.frontier != t.frontier) return s.frontier < t.frontier;
    return s.cost != t.cost ? s.cost > t.cost : a < b;
  });
  for (int k : order) {
    const State& state = states_[k];
    double least = kInfinity;
    each_before(state.wanted, state.frontier, [&](int op, bool again, const ValueSet& wanted) {
      const double cost = again ? problem_.cost[op] : 0;
      if (cost >= least) return;
      const int frontier = again ? state.frontier : state.frontier - 1;
      const int at = find(wanted, frontier);
      const double left =
          at >= 0 ? states_[at].left : std::max(window_bound_.of_prefix(frontier), learned(wanted, frontier));
      least = std::min(least, cost + left);
    });
    states_[k].left = std::max(states_[k].left, least);
  }
}

void BackwardSearch::run(std::int64_t states, double limit) {
  for (std::int64_t end = looked_into_ + states; !ended_ && looked_into_ < end && !full();) {
    if (heap_.empty()) {
      bound_ = std::max(bound_, cut_off_);
      ended_ = true;
      return;
    }
    const Entry entry = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.pop_back();
    State& state = states_[entry.state];
    if (entry.cost != state.cost || entry.total != state.cost + hurry_ * state.left) continue;
    if (hurry_ == 1 && entry.total >= limit) {
      // All that are left cost at least as much.
      cut_off_ = std::min(cut_off_, entry.total);
      heap_.clear();
      continue;
    }
    if (hurry_ == 1) bound_ = std::max(bound_, entry.total);
    if (state.cost + state.left >= limit) continue;
    if (!state.measured) {
      state.measured = true;
      ++looked_into_;
      const double left = window_bound_(state.wanted, state.frontier);
      if (left > state.left) {
        state.left = left;
        if (left < kInfinity) queue(entry.state);
        continue;
      }
    }
    if (state.frontier == 0) {
      goal_ = entry.state;
      ended_ = true;
      return;
    }
    if (dominated(state)) continue;
    ++looked_into_;
    look_into(entry.state, limit);
  }
}

std::vector<int> BackwardSearch::sequence() const {
  std::vector<int> ops;
  for (int at = goal_; at >= 0 && states_[at].op >= 0; at = states_[at].parent) ops.push_back(states_[at].op);
  return ops;
}

}  // namespace remint
