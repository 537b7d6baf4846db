// Coop (NeurIPS 2023): eviction and allocation decided together. When no free block fits, the cheapest run of
// neighbouring blocks is evicted whole, and used at once. The cost of a block is c / staleness, where c
// includes its evicted neighbourhood; its size is left out, since the window is as large as the request
// anyway.
//
// Where we depart: expensive and pinned blocks may be moved out of the way instead (memory/compaction.h). The
// search is exact at both ends of the arena and with infinite costs (memory/window.h). The neighbourhood is
// that of the evicted ancestors, which is what it takes to bring the block back: equivalence classes only
// grow, and make everything near a large class look equally expensive (benchmarks/coop.py --neighbourhoods).
#include "policies/coop.h"

#include <algorithm>
#include <limits>

#include "memory/compaction.h"

namespace remint {
namespace {

// Per byte. A core copies ten bytes in a nanosecond; twice that, because a move is paid for in any case, and
// what is evicted may never be needed again.
constexpr double kMoveNanoseconds = 0.2;

class Coop final : public Policy {
 public:
  explicit Coop(const PolicyContext& context)
      : Policy(context, NeighbourhoodKind::kAncestors), moving_(context.settings.moving) {}

  void choose(Bytes nbytes, Nanoseconds now, Choice& choice) override {
    cells_.clear();
    owners_.clear();
    for (BlockId id = arena_->first(); id != kNone; id = arena_->block(id).next) {
      const Arena::Block& block = arena_->block(id);
      cells_.push_back(cell_of(block, now));
      owners_.push_back(block.owner);
    }
    const std::optional<CompactionWindow> found = search_.cheapest(cells_, arena_->footprint(nbytes));
    choice.found = found.has_value();
    if (!found) return;
    choice.from = found->from;
    choice.to = found->to;
    for (std::size_t i = found->window.first; i <= found->window.last; ++i) {
      if (found->evicts(cells_[i])) choice.victims.push_back(owners_[i]);
    }
  }

  void choose_anywhere(Nanoseconds now, Choice& choice) override {
    StorageId best = kNone;
    double lowest = std::numeric_limits<double>::infinity();
    for (StorageId id : candidates_.ids()) {
      const double per_byte =
          cost(id, now) / static_cast<double>(std::max<Bytes>(records_.storage(id).nbytes, 1));
      if (best != kNone && per_byte >= lowest) continue;
      best = id;
      lowest = per_byte;
    }
    choice.take(best);
  }

 private:
  CompactionCell cell_of(const Arena::Block& block, Nanoseconds now) {
    CompactionCell cell;
    cell.nbytes = block.nbytes;
    cell.free = block.free();
    if (cell.free) return cell;
    cell.evictable = block.has_record() && candidates_.contains(block.owner);
    if (cell.evictable) cell.cost = cost(block.owner, now);
    if (!moving_ || !block.has_record()) return cell;
    const Storage& s = records_.storage(block.owner);
    if (!s.movable()) return cell;
    const double staleness = static_cast<double>(std::max<Nanoseconds>(now - s.last, 1));
    cell.move_cost = kMoveNanoseconds * static_cast<double>(block.nbytes) / staleness;
    return cell;
  }

  double cost(StorageId id, Nanoseconds now) {
    ++num_scores_;
    const Nanoseconds staleness = now - records_.storage(id).last;
    if (staleness <= 0) return std::numeric_limits<double>::infinity();
    // Sums of classes can fall below zero; nothing is cheaper than free.
    const Nanoseconds cost = std::max<Nanoseconds>(neighbourhood_->cost(id), 0);
    return static_cast<double>(cost) / static_cast<double>(staleness);
  }

  const bool moving_;
  CompactionSearch search_;
  std::vector<CompactionCell> cells_;
  std::vector<std::uint32_t> owners_;
};

}  // namespace

std::unique_ptr<Policy> make_coop_policy(const PolicyContext& context) {
  return std::make_unique<Coop>(context);
}

}  // namespace remint
