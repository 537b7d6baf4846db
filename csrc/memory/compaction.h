// The cheapest clearing: like the cheapest window, but what is too dear to evict, or cannot be, may be moved
// together within it. A move takes a fraction of what nearly any op takes.
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "memory/window.h"

namespace remint {

struct ClearingCell {
  Bytes nbytes = 0;
  double cost = 0.0;  // of evicting it; +inf is allowed, free cells cost 0
  double move_cost = std::numeric_limits<double>::infinity();  // +inf: it cannot be moved
  bool free = false;
  bool evictable = true;
};

struct Clearing {
  Window window;
  double price = 0.0;  // what costs more per byte than this to evict is moved instead
  Bytes from = 0;      // the window's bytes, counted from the first cell on
  Bytes to = 0;
  bool evicts(const ClearingCell& cell) const {
    return !cell.free && cell.evictable &&
           (std::isinf(price) || cell.cost <= price * static_cast<double>(cell.nbytes));
  }
};

// Which cells to evict and which to move is a knapsack; a handful of prices per byte, taken from the cells,
// comes close, and for one price the window is the cheapest. O(cells).
class ClearingSearch {
 public:
  std::optional<Clearing> cheapest(const std::vector<ClearingCell>& cells, Bytes nbytes);

 private:
  WindowSearch windows_;
  std::vector<double> per_byte_;
};

}  // namespace remint
