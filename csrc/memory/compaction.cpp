#include "memory/compaction.h"

#include <algorithm>
#include <tuple>

namespace remint {
namespace {

// With half as many, recorded training ran slower in tight budgets; with twice as many, no faster.
constexpr std::size_t kPrices = 8;
// Cells that they are taken from.
constexpr std::size_t kSample = 256;

bool cheaper(const Window& a, const Window& b) {
  return std::tie(a.num_infinite, a.cost) < std::tie(b.num_infinite, b.cost);
}

}  // namespace

std::optional<CompactionWindow> CompactionSearch::cheapest(const std::vector<CompactionCell>& cells,
                                                           Bytes nbytes) {
  std::optional<CompactionWindow> best;
  auto try_price = [&](double price) {
    take_price(cells, price);
    const std::optional<Window> window = windows_.cheapest(priced_, nbytes);
    if (!window) return;
    if (!best || cheaper(*window, best->window)) best = CompactionWindow{*window, price, 0, 0};
  };
  try_price(std::numeric_limits<double>::infinity());
  if (moves_may_win(cells, nbytes, best ? std::optional(best->window) : std::nullopt)) {
    choose_prices(cells);
    for (double price : prices_) try_price(price);
  }
  if (!best) return best;
  for (std::size_t i = 0; i < best->window.first; ++i) best->from += cells[i].nbytes;
  best->to = best->from;
  for (std::size_t i = best->window.first; i <= best->window.last; ++i) best->to += cells[i].nbytes;
  return best;
}

void CompactionSearch::for_each(const std::vector<CompactionCell>& cells, Bytes nbytes, const Visit& visit) {
  std::optional<Window> best;
  auto try_price = [&](double price) {
    take_price(cells, price);
    windows_.for_each(priced_, nbytes, [&](const Window& window) {
      if (!best || cheaper(window, *best)) best = window;
      visit(window, price);
    });
  };
  try_price(std::numeric_limits<double>::infinity());
  if (!moves_may_win(cells, nbytes, best)) return;
  choose_prices(cells);
  for (double price : prices_) try_price(price);
}

void CompactionSearch::take_price(const std::vector<CompactionCell>& cells, double price) {
  CompactionWindow at_price;
  at_price.price = price;
  priced_.resize(cells.size());
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const CompactionCell& cell = cells[i];
    if (cell.free || at_price.evicts(cell)) {
      priced_[i] = {cell.nbytes, cell.cost, false, cell.free};
    } else {
      priced_[i] = {0, cell.move_cost, std::isinf(cell.move_cost), false};
    }
  }
}

// A window has enough bytes only if what is not free in it is evicted. That costs at least as much as the
// cheapest block of all, and every byte of it at least as much as the cheapest byte. So a window that costs
// less than `best` has many free bytes, and they stand close together: what lies between them is moved or
// evicted, too.
bool CompactionSearch::moves_may_win(const std::vector<CompactionCell>& cells, Bytes nbytes,
                                     const std::optional<Window>& best) {
  bool any_moves = false;
  double per_byte = std::numeric_limits<double>::infinity();
  double per_block = std::numeric_limits<double>::infinity();
  for (const CompactionCell& cell : cells) {
    if (cell.free) continue;
    any_moves = any_moves || !std::isinf(cell.move_cost);
    if (!cell.evictable) continue;
    per_byte = std::min(per_byte, cell.cost / static_cast<double>(cell.nbytes));
    per_block = std::min(per_block, cell.cost);
  }
  if (!any_moves) return false;
  if (!best || best->num_infinite > 0) return true;
  const double limit = best->cost;
  if (limit <= 0) return false;
  double free_bytes_needed = static_cast<double>(nbytes);
  if (limit > per_block) free_bytes_needed -= limit / per_byte;
  if (free_bytes_needed <= 0) return true;
  // The most free bytes in a run of cells that costs less than the limit.
  double cost = 0.0;
  Bytes free_bytes = 0;
  std::size_t first = 0;
  for (std::size_t last = 0; last < cells.size(); ++last) {
    auto least = [&](const CompactionCell& cell) {
      if (cell.free) return 0.0;
      return cell.evictable ? std::min(cell.cost, cell.move_cost) : cell.move_cost;
    };
    const double added = least(cells[last]);
    if (!(added < limit)) {
      first = last + 1;
      cost = 0.0;
      free_bytes = 0;
      continue;
    }
    cost += added;
    if (cells[last].free) free_bytes += cells[last].nbytes;
    // A little more than the limit, because the sum is rounded.
    for (; cost > limit * (1 + 1e-9); ++first) {
      cost -= least(cells[first]);
      if (cells[first].free) free_bytes -= cells[first].nbytes;
    }
    if (static_cast<double>(free_bytes) >= free_bytes_needed) return true;
  }
  return false;
}

void CompactionSearch::choose_prices(const std::vector<CompactionCell>& cells) {
  per_byte_.clear();
  const std::size_t stride = 1 + cells.size() / kSample;
  for (std::size_t i = 0; i < cells.size(); i += stride) {
    const CompactionCell& cell = cells[i];
    if (cell.free || !cell.evictable || std::isinf(cell.cost) || std::isinf(cell.move_cost)) continue;
    per_byte_.push_back(cell.cost / static_cast<double>(cell.nbytes));
  }
  std::sort(per_byte_.begin(), per_byte_.end());
  prices_.assign(1, -1.0);  // nothing is evicted
  for (std::size_t i = 1; i < kPrices && !per_byte_.empty(); ++i) {
    const double price = per_byte_[(per_byte_.size() - 1) * i / kPrices];
    if (price != prices_.back()) prices_.push_back(price);
  }
}

}  // namespace remint
