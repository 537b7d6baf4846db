// Coop (NeurIPS 2023): eviction and allocation decided together. When no free block fits, the cheapest run of
// neighbouring blocks is evicted whole, and used at once. The cost of a block is c / staleness, where c
// includes its evicted neighbourhood; its size is left out, since the window is as large as the request
// anyway.
//
// Where we depart: expensive and pinned blocks may be moved out of the way instead (memory/compaction.h). The
// search is exact at both ends of the arena and with infinite costs (memory/window.h). The neighbourhood is
// that of the evicted ancestors, which is what it takes to bring the block back: equivalence classes only
// grow, and make everything near a large class look equally expensive (benchmarks/coop.py --neighbourhoods).
//
// Among few blocks, or where ops take long, the search looks at all blocks. Otherwise that would take as long
// as the ops that ask, so it looks at a few stretches: where windows were cheap not long ago
// (place_ranking.h), and around the largest free blocks. The ranking is made anew, from all blocks, once in a
// number of searches that grows with the blocks: per search that is constant.
#include "policies/coop.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "memory/compaction.h"
#include "policies/place_ranking.h"

namespace remint {
namespace {

// Per byte. A core copies ten bytes in a nanosecond; twice that, because a move is paid for in any case, and
// what is evicted may never be needed again.
constexpr double kMoveNanoseconds = 0.2;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Up to so many blocks are all looked at, and as many as can be in a 25th of the time between searches.
constexpr std::size_t kFewBlocks = 256;
constexpr Nanoseconds kLookNanoseconds = 32;
constexpr Nanoseconds kPartOfTime = 25;
// Among more, a ranking serves one search per so many blocks, ...
constexpr std::size_t kBlocksPerUse = 32;
// ... has one place of so many neighbouring blocks, ...
constexpr std::size_t kBlocksPerPlace = 16;
// ... and a search looks at so many places, and at the largest free blocks. At each it looks at so many
// blocks on either side.
constexpr std::size_t kFewestLooks = 2;
constexpr std::size_t kMostLooks = 8;
constexpr std::size_t kFreeLooks = 2;
constexpr Bytes kSmallPart = 8;  // of the request: what is smaller and free does not help
constexpr std::size_t kAround = 16;

// Neighbouring blocks as the search sees them.
struct Stretch {
  std::vector<CompactionCell> cells;
  std::vector<BlockId> blocks;

  void clear() {
    cells.clear();
    blocks.clear();
  }
};

class Coop final : public Policy {
 public:
  explicit Coop(const PolicyContext& context)
      : Policy(context, NeighbourhoodKind::kNear),
        moving_(context.settings.moving),
        windows_(context.options.windows) {}

  void choose(Bytes nbytes, Nanoseconds now, Choice& choice) override {
    const Bytes need = arena_->footprint(nbytes);
    best_.reset();
    // A mean that forgets: searches come in bursts.
    between_searches_ += (now - last_search_ - between_searches_) / 64;
    last_search_ = now;
    if (arena_->num_blocks() <= most_blocks() || windows_ == WindowLooks::kAll) {
      look_at_all(need, now, choice);
    } else {
      look_at_some(need, now, choice);
      if (!best_) look_at_all(need, now, choice);
      if (windows_ == WindowLooks::kCompared) compare(need, now);
    }
    choice.found = best_.has_value();
  }

  void choose_anywhere(Nanoseconds now, Choice& choice) override {
    StorageId best = kNone;
    double lowest = std::numeric_limits<double>::infinity();
    for (StorageId id : candidates_.ids()) {
      if (!may_choose(id)) continue;
      const double per_byte =
          cost(id, now) / static_cast<double>(std::max<Bytes>(records_.storage(id).nbytes, 1));
      if (best != kNone && per_byte >= lowest) continue;
      best = id;
      lowest = per_byte;
    }
    choice.take(best);
  }

