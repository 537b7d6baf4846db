#include "planner/schedule_state.h"

#include <algorithm>
#include <functional>
#include <stdexcept>

namespace remint {
namespace {

bool insert_sorted(std::vector<int>& list, int item) {
  auto at = std::lower_bound(list.begin(), list.end(), item);
  if (at != list.end() && *at == item) return false;
  list.insert(at, item);
  return true;
}

bool erase_sorted(std::vector<int>& list, int item) {
  auto at = std::lower_bound(list.begin(), list.end(), item);
  if (at == list.end() || *at != item) return false;
  list.erase(at);
  return true;
}

// Sanitizers and the resolvers of cloned functions do not go together.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define REMINT_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define REMINT_WIDE
#endif

// The change in bytes over budget when `bytes` is added to `count` stages. Eight sums side by side, so that
// the compiler may use vectors; bytes are whole numbers, so that the order of the sums does not matter.
REMINT_WIDE double add_and_measure(double* memory, int count, double bytes, double budget) {
  constexpr int kLanes = 8;
  double change[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) {
      double now = memory[i + k], then = now + bytes;
      memory[i + k] = then;
      change[k] += std::max(then, budget) - std::max(now, budget);
    }
  }
  double total = 0;
  for (; i < count; ++i) {
    double now = memory[i], then = now + bytes;
    memory[i] = then;
    total += std::max(then, budget) - std::max(now, budget);
  }
  for (double c : change) total += c;
  return total;
}

REMINT_WIDE void add(double* memory, int count, double bytes) {
  for (int i = 0; i < count; ++i) memory[i] += bytes;
}

}  // namespace

SearchState::SearchState(SearchProblem problem, double budget)
    : problem_(std::move(problem)), budget_(budget), inputs_(problem_.inputs) {
  const int n = problem_.ops(), values = problem_.values();
  inputs_.push_back(problem_.results);
  producer_.assign(values, -1);
  for (int i = 0; i < n; ++i)
    for (int v : problem_.outputs[i]) producer_.at(v) = i;
  for (int i = 0; i <= n; ++i)
    for (int v : inputs_[i])
      if (v < 0 || v >= values || producer_[v] < 0 || producer_[v] >= i)
        throw std::invalid_argument("ops are not in execution order");
  problem_.consumes.resize(n);
  consumer_.assign(values, -1);
  for (int i = 0; i < n; ++i)
    for (auto [input, output] : problem_.consumes[i]) consumer_.at(input) = i;
  if (problem_.until.empty()) problem_.until.assign(n, n);
  for (double cost : problem_.cost) forbidden_ += 1000 * cost;
  queued_.assign(n + 1, 0);
  extra_flag_.assign(n + 1, 0);
  touched_flag_.assign(values, 0);
  stamp_.assign(n + 1, 0);
  last_user_.assign(values, -1);
  assign({});
}

void SearchState::reset() {
  const int n = problem_.ops(), values = problem_.values();
  drops_.assign(values, {});
  forces_.assign(n + 1, {});
  forced_in_.assign(n, {});
  runs_.assign(n, {});
  again_.assign(n + 1, {});
  uses_.assign(values, {});
  intervals_.assign(values, {});
  memory_.assign(n + 1, problem_.constant_bytes);
  extra_.assign(n + 1, 0);
  cost_ = 0;
  for (int i = 0; i < n; ++i) {
    runs_[i].push_back(i);
    cost_ += problem_.cost[i];
  }
  for (int i = 0; i <= n; ++i)
    for (int v : inputs_[i]) uses_[v].push_back({i, 1});
}

