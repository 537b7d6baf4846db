#include "clearing.h"

#include <algorithm>
#include <tuple>

namespace remint {
namespace {

// More than that gain nothing on recorded training.
constexpr std::size_t kPrices = 8;

}  // namespace

std::optional<Clearing> ClearingSearch::cheapest(const std::vector<ClearingCell>& cells, Bytes nbytes) {
  std::vector<double> prices(1, std::numeric_limits<double>::infinity());
  per_byte_.clear();
  bool any_moves = false;
  for (const ClearingCell& cell : cells) {
    if (cell.free || std::isinf(cell.move_cost)) continue;
    any_moves = true;
    if (cell.evictable && !std::isinf(cell.cost))
      per_byte_.push_back(cell.cost / static_cast<double>(cell.nbytes));
  }
  if (any_moves && !per_byte_.empty()) {
    std::sort(per_byte_.begin(), per_byte_.end());
    prices.push_back(-1.0);  // nothing is evicted
    for (std::size_t i = 1; i < kPrices; ++i)
      prices.push_back(per_byte_[(per_byte_.size() - 1) * i / kPrices]);
    prices.erase(std::unique(prices.begin(), prices.end()), prices.end());
  }
  std::optional<Clearing> best;
  for (double price : prices) {
    Clearing clearing{{}, price};
    trial_.clear();
    for (const ClearingCell& cell : cells) {
      Cell trial;
      trial.free = cell.free;
      if (cell.free || clearing.evicts(cell)) {
        trial.nbytes = cell.nbytes;
        trial.cost = cell.cost;
      } else {
        trial.cost = cell.move_cost;
        trial.barrier = std::isinf(cell.move_cost);
      }
      trial_.push_back(trial);
    }
    const std::optional<Window> window = cheapest_window(trial_, nbytes);
    if (!window) continue;
    if (!best || std::tie(window->num_infinite, window->cost) <
                     std::tie(best->window.num_infinite, best->window.cost)) {
      clearing.window = *window;
      best = clearing;
    }
  }
  return best;
}

}  // namespace remint
