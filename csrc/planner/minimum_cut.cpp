#include "planner/minimum_cut.h"

#include <algorithm>
#include <limits>

namespace remint {
namespace {
constexpr double kWhole = 1e15;  // all costs together, in the whole numbers that flows are counted in
constexpr std::int64_t kUnlimited = std::int64_t{1} << 60;
constexpr int kPrices = 24;

// Maximum flow by Dinic's algorithm, with an explicit stack: paths are as long as graphs are deep.
class Flow {
 public:
  explicit Flow(int nodes) : first_(nodes, -1), level_(nodes), at_(nodes) {}

  int add(int from, int to) {
    edges_.push_back({to, first_[from], 0});
    first_[from] = static_cast<int>(edges_.size()) - 1;
    edges_.push_back({from, first_[to], 0});
    first_[to] = static_cast<int>(edges_.size()) - 1;
    return first_[from];
  }
  void set(int edge, std::int64_t capacity) {
    edges_[edge].left = capacity;
    edges_[edge ^ 1].left = 0;
  }
  bool on_source_side(int node) const { return level_[node] >= 0; }

  std::int64_t run(int source, int sink, const std::function<bool()>& go_on) {
    std::int64_t total = 0;
    while (find_levels(source, sink)) {
      if (!go_on()) return -1;
      at_ = first_;
      while (std::int64_t sent = send(source, sink)) total += sent;
    }
    return total;
  }

 private:
  struct Edge {
    int to, next;
    std::int64_t left;
  };

  bool find_levels(int source, int sink) {
    std::fill(level_.begin(), level_.end(), -1);
    queue_.assign(1, source);
    level_[source] = 0;
    for (std::size_t i = 0; i < queue_.size(); ++i)
      for (int e = first_[queue_[i]]; e >= 0; e = edges_[e].next)
        if (edges_[e].left > 0 && level_[edges_[e].to] < 0) {
          level_[edges_[e].to] = level_[queue_[i]] + 1;
          queue_.push_back(edges_[e].to);
        }
    return level_[sink] >= 0;
  }

  // Sends flow along one path of rising levels; returns 0 when there is none left.
  std::int64_t send(int source, int sink) {
    path_.clear();
    int node = source;
    while (node != sink) {
      int& e = at_[node];
      while (e >= 0 && (edges_[e].left == 0 || level_[edges_[e].to] != level_[node] + 1)) e = edges_[e].next;
      if (e >= 0) {
        path_.push_back(e);
        node = edges_[e].to;
      } else if (path_.empty()) {
        return 0;
      } else {
        node = edges_[path_.back() ^ 1].to;
        at_[node] = edges_[at_[node]].next;
        path_.pop_back();
      }
    }
    std::int64_t amount = kUnlimited;
    for (int e : path_) amount = std::min(amount, edges_[e].left);
    for (int e : path_) {
      edges_[e].left -= amount;
      edges_[e ^ 1].left += amount;
    }
    return amount;
  }

  std::vector<Edge> edges_;
  std::vector<int> first_, level_, at_, queue_, path_;
};
}  // namespace

Cut cut_bound(const SearchProblem& problem, double budget, int stage, const std::function<bool()>& go_on) {
  const int n = problem.ops(), values = problem.values();
  std::vector<int> producer(values);
  std::vector<char> wanted(values, 0), held(values, 0);
  for (int i = 0; i < n; ++i)
    for (int v : problem.outputs[i]) producer[v] = i;
  for (int i = stage + 1; i < n; ++i)
    for (int v : problem.inputs[i]) wanted[v] = 1;
  for (int v : problem.results) wanted[v] = 1;
  double room = budget - problem.constant_bytes;
  auto hold = [&](int v) {
    held[v] = 1;
    room -= problem.bytes[v];
  };
  for (int v : problem.inputs[stage]) hold(v);
  for (int v : problem.outputs[stage]) hold(v);
  Cut best;
  if (room < 0) best.bound = std::numeric_limits<double>::infinity();
  if (room < 0) return best;

  double total = 0, bytes = 0;
  for (int i = 0; i < stage; ++i) total += problem.cost[i];
  if (total <= 0) return best;
  const double whole = kWhole / total;

  // Nodes: the ops before `stage`, then the values, then source and sink.
  const int source = stage + values, sink = source + 1;
  Flow flow(sink + 1);
  std::vector<std::pair<int, std::int64_t>> fixed;
  std::vector<std::pair<int, int>> priced;  // edge, value
  for (int i = 0; i < stage; ++i) {
    const double cost = problem.cost[i] * whole;
    fixed.push_back({flow.add(i, sink), problem.again[i] ? static_cast<std::int64_t>(cost) : kUnlimited});
    for (int v : problem.inputs[i]) fixed.push_back({flow.add(i, stage + v), kUnlimited});
  }
  for (int v = 0; v < values; ++v) {
    if (producer[v] >= stage || held[v] || problem.bytes[v] == 0) continue;
    priced.push_back({flow.add(stage + v, producer[v]), v});
    if (wanted[v]) {
      fixed.push_back({flow.add(source, stage + v), kUnlimited});
      bytes += problem.bytes[v];
    }
  }
  if (bytes <= room) return best;

  // Over the price, the bound is concave and made of straight lines. Between one that rises and one that
  // falls the next price to look at is where they meet; if the bound is on both lines there, it is the best.
  struct Line {
    double price, bound, slope;
    double at(double other) const { return bound + slope * (other - price); }
  };
  Line rising{0, 0, bytes - room}, falling{0, 0, 0};
  double price = total / (bytes - room);
  std::vector<int> let_go;
  const double most =
      static_cast<double>(kUnlimited) / static_cast<double>(priced.size() + 1);  // so that sums fit
  for (int turn = 0; turn < kPrices; ++turn) {
    for (auto [edge, capacity] : fixed) flow.set(edge, capacity);
    for (auto [edge, v] : priced) {
      const double worth = price * problem.bytes[v] * whole;
      flow.set(edge, static_cast<std::int64_t>(std::min(worth, most)));
    }
    const std::int64_t sent = flow.run(source, sink, go_on);
    if (sent < 0) break;
    const double found = static_cast<double>(sent) / whole - price * room;
    best.bound = std::max(best.bound, found);
    double kept = 0;
    let_go.clear();
    for (auto [edge, v] : priced) {
      const bool keeps = flow.on_source_side(stage + v) && !flow.on_source_side(producer[v]);
      if (keeps) kept += problem.bytes[v];
      if (wanted[v] && !keeps) let_go.push_back(v);
    }
    const bool last = falling.price > 0 && found >= rising.at(price) * (1 - 1e-9);
    if (kept <= room) {
      falling = {price, found, kept - room};
      best.let_go = let_go;
    } else {
      rising = {price, found, kept - room};
    }
    if (last || (falling.price > 0 && falling.slope == 0)) break;
    price = falling.price > 0 ? (falling.at(0) - rising.at(0)) / (rising.slope - falling.slope) : 4 * price;
  }
  return best;
}

}  // namespace remint
