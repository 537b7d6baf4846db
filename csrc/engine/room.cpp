// Room for bytes that no free block holds: by evicting, and by moving what stays.
#include <chrono>

#include "engine/engine.h"

namespace remint {
namespace {

// Adds the real time from here to the end of the scope.
class Stopwatch {
 public:
  explicit Stopwatch(Nanoseconds& sum) : sum_(sum), started_(Clock::now()) {}
  ~Stopwatch() {
    sum_ += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - started_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  Nanoseconds& sum_;
  const Clock::time_point started_;
};

}  // namespace

// Does what the policy says for a request that no free block serves. The op that asks is running: what it
// reads is locked and stays where it is.
void Engine::make_room_for(Bytes nbytes) {
  const Stopwatch stopwatch(statistics_.searching);
  ++statistics_.num_searches;
  statistics_.unusable_bytes += static_cast<double>(memory_->budget() - memory_->used());
  choice_.clear();
  policy_->choose(nbytes, clock_, choice_);
  if (!choice_.found) {
    Bytes running = 0;
    for (const auto& [block, taken] : running_) running += memory_->footprint(taken);
    throw OutOfMemory(nbytes, running, memory_->used(), memory_->budget());
  }
  for (std::size_t i = 0; i < choice_.victims.size(); ++i) {
    const StorageId victim = choice_.victims[i];
    // Evicting one can free another for good.
    if (records_.storage(victim).in_use && records_.storage(victim).resident) evict(victim);
  }
  if (options_.moving && static_cast<const Arena&>(*memory_).largest_free() < memory_->footprint(nbytes)) {
    if (choice_.from < choice_.to) {
      move_together(choice_.from, choice_.to, false);
    } else {
      move_if_cheap(nbytes);
    }
  }
}

// For policies that do not look at addresses: they would evict until a block that is large enough is free by
// chance. What is free already is moved together if that moves no more than twice the bytes that are asked
// for: the op that asks will spend more than that on them.
void Engine::move_if_cheap(Bytes nbytes) {
  const Bytes need = memory_->footprint(nbytes);
  if (memory_->budget() - memory_->used() < need) return;
  const auto& arena = static_cast<const Arena&>(*memory_);
  cells_.clear();
  for (BlockId id = arena.first(); id != kNone; id = arena.block(id).next) {
    const Arena::Block& block = arena.block(id);
    ClearingCell cell;
    cell.nbytes = block.nbytes;
    cell.free = block.free();
    cell.evictable = false;
    if (!cell.free && block.owner != Arena::kRunning) {
      if (records_.storage(block.owner).movable()) cell.move_cost = static_cast<double>(block.nbytes);
    }
    cells_.push_back(cell);
  }
  const std::optional<Clearing> clearing = clearing_search_.cheapest(cells_, need);
  if (!clearing || clearing->window.cost > static_cast<double>(2 * need)) return;
  move_together(clearing->from, clearing->to, false);
}

// Moves what stands between two addresses towards the lower one; what is locked only if no op is running.
void Engine::move_together(Bytes from, Bytes to, bool locked) {
  auto& arena = static_cast<Arena&>(*memory_);
  statistics_.moved_bytes += arena.compact(
      from, to,
      [&](StorageId id) {
        const Storage& s = records_.storage(id);
        return locked ? !s.fixed : s.movable();
      },
      [&](StorageId id, Bytes before, Bytes after) {
        note_block(BlockChange::kMoved, id);
        device_.moved(id, before, after);
      });
}

// For an op that found no room and is tried again. Free bytes may be enough, or could be, but lie apart, with
// locked blocks in between, or with blocks of the op itself. It is not running now, so everything can be
// moved: evicts until `nbytes` are free wherever they are, and moves the rest together. If that changes
// nothing, the op cuts the room into pieces itself, and gets as much again. False if there is nothing left to
// evict or to move; since nothing is made in between, this ends.
bool Engine::make_room(Bytes nbytes) {
  if (!options_.moving) return false;
  const Bytes need = memory_->footprint(nbytes);
  const bool changed = evict_until_free(need);
  const Bytes moved_before = statistics_.moved_bytes;
  move_together(0, memory_->budget(), true);
  if (changed || statistics_.moved_bytes > moved_before) return true;
  if (!evict_until_free(memory_->budget() - memory_->used() + need)) return false;
  move_together(0, memory_->budget(), true);
  return true;
}

// False if that changed nothing.
bool Engine::evict_until_free(Bytes nbytes) {
  bool changed = false;
  while (memory_->budget() - memory_->used() < nbytes) {
    choice_.clear();
    policy_->choose_anywhere(clock_, choice_);
    if (!choice_.found) break;
    evict(choice_.victims[0]);
    changed = true;
  }
  return changed;
}

}  // namespace remint