 private:
  using Price = std::pair<std::size_t, double>;  // infinite costs, and the sum of the others
  static Price price_of(const Window& window) { return {window.num_infinite, window.cost}; }

  std::size_t most_blocks() const {
    return std::max(kFewBlocks,
                    static_cast<std::size_t>(between_searches_ / (kPartOfTime * kLookNanoseconds)));
  }

  void look_at_all(Bytes need, Nanoseconds now, Choice& choice) {
    collect(arena_->first(), kNone, now);
    take_if_cheaper(search_.cheapest(stretch_.cells, need), choice);
  }

  void look_at_some(Bytes need, Nanoseconds now, Choice& choice) {
    PlaceRanking& ranking = ranking_for(need);
    // A ranking of which nothing is left is made again, once.
    for (int tries = 0; tries < 2 && !best_; ++tries) {
      if (ranking.used_up()) rank(ranking, need, now);
      look_at_places(ranking, need, now, choice);
      if (!best_) ranking.clear();
    }
    if (best_) ranking.use();
    // Much may have been freed since.
    arena_->for_largest_free(kFreeLooks, [&](BlockId block) {
      if (arena_->block(block).nbytes < need / kSmallPart) return;
      collect_around(block, need, now);
      take_if_cheaper(search_.cheapest(stretch_.cells, need), choice);
    });
  }

  void look_at_places(PlaceRanking& ranking, Bytes need, Nanoseconds now, Choice& choice) {
    std::array<PlaceRanking::Place, kMostLooks> seen;
    std::size_t looks = 0;
    while (looks < kMostLooks && !ranking.empty()) {
      if (looks >= kFewestLooks && best_ && best_->first == 0 && best_->second <= ranking.cheapest().cost)
        break;
      PlaceRanking::Place place = ranking.take_cheapest();
      const Storage& s = records_.storage(place.found);
      if (!s.in_use() || s.block == kNone) continue;
      collect_around(s.block, need, now);
      const std::optional<CompactionWindow> found = search_.cheapest(stretch_.cells, need);
      if (!found) continue;
      place.cost = found->window.num_infinite > 0 ? kInfinity : found->window.cost;
      take_if_cheaper(found, choice);
      // Next to what is evicted, the next one may be found.
      place.found = storage_beside(found->window);
      seen[looks++] = place;
    }
    for (std::size_t i = 0; i < looks; ++i) {
      if (seen[i].found != kNone) ranking.put_back(seen[i]);
    }
  }

  bool take_if_cheaper(const std::optional<CompactionWindow>& found, Choice& choice) {
    if (!found || (best_ && price_of(found->window) >= *best_)) return false;
    best_ = price_of(found->window);
    choice.clear();
    const Bytes begin = arena_->block(stretch_.blocks.front()).address;
    choice.from = begin + found->from;
    choice.to = begin + found->to;
    for (std::size_t i = found->window.first; i <= found->window.last; ++i) {
      const CompactionCell& cell = stretch_.cells[i];
      if (found->evicts(cell)) {
        choice.victims.push_back(arena_->block(stretch_.blocks[i]).owner);
      } else if (!cell.free && choice.first_moved == kNone) {
        choice.first_moved = arena_->block(stretch_.blocks[i]).owner;
      }
    }
    return true;
  }

  // Requests of about the same size share a ranking: what is cheap for one is cheap for the other.
  PlaceRanking& ranking_for(Bytes need) {
    std::size_t size = 0;
    while ((need >>= 1) > 0) ++size;
    if (size >= rankings_.size()) rankings_.resize(size + 1);
    return rankings_[size];
  }

