#include "planner/annealing.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace remint {
namespace {
constexpr int64_t kFirstCycle = 8000;
constexpr int64_t kLongestCycle = 4000000;
constexpr size_t kMostActive = 1 << 18;
constexpr int kLongestRun = 100;
constexpr int64_t kGivenCycle = 40000;
constexpr int kPriceEvery = 64;
constexpr double kLowestPrice = 0.05, kHighestPrice = 1e4;
}  // namespace

Search::Search(SearchProblem problem, double budget, uint64_t seed, std::vector<int> twins)
    : state_(std::move(problem), budget), random_(seed), twins_(std::move(twins)) {
  const SearchProblem& p = state_.problem();
  int classes = 0;
  for (int twin : twins_) classes = std::max(classes, twin + 1);
  twin_ops_.resize(classes);
  for (int i = 0; i < static_cast<int>(twins_.size()); ++i)
    if (twins_[i] >= 0) twin_ops_[twins_[i]].push_back(i);
  std::vector<std::vector<int>> own(p.values());
  for (int i = 0; i < p.ops(); ++i)
    for (int v : p.inputs[i]) own[v].push_back(i);
  for (int v = 0; v < p.values(); ++v) {
    own_uses_begin_.push_back(static_cast<int>(own_uses_.size()));
    own_uses_.insert(own_uses_.end(), own[v].begin(), own[v].end());
  }
  own_uses_begin_.push_back(static_cast<int>(own_uses_.size()));
  double total = 0;
  for (double c : p.cost) total += c;
  cost_scale_ = total > 0 ? 1 / total : 1;
  excess_scale_ = state_.excess() > 0 ? 1 / state_.excess() : 1 / std::max(1.0, state_.peak());
  note();
}

void Search::start(const std::vector<Decision>& decisions) {
  snapshot();
  state_.assign(decisions);
  snapshot();
  active_ = decisions;
  note();
  cycle_left_ = 0;
  started_ = true;
}

void Search::set_budget(double budget) {
  snapshot();
  state_.set_budget(budget);
  best_cost_ = least_excess_ = kNone;
  note();
}

// Noting a schedule costs nothing here: it is what the last snapshot and the flips since then make.
void Search::note() {
  if (state_.excess() <= 0) {
    if (state_.cost() >= best_cost_ * (1 - 1e-12)) return;
    best_cost_ = state_.cost();
    best_flips_ = flips_.size();
  } else if (best_cost_ == kNone && state_.excess() < least_excess_) {
    least_excess_ = state_.excess();
    double peak = state_.peak();
    if (peak >= least_peak_) return;
    least_peak_ = peak;
    least_flips_ = flips_.size();
  }
}

std::vector<Decision> Search::replay(size_t flips) const {
  std::set<Decision> all(snapshot_.begin(), snapshot_.end());
  for (size_t i = 0; i < flips; ++i) {
    if (flips_[i].second)
      all.insert(flips_[i].first);
    else
      all.erase(flips_[i].first);
  }
  return {all.begin(), all.end()};
}

void Search::snapshot() {
  if (best_flips_ != kNoFlips) best_ = replay(best_flips_);
  if (least_flips_ != kNoFlips) least_ = replay(least_flips_);
  best_flips_ = least_flips_ = kNoFlips;
  snapshot_ = state_.decisions();
  flips_.clear();
}

void Search::begin_cycle() {
  cycle_length_ = std::min(kLongestCycle, kFirstCycle << std::min(cycles_, 20));
  const double mean = 1.0 / std::max(1, state_.stages());
  if (started_) {
    // What was given is worth exploring around, not forgetting: a short cycle at little heat.
    started_ = false;
    cycle_length_ = std::max(kFirstCycle, std::min<int64_t>(kGivenCycle, 100 * state_.stages()));
    heat_ = 0.05 * mean;
  } else {
    heat_ = (cycles_ % 2 ? 0.25 : 1.0) * mean;
    ++cycles_;
    snapshot();
    if (best_cost_ < kNone) state_.assign(best_);
  }
  snapshot();
  cycle_left_ = cycle_length_;
  cooling_ = std::pow(1e-3, 1.0 / static_cast<double>(cycle_length_));
  active_ = state_.decisions();
  price_ = cycles_ > 0 ? std::min(10.0, std::max(0.5, price_)) : 2.0;
}