void SearchState::assign(const std::vector<Decision>& decisions) {
  const int n = problem_.ops();
  reset();
  for (const Decision& d : decisions) {
    if (d.kind == Decision::kDrop)
      insert_sorted(drops_[d.id], d.stage);
    else if (insert_sorted(forces_[d.stage], d.id))
      insert_sorted(forced_in_[d.id], d.stage);
  }
  for (int t = 0; t <= n; ++t) simulate(t);
  std::vector<double> change(n + 2, 0);
  for (int v = 0; v < problem_.values(); ++v) {
    rebuild(v);
    for (auto [first, last] : intervals_[v])
      if (last > first) {
        change[first + 1] += problem_.bytes[v];
        change[last + 1] -= problem_.bytes[v];
      }
  }
  double running = problem_.constant_bytes;
  excess_ = 0;
  for (int t = 0; t <= n; ++t) {
    running += change[t];
    extra_[t] = extra(t);
    memory_[t] = running + extra_[t];
    excess_ += std::max(0.0, memory_[t] - budget_);
  }
  // `rebuild` and `simulate` left work for a settle that has been done here in bulk.
  for (int v : touched_) touched_flag_[v] = 0;
  for (int t : extra_stages_) extra_flag_[t] = 0;
  for (int t : queue_) queued_[t] = 0;
  touched_.clear();
  extra_stages_.clear();
  queue_.clear();
  journal_size_ = 0;
  saved_cost_ = cost_;
  saved_excess_ = excess_;
}

void SearchState::set_budget(double budget) {
  budget_ = budget;
  excess_ = 0;
  for (double m : memory_) excess_ += std::max(0.0, m - budget_);
  saved_excess_ = excess_;
}

double SearchState::peak() const {
  return *std::max_element(memory_.begin(), memory_.end());
}

bool SearchState::has(const Decision& d) const {
  const std::vector<int>& list = d.kind == Decision::kDrop ? drops_[d.id] : forces_[d.stage];
  return std::binary_search(list.begin(), list.end(), d.kind == Decision::kDrop ? d.stage : d.id);
}

std::vector<Decision> SearchState::decisions() const {
  std::vector<Decision> all;
  for (int v = 0; v < problem_.values(); ++v)
    for (int b : drops_[v]) all.push_back({Decision::kDrop, v, b});
  for (int t = 0; t < static_cast<int>(forces_.size()); ++t)
    for (int i : forces_[t]) all.push_back({Decision::kForce, i, t});
  return all;
}

std::vector<int> SearchState::sequence() const {
  std::vector<int> all;
  for (int t = 0; t <= stages(); ++t) {
    all.insert(all.end(), again_[t].begin(), again_[t].end());
    if (t < stages()) all.push_back(t);
  }
  return all;
}

int SearchState::last_drop(int value, int stage) const {
  const std::vector<int>& drops = drops_[value];
  auto at = std::upper_bound(drops.begin(), drops.end(), stage);
  return at == drops.begin() ? 0 : *(at - 1);
}

bool SearchState::available(int value, int stage) const {
  const std::vector<int>& runs = runs_[producer_[value]];
  auto at = std::lower_bound(runs.begin(), runs.end(), stage);
  if (at == runs.begin() || *(at - 1) < last_drop(value, stage)) return false;
  if (consumer_[value] < 0) return true;
  // Within a stage the consumer runs last of all that read the value.
  const std::vector<int>& ends = runs_[consumer_[value]];
  auto end = std::lower_bound(ends.begin(), ends.end(), stage);
  return end == ends.begin() || *(end - 1) < *(at - 1);
}

// A search may pass through schedules that are not allowed, but not end there.
double SearchState::price(int op, int stage) const {
  return problem_.cost[op] + (stage > problem_.until[op] ? forbidden_ : 0);
}

SearchState::Entry& SearchState::log(Entry::Kind kind, int id, int stage, double amount) {
  if (journal_size_ == journal_.size()) journal_.emplace_back();
  Entry& entry = journal_[journal_size_++];
  entry.kind = kind;
  entry.id = id;
  entry.stage = stage;
  entry.amount = amount;
  return entry;
}

void SearchState::mark(int stage) {
  if (queued_[stage]) return;
  queued_[stage] = 1;
  queue_.push_back(stage);
  std::push_heap(queue_.begin(), queue_.end(), std::greater<int>());
}

