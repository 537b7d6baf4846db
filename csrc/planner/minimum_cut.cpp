#include "planner/minimum_cut.h"

#include <algorithm>
#include <limits>
#include <optional>

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

// The network of one op, to be cut at one price after the other.
class Network {
 public:
  Network(const SearchProblem& problem, double budget, int stage);

  bool fits() const { return room_ >= 0; }
  double room() const { return room_; }
  double wanted_bytes() const { return bytes_; }  // of values that are read later
  double total() const { return total_; }         // cost of all ops before

  // The least cost and price of what is kept, less the price of the room; nothing if `go_on` ended it.
  std::optional<double> cut(double price, const std::function<bool()>& go_on);
  // Of the last cut: bytes that are kept, and what is read later and let go.
  double kept(std::vector<int>* let_go) const;

 private:
  const SearchProblem& problem_;
  const int stage_, source_, sink_;
  Flow flow_;
  std::vector<int> producer_;
  std::vector<char> wanted_;
  std::vector<std::pair<int, std::int64_t>> fixed_;
  std::vector<std::pair<int, int>> priced_;  // edge, value
  double room_, bytes_ = 0, total_ = 0, whole_ = 1;
};

// Nodes: the ops before `stage`, then the values, then source and sink.
Network::Network(const SearchProblem& problem, double budget, int stage)
    : problem_(problem),
      stage_(stage),
      source_(stage + problem.values()),
      sink_(source_ + 1),
      flow_(sink_ + 1),
      producer_(problem.values()),
      wanted_(problem.values(), 0),
      room_(budget - problem.constant_bytes) {
  const int n = problem.ops(), values = problem.values();
  std::vector<char> held(values, 0);
  for (int i = 0; i < n; ++i)
    for (int v : problem.outputs[i]) producer_[v] = i;
  for (int i = stage + 1; i < n; ++i)
    for (int v : problem.inputs[i]) wanted_[v] = 1;
  for (int v : problem.results) wanted_[v] = 1;
  auto hold = [&](int v) {
    held[v] = 1;
    room_ -= problem.bytes[v];
  };
  for (int v : problem.inputs[stage]) hold(v);
  for (int v : problem.outputs[stage]) hold(v);
  for (int i = 0; i < stage; ++i) total_ += problem.cost[i];
  if (total_ > 0) whole_ = kWhole / total_;
  for (int i = 0; i < stage; ++i) {
    const double cost = problem.cost[i] * whole_;
    fixed_.push_back({flow_.add(i, sink_), problem.again[i] ? static_cast<std::int64_t>(cost) : kUnlimited});
    for (int v : problem.inputs[i]) fixed_.push_back({flow_.add(i, stage + v), kUnlimited});
  }
  for (int v = 0; v < values; ++v) {
    if (producer_[v] >= stage || held[v] || problem.bytes[v] == 0) continue;
    priced_.push_back({flow_.add(stage + v, producer_[v]), v});
    if (wanted_[v]) {
      fixed_.push_back({flow_.add(source_, stage + v), kUnlimited});
      bytes_ += problem.bytes[v];
    }
  }
}

std::optional<double> Network::cut(double price, const std::function<bool()>& go_on) {
  const double most =
      static_cast<double>(kUnlimited) / static_cast<double>(priced_.size() + 1);  // so that sums fit
  for (auto [edge, capacity] : fixed_) flow_.set(edge, capacity);
  for (auto [edge, v] : priced_) {
    const double worth = price * problem_.bytes[v] * whole_;
    flow_.set(edge, static_cast<std::int64_t>(std::min(worth, most)));
  }
  const std::int64_t sent = flow_.run(source_, sink_, go_on);
  if (sent < 0) return std::nullopt;
  return static_cast<double>(sent) / whole_ - price * room_;
}

double Network::kept(std::vector<int>* let_go) const {
  double kept = 0;
  let_go->clear();
  for (auto [edge, v] : priced_) {
    const bool keeps = flow_.on_source_side(stage_ + v) && !flow_.on_source_side(producer_[v]);
    if (keeps) kept += problem_.bytes[v];
    if (wanted_[v] && !keeps) let_go->push_back(v);
  }
  return kept;
}
}  // namespace

Cut cut_bound(const SearchProblem& problem, double budget, int stage, const std::function<bool()>& go_on) {
  Network network(problem, budget, stage);
  const double room = network.room(), bytes = network.wanted_bytes(), total = network.total();
  Cut best;
  if (!network.fits()) best.bound = std::numeric_limits<double>::infinity();
  if (!network.fits() || total <= 0 || bytes <= room) return best;

  // Over the price, the bound is concave and made of straight lines. Between one that rises and one that
  // falls the next price to look at is where they meet; if the bound is on both lines there, it is the best.
  struct Line {
    double price, bound, slope;
    double at(double other) const { return bound + slope * (other - price); }
  };
  Line rising{0, 0, bytes - room}, falling{0, 0, 0};
  double price = total / (bytes - room);
  std::vector<int> let_go;
  for (int turn = 0; turn < kPrices; ++turn) {
    const std::optional<double> found = network.cut(price, go_on);
    if (!found) break;
    best.bound = std::max(best.bound, *found);
    const double kept = network.kept(&let_go);
    const bool last = falling.price > 0 && *found >= rising.at(price) * (1 - 1e-9);
    if (kept <= room) {
      falling = {price, *found, kept - room};
      best.let_go = let_go;
    } else {
      rising = {price, *found, kept - room};
    }
    if (last || (falling.price > 0 && falling.slope == 0)) break;
    price = falling.price > 0 ? (falling.at(0) - rising.at(0)) / (rising.slope - falling.slope) : 4 * price;
  }
  return best;
}

std::vector<double> cuts_at_prices(const SearchProblem& problem, double budget, int stage,
                                   const std::vector<double>& prices, const std::function<bool()>& go_on) {
  Network network(problem, budget, stage);
  if (!network.fits()) return {std::numeric_limits<double>::infinity()};
  std::vector<double> bounds;
  for (double price : prices) {
    const std::optional<double> found = network.cut(price, go_on);
    if (!found) break;
    bounds.push_back(*found);
  }
  return bounds;
}

}  // namespace remint
