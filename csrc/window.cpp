#include "window.h"

#include <cmath>
#include <tuple>

namespace remint {
namespace {

struct Sum {
  std::size_t num_infinite = 0;
  double cost = 0.0;
  Bytes evicted_bytes = 0;

  Sum operator+(const Sum& other) const {
    return {num_infinite + other.num_infinite, cost + other.cost, evicted_bytes + other.evicted_bytes};
  }
};

Sum of_cell(const Cell& cell) {
  if (cell.free) return {};
  if (std::isinf(cell.cost)) return {1, 0.0, cell.nbytes};
  return {0, cell.cost, cell.nbytes};
}

// The sum over a queue by two stacks: sums from each cell to the middle, and one sum from the middle on. When
// the front runs out, the middle moves to the end. Every cell is added twice at the most, and nothing is
// subtracted.
class SlidingSum {
 public:
  explicit SlidingSum(const std::vector<Cell>& cells) : cells_(cells), to_middle_(cells.size()) {}

  void restart(std::size_t at) {
    middle_ = at;
    from_middle_ = {};
  }
  void append(std::size_t at) { from_middle_ = from_middle_ + of_cell(cells_[at]); }

  // The sum over first .. last, where `last` was appended last.
  Sum over(std::size_t first, std::size_t last) {
    if (first < middle_) return to_middle_[first] + from_middle_;
    Sum sum;
    for (std::size_t i = last + 1; i-- > first;) {
      sum = of_cell(cells_[i]) + sum;
      to_middle_[i] = sum;
    }
    middle_ = last + 1;
    from_middle_ = {};
    return to_middle_[first];
  }

 private:
  const std::vector<Cell>& cells_;
  std::vector<Sum> to_middle_;
  std::size_t middle_ = 0;
  Sum from_middle_;
};

}  // namespace

std::optional<Window> cheapest_window(const std::vector<Cell>& cells, Bytes nbytes) {
  std::optional<Window> best;
  SlidingSum sliding(cells);
  std::size_t first = 0;
  Bytes inside = 0;
  for (std::size_t last = 0; last < cells.size(); ++last) {
    if (cells[last].barrier) {
      first = last + 1;
      inside = 0;
      sliding.restart(first);
      continue;
    }
    inside += cells[last].nbytes;
    sliding.append(last);
    // Costs are not negative, so of all windows that end here the shortest is the cheapest.
    while (inside - cells[first].nbytes >= nbytes && first < last) inside -= cells[first++].nbytes;
    if (inside < nbytes) continue;
    const Sum sum = sliding.over(first, last);
    if (!best || std::tie(sum.num_infinite, sum.cost, sum.evicted_bytes) <
                     std::tie(best->num_infinite, best->cost, best->evicted_bytes)) {
      best = Window{first, last, sum.num_infinite, sum.cost, sum.evicted_bytes};
    }
  }
  return best;
}

}  // namespace remint