void Search::turn(const Decision& d, bool on) {
  if (on && d.stage > state_.stages()) return;
  if (on && d.kind == Decision::kDrop && !state_.droppable(d.id)) return;
  if (on && d.kind == Decision::kForce && !state_.problem().again[d.id]) return;
  if (state_.has(d) == on) return;
  state_.set(d, on);
  fresh_.push_back({d, on});
}

// A stage where bytes are worth freeing: over budget if there is one.
int Search::busy_stage() {
  const int n = state_.stages();
  // The worst stage is looked up now and then only, as that takes a pass over all of them.
  if (moves_ - worst_at_ > 1 + n / 32) {
    worst_at_ = moves_;
    worst_ = 0;
    for (int t = 1; t < n; ++t)
      if (state_.memory(t) > state_.memory(worst_)) worst_ = t;
  }
  if (random_.below(3) == 0) return worst_;
  int best = random_.below(n);
  for (int tries = 0; tries < 6; ++tries) {
    int t = random_.below(n);
    if (state_.memory(t) > state_.memory(best)) best = t;
    if (state_.memory(best) > state_.budget()) break;
  }
  return best;
}

bool Search::pick_drop(int stage, Decision* drop) {
  const SearchProblem& p = state_.problem();
  const int values = p.values();
  int found = 0, want = 1 + random_.below(3);
  double best = -1;
  for (int tries = 0; tries < 48 && found < want; ++tries) {
    int v = random_.below(values);
    if (!state_.droppable(v) || p.bytes[v] == 0) continue;
    for (auto [first, last] : state_.intervals(v)) {
      if (first >= stage) break;
      if (last < stage) continue;
      int touch = first;
      for (auto [use, count] : state_.uses(v)) {
        if (use >= stage) break;
        touch = std::max(touch, use);
      }
      double worth = p.bytes[v] / (p.cost[state_.producer(v)] + 1e-12);
      ++found;
      if (worth > best) {
        best = worth;
        *drop = {Decision::kDrop, v, touch + 1};
      }
      break;
    }
  }
  return found > 0;
}

bool Search::pick_active(Decision* d) {
  while (!active_.empty()) {
    int at = random_.below(static_cast<int>(active_.size()));
    if (state_.has(active_[at])) {
      *d = active_[at];
      return true;
    }
    active_[at] = active_.back();
    active_.pop_back();
  }
  return false;
}

void Search::propose_run(bool on) {
  const SearchProblem& p = state_.problem();
  Decision d;
  const int reach =
      1 + random_.below(random_.below(4) ? 8 : std::min(kLongestRun, std::max(2, p.ops() / 12)));
  if (on) {
    int stage = busy_stage();
    if (!pick_drop(stage, &d)) return;
    int middle = state_.producer(d.id);
    for (int i = std::max(0, middle - reach); i <= std::min(p.ops() - 1, middle + reach); ++i)
      for (int v : p.outputs[i]) {
        if (p.bytes[v] == 0) continue;
        for (auto [first, last] : state_.intervals(v)) {
          if (first >= stage || last < stage) continue;
          int touch = first;
          for (auto [use, count] : state_.uses(v))
            if (use < stage) touch = std::max(touch, use);
          turn({Decision::kDrop, v, touch + 1}, true);
          break;
        }
      }
    return;
  }
  if (!pick_active(&d) || d.kind != Decision::kDrop) return;
  int middle = state_.producer(d.id), window = p.ops() / 4 + 1;
  for (int i = std::max(0, middle - reach); i <= std::min(p.ops() - 1, middle + reach); ++i)
    for (int v : p.outputs[i]) {
      const std::vector<int> drops = state_.drops(v);
      for (int b : drops)
        if (std::abs(b - d.stage) <= window) turn({Decision::kDrop, v, b}, false);
    }
}

// Rematerialize early, while an input is still there, so that the input may go.
void Search::propose_force() {
  const SearchProblem& p = state_.problem();
  Decision d;
  if (!pick_active(&d)) return;
  int op = d.kind == Decision::kDrop ? state_.producer(d.id) : d.id;
  const std::vector<int>& runs = state_.runs(op);
  if (runs.size() < 2 || p.inputs[op].empty()) return;
  int r = 1 + random_.below(static_cast<int>(runs.size()) - 1);
  int input = p.inputs[op][random_.below(static_cast<int>(p.inputs[op].size()))];
  const auto& uses = state_.uses(input);
  int stage = -1, seen = 0;
  for (auto [use, count] : uses)
    if (use > runs[r - 1] && use < runs[r] && random_.below(++seen) == 0) stage = use;
  if (stage < 0) return;
  turn({Decision::kForce, op, stage}, true);
  if (random_.below(2)) turn({Decision::kDrop, input, stage + 1}, true);
}

