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
constexpr int kMostStages = 64, kStageOps = 3600;  // stages, and stages times ops
constexpr int kFirstPrices = 12, kNextPrices = 4;
// Per frontier: windows that are kept, how often others are tried, and how much better they must be.
constexpr std::size_t kMostWindows = 3;
constexpr std::int64_t kLookEvery = 1024;
constexpr double kBetter = 0.01;
// When a new window is looked for: stages that are split into cases, cases, and values to split them by.
constexpr std::size_t kMostSplit = 6, kMostTried = 3;
constexpr int kMostCases = 8;
constexpr double kLowerPrice = 0.99;
}  // namespace

WindowBound::WindowBound(const WatchedProblem& problem, const WindowBound* easier) : problem_(problem) {
  const int n = problem.ops();
  const double total = std::accumulate(problem.cost.begin(), problem.cost.end(), 0.0);
  scale_ = total > 0 ? kWhole / total : 1;
  build_network();
  choose_stages();
  prefix_.assign(n + 1, 0);
  pools_.resize(n + 1);
  if (easier != nullptr) learn_from(*easier);
  std::vector<Case> last(stages_.size(), Case{{}, {}, 0});
  for (int f = 1; f <= n; ++f) {
    prefix_[f] = std::max(prefix_[f], prefix_[f - 1]);
    double best = 0;
    Window window{-1, {}, 1};
    for (std::size_t k = 0; k < stages_.size(); ++k) {
      const Stage& stage = stages_[k];
      if (stage.op >= f) break;
      const ValueSet wanted = wanted_[k][f - stage.op];
      if (problem.bytes_of(wanted.without(stage.held)) <= stage.room) continue;
      const double bound = best_price(wanted, stage, &last[k]) + prefix_[stage.op];
      if (bound > best) {
        best = bound;
        window = {static_cast<int>(k), {last[k]}, 1};
      }
    }
    if (window.stage < 0) continue;
    const ValueSet wanted = wanted_in(window.stage, {}, f);
    const double before = prefix_[stages_[window.stage].op];
    prefix_[f] = std::max(prefix_[f], before + split(wanted, &window, best - before));
    if (easier == nullptr) pools_[f].windows.push_back(window);
  }
}

void WindowBound::raise_prefix(int frontier, double bound) {
  // What comes before an op comes before later ones, too.
  for (std::size_t f = frontier; f < prefix_.size(); ++f) prefix_[f] = std::max(prefix_[f], bound);
}

void WindowBound::learn_from(const WindowBound& easier) {
  prefix_ = easier.prefix_;
  std::vector<int> number(problem_.ops(), -1);
  for (std::size_t k = 0; k < stages_.size(); ++k) number[stages_[k].op] = static_cast<int>(k);
  for (std::size_t f = 0; f < pools_.size(); ++f) {
    pools_[f].asked = easier.pools_[f].asked;
    for (Window window : easier.pools_[f].windows) {
      window.stage = number[easier.stages_[window.stage].op];
      if (window.stage >= 0) pools_[f].windows.push_back(window);
    }
  }
}

// Ops at whose first run too much is held when nothing is dropped.
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
  std::vector<Stage> all;
  for (int t : over) all.push_back(stage_of(t));
  const std::size_t most = std::clamp(kStageOps / std::max(1, n), 8, kMostStages);
  if (over.size() > most) {
    // Half of them are those that hold most, the others those whose memory alone costs most.
    std::vector<std::size_t> chosen(over.size());
    std::iota(chosen.begin(), chosen.end(), 0);
    std::stable_sort(chosen.begin(), chosen.end(),
                     [&](std::size_t a, std::size_t b) { return memory[over[a]] > memory[over[b]]; });
    std::vector<double> bound(over.size());
    for (std::size_t k = 0; k < over.size(); ++k) {
      ValueSet later = p.results;
      for (int f = over[k] + 1; f < n; ++f) later = later | p.inputs[f];
      Case all_kinds{{}, {}, 0};
      bound[k] = best_price(later & all[k].before, all[k], &all_kinds);
    }
    std::stable_sort(chosen.begin() + most / 2, chosen.end(),
                     [&](std::size_t a, std::size_t b) { return bound[a] > bound[b]; });
    chosen.resize(most);
    std::sort(chosen.begin(), chosen.end());
    for (std::size_t k : chosen) stages_.push_back(all[k]);
  } else {
    stages_ = all;
  }
  for (const Stage& stage : stages_) {
    std::vector<ValueSet> wanted(1);
    ValueSet read;
    for (int f = stage.op; f < n; ++f) {
      read = read | p.inputs[f];
      wanted.push_back(read & stage.before);
    }
    wanted_.push_back(std::move(wanted));
  }
}

