// Search: simulated annealing over the decisions of a SearchState, resumable in slices.
//
// Follows FastSA (2023) in annealing with fast simulation and planning practice in letting the walk cross the
// budget: the energy is cost plus a price on bytes over budget, and the price follows what is met.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule_state.h"

namespace remint {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 0x1234567ull) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>((next() >> 33) % static_cast<uint64_t>(n)); }
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  uint64_t state_;
};

class Search {
 public:
  // `twins`: per op, a number that ops in the same place of repeated layers share, or -1.
  Search(SearchProblem problem, double budget, uint64_t seed, std::vector<int> twins);

  // Takes these decisions as the current schedule, and as the best one if they are.
  void start(const std::vector<Decision>& decisions);
  void set_budget(double budget);
  // Makes that many moves.
  void run(int64_t moves);

  bool feasible() const { return best_cost_ < kNone; }
  double best_cost() const { return best_cost_; }
  double least_peak() const { return least_peak_; }
  std::vector<Decision> best() const { return best_flips_ == kNoFlips ? best_ : replay(best_flips_); }
  std::vector<Decision> least() const { return least_flips_ == kNoFlips ? least_ : replay(least_flips_); }
  SearchState& state() { return state_; }
  int64_t moves() const { return moves_; }
  int cycles() const { return cycles_; }

 private:
  static constexpr double kNone = 1e300;
  static constexpr std::size_t kNoFlips = static_cast<std::size_t>(-1);

  double energy() const { return state_.cost() * cost_scale_ + price_ * state_.excess() * excess_scale_; }
  void begin_cycle();
  void note();
  void snapshot();
  std::vector<Decision> replay(std::size_t flips) const;
  int busy_stage();
  bool pick_drop(int stage, Decision* drop);
  bool pick_active(Decision* d);
  void propose();
  void propose_run(bool on);
  void propose_force();
  void propose_copy();
  void turn(const Decision& d, bool on);

  SearchState state_;
  Random random_;
  std::vector<int> twins_;
  std::vector<std::vector<int>> twin_ops_;
  std::vector<int> own_uses_begin_;
  std::vector<int> own_uses_;
  std::vector<Decision> active_;  // may hold decisions that were taken back; cleaned when met
  std::vector<Decision> best_, least_, snapshot_;
  std::vector<std::pair<Decision, bool>> flips_, fresh_;  // accepted since the snapshot; of this move
  std::size_t best_flips_ = kNoFlips, least_flips_ = kNoFlips;
  double best_cost_ = kNone, least_peak_ = kNone, least_excess_ = kNone;
  double cost_scale_ = 1, excess_scale_ = 1, price_ = 1;
  double heat_ = 0, cooling_ = 1;
  int64_t moves_ = 0, cycle_left_ = 0, cycle_length_ = 0;
  int cycles_ = 0;
  bool started_ = false;
  int worst_ = 0;
  int64_t worst_at_ = -1000000;
};

}  // namespace remint
