// The cheapest compaction window: a window of the arena in which some blocks are evicted and the others are
// moved together. Blocks that are too expensive to evict, or cannot be evicted, may be moved: a move takes a
// fraction of the time of nearly any op.
#pragma once

#include <cmath>
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

 private:
  WindowSearch windows_;
  std::vector<double> per_byte_;
};

}  // namespace remint
