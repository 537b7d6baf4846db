#include "planner/window_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace remint {
namespace {
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;
constexpr double kWhole = double(std::int64_t{1} << 40);  // the cost of all ops, as the flow counts
constexpr double kMostPrice = 1e15;
constexpr int kMostStages = 40, kStageOps = 2400;  // stages, and stages times ops
constexpr int kFirstPrices = 12, kNextPrices = 4;
}  // namespace

WindowBound::WindowBound(const WatchedProblem& problem) : problem_(problem) {
  const int n = problem.ops();
  const double total = std::accumulate(problem.cost.begin(), problem.cost.end(), 0.0);
  scale_ = total > 0 ? kWhole / total : 1;
  build_network();
  choose_stages();
  prefix_.assign(n + 1, 0);
  window_.assign(n + 1, {});
  std::vector<double> price(stages_.size(), 0);
  for (int f = 1; f <= n; ++f) {
    prefix_[f] = prefix_[f - 1];
    double best = 0;
    for (std::size_t k = 0; k < stages_.size(); ++k) {
      const Stage& stage = stages_[k];
      if (stage.op >= f) break;
      const ValueSet wanted = wanted_[k][f - stage.op];
      if (problem.bytes_of(wanted.without(stage.held)) <= stage.room) continue;
      const double bound = best_price(wanted, stage, &price[k]) + prefix_[stage.op];
      if (bound > best) {
        best = bound;
        window_[f] = {static_cast<int>(k), price[k]};
      }
    }
    prefix_[f] = std::max(prefix_[f], best);
  }
}

// The ops at whose first run most is held when nothing is dropped.
void WindowBound::choose_stages() {
  const WatchedProblem& p = problem_;
  const int n = p.ops();
  std::vector<int> last(p.maker);
  for (int i = 0; i < n; ++i)
    for (int v : p.reads[i]) last[v] = i;
  p.results.each([&](int v) { last[v] = n; });
  std::vector<double> change(n + 2, 0), memory(n, 0);
  for (std::size_t v = 0; v < last.size(); ++v) {
    change[p.maker[v]] += p.bytes[v];
    change[last[v] + 1] -= p.bytes[v];
  }
  double now = 0;
  std::vector<int> over;
  for (int t = 0; t < n; ++t) {
    memory[t] = now += change[t];
    if (now + p.others[t] > p.space) over.push_back(t);
  }
  std::stable_sort(over.begin(), over.end(), [&](int a, int b) { return memory[a] > memory[b]; });
  const std::size_t most = std::clamp(kStageOps / std::max(1, n), 8, kMostStages);
  if (over.size() > most) over.resize(most);
  std::sort(over.begin(), over.end());
  for (int t : over) {
    Stage stage{t, p.inputs[t] | p.outputs[t], {}, 0};
    for (std::size_t v = 0; v < p.maker.size(); ++v)
      if (p.maker[v] < t) stage.before.add(static_cast<int>(v));
    stage.room = p.space - p.others[t] - p.bytes_of(stage.held);
    std::vector<ValueSet> wanted(1);
    ValueSet all;
    for (int f = t; f < n; ++f) {
      all = all | p.inputs[f];
      wanted.push_back(all & stage.before);
    }
    stages_.push_back(stage);
    wanted_.push_back(std::move(wanted));
  }
}

void WindowBound::build_network() {
  const WatchedProblem& p = problem_;
  const int n = p.ops(), values = static_cast<int>(p.bytes.size()), source = n + values, sink = source + 1;
  edges_of_.resize(sink + 1);
  auto connect = [&](int from, int to) {
    const int edge = static_cast<int>(edges_.size());
    edges_of_[from].push_back(edge);
    edges_.push_back({to, 0});
    edges_of_[to].push_back(edge + 1);
    edges_.push_back({from, 0});
    return edge;
  };
  for (int i = 0; i < n; ++i) {
    run_edge_.push_back(connect(i, sink));
    run_cost_.push_back(p.again[i] ? static_cast<std::int64_t>(p.cost[i] * scale_) : kNoLimit);
  }
  for (int v = 0; v < values; ++v) {
    demand_edge_.push_back(connect(source, n + v));
    keep_edge_.push_back(connect(n + v, p.maker[v]));
  }
  // The edges from an op to what it reads come last: they have no limit.
  for (int i = 0; i < n; ++i)
    for (int v : p.reads[i]) connect(i, n + v);
}