// A force that found its op's values there may have to act now.
void SearchState::mark_forced(int op, int from) {
  for (int stage : forced_in_[op])
    if (stage >= from) mark(stage);
}

void SearchState::touch(int value) {
  if (touched_flag_[value]) return;
  touched_flag_[value] = 1;
  touched_.push_back(value);
}

void SearchState::mark_extra(int stage) {
  if (extra_flag_[stage]) return;
  extra_flag_[stage] = 1;
  extra_stages_.push_back(stage);
}

void SearchState::flip(const Decision& d, bool on) {
  if (d.kind == Decision::kDrop) {
    if (on)
      insert_sorted(drops_[d.id], d.stage);
    else
      erase_sorted(drops_[d.id], d.stage);
  } else {
    if (on) {
      insert_sorted(forces_[d.stage], d.id);
      insert_sorted(forced_in_[d.id], d.stage);
    } else {
      erase_sorted(forces_[d.stage], d.id);
      erase_sorted(forced_in_[d.id], d.stage);
    }
  }
}

void SearchState::set(const Decision& d, bool on) {
  if (has(d) == on) return;
  flip(d, on);
  log(Entry::kDecision, d.id, d.stage, d.kind == Decision::kDrop ? 0 : 1).ops.assign(1, on ? 1 : 0);
  if (d.kind == Decision::kForce) {
    mark(d.stage);
    return;
  }
  const std::vector<int>& runs = runs_[producer_[d.id]];
  auto next = std::lower_bound(runs.begin(), runs.end(), d.stage);
  if (on) {
    // The first use that can no longer be served asks for a rematerialization; later ones find its result.
    auto use = std::lower_bound(uses_[d.id].begin(), uses_[d.id].end(), Interval{d.stage, 0});
    if (use != uses_[d.id].end() && (next == runs.end() || use->first < *next)) mark(use->first);
    mark_forced(producer_[d.id], d.stage);
  } else if (next != runs.end()) {
    mark(*next);
  }
}

void SearchState::change_run(int op, int stage, bool on) {
  std::vector<int>& runs = runs_[op];
  for (int v : problem_.outputs[op]) touch(v);
  for (int v : inputs_[op]) touch(v);
  if (on) {
    insert_sorted(runs, stage);
    cost_ += price(op, stage);
  } else {
    erase_sorted(runs, stage);
    cost_ -= price(op, stage);
  }
  for (int v : inputs_[op]) {
    change_use(v, stage, on ? 1 : -1);
    if (!on) mark_next_use(v, stage);
  }
  for (auto [input, output] : problem_.consumes[op]) {
    // Like a drop before the next stage.
    const std::vector<int>& made = runs_[producer_[input]];
    auto again = std::upper_bound(made.begin(), made.end(), stage);
    if (!on) {
      if (again != made.end()) mark(*again);
      continue;
    }
    auto use = std::lower_bound(uses_[input].begin(), uses_[input].end(), Interval{stage + 1, 0});
    if (use != uses_[input].end() && (again == made.end() || use->first < *again)) mark(use->first);
    mark_forced(producer_[input], stage + 1);
  }
  auto next = std::upper_bound(runs.begin(), runs.end(), stage);
  if (on) {
    if (next != runs.end()) mark(*next);
    return;
  }
  mark_forced(op, stage + 1);
  for (int v : problem_.outputs[op]) {
    auto use = std::lower_bound(uses_[v].begin(), uses_[v].end(), Interval{stage + 1, 0});
    if (use != uses_[v].end() && (next == runs.end() || use->first < *next)) mark(use->first);
  }
}

// Of the uses that a drop leaves without a value only the first is marked: the others find what it makes.
// When that one is gone, the next must make the value.
void SearchState::mark_next_use(int value, int stage) {
  const std::vector<Interval>& uses = uses_[value];
  const std::vector<int>& runs = runs_[producer_[value]];
  auto use = std::lower_bound(uses.begin(), uses.end(), Interval{stage + 1, 0});
  if (use == uses.end() || available(value, use->first)) return;
  if (!std::binary_search(runs.begin(), runs.end(), use->first)) mark(use->first);
}

