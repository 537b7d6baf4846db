#include "memory/placement.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "memory/ejection_search.h"
#include "memory/occupancy.h"
#include "memory/order_search.h"

namespace remint {
namespace {

using Order = std::vector<std::uint32_t>;

// An order is given up after that much work, unless it is the first. Orders other than by size leave many
// small gaps, and the time to visit them grows as the square of the number of blocks.
constexpr std::uint64_t kLooksPerBlock = 1000;

// Indices of blocks in the order in which they are born, or die.
Order sorted_by(const std::vector<PlacedBlock>& blocks, std::uint32_t PlacedBlock::* time) {
  Order order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return blocks[a].*time < blocks[b].*time; });
  return order;
}

// Calls start(block) at each birth, after end(block) for all that are dead by then.
template <typename Start, typename End>
void sweep(const std::vector<PlacedBlock>& blocks, const Start& start, const End& end) {
  const Order deaths = sorted_by(blocks, &PlacedBlock::dies);
  auto dead = deaths.begin();
  for (std::uint32_t i : sorted_by(blocks, &PlacedBlock::born)) {
    for (; blocks[*dead].dies <= blocks[i].born; ++dead) end(blocks[*dead]);
    start(blocks[i]);
  }
}

// If two lifetimes meet, they meet when the later block is born. So only times of birth matter.
std::uint32_t number_births(std::vector<PlacedBlock>& blocks) {
  std::vector<std::uint32_t> births;
  for (const PlacedBlock& block : blocks) births.push_back(block.born);
  std::sort(births.begin(), births.end());
  births.erase(std::unique(births.begin(), births.end()), births.end());
  auto number = [&](std::uint32_t time) {
    return static_cast<std::uint32_t>(std::lower_bound(births.begin(), births.end(), time) - births.begin());
  };
  for (PlacedBlock& block : blocks) {
    block.born = number(block.born);
    block.dies = number(block.dies);
  }
  return static_cast<std::uint32_t>(births.size());
}

Bytes top_of(const std::vector<PlacedBlock>& blocks) {
  Bytes top = 0;
  for (const PlacedBlock& block : blocks)
    if (block.address != kNoAddress) top = std::max(top, block.address + block.nbytes);
  return top;
}

// Places blocks in several orders and keeps the best.
class FirstFit {
 public:
  FirstFit(const std::vector<PlacedBlock>& blocks, std::uint32_t num_times)
      : given_(blocks), num_times_(num_times) {
    for (std::uint32_t i : sorted_by(blocks, &PlacedBlock::born))
      if (blocks[i].address == kNoAddress) by_birth_.push_back(i);
  }

  // Stops at the first order whose top is at most `enough`.
  void run(Bytes enough) {
    auto size = [&](std::uint32_t i) { return static_cast<double>(given_[i].nbytes); };
    auto life = [&](std::uint32_t i) { return static_cast<double>(given_[i].dies - given_[i].born); };
    auto area = [&](std::uint32_t i) { return size(i) * life(i); };
    if (try_order(descending(size)) <= enough) return;
    if (try_order(descending(life)) <= enough) return;
    if (try_order(descending(area)) <= enough) return;
    if (try_order(large_first()) <= enough) return;
    const std::vector<Bytes> pressure = find_pressure();
    if (try_order(descending([&](std::uint32_t i) { return std::pair(pressure[i], given_[i].nbytes); })) <=
        enough)
      return;
    try_order(by_birth_);
  }

  // The orders that were tried to their end, the best first.
  struct Try {
    Bytes top;
    Order order;
    std::vector<PlacedBlock> placed;
  };
  const std::vector<Try>& tries() const { return tries_; }
  Bytes best_top() const { return tries_.empty() ? kNoAddress : tries_.front().top; }
  std::uint64_t looks() const { return looks_; }

 private:
  // Earlier births first where keys are equal.
  template <typename Key>
  Order descending(const Key& key) const {
    Order order = by_birth_;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return key(a) > key(b); });
    return order;
  }

  // Of blocks that are large beside the others, and of the rest, those that live long come first.
  Order large_first() const {
    Bytes largest = 0;
    for (const PlacedBlock& block : given_) largest = std::max(largest, block.nbytes);
    return descending([&](std::uint32_t i) {
      return std::pair(given_[i].nbytes >= largest / 2, given_[i].dies - given_[i].born);
    });
  }

  // By block, the most bytes that live at a time of its life.
  std::vector<Bytes> find_pressure() const {
    std::vector<Bytes> live(num_times_ + 1, 0);
    for (const PlacedBlock& block : given_) {
      live[block.born] += block.nbytes;
      live[block.dies] -= block.nbytes;
    }
    std::partial_sum(live.begin(), live.end(), live.begin());
    std::vector<Bytes> pressure(given_.size(), 0);
    // Times up to the one at hand that have more bytes than all later ones: the first since the birth of a
    // block that dies now has the most.
    std::vector<std::uint32_t> peaks;
    std::uint32_t time = 0;
    for (std::uint32_t i : sorted_by(given_, &PlacedBlock::dies)) {
      for (; time < given_[i].dies; ++time) {
        while (!peaks.empty() && live[peaks.back()] <= live[time]) peaks.pop_back();
        peaks.push_back(time);
      }
      pressure[i] = live[*std::lower_bound(peaks.begin(), peaks.end(), given_[i].born)];
    }
    return pressure;
  }

  // Returns the best top so far.
  Bytes try_order(const Order& order) {
    std::vector<PlacedBlock> blocks = given_;
    Occupancy occupancy(num_times_);
    for (const PlacedBlock& block : blocks)
      if (block.address != kNoAddress) occupancy.add(block.born, block.dies, block.address, block.nbytes);
    const std::uint64_t most_looks = kLooksPerBlock * std::max<std::uint64_t>(order.size(), 1000);
    bool complete = true;
    for (std::uint32_t i : order) {
      complete = tries_.empty() || occupancy.looks() <= most_looks;
      if (!complete) break;
      PlacedBlock& block = blocks[i];
      block.address = occupancy.lowest(block.born, block.dies, block.nbytes);
      occupancy.add(block.born, block.dies, block.address, block.nbytes);
    }
    looks_ += occupancy.looks();
    if (!complete) return best_top();
    const Bytes top = top_of(blocks);
    const auto place =
        std::find_if(tries_.begin(), tries_.end(), [&](const Try& other) { return top < other.top; });
    tries_.insert(place, {top, order, std::move(blocks)});
    return best_top();
  }

  const std::vector<PlacedBlock>& given_;
  const std::uint32_t num_times_;
  Order by_birth_;
  std::vector<Try> tries_;
  std::uint64_t looks_ = 0;
};

