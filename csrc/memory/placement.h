// Addresses for blocks whose lifetimes are all known (dynamic storage allocation).
//
// First fit in a few fixed orders: large blocks first, long-lived blocks first, and so on. If none of them
// fits, local search follows (ejection_search.h, order_search.h). Both are deterministic: they count moves
// and read no clock.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace remint {

// One block of a step. Requests are numbered 0, 1, 2, ...
struct PlacedBlock {
  Bytes nbytes = 0;            // its footprint, a multiple of the alignment
  std::uint32_t born = 0;      // the request that asks for it
  std::uint32_t dies = 0;      // the first request before which it is free again
  Bytes address = kNoAddress;  // in: where it has to stand, or kNoAddress; out: where it stands
};

struct PlacementResult {
  Bytes top = 0;            // the end of the highest block
  bool fits = false;        // top <= limit
  std::uint64_t moves = 0;  // blocks that the local search placed
  std::uint64_t looks = 0;  // address ranges that first fit visited: its work, without a clock
};

// The most bytes that live at once. No placement has a lower top.
Bytes byte_peak(const std::vector<PlacedBlock>& blocks);

// Gives an address to every block without one, so that no two blocks overlap in both time and space. Stops as
// soon as everything lies in [0, limit), or after `max_moves` moves of the search; then it keeps the lowest
// top it found. Throws std::invalid_argument if a block has no bytes or no lifetime, or if given addresses
// overlap.
PlacementResult place(std::vector<PlacedBlock>& blocks, Bytes limit, std::uint64_t max_moves,
                      std::uint64_t seed);

}  // namespace remint
