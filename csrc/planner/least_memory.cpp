#include "planner/least_memory.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

namespace remint {
namespace {
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNearness = 5;          // how much more what is left to pay counts when any way will do
constexpr std::int64_t kLargeSet = 256;  // looking at sets much larger than this counts several times
constexpr std::size_t kAskEvery = 16;
constexpr int kDeepest = 64;    // ops that are looked at to tell what making a value again costs
constexpr double kLast = 1e30;  // what is hard to make again is worth more than anything else

std::uint64_t mixed(std::uint64_t z) {
  z = (z + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
}  // namespace

LeastMemory::LeastMemory(SearchProblem problem) : problem_(std::move(problem)) {
  const int n = problem_.ops(), values = problem_.values();
  producer_.assign(values, -1);
  for (int i = 0; i < n; ++i)
    for (int v : problem_.outputs[i]) producer_.at(v) = i;
  uses_.resize(values);
  for (int i = 0; i <= n; ++i) {
    heavy_.emplace_back();
    for (int v : i < n ? problem_.inputs[i] : problem_.results) {
      uses_.at(v).push_back(i);
      if (problem_.bytes[v] > 0) heavy_.back().push_back(v);
    }
    std::sort(heavy_.back().begin(), heavy_.back().end());
  }
  for (int v = 0; v < values; ++v) hash_.push_back(mixed(static_cast<std::uint64_t>(v)));
  resident_.assign(values, 0);
  level_.assign(values, kEasy);
  stamp_.assign(n, 0);
}

double LeastMemory::bytes_made(int op) const {
  double bytes = 0;
  if (op < problem_.ops())
    for (int v : problem_.outputs[op])
      if (!stays(v)) bytes += problem_.bytes[v];
  return bytes;
}

// What is held when `op`, or the end, begins.
LeastMemory::Node LeastMemory::root(int op) const {
  Node node{{}, 0, problem_.constant_bytes, 0, 0, 0, op, -1};
  for (char level : {kResult, kHard, kPinned})
    if (level & staying_) node.bytes += level_bytes_[level];
  for (int v : heavy_[op]) {
    if (stays(v)) continue;
    node.held.push_back(v);
    node.bytes += problem_.bytes[v];
    node.hash ^= hash_[v];
  }
  node.need = node.bytes + bytes_made(op);
  return node;
}

bool LeastMemory::reached(const Node& node) const {
  for (int v : node.held)
    if (!resident_[v]) return false;
  return true;
}

// Every op that must run, once, however little else stays: never more than what is left to pay.
double LeastMemory::cost_of_missing(const std::vector<int>& held) {
  double cost = 0;
  ++stamp_now_;
  stack_.clear();
  auto need = [&](int v) {
    if (resident_[v] || stamp_[producer_[v]] == stamp_now_) return;
    stamp_[producer_[v]] = stamp_now_;
    stack_.push_back(producer_[v]);
  };
  for (int v : held) need(v);
  while (!stack_.empty()) {
    const int op = stack_.back();
    stack_.pop_back();
    cost += problem_.cost[op];
    for (int v : heavy_[op]) need(v);
  }
  return cost;
}

void LeastMemory::enter(Node node, Order order) {
  Entry entry{node.need, node.bytes, static_cast<int>(nodes_.size())};
  if (order != Order::kNeed) node.left = cost_of_missing(node.held);
  if (order == Order::kCost) entry = {node.cost + node.left, node.left, entry.id};
  if (order == Order::kNear) entry = {node.cost + kNearness * node.left, node.bytes, entry.id};
  nodes_.push_back(std::move(node));
  heap_.push_back(entry);
  std::push_heap(heap_.begin(), heap_.end());
}

// Enters every set that can have been held before: one per op that can have run last. Returns the effort.
std::int64_t LeastMemory::expand(int at, Order order, double limit, bool missing_only) {
  std::vector<int> makers;
  for (int v : nodes_[at].held)
    if (!missing_only || !resident_[v]) makers.push_back(producer_[v]);
  std::sort(makers.begin(), makers.end());
  makers.erase(std::unique(makers.begin(), makers.end()), makers.end());
  for (int op : makers) {
    if (order != Order::kNeed && !problem_.again[op]) continue;
    const Node& after = nodes_[at];
    Node before{{}, 0, after.bytes, after.need, after.cost + problem_.cost[op], 0, op, at};
    for (int v : after.held) {
      if (producer_[v] != op)
        before.held.push_back(v);
      else
        before.bytes -= problem_.bytes[v];
    }
    const std::size_t others = before.held.size();
    for (int v : heavy_[op])
      if (!stays(v) && !std::binary_search(after.held.begin(), after.held.end(), v)) {
        before.held.push_back(v);
        before.bytes += problem_.bytes[v];
      }
    std::inplace_merge(before.held.begin(), before.held.begin() + others, before.held.end());
    for (int v : before.held) before.hash ^= hash_[v];
    before.need = std::max(before.need, before.bytes + bytes_made(op));
    if (before.need > limit)
      open_ = std::min(open_, before.need);
    else
      enter(std::move(before), order);
  }
  return 1 + static_cast<std::int64_t>(makers.size() * nodes_[at].held.size()) / kLargeSet;
}

// Returns the node of which all is resident, or -1.
int LeastMemory::walk(Node start, Order order, double limit, std::int64_t effort, bool missing_only) {
  nodes_.clear();
  heap_.clear();
  open_ = kInfinity;
  std::unordered_set<std::uint64_t> seen;
  if (start.need > limit) {
    open_ = start.need;
    return -1;
  }
  enter(std::move(start), order);
  while (!heap_.empty()) {
    const int at = heap_.front().id;
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.pop_back();
    if (!seen.insert(nodes_[at].hash).second) continue;
    if (reached(nodes_[at])) return at;
    if (effort <= 0) {
      open_ = std::min(open_, nodes_[at].need);
      return -1;
    }
    if (nodes_.size() % kAskEvery == 0 && go_on_ && !go_on_()) ended_ = true;
    if (ended_) return -1;
    effort -= expand(at, order, limit, missing_only);
  }
  return -1;
}

double LeastMemory::bound(std::int64_t effort, int ops) {
  const int n = problem_.ops();
  std::fill(resident_.begin(), resident_.end(), 0);
  std::fill(level_.begin(), level_.end(), kEasy);
  staying_ = 0;
  go_on_ = nullptr;
  ended_ = false;
  std::vector<std::pair<double, int>> needs;
  for (int t = 0; t <= n; ++t) needs.push_back({-root(t).need, t});
  std::sort(needs.begin(), needs.end());
  if (static_cast<int>(needs.size()) > ops) needs.resize(std::max(1, ops));
  double least = -needs.front().first;
  for (auto [_, t] : needs) {
    if (static_cast<std::int64_t>(heavy_[t].size()) > kLargeSet) continue;
    Node start = root(t);
    start.need = least;  // ways that need no more than what is known already are all the same
    const int end = walk(std::move(start), Order::kNeed, kInfinity, effort, false);
    least = std::max(least, end >= 0 ? nodes_[end].need : open_);
  }
  return least;
}

// What making the value again costs, over the bytes it holds and how long until it is read.
double LeastMemory::worth(int value, int stage) {
  double cost = 0;
  ++stamp_now_;
  stack_.assign(1, producer_[value]);
  stamp_[producer_[value]] = stamp_now_;
  for (int count = 0; !stack_.empty() && count < kDeepest; ++count) {
    const int op = stack_.back();
    stack_.pop_back();
    cost += problem_.cost[op];
    for (int v : heavy_[op])
      if (!resident_[v] && stamp_[producer_[v]] != stamp_now_) {
        stamp_[producer_[v]] = stamp_now_;
        stack_.push_back(producer_[v]);
      }
  }
  auto use = std::lower_bound(uses_[value].begin(), uses_[value].end(), stage);
  const double wait = use != uses_[value].end() ? *use - stage + 1 : 2.0 * problem_.ops();
  return (level_[value] == kEasy ? 1 : kLast) * cost / (problem_.bytes[value] * std::pow(wait, patience_));
}

// A value is entered anew when it has been read: only then can it be worth less than before.
void LeastMemory::enter_by_worth(int value, int stage) {
  cheapest_.push_back({worth(value, stage), 0, value});
  std::push_heap(cheapest_.begin(), cheapest_.end());
}

void LeastMemory::set_level(int value, char level) {
  level_bytes_[level_[value]] -= problem_.bytes[value];
  level_bytes_[level] += problem_.bytes[value];
  level_[value] = level;
}

void LeastMemory::set_resident(int value, bool on, int stage) {
  resident_[value] = on;
  bytes_ += on ? problem_.bytes[value] : -problem_.bytes[value];
  const int maker = producer_[value];
  const bool read = !uses_[value].empty() && uses_[value].back() >= stage;
  if (!on || !read)
    set_level(value, kEasy);
  else if (!problem_.again[maker])
    set_level(value, kPinned);
  else if (uses_[value].back() == problem_.ops())
    set_level(value, kResult);
  else if (maker >= turn_)
    set_level(value, kHard);
}

// Runs `op`, for which `held` must stay, and lets go what is worth least if there is too much.
void LeastMemory::run(int op, const std::vector<int>& held, int stage, double budget) {
  if (op < problem_.ops()) {
    sequence_.push_back(op);
    for (int v : problem_.outputs[op]) {
      if (resident_[v]) continue;
      set_resident(v, true, stage);
      if (problem_.bytes[v] > 0) enter_by_worth(v, stage);
    }
  }
  std::vector<int> locked;
  while (bytes_ > budget && !cheapest_.empty()) {
    const Entry entry = cheapest_.front();
    std::pop_heap(cheapest_.begin(), cheapest_.end());
    cheapest_.pop_back();
    const int v = entry.id;
    if (!resident_[v]) continue;
    if (producer_[v] == op || stays(v) || std::binary_search(held.begin(), held.end(), v)) {
      locked.push_back(v);
    } else if (const double now = worth(v, stage);
               !cheapest_.empty() && now > cheapest_.front().first && now > entry.first) {
      enter_by_worth(v, stage);  // it has become worth more since it was entered
    } else {
      set_resident(v, false, stage);
    }
  }
  for (int v : locked) enter_by_worth(v, stage);
}

// Returns the node to begin with, or -1. What is hard to make again stays if there is a way.
int LeastMemory::find_way(int op, double budget, std::int64_t effort) {
  for (int staying : {kResult | kHard | kPinned, kHard | kPinned, +kPinned}) {
    staying_ = static_cast<char>(staying);
    for (bool missing_only : {true, false}) {
      const int at = walk(root(op), Order::kCost, budget, effort, missing_only);
      if (at >= 0) return at;
    }
    const int at = walk(root(op), Order::kNear, budget, effort, false);
    if (at >= 0) return at;
  }
  return -1;
}

std::vector<int> LeastMemory::schedule(double budget, std::int64_t effort, int turn, double patience,
                                       const std::function<bool()>& go_on) {
  const int n = problem_.ops();
  std::fill(resident_.begin(), resident_.end(), 0);
  std::fill(level_.begin(), level_.end(), kEasy);
  level_bytes_.fill(0);
  cheapest_.clear();
  sequence_.clear();
  bytes_ = problem_.constant_bytes;
  turn_ = turn;
  go_on_ = go_on;
  ended_ = false;
  patience_ = patience;
  for (int t = 0; t <= n; ++t) {
    if (ended_ || !go_on()) return {};
    int at = find_way(t, budget, effort);
    if (at < 0) return {};
    const std::vector<Node> way = std::move(nodes_);
    for (; at >= 0; at = way[at].parent) run(way[at].op, way[at].held, t, budget);
    for (int v : heavy_[t]) {
      if (!resident_[v]) continue;
      if (uses_[v].back() == t) set_level(v, kEasy);
      enter_by_worth(v, t + 1);
    }
  }
  return sequence_;
}

double LeastMemory::peak(const std::vector<int>& sequence) const {
  // Backwards: a value is resident before its readers and not before its maker.
  std::vector<char> needed(problem_.values(), 0);
  double now = problem_.constant_bytes;
  auto need = [&](int v) {
    if (needed[v]) return;
    needed[v] = 1;
    now += problem_.bytes[v];
  };
  for (int v : problem_.results) need(v);
  double peak = now;
  for (auto at = sequence.rbegin(); at != sequence.rend(); ++at) {
    for (int v : problem_.inputs.at(*at)) need(v);
    double made = 0;
    for (int v : problem_.outputs[*at])
      if (!needed[v]) made += problem_.bytes[v];
    if (!problem_.consumes.empty())
      for (auto [input, output] : problem_.consumes[*at]) made -= problem_.bytes[input];
    peak = std::max(peak, now + made);
    for (int v : problem_.outputs[*at]) {
      if (needed[v]) now -= problem_.bytes[v];
      needed[v] = 0;
    }
  }
  return peak;
}

}  // namespace remint