void check_given(const std::vector<PlacedBlock>& blocks) {
  std::vector<PlacedBlock> fixed;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const PlacedBlock& block = blocks[i];
    auto fail = [&](const char* what) {
      throw std::invalid_argument("block " + std::to_string(i) + " " + what);
    };
    if (block.nbytes <= 0) fail("has no bytes");
    if (block.dies <= block.born) fail("dies before it is born");
    if (block.address < 0 && block.address != kNoAddress) fail("has a negative address");
    if (block.address != kNoAddress) fixed.push_back(block);
  }
  std::map<Bytes, Bytes> live;  // address to end
  auto start = [&](const PlacedBlock& block) {
    auto above = live.lower_bound(block.address);
    if ((above != live.end() && above->first < block.address + block.nbytes) ||
        (above != live.begin() && std::prev(above)->second > block.address)) {
      throw std::invalid_argument("two blocks with given addresses overlap at address " +
                                  std::to_string(block.address));
    }
    live.emplace(block.address, block.address + block.nbytes);
  };
  sweep(fixed, start, [&](const PlacedBlock& block) { live.erase(block.address); });
}

// The search begins with so many of the orders.
constexpr std::size_t kStarts = 3;

// Ejection finds small repairs quickly, orders find the rest; neither is better on all networks. A move of
// ejection takes some 30 times as long, so it gets fewer.
std::vector<PlacedBlock> search(const FirstFit& first_fit, std::uint32_t num_times,
                                const std::vector<bool>& fixed, Bytes enough, std::uint64_t max_moves,
                                std::uint64_t seed, std::uint64_t& moves) {
  const std::uint64_t few = (max_moves + 31) / 32;
  EjectionSearch repair(first_fit.tries().front().placed, fixed, seed);
  const bool repaired = repair.reach(enough, few);
  moves = repair.moves();
  if (repaired) return repair.best();

  // Which order leads to the best one is not known before.
  const std::size_t starts = std::min(kStarts, first_fit.tries().size());
  const std::uint64_t share = (max_moves - std::min(max_moves, 2 * few)) / starts;
  std::vector<PlacedBlock> best = repair.best();
  Bytes best_top = repair.best_top();
  for (std::size_t start = 0; start < starts; ++start) {
    const FirstFit::Try& from = first_fit.tries()[start];
    OrderSearch orders(from.placed, from.order, num_times, seed);
    orders.run(enough, share);
    moves += orders.moves();
    if (orders.best_top() <= enough) return orders.best();
    if (orders.best_top() >= best_top) continue;
    best = orders.best();
    best_top = orders.best_top();
  }

  EjectionSearch last(best, fixed, seed);
  last.approach(enough, max_moves - moves < few ? max_moves - moves : few);
  moves += last.moves();
  return last.best();
}

}  // namespace

Bytes byte_peak(const std::vector<PlacedBlock>& blocks) {
  Bytes peak = 0;
  Bytes live = 0;
  sweep(
      blocks, [&](const PlacedBlock& block) { peak = std::max(peak, live += block.nbytes); },
      [&](const PlacedBlock& block) { live -= block.nbytes; });
  return peak;
}

PlacementResult place(std::vector<PlacedBlock>& blocks, Bytes limit, std::uint64_t max_moves,
                      std::uint64_t seed) {
  check_given(blocks);
  std::vector<PlacedBlock> numbered = blocks;
  const std::uint32_t num_times = number_births(numbered);
  // No top is lower than these, whatever the limit.
  const Bytes enough = std::max({limit, byte_peak(blocks), top_of(blocks)});

  PlacementResult result;
  FirstFit first_fit(numbered, num_times);
  first_fit.run(enough);
  result.looks = first_fit.looks();
  auto take = [&](const std::vector<PlacedBlock>& placed) {
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i].address = placed[i].address;
  };
  if (first_fit.best_top() <= enough) {
    take(first_fit.tries().front().placed);
  } else {
    std::vector<bool> fixed;
    for (const PlacedBlock& block : blocks) fixed.push_back(block.address != kNoAddress);
    take(search(first_fit, num_times, fixed, enough, max_moves, seed, result.moves));
  }
  result.top = top_of(blocks);
  result.fits = result.top <= limit;
  return result;
}

}  // namespace remint
