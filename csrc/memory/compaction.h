// The cheapest compaction window: a window of the arena in which some blocks are evicted and the others are
// moved together. Blocks that are too expensive to evict, or cannot be evicted, may be moved: a move takes a
// fraction of the time of nearly any op.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "memory/window.h"

namespace remint {

struct CompactionCell {
  Bytes nbytes = 0;
  double cost = 0.0;  // of evicting it; +inf is allowed, free cells cost 0
  double move_cost = std::numeric_limits<double>::infinity();  // +inf: it cannot be moved
  bool free = false;
  bool evictable = true;
};

// A window of which the blocks with a low cost per byte are evicted and the others moved to its low end.
struct CompactionWindow {
  Window window;
  double price = 0.0;  // blocks that cost more per byte than this to evict are moved instead
  Bytes from = 0;      // the window's bytes, counted from the first cell on
  Bytes to = 0;
  bool evicts(const CompactionCell& cell) const {
    return !cell.free && cell.evictable &&
           (std::isinf(price) || cell.cost <= price * static_cast<double>(cell.nbytes));
  }
};

// Which cells to evict and which to move is a knapsack problem. Try a few prices per byte, taken from the
// cells; for each, find the cheapest window; keep the best. O(cells).
class CompactionSearch {
 public:
  std::optional<CompactionWindow> cheapest(const std::vector<CompactionCell>& cells, Bytes nbytes);

  // Calls visit(window, price) for all windows that it chooses among: for each price, the shortest one that
  // ends at each cell. Those in which all that can be evicted is come first.
  using Visit = std::function<void(const Window&, double price)>;
  void for_each(const std::vector<CompactionCell>& cells, Bytes nbytes, const Visit& visit);

 private:
  // Takes windows in which all that can be evicted is. Whether one that moves some of that may be cheaper.
  bool moves_may_win(const std::vector<CompactionCell>& cells, Bytes nbytes,
                     const std::optional<Window>& best);
  void choose_prices(const std::vector<CompactionCell>& cells);
  // Makes `priced_` of the cells: what costs more per byte is moved.
  void take_price(const std::vector<CompactionCell>& cells, double price);

  WindowSearch windows_;
  std::vector<Cell> priced_;
  std::vector<double> per_byte_;
  std::vector<double> prices_;
};

}  // namespace remint