  void rank(PlaceRanking& ranking, Bytes need, Nanoseconds now) {
    collect(arena_->first(), kNone, now);
    places_.clear();
    const std::size_t num_places = 1 + stretch_.cells.size() / kBlocksPerPlace;
    for (std::uint32_t number = 0; number < num_places; ++number)
      places_.push_back({kInfinity, kNone, number});
    search_.for_each(stretch_.cells, need, [&](const Window& window, double) {
      PlaceRanking::Place& place = places_[window.first / kBlocksPerPlace];
      if (window.num_infinite > 0 || window.cost >= place.cost) return;
      place.cost = window.cost;
      place.found = storage_in(window);
    });
    places_.erase(std::remove_if(places_.begin(), places_.end(),
                                 [](const PlaceRanking::Place& place) { return place.found == kNone; }),
                  places_.end());
    ranking.start(places_, 1 + stretch_.cells.size() / kBlocksPerUse);
  }

  // Free blocks alone are never a window: the request would have found them.
  StorageId storage_in(const Window& window) const {
    std::size_t i = window.first;
    while (i < window.last && stretch_.cells[i].free) ++i;
    return arena_->block(stretch_.blocks[i]).owner;
  }

  // The nearest storage that is not in the window; kNone if there is none near.
  StorageId storage_beside(const Window& window) const {
    auto storage_at = [&](std::size_t i) {
      const Arena::Block& block = arena_->block(stretch_.blocks[i]);
      return block.has_record() ? block.owner : kNone;
    };
    for (std::size_t i = window.last + 1; i < stretch_.blocks.size(); ++i) {
      if (storage_at(i) != kNone) return storage_at(i);
    }
    for (std::size_t i = window.first; i-- > 0;) {
      if (storage_at(i) != kNone) return storage_at(i);
    }
    return kNone;
  }

  // The blocks from `first` up to `end`.
  void collect(BlockId first, BlockId end, Nanoseconds now) {
    stretch_.clear();
    for (BlockId id = first; id != end; id = arena_->block(id).next) {
      stretch_.cells.push_back(cell_of(arena_->block(id), now));
      stretch_.blocks.push_back(id);
    }
  }

  // Blocks on both sides, so many that windows of any shape with `block` are among them.
  void collect_around(BlockId block, Bytes need, Nanoseconds now) {
    auto far = [&](BlockId id, BlockId Arena::Block::* beside) {
      Bytes nbytes = 0;
      for (std::size_t i = 0; (i < kAround || nbytes < need) && arena_->block(id).*beside != kNone; ++i) {
        id = arena_->block(id).*beside;
        nbytes += arena_->block(id).nbytes;
      }
      return id;
    };
    const BlockId first = far(block, &Arena::Block::previous);
    const BlockId last = far(block, &Arena::Block::next);
    collect(first, arena_->block(last).next, now);
  }

  CompactionCell cell_of(const Arena::Block& block, Nanoseconds now) {
    CompactionCell cell;
    cell.nbytes = block.nbytes;
    cell.free = block.free();
    if (cell.free) return cell;
    cell.evictable = block.has_record() && candidates_.contains(block.owner) && may_choose(block.owner);
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
    const Nanoseconds cost = std::max<Nanoseconds>(cost_of_return(id), 0);
    return static_cast<double>(cost) / static_cast<double>(staleness);
  }

  void compare(Bytes need, Nanoseconds now) {
    if (!best_ || best_->first > 0) return;
    collect(arena_->first(), kNone, now);
    const std::optional<CompactionWindow> exact = search_.cheapest(stretch_.cells, need);
    comparison_.add(best_->second, exact->window.cost);
  }

  const bool moving_;
  const WindowLooks windows_;
  CompactionSearch search_;
  Stretch stretch_;
  std::optional<Price> best_;
  Nanoseconds last_search_ = 0;
  Nanoseconds between_searches_ = 0;
  std::vector<PlaceRanking> rankings_;  // by the logarithm of the request
  std::vector<PlaceRanking::Place> places_;
};

}  // namespace

std::unique_ptr<Policy> make_coop_policy(const PolicyContext& context) {
  return std::make_unique<Coop>(context);
}

}  // namespace remint