// Give the neighbourhood of one op the decisions of its twin's neighbourhood in another layer.
void Search::propose_copy() {
  const SearchProblem& p = state_.problem();
  Decision d;
  if (twins_.empty() || !pick_active(&d) || d.kind != Decision::kDrop) return;
  int from = state_.producer(d.id);
  if (twins_[from] < 0) return;
  const std::vector<int>& others = twin_ops_[twins_[from]];
  int to = others[random_.below(static_cast<int>(others.size()))];
  if (to == from) return;
  const int reach = random_.below(1 + std::min(kLongestRun, std::abs(to - from)));
  for (int i = std::max(0, from - reach); i <= std::min(p.ops() - 1, from + reach); ++i) {
    int k = i - from + to;
    if (k < 0 || k >= p.ops() || twins_[i] < 0 || twins_[k] != twins_[i]) continue;
    for (size_t o = 0; o < p.outputs[i].size(); ++o) {
      int v = p.outputs[i][o], w = p.outputs[k][o];
      int v0 = own_uses_begin_[v], w0 = own_uses_begin_[w];
      int count = own_uses_begin_[v + 1] - v0;
      if (own_uses_begin_[w + 1] - w0 != count) continue;
      const std::vector<int> old = state_.drops(w);
      for (int b : old) turn({Decision::kDrop, w, b}, false);
      for (int b : state_.drops(v))
        for (int u = 0; u < count; ++u)
          if (own_uses_[v0 + u] == b - 1) turn({Decision::kDrop, w, own_uses_[w0 + u] + 1}, true);
    }
  }
}

void Search::propose() {
  Decision d;
  int dice = random_.below(100);
  const bool over = state_.excess() > 0;
  if (dice < (over ? 40 : 25)) {
    if (pick_drop(busy_stage(), &d)) turn(d, true);
  } else if (dice < 58) {
    if (pick_active(&d)) turn(d, false);
  } else if (dice < 78) {
    if (!pick_active(&d)) return;
    turn(d, false);
    Decision other;
    int stage = std::min(state_.stages() - 1, d.stage + random_.below(1 + state_.stages() / 8));
    if (pick_drop(random_.below(2) ? stage : busy_stage(), &other)) turn(other, true);
  } else if (dice < 84) {
    if (!pick_active(&d) || d.kind != Decision::kDrop) return;
    turn(d, false);
    const auto& uses = state_.uses(d.id);
    if (uses.empty()) return;
    turn({Decision::kDrop, d.id, uses[random_.below(static_cast<int>(uses.size()))].first + 1}, true);
  } else if (dice < 90) {
    propose_run(random_.below(2) == 0);
  } else if (dice < 94) {
    propose_force();
  } else {
    propose_copy();
  }
}

void Search::run(int64_t moves) {
  if (state_.problem().values() == 0) moves_ += moves, moves = 0;  // there is nothing to decide
  for (int64_t m = 0; m < moves; ++m, ++moves_) {
    if (cycle_left_-- <= 0) begin_cycle();
    heat_ *= cooling_;
    const double before = energy();
    fresh_.clear();
    propose();
    state_.settle();
    const double rise = energy() - before;
    if (rise <= 0 || random_.unit() < std::exp(-rise / heat_)) {
      state_.commit();
      flips_.insert(flips_.end(), fresh_.begin(), fresh_.end());
      for (const auto& [d, on] : fresh_)
        if (on) active_.push_back(d);
      if (active_.size() > kMostActive) active_ = state_.decisions();
      if (active_.size() > kMostActive) active_.resize(kMostActive / 2);
      note();
    } else {
      state_.undo();
    }
    if (m % kPriceEvery == 0) {
      price_ *= state_.excess() > 0 ? 1.04 : 1 / 1.04;
      price_ = std::min(kHighestPrice, std::max(kLowestPrice, price_));
    }
  }
}

}  // namespace remint
