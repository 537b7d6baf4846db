#include "memory/order_search.h"

#include <algorithm>
#include <utility>

#include "memory/occupancy.h"

namespace remint {

OrderSearch::OrderSearch(std::vector<PlacedBlock> blocks, std::vector<std::uint32_t> order,
                         std::uint32_t num_times, std::uint64_t seed)
    : best_(std::move(blocks)),
      best_order_(std::move(order)),
      addresses_(best_.size()),
      num_times_(num_times),
      random_(seed) {
  std::vector<bool> moves(best_.size(), false);
  for (std::uint32_t id : best_order_) moves[id] = true;
  for (std::uint32_t id = 0; id < best_.size(); ++id) {
    if (!moves[id]) fixed_.push_back(id);
    best_top_ = std::max(best_top_, best_[id].address + best_[id].nbytes);
  }
}

std::size_t OrderSearch::at_the_top() {
  std::size_t found = order_.size();
  std::uint64_t ties = 0;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const PlacedBlock& block = best_[order_[i]];
    if (block.address + block.nbytes == best_top_ && random_() % ++ties == 0) found = i;
  }
  return found;
}

void OrderSearch::move(std::size_t from, std::size_t to) {
  const auto begin = order_.begin();
  const auto at = [&](std::size_t i) { return begin + static_cast<std::ptrdiff_t>(i); };
  if (to <= from) {
    std::rotate(at(to), at(from), at(from + 1));
  } else {
    std::rotate(at(from), at(from + 1), at(to + 1));
  }
}

// A random position in the order whose block lives together with the one at `position`, or `position` itself.
std::size_t OrderSearch::at_the_same_time(std::size_t position) {
  const PlacedBlock& block = best_[order_[position]];
  std::size_t found = position;
  std::uint64_t ties = 0;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const PlacedBlock& each = best_[order_[i]];
    if (i == position || each.born >= block.dies || block.born >= each.dies) continue;
    if (random_() % ++ties == 0) found = i;
  }
  return found;
}

void OrderSearch::change() {
  order_ = best_order_;
  const std::size_t top = at_the_top();
  const std::uint64_t kind = random_() % 3;
  // A fixed block may be at the top, or the first block in the order.
  if (kind == 0 || top == 0 || top == order_.size()) {
    const std::size_t from = random_() % order_.size();
    move(from, random_() % order_.size());
  } else if (kind == 1) {
    move(top, random_() % top);
  } else {
    std::swap(order_[top], order_[at_the_same_time(top)]);
  }
}

bool OrderSearch::replace(std::uint64_t max_moves) {
  Occupancy occupancy(num_times_);
  for (std::uint32_t id : fixed_) {
    const PlacedBlock& block = best_[id];
    occupancy.add(block.born, block.dies, block.address, block.nbytes);
  }
  for (std::uint32_t id : order_) {
    if (moves_ == max_moves) return false;
    ++moves_;
    const PlacedBlock& block = best_[id];
    const Bytes address = occupancy.lowest(block.born, block.dies, block.nbytes);
    if (address + block.nbytes > best_top_) return false;
    addresses_[id] = address;
    occupancy.add(block.born, block.dies, address, block.nbytes);
  }
  return true;
}

void OrderSearch::run(Bytes enough, std::uint64_t max_moves) {
  while (best_top_ > enough && moves_ < max_moves && !best_order_.empty()) {
    change();
    if (!replace(max_moves)) continue;
    std::swap(best_order_, order_);
    best_top_ = 0;
    for (std::uint32_t id : best_order_) best_[id].address = addresses_[id];
    for (const PlacedBlock& block : best_) best_top_ = std::max(best_top_, block.address + block.nbytes);
  }
}

}  // namespace remint
