// CutBound: a lower bound on the cost of any schedule from what one op leaves room for; for graphs of any
// size.
//
// While op t runs for the first time, each value made before is kept (k) or not; what is not and is read
// later runs its maker again (r), which needs the maker's inputs, kept or made again in turn. With a price on
// bytes in place of the budget (Lagrange), the cheapest choice is a minimum cut: source side = made again, or
// wanted.
//
//     wanted value v → its maker:  price · bytes(v)        cut if v is kept
//     op i → sink:                 cost(i)                 cut if i runs again
//     op i → its inputs' makers:   price · bytes, shared by all that read the value
//
// For every price, cut - price · room is a bound; the best price is found by bisection on its slope.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/schedule_state.h"

namespace remint {

struct Cut {
  // The least cost, beyond running every op once, that the memory at the first run of the op forces: proven,
  // and infinite if the op cannot run inside the budget whatever is let go.
  double bound = 0;
  // What the cheapest choice that was met and fits lets go, of the values that are read later.
  std::vector<int> let_go;
};

// `go_on` may end the search for the best price early.
Cut cut_bound(const SearchProblem& problem, double budget, int stage, const std::function<bool()>& go_on);

// What the cut says at each of these prices per byte, which may be less than nothing. Fewer if `go_on` ended
// it; a single infinity if the op cannot run inside the budget.
std::vector<double> cuts_at_prices(const SearchProblem& problem, double budget, int stage,
                                   const std::vector<double>& prices, const std::function<bool()>& go_on);

}  // namespace remint
