#include "planner/backward_search.h"

#include <algorithm>
#include <stdexcept>

namespace remint {

BackwardSearch::BackwardSearch(const SearchProblem& problem, double budget, const std::vector<int>& watched,
                               std::shared_ptr<BackwardSearch> easier, double hurry)
    : problem_(problem, budget, watched),
      window_bound_(problem_, bound_of(easier.get())),
      easier_(std::move(easier)),
      hurry_(hurry),
      moves_(problem_) {
  if (problem_.ops() > std::numeric_limits<std::int16_t>::max()) throw std::invalid_argument("too many ops");
  if (easier_ != nullptr) {
    for (std::size_t v = 0; v < easier_->problem_.bytes.size(); ++v) easier_values_.add(static_cast<int>(v));
    easier_->back_up();
    easier_->easier_ = nullptr;  // only one is kept
    if (easier_->ended_) easier_->heap_ = {};
  }
  begin_at(problem_.results, problem_.ops());
}

void BackwardSearch::begin_at(const ValueSet& wanted, int frontier) {
  states_ = BackwardStates();
  heap_.clear();
  bound_ = 0;
  cut_off_ = kInfinity;
  goal_ = -1;
  ended_ = false;
  const bool whole = frontier == problem_.ops();
  if (!whole || problem_.bytes_of(wanted) + problem_.others[frontier] <= problem_.space)
    enter({wanted, 0, 0, -1, static_cast<std::int16_t>(frontier), -1, false, false}, kInfinity);
}

bool BackwardSearch::learn_prefixes(std::int64_t states) {
  if (began_ || hurry_ != 1) throw std::invalid_argument("prefixes are learned before a search for a bound");
  const std::int64_t end = looked_into_ + states;
  for (; next_prefix_ < problem_.ops() && looked_into_ < end; ++next_prefix_) {
    // Where the bound is 0, there is little to learn.
    if (window_bound_.of_prefix(next_prefix_) == 0) continue;
    begin_at({}, next_prefix_);
    search(end, kInfinity);
    window_bound_.raise_prefix(next_prefix_, bound_);
  }
  begin_at(problem_.results, problem_.ops());
  return next_prefix_ >= problem_.ops();
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

double BackwardSearch::learned(const ValueSet& wanted, int frontier) const {
  if (easier_ == nullptr) return 0;
  const int at = easier_->states_.find(wanted & easier_values_, frontier);
  return at < 0 ? 0 : easier_->states_[at].left;
}

void BackwardSearch::queue(int at) {
  const BackwardState& state = states_[at];
  heap_.push_back({state.cost + hurry_ * state.left, state.cost, state.frontier, at});
  std::push_heap(heap_.begin(), heap_.end());
}

void BackwardSearch::enter(const BackwardState& state, double limit) {
  int at = states_.find(state.wanted, state.frontier);
  if (at >= 0) {
    BackwardState& known = states_[at];
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
    at = states_.add(state);
    states_[at].left = left;
  }
  queue(at);
}

void BackwardSearch::look_into(int at, double limit) {
  const BackwardState state = states_[at];
  states_[at].closed = true;
  moves_.each_before(state.wanted, state.frontier, [&](int op, bool again, const ValueSet& wanted) {
    if (moves_.out_of_order(states_, at, op, again)) return;
    const double cost = again ? problem_.cost[op] : 0;
    const int frontier = again ? state.frontier : state.frontier - 1;
    BackwardState before{wanted,
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
    BackwardState& state = states_[k];
    state.left = std::max(state.left, bound_ - state.cost);
    if (state.closed) order.push_back(static_cast<int>(k));
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const BackwardState &s = states_[a], &t = states_[b];
    if (s.frontier != t.frontier) return s.frontier < t.frontier;
    return s.cost != t.cost ? s.cost > t.cost : a < b;
  });
  for (int k : order) {
    const BackwardState& state = states_[k];
    double least = kInfinity;
    moves_.each_before(state.wanted, state.frontier, [&](int op, bool again, const ValueSet& wanted) {
      const double cost = again ? problem_.cost[op] : 0;
      if (cost >= least) return;
      const int frontier = again ? state.frontier : state.frontier - 1;
      const int at = states_.find(wanted, frontier);
      const double left =
          at >= 0 ? states_[at].left : std::max(window_bound_.of_prefix(frontier), learned(wanted, frontier));
      least = std::min(least, cost + left);
    });
    states_[k].left = std::max(states_[k].left, least);
  }
}

void BackwardSearch::run(std::int64_t states, double limit) {
  began_ = true;
  search(looked_into_ + states, limit);
}

void BackwardSearch::search(std::int64_t end, double limit) {
  while (!ended_ && looked_into_ < end && !full()) {
    if (heap_.empty()) {
      bound_ = std::max(bound_, cut_off_);
      ended_ = true;
      return;
    }
    const Entry entry = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.pop_back();
    BackwardState& state = states_[entry.state];
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
    if (states_.dominated(state)) continue;
    ++looked_into_;
    look_into(entry.state, limit);
  }
}

}  // namespace remint