void SearchState::change_use(int value, int stage, int by) {
  std::vector<Interval>& uses = uses_[value];
  auto at = std::lower_bound(uses.begin(), uses.end(), Interval{stage, 0});
  if (at != uses.end() && at->first == stage) {
    at->second += by;
    if (at->second == 0) uses.erase(at);
  } else {
    uses.insert(at, {stage, by});
  }
}

// Finds what stage `stage` must rematerialize and records the difference to what it did before.
void SearchState::simulate(int stage) {
  closure_.clear();
  stack_.clear();
  ++stamp_now_;
  auto need = [&](int op) {
    for (int v : inputs_[op]) {
      int maker = producer_[v];
      if (stamp_[maker] != stamp_now_ && !available(v, stage)) {
        stamp_[maker] = stamp_now_;
        stack_.push_back(maker);
      }
    }
  };
  need(stage);
  for (int op : forces_[stage]) {
    if (stamp_[op] == stamp_now_) continue;
    for (int v : problem_.outputs[op])
      if (!available(v, stage)) {
        stamp_[op] = stamp_now_;
        stack_.push_back(op);
        break;
      }
  }
  while (!stack_.empty()) {
    int op = stack_.back();
    stack_.pop_back();
    closure_.push_back(op);
    need(op);
  }
  std::sort(closure_.begin(), closure_.end());
  std::vector<int>& old = again_[stage];
  if (old == closure_) return;
  Entry& entry = log(Entry::kStage, stage, stage, 0);
  entry.ops.swap(old);
  old = closure_;
  mark_extra(stage);
  // `entry` may move when the journal grows: keep what is needed of it.
  const std::vector<int> before = entry.ops;
  size_t i = 0, j = 0;
  while (i < before.size() || j < closure_.size()) {
    if (j == closure_.size() || (i < before.size() && before[i] < closure_[j])) {
      log(Entry::kRun, before[i], stage, -1);
      change_run(before[i++], stage, false);
    } else if (i == before.size() || closure_[j] < before[i]) {
      log(Entry::kRun, closure_[j], stage, 1);
      change_run(closure_[j++], stage, true);
    } else {
      ++i, ++j;
    }
  }
}

// Recomputes when `value` is resident; the memory of the stages follows.
void SearchState::rebuild(int value) {
  const std::vector<int>& runs = runs_[producer_[value]];
  const std::vector<Interval>& uses = uses_[value];
  std::vector<Interval>& fresh = intervals_[value];
  static thread_local std::vector<Interval> made;
  made.clear();
  size_t u = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    int end = r + 1 < runs.size() ? runs[r + 1] : stages() + 1;
    int last = runs[r];
    while (u < uses.size() && uses[u].first < end) last = std::max(last, uses[u++].first);
    made.push_back({runs[r], last});
  }
  fresh = made;
}

void SearchState::add_range(int first, int last, double bytes) {
  if (first > last || bytes == 0) return;
  excess_ += add_and_measure(memory_.data() + first, last - first + 1, bytes, budget_);
}

bool SearchState::kept_after(int value, int stage) const {
  for (auto [first, last] : intervals_[value])
    if (first <= stage) {
      if (stage < last) return true;
    } else {
      break;
    }
  return false;
}

