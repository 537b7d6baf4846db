// The cheapest window: a run of neighbouring cells with enough bytes whose eviction costs least.
#pragma once

#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "base/types.h"

namespace remint {

// One block of the arena as the search sees it.
struct Cell {
  Bytes nbytes = 0;
  double cost = 0.0;     // of evicting it; +inf is allowed, free cells cost 0
  bool barrier = false;  // cannot be part of a window: locked or pinned
  bool free = false;
};

struct Window {
  std::size_t first = 0;
  std::size_t last = 0;  // inclusive
  std::size_t num_infinite = 0;
  double cost = 0.0;        // of the cells with a finite cost
  Bytes evicted_bytes = 0;  // that are not free already
};

class WindowSearch {
 public:
  // Calls visit(window) for the shortest window of at least `nbytes` that ends at each cell, where there is
  // one. Costs are not negative, so of all windows that end there it is the cheapest. O(cells), and no sum is
  // ever taken back: costs are added up afresh, so neither infinities nor rounding of what has left the
  // window remain in it.
  template <typename Visit>
  void for_each(const std::vector<Cell>& cells, Bytes nbytes, Visit&& visit);

  // The one with the fewest infinite costs, then the lowest cost, then the fewest bytes evicted, then the
  // lowest address.
  std::optional<Window> cheapest(const std::vector<Cell>& cells, Bytes nbytes) {
    std::optional<Window> best;
    for_each(cells, nbytes, [&](const Window& window) {
      if (!best || std::tie(window.num_infinite, window.cost, window.evicted_bytes) <
                       std::tie(best->num_infinite, best->cost, best->evicted_bytes)) {
        best = window;
      }
    });
    return best;
  }

 private:
  struct Sum {
    std::size_t num_infinite = 0;
    double cost = 0.0;
    Bytes evicted_bytes = 0;

    Sum operator+(const Sum& other) const {
      return {num_infinite + other.num_infinite, cost + other.cost, evicted_bytes + other.evicted_bytes};
    }
  };

  static Sum of_cell(const Cell& cell) {
    if (cell.free) return {};
    if (std::isinf(cell.cost)) return {1, 0.0, cell.nbytes};
    return {0, cell.cost, cell.nbytes};
  }

  std::vector<Sum> to_middle_;
};

// The sum over a window by two stacks: sums from each cell to the middle, and one sum from the middle on.
// When the front runs out, the middle moves to the end. Every cell is added twice at the most, and nothing is
// subtracted.
template <typename Visit>
void WindowSearch::for_each(const std::vector<Cell>& cells, Bytes nbytes, Visit&& visit) {
  if (to_middle_.size() < cells.size()) to_middle_.resize(cells.size());
  std::size_t first = 0;
  std::size_t middle = 0;
  Sum from_middle;
  Bytes inside = 0;
  for (std::size_t last = 0; last < cells.size(); ++last) {
    const Cell& cell = cells[last];
    if (cell.barrier) {
      first = middle = last + 1;
      from_middle = {};
      inside = 0;
      continue;
    }
    inside += cell.nbytes;
    from_middle = from_middle + of_cell(cell);
    while (first < last) {
      const Bytes without = inside - cells[first].nbytes;
      if (without < nbytes) break;
      inside = without;
      ++first;
    }
    if (inside < nbytes) continue;
    Sum sum;
    if (first < middle) {
      sum = to_middle_[first] + from_middle;
    } else {
      for (std::size_t i = last + 1; i-- > first;) {
        sum = of_cell(cells[i]) + sum;
        to_middle_[i] = sum;
      }
      middle = last + 1;
      from_middle = {};
    }
    visit(Window{first, last, sum.num_infinite, sum.cost, sum.evicted_bytes});
  }
}

}  // namespace remint
