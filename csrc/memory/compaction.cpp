#include "memory/compaction.h"

#include <algorithm>
#include <tuple>

namespace remint {
namespace {

// With half as many, recorded training ran slower in tight budgets; with twice as many, no faster.
constexpr std::size_t kPrices = 8;
// Cells that they are taken from.
constexpr std::size_t kSample = 256;

}  // namespace

std::optional<CompactionWindow> CompactionSearch::cheapest(const std::vector<CompactionCell>& cells,
                                                           Bytes nbytes) {
  std::vector<double> prices(1, std::numeric_limits<double>::infinity());
  per_byte_.clear();
  bool any_moves = false;
  const std::size_t stride = 1 + cells.size() / kSample;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const CompactionCell& cell = cells[i];
    if (cell.free || std::isinf(cell.move_cost)) continue;
    any_moves = true;
    if (i % stride == 0 && cell.evictable && !std::isinf(cell.cost)) {
      per_byte_.push_back(cell.cost / static_cast<double>(cell.nbytes));
    }
  }
  if (any_moves) {
    prices.push_back(-1.0);  // nothing is evicted
    std::sort(per_byte_.begin(), per_byte_.end());
    for (std::size_t i = 1; i < kPrices && !per_byte_.empty(); ++i) {
      const double price = per_byte_[(per_byte_.size() - 1) * i / kPrices];
      if (price != prices.back()) prices.push_back(price);
    }
  }
  std::optional<CompactionWindow> best;
  for (double price : prices) {
    CompactionWindow found;
    found.price = price;
    auto cell_at = [&](std::size_t i) {
      const CompactionCell& cell = cells[i];
      Cell as;
      as.free = cell.free;
      if (cell.free || found.evicts(cell)) {
        as.nbytes = cell.nbytes;
        as.cost = cell.cost;
      } else {
        as.cost = cell.move_cost;
        as.barrier = std::isinf(cell.move_cost);
      }
      return as;
    };
    const std::optional<Window> window = windows_.cheapest(cells.size(), cell_at, nbytes);
    if (!window) continue;
    if (!best || std::tie(window->num_infinite, window->cost) <
                     std::tie(best->window.num_infinite, best->window.cost)) {
      found.window = *window;
      best = found;
    }
  }
  if (!best) return best;
  for (std::size_t i = 0; i < best->window.first; ++i) best->from += cells[i].nbytes;
  best->to = best->from;
  for (std::size_t i = best->window.first; i <= best->window.last; ++i) best->to += cells[i].nbytes;
  return best;
}

}  // namespace remint
