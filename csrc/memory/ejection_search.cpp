#include "memory/ejection_search.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace remint {
namespace {
// The penalty of the largest block at first.
constexpr double kLargestPenalty = 1 << 16;
// More than all penalties together: nothing is gained by ejecting a fixed block.
constexpr std::int64_t kFixedPenalty = std::int64_t{1} << 40;
}  // namespace

EjectionSearch::EjectionSearch(std::vector<PlacedBlock> blocks, std::vector<bool> fixed, std::uint64_t seed)
    : best_(std::move(blocks)), fixed_(std::move(fixed)), random_(seed) {
  auto area = [](const PlacedBlock& block) {
    return static_cast<double>(block.nbytes) * (block.dies - block.born);
  };
  double largest = 1;
  for (const PlacedBlock& block : best_) {
    best_top_ = std::max(best_top_, block.address + block.nbytes);
    largest = std::max(largest, area(block));
  }
  // Large and long-lived blocks are hard to place elsewhere.
  for (const PlacedBlock& block : best_)
    hardness_.push_back(1 + static_cast<std::int64_t>(kLargestPenalty * (area(block) / largest)));
  penalty_ = hardness_;
  for (std::size_t i = 0; i < best_.size(); ++i)
    if (fixed_[i]) penalty_[i] = kFixedPenalty;
}

void EjectionSearch::start(Bytes target) {
  standing_.clear();
  waiting_.clear();
  for (std::uint32_t id = 0; id < best_.size(); ++id) {
    const PlacedBlock& block = best_[id];
    if (block.address + block.nbytes > target) {
      waiting_.push_back(id);
    } else {
      standing_.push_back({block.address, block.address + block.nbytes, block.born, block.dies, id});
    }
  }
  std::sort(standing_.begin(), standing_.end(), [](const Standing& a, const Standing& b) {
    return a.low != b.low ? a.low < b.low : a.id < b.id;
  });
  std::stable_sort(waiting_.begin(), waiting_.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return best_[a].nbytes < best_[b].nbytes; });
}

Bytes EjectionSearch::cheapest(const PlacedBlock& block, Bytes target) {
  meets_.clear();
  ends_.clear();
  for (std::size_t i = 0; i < standing_.size(); ++i) {
    const Standing& other = standing_[i];
    if (other.born >= block.dies || block.born >= other.dies) continue;
    meets_.push_back(i);
    ends_.emplace_back(other.high, penalty_[other.id]);
  }
  std::sort(ends_.begin(), ends_.end());
  // Candidates are address 0 and the ends of blocks: any placement stays valid if blocks slide down that far.
  // `cost` is the penalty of all blocks that start below the end of the place, less those that end below it.
  Bytes best = kNoAddress;
  std::int64_t best_cost = kFixedPenalty;
  std::uint64_t ties = 0;
  std::int64_t cost = 0;
  auto starts = meets_.begin();
  auto ends = ends_.begin();
  for (Bytes address = 0; address + block.nbytes <= target;) {
    for (; ends != ends_.end() && ends->first <= address; ++ends) cost -= ends->second;
    for (; starts != meets_.end() && standing_[*starts].low < address + block.nbytes; ++starts)
      cost += penalty_[standing_[*starts].id];
    if (cost < best_cost) {
      best_cost = cost;
      best = address;
      ties = 1;
      if (cost == 0) break;
    } else if (cost == best_cost && cost < kFixedPenalty && random_() % ++ties == 0) {
      best = address;
    }
    if (ends == ends_.end()) break;
    address = ends->first;
  }
  return best;
}

void EjectionSearch::eject_from(const PlacedBlock& block, Bytes address) {
  for (auto at = meets_.rbegin(); at != meets_.rend(); ++at) {
    const Standing& other = standing_[*at];
    if (other.low >= address + block.nbytes || other.high <= address) continue;
    waiting_.push_back(other.id);
    standing_.erase(standing_.begin() + static_cast<std::ptrdiff_t>(*at));
  }
}

void EjectionSearch::insert(std::uint32_t id, Bytes address) {
  const PlacedBlock& block = best_[id];
  auto at = std::upper_bound(standing_.begin(), standing_.end(), address,
                             [](Bytes low, const Standing& each) { return low < each.low; });
  standing_.insert(at, {address, address + block.nbytes, block.born, block.dies, id});
}

bool EjectionSearch::reach(Bytes target, std::uint64_t max_moves) {
  start(target);
  for (std::uint64_t left = max_moves; !waiting_.empty(); --left) {
    if (left == 0) return false;
    const std::uint32_t id = waiting_.back();
    const Bytes address = cheapest(best_[id], target);
    ++moves_;
    if (address == kNoAddress) return false;
    waiting_.pop_back();
    const std::size_t before = waiting_.size();
    eject_from(best_[id], address);
    if (waiting_.size() > before) penalty_[id] += hardness_[id];
    insert(id, address);
  }
  best_top_ = 0;
  for (const Standing& each : standing_) {
    best_[each.id].address = each.low;
    best_top_ = std::max(best_top_, each.high);
  }
  return true;
}

bool EjectionSearch::approach(Bytes target, std::uint64_t max_moves) {
  const std::uint64_t last = moves_ + max_moves;
  if (reach(target, (max_moves + 1) / 2)) return true;
  Bytes missed = target;
  while (moves_ < last && best_top_ - missed > 1) {
    const Bytes middle = missed + (best_top_ - missed) / 2;
    if (!reach(middle, (last - moves_ + 1) / 2)) missed = middle;
  }
  return false;
}

}  // namespace remint
