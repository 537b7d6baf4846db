// The cheapest window: a run of neighbouring cells with enough bytes whose eviction costs least.
#pragma once

#include <optional>
#include <vector>

#include "types.h"

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

// Among windows of at least `nbytes`, the one with the fewest infinite costs, then the lowest cost, then the
// fewest bytes evicted, then the lowest address. O(cells), and no sum is ever taken back: costs are added up
// afresh, so neither infinities nor rounding of what has left the window remain in it.
std::optional<Window> cheapest_window(const std::vector<Cell>& cells, Bytes nbytes);

}  // namespace remint
