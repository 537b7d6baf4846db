// Local search over the order in which first fit places blocks.
//
// A block at the top moves to an earlier place in the order, or changes places with a block that lives at the
// same time, or any block moves anywhere. The new order is taken if its top is not higher.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "memory/placement.h"

namespace remint {

class OrderSearch {
 public:
  // `order` is the order in which first fit gave all but the fixed blocks their addresses.
  OrderSearch(std::vector<PlacedBlock> blocks, std::vector<std::uint32_t> order, std::uint32_t num_times,
              std::uint64_t seed);

  // Stops if the top is at most `enough`, or after `max_moves` blocks were placed.
  void run(Bytes enough, std::uint64_t max_moves);

  const std::vector<PlacedBlock>& best() const { return best_; }
  Bytes best_top() const { return best_top_; }
  std::uint64_t moves() const { return moves_; }

 private:
  // Makes `order_` from the best order.
  void change();
  void move(std::size_t from, std::size_t to);
  // A random position in the order whose block ends at the top; the order's length if there is none.
  std::size_t at_the_top();
  std::size_t at_the_same_time(std::size_t position);
  // Places the blocks anew, as `order_` says. False if it gets higher than the best top, or takes more moves.
  bool replace(std::uint64_t max_moves);

  std::vector<PlacedBlock> best_;
  Bytes best_top_ = 0;
  std::vector<std::uint32_t> best_order_;
  std::vector<std::uint32_t> order_;
  std::vector<std::uint32_t> fixed_;
  std::vector<Bytes> addresses_;
  const std::uint32_t num_times_;
  std::mt19937_64 random_;
  std::uint64_t moves_ = 0;
};

}  // namespace remint
