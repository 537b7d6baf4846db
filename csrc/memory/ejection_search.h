// Guided ejection search (Nagata and Bräysy, 2009, for vehicle routing), here for blocks in memory.
//
// All blocks have to end at or below a target. Blocks that do not wait on a stack. A move puts the last of
// them where it is cheapest, and ejects the blocks that stand there onto the stack. A block that had to eject
// others becomes more expensive to eject itself, so the search learns which blocks are hard to place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "memory/placement.h"

namespace remint {

class EjectionSearch {
 public:
  // `blocks` do not overlap. Those with `fixed` stay where they are.
  EjectionSearch(std::vector<PlacedBlock> blocks, std::vector<bool> fixed, std::uint64_t seed);

  // Starts from the best placement so far. Returns true if every block ends at or below `target`; then that
  // placement is the best one. No fixed block may end above `target`.
  bool reach(Bytes target, std::uint64_t max_moves);
  // The same; if it fails, it also tries targets between `target` and the best top.
  bool approach(Bytes target, std::uint64_t max_moves);

  const std::vector<PlacedBlock>& best() const { return best_; }
  Bytes best_top() const { return best_top_; }
  std::uint64_t moves() const { return moves_; }

 private:
  // A block that has a place now. Copies of what a scan reads, so that it stays in the cache.
  struct Standing {
    Bytes low, high;
    std::uint32_t born, dies;
    std::uint32_t id;
  };

  void start(Bytes target);
  // Finds the cheapest address for `block` at or below target, or kNoAddress if fixed blocks leave none.
  Bytes cheapest(const PlacedBlock& block, Bytes target);
  void eject_from(const PlacedBlock& block, Bytes address);
  void insert(std::uint32_t id, Bytes address);

  std::vector<PlacedBlock> best_;
  Bytes best_top_ = 0;
  const std::vector<bool> fixed_;
  std::vector<std::int64_t> hardness_;  // by size and lifetime
  std::vector<std::int64_t> penalty_;   // what it costs to eject a block: grows by its hardness
  std::mt19937_64 random_;
  std::uint64_t moves_ = 0;

  std::vector<Standing> standing_;      // by address
  std::vector<std::uint32_t> waiting_;  // a stack
  std::vector<std::size_t> meets_;  // positions in standing_ of the blocks that live with the one that moves
  std::vector<std::pair<Bytes, std::int64_t>> ends_;
};

}  // namespace remint