WindowBound::Stage WindowBound::stage_of(int op) const {
  const WatchedProblem& p = problem_;
  Stage stage{op, p.inputs[op] | p.outputs[op], {}, 0};
  for (std::size_t v = 0; v < p.maker.size(); ++v)
    if (p.maker[v] < op) stage.before.add(static_cast<int>(v));
  stage.room = p.space - p.others[op] - p.bytes_of(stage.held);
  return stage;
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

// Sends up to `most` from a node to the sink, on every way that is open. A node from which no more can be
// sent is not looked at again in this turn.
std::int64_t WindowBound::push(int node, std::int64_t most) {
  const int sink = static_cast<int>(edges_of_.size()) - 1;
  seen_[node] = 1;
  std::int64_t sent = 0;
  for (int e : edges_of_[node]) {
    Edge& edge = edges_[e];
    if (edge.room <= 0 || seen_[edge.to]) continue;
    const std::int64_t part = std::min(most - sent, edge.room);
    const std::int64_t pushed = edge.to == sink ? part : push(edge.to, part);
    edge.room -= pushed;
    edges_[e ^ 1].room += pushed;
    sent += pushed;
    if (sent == most) {
      seen_[node] = 0;
      break;
    }
  }
  return sent;
}

// The least of the cost of runs after the stage and of the price of the bytes kept at it, less the price of
// its room.
double WindowBound::cut(const ValueSet& wanted, const Stage& stage, const Case& kind) {
  const int values = static_cast<int>(demand_edge_.size()), source = static_cast<int>(edges_of_.size()) - 2;
  // What the op itself reads is there in any case.
  const ValueSet there = stage.held | kind.kept;
  const double room = stage.room - problem_.bytes_of(kind.kept.without(stage.held));
  if (room < 0) return kInfinity;
  for (std::size_t i = 0; i < run_edge_.size(); ++i) {
    edges_[run_edge_[i]].room = run_cost_[i];
    edges_[run_edge_[i] ^ 1].room = 0;
  }
  for (int v = 0; v < values; ++v) {
    edges_[demand_edge_[v]].room = !there.has(v) && wanted.has(v) ? kNoLimit : 0;
    edges_[demand_edge_[v] ^ 1].room = 0;
    const double worth = std::min(kind.price * problem_.bytes[v] * scale_, kMostPrice);
    edges_[keep_edge_[v]].room = there.has(v)       ? 0
                                 : kind.gone.has(v) ? kNoLimit
                                                    : static_cast<std::int64_t>(worth);
    edges_[keep_edge_[v] ^ 1].room = 0;
  }
  for (std::size_t e = 2 * (run_edge_.size() + 2 * values); e < edges_.size(); e += 2) {
    edges_[e].room = kNoLimit;
    edges_[e + 1].room = 0;
  }
  std::int64_t flow = 0;
  while (true) {
    seen_.assign(edges_of_.size(), 0);
    const std::int64_t pushed = push(source, kNoLimit);
    if (pushed == 0) break;
    flow += pushed;
    if (flow >= kNoLimit / 4) return kInfinity;
  }
  return static_cast<double>(flow) / scale_ - kind.price * room;
}

// Looks for the price of the best bound from where the last search ended.
double WindowBound::best_price(const ValueSet& wanted, const Stage& stage, Case* kind) {
  double step = 2;
  int looks = kNextPrices;
  if (kind->price == 0) {
    // What all costs, over what all holds, is of the right order.
    kind->price =
        kWhole / scale_ / std::max(1.0, std::accumulate(problem_.bytes.begin(), problem_.bytes.end(), 0.0));
    looks = kFirstPrices;
    step = 8;
  }
  double best = cut(wanted, stage, *kind);
  Case other = *kind;
  auto better = [&](double price) {
    other.price = price;
    const double bound = cut(wanted, stage, other);
    if (bound <= best) return false;
    best = bound;
    kind->price = price;
    return true;
  };
  for (int k = 0; k < looks && std::isfinite(best); ++k)
    if (!better(kind->price * step) && !better(kind->price / step)) step = std::sqrt(step);
  return std::max(0.0, best);
}

// What the cut keeps at a slightly lower price, at which it keeps what it keeps in part.
std::vector<int> WindowBound::kept_by(const ValueSet& wanted, const Stage& stage, Case kind) {
  kind.price *= kLowerPrice;
  std::vector<int> kept;
  if (cut(wanted, stage, kind) == kInfinity) return kept;
  const int n = problem_.ops();
  const ValueSet decided = stage.held | kind.kept | kind.gone;
  for (int v = 0; v < static_cast<int>(problem_.bytes.size()); ++v)
    if (seen_[n + v] && !seen_[problem_.maker[v]] && !decided.has(v)) kept.push_back(v);
  return kept;
}

// The bound of a window: that of its least case. It may be more if it is not more than `enough`.
double WindowBound::least_case(const ValueSet& wanted, Window* window, double enough) {
  double least = kInfinity;
  for (std::size_t k = 0; k < window->cases.size(); ++k) {
    const double bound = cut(wanted, stages_[window->stage], window->cases[k]);
    if (bound >= least) continue;
    least = bound;
    if (k > 0) std::swap(window->cases[0], window->cases[k]);  // it is asked first next time
    if (least <= enough) return least;
  }
  return least;
}

// A price lets parts of values be kept. So the least case is made two: with a large value kept, and without.
double WindowBound::split(const ValueSet& wanted, Window* window, double bound) {
  const Stage& stage = stages_[window->stage];
  std::vector<double> bounds(1, bound);
  for (int turn = 1; turn < kMostCases; ++turn) {
    const std::size_t at = std::min_element(bounds.begin(), bounds.end()) - bounds.begin();
    const Case whole = window->cases[at];
    std::vector<int> large = kept_by(wanted, stage, whole);
    std::stable_sort(large.begin(), large.end(),
                     [&](int v, int w) { return problem_.bytes[v] > problem_.bytes[w]; });
    if (large.size() > kMostTried) large.resize(kMostTried);
    double best = bounds[at] * (1 + kBetter), best_kept = 0, best_gone = 0;
    Case kept_case{}, gone_case{};
    for (int v : large) {
      Case kept{whole.kept, whole.gone, 0}, gone{whole.kept, whole.gone, 0};
      gone.gone.add(v);
      const double without = best_price(wanted, stage, &gone);
      if (without <= best) continue;
      kept.kept.add(v);
      const double with = best_price(wanted, stage, &kept);
      if (with <= best) continue;
      best = std::min(with, without);
      best_kept = with;
      best_gone = without;
      kept_case = kept;
      gone_case = gone;
    }
    if (best_gone == 0) break;
    window->cases[at] = kept_case;
    bounds[at] = best_kept;
    window->cases.push_back(gone_case);
    bounds.push_back(best_gone);
  }
  return *std::min_element(bounds.begin(), bounds.end());
}

ValueSet WindowBound::wanted_in(int stage, const ValueSet& held, int frontier) const {
  return wanted_[stage][frontier - stages_[stage].op] | (held & stages_[stage].before);
}

double WindowBound::operator()(const ValueSet& held, int frontier) {
  Pool& pool = pools_[frontier];
  double best = prefix_[frontier];
  Window* winner = nullptr;
  for (Window& window : pool.windows) {
    const double before = prefix_[stages_[window.stage].op];
    const double bound = before + least_case(wanted_in(window.stage, held, frontier), &window, best - before);
    if (bound <= best) continue;
    best = bound;
    winner = &window;
    if (best == kInfinity) break;
  }
  if (winner != nullptr) ++winner->wins;
  ++pool.asked;
  const bool look = pool.asked % kLookEvery == 0 || (pool.asked & (pool.asked - 1)) == 0;
  return look && best < kInfinity ? look_for_windows(held, frontier, best) : best;
}

// Tries all stages, and enters the best one into the pool if it is better than what is there.
double WindowBound::look_for_windows(const ValueSet& held, int frontier, double best) {
  struct Found {
    double bound;
    Window window;
  };
  std::vector<Found> found;
  for (std::size_t k = 0; k < stages_.size() && stages_[k].op < frontier; ++k) {
    const Stage& stage = stages_[k];
    const ValueSet wanted = wanted_in(static_cast<int>(k), held, frontier);
    if (problem_.bytes_of(wanted.without(stage.held)) <= stage.room) continue;
    Case all{{}, {}, 0};
    const double bound = best_price(wanted, stage, &all);
    found.push_back({bound + prefix_[stage.op], {static_cast<int>(k), {all}, 1}});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return a.bound > b.bound; });
  if (found.size() > kMostSplit) found.resize(kMostSplit);
  const double known = best;
  const Window* winner = nullptr;
  for (Found& one : found) {
    const double before = prefix_[stages_[one.window.stage].op];
    const ValueSet wanted = wanted_in(one.window.stage, held, frontier);
    one.bound = before + split(wanted, &one.window, one.bound - before);
    if (one.bound <= best) continue;
    best = one.bound;
    winner = &one.window;
  }
  if (winner == nullptr || best <= known * (1 + kBetter)) return best;
  std::vector<Window>& windows = pools_[frontier].windows;
  if (windows.size() < kMostWindows) {
    windows.push_back(*winner);
  } else {
    *std::min_element(windows.begin(), windows.end(),
                      [](const Window& a, const Window& b) { return a.wins < b.wins; }) = *winner;
    for (Window& window : windows) window.wins = 1;
  }
  return best;
}

}  // namespace remint