bool WindowBound::layer() {
  const int source = static_cast<int>(edges_of_.size()) - 2, sink = source + 1;
  layer_.assign(sink + 1, -1);
  layer_[source] = 0;
  queue_.assign(1, source);
  for (std::size_t at = 0; at < queue_.size(); ++at)
    for (int e : edges_of_[queue_[at]])
      if (edges_[e].room > 0 && layer_[edges_[e].to] < 0) {
        layer_[edges_[e].to] = layer_[queue_[at]] + 1;
        queue_.push_back(edges_[e].to);
      }
  return layer_[sink] >= 0;
}

std::int64_t WindowBound::push(int node, std::int64_t most) {
  if (node == static_cast<int>(edges_of_.size()) - 1) return most;
  for (int& k = next_[node]; k < static_cast<int>(edges_of_[node].size()); ++k) {
    Edge& edge = edges_[edges_of_[node][k]];
    if (edge.room <= 0 || layer_[edge.to] != layer_[node] + 1) continue;
    const std::int64_t pushed = push(edge.to, std::min(most, edge.room));
    if (pushed > 0) {
      edge.room -= pushed;
      edges_[edges_of_[node][k] ^ 1].room += pushed;
      return pushed;
    }
  }
  return 0;
}

// The least of the cost of runs after the stage and of `price` times the bytes kept at it, less the price of
// its room.
double WindowBound::cut(const ValueSet& wanted, const Stage& stage, double price) {
  const int values = static_cast<int>(demand_edge_.size()), source = static_cast<int>(edges_of_.size()) - 2;
  for (std::size_t i = 0; i < run_edge_.size(); ++i) {
    edges_[run_edge_[i]].room = run_cost_[i];
    edges_[run_edge_[i] ^ 1].room = 0;
  }
  for (int v = 0; v < values; ++v) {
    // What the op itself reads is there in any case.
    const bool there = stage.held.has(v);
    edges_[demand_edge_[v]].room = !there && wanted.has(v) ? kNoLimit : 0;
    edges_[demand_edge_[v] ^ 1].room = 0;
    edges_[keep_edge_[v]].room =
        there ? 0 : static_cast<std::int64_t>(std::min(price * problem_.bytes[v] * scale_, kMostPrice));
    edges_[keep_edge_[v] ^ 1].room = 0;
  }
  for (std::size_t e = 2 * (run_edge_.size() + 2 * values); e < edges_.size(); e += 2) {
    edges_[e].room = kNoLimit;
    edges_[e + 1].room = 0;
  }
  std::int64_t flow = 0;
  while (layer()) {
    next_.assign(edges_of_.size(), 0);
    while (const std::int64_t pushed = push(source, kNoLimit)) {
      flow += pushed;
      if (flow >= kNoLimit / 4) return kInfinity;
    }
  }
  return static_cast<double>(flow) / scale_ - price * std::max(0.0, stage.room);
}

// Looks for the price of the best bound from where the last search ended.
double WindowBound::best_price(const ValueSet& wanted, const Stage& stage, double* price) {
  double best = 0, step = 2, at = *price;
  int looks = kNextPrices;
  if (at == 0) {
    // What all costs, over what all holds, is of the right order.
    at = kWhole / scale_ / std::max(1.0, std::accumulate(problem_.bytes.begin(), problem_.bytes.end(), 0.0));
    looks = kFirstPrices;
    step = 8;
  }
  best = cut(wanted, stage, at);
  for (int k = 0; k < looks && std::isfinite(best); ++k) {
    const double up = cut(wanted, stage, at * step);
    if (up > best) {
      best = up;
      at *= step;
      continue;
    }
    const double down = cut(wanted, stage, at / step);
    if (down > best) {
      best = down;
      at /= step;
      continue;
    }
    step = std::sqrt(step);
  }
  *price = at;
  return std::max(0.0, best);
}

double WindowBound::operator()(const ValueSet& held, int frontier) {
  const Window& window = window_[frontier];
  if (window.stage < 0) return prefix_[frontier];
  const Stage& stage = stages_[window.stage];
  const ValueSet wanted = wanted_[window.stage][frontier - stage.op] | (held & stage.before);
  return std::max(prefix_[frontier], cut(wanted, stage, window.price) + prefix_[stage.op]);
}

}  // namespace remint