// Peak of the stage over what is resident when it begins.
double SearchState::extra(int stage) {
  const std::vector<int>& again = again_[stage];
  double now = 0, peak = 0;
  if (again.empty()) {
    if (stage == stages()) return now;
    for (int v : problem_.outputs[stage]) now += problem_.bytes[v];
    for (auto [input, output] : problem_.consumes[stage]) now -= problem_.bytes[input];
    return now;
  }
  auto each = [&](auto&& visit) {
    for (int op : again) visit(op);
    visit(stage);
  };
  each([&](int op) {
    for (int v : inputs_[op]) last_user_[v] = op;
  });
  each([&](int op) {
    if (op < stages()) {
      for (int v : problem_.outputs[op]) now += problem_.bytes[v];
      for (auto [input, output] : problem_.consumes[op]) now -= problem_.bytes[input];
      peak = std::max(peak, now);
      for (auto [input, output] : problem_.consumes[op]) now += problem_.bytes[input];
      for (int v : problem_.outputs[op])
        if (last_user_[v] < 0 && !kept_after(v, stage)) now -= problem_.bytes[v];
    }
    for (int v : inputs_[op])
      if (last_user_[v] == op && !kept_after(v, stage)) now -= problem_.bytes[v];
  });
  each([&](int op) {
    for (int v : inputs_[op]) last_user_[v] = -1;
  });
  return peak;
}

void SearchState::settle() {
  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<int>());
    int stage = queue_.back();
    queue_.pop_back();
    queued_[stage] = 0;
    simulate(stage);
  }
  for (int v : touched_) {
    touched_flag_[v] = 0;
    Entry& entry = log(Entry::kIntervals, v, 0, 0);
    entry.intervals.swap(intervals_[v]);
    const std::vector<Interval> old = entry.intervals;
    rebuild(v);
    const std::vector<Interval>& made = intervals_[v];
    const double bytes = problem_.bytes[v];
    auto range = [&](int first, int last, double amount) {
      if (first > last || amount == 0) return;
      log(Entry::kRange, first, last, amount);
      add_range(first, last, amount);
    };
    size_t i = 0, j = 0;
    while (i < old.size() || j < made.size()) {
      if (j == made.size() || (i < old.size() && old[i].first < made[j].first)) {
        range(old[i].first + 1, old[i].second, -bytes);
        mark_extra(old[i++].second);
      } else if (i == old.size() || made[j].first < old[i].first) {
        range(made[j].first + 1, made[j].second, bytes);
        mark_extra(made[j++].second);
      } else {
        if (old[i].second != made[j].second) {
          mark_extra(old[i].second);
          mark_extra(made[j].second);
          range(old[i].second + 1, made[j].second, bytes);
          range(made[j].second + 1, old[i].second, -bytes);
        }
        ++i, ++j;
      }
    }
  }
  touched_.clear();
  for (int t : extra_stages_) {
    extra_flag_[t] = 0;
    double now = extra(t), before = extra_[t];
    if (now == before) continue;
    log(Entry::kExtra, t, 0, before);
    extra_[t] = now;
    log(Entry::kRange, t, t, now - before);
    add_range(t, t, now - before);
  }
  extra_stages_.clear();
}

void SearchState::commit() {
  journal_size_ = 0;
  saved_cost_ = cost_;
  saved_excess_ = excess_;
}

void SearchState::undo() {
  while (journal_size_ > 0) {
    Entry& e = journal_[--journal_size_];
    switch (e.kind) {
      case Entry::kDecision:
        flip({e.amount == 0 ? Decision::kDrop : Decision::kForce, e.id, e.stage}, e.ops[0] == 0);
        break;
      case Entry::kStage:
        again_[e.id].swap(e.ops);
        break;
      case Entry::kRun:
        if (e.amount > 0)
          erase_sorted(runs_[e.id], e.stage);
        else
          insert_sorted(runs_[e.id], e.stage);
        for (int v : inputs_[e.id]) change_use(v, e.stage, e.amount > 0 ? -1 : 1);
        break;
      case Entry::kIntervals:
        intervals_[e.id].swap(e.intervals);
        break;
      case Entry::kRange:
        add(memory_.data() + e.id, e.stage - e.id + 1, -e.amount);  // the excess is restored as a whole
        break;
      case Entry::kExtra:
        extra_[e.id] = e.amount;
        break;
    }
  }
  cost_ = saved_cost_;
  excess_ = saved_excess_;
}

}  // namespace remint
