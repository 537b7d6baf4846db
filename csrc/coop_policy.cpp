// Coop (NeurIPS 2023): eviction and allocation decided together. When no free block fits, the cheapest run of
// neighbouring blocks is evicted whole, and used at once. The cost of a block is c / staleness, where c
// includes its evicted neighbourhood; its size is left out, since the window is as large as the request
// anyway.
//
// Where we depart: the search is exact at both ends of the arena and with infinite costs (window.h), and the
// neighbourhood is that of the evicted ancestors, which is what it takes to bring the block back. Equivalence
// classes only grow, and make everything near a large class look equally expensive (benchmarks/coop.py
// --neighbourhoods).
#include "coop_policy.h"

#include <algorithm>
#include <limits>

#include "window.h"

namespace remint {
namespace {

class Coop final : public Policy {
 public:
  Coop(Records& records, Pool& pool, Arena* arena)
      : Policy(records, pool, arena, NeighbourhoodKind::kAncestors) {}

  void choose(Bytes nbytes, Nanoseconds now, std::vector<StorageId>& victims) override {
    cells_.clear();
    owners_.clear();
    for (BlockId id = arena_->first(); id != kNone; id = arena_->block(id).next) {
      const Arena::Block& block = arena_->block(id);
      Cell cell;
      cell.nbytes = block.nbytes;
      cell.free = block.free();
      cell.barrier = !cell.free && (block.owner == Arena::kRunning || !pool_.contains(block.owner));
      if (!cell.free && !cell.barrier) cell.cost = cost(block.owner, now);
      cells_.push_back(cell);
      owners_.push_back(block.owner);
    }
    const std::optional<Window> window = cheapest_window(cells_, arena_->footprint(nbytes));
    if (!window) return;
    for (std::size_t i = window->first; i <= window->last; ++i) {
      if (!cells_[i].free) victims.push_back(owners_[i]);
    }
  }

  void choose_anywhere(Nanoseconds now, std::vector<StorageId>& victims) override {
    StorageId best = kNone;
    double lowest = std::numeric_limits<double>::infinity();
    for (StorageId id : pool_.ids()) {
      const double per_byte =
          cost(id, now) / static_cast<double>(std::max<Bytes>(records_.storage(id).nbytes, 1));
      if (best != kNone && per_byte >= lowest) continue;
      best = id;
      lowest = per_byte;
    }
    if (best != kNone) victims.push_back(best);
  }

 private:
  double cost(StorageId id, Nanoseconds now) {
    ++num_scores_;
    const Nanoseconds staleness = now - records_.storage(id).last;
    if (staleness <= 0) return std::numeric_limits<double>::infinity();
    // Sums of classes can fall below zero; nothing is cheaper than free.
    const Nanoseconds cost = std::max<Nanoseconds>(neighbourhood_->cost(id), 0);
    return static_cast<double>(cost) / static_cast<double>(staleness);
  }

  std::vector<Cell> cells_;
  std::vector<std::uint32_t> owners_;
};

}  // namespace

std::unique_ptr<Policy> make_coop_policy(Records& records, Pool& pool, Arena* arena) {
  return std::make_unique<Coop>(records, pool, arena);
}

}  // namespace remint
