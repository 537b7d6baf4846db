#include "engine/allocation.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cmath>
#include <optional>

#include "base/errors.h"

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

void Allocation::free(BlockId block) {
  for (std::size_t i = 0; i < state_.running.size(); ++i) {
    auto& blocks = state_.running[i].blocks;
    auto taken =
        std::find_if(blocks.rbegin(), blocks.rend(), [&](const auto& entry) { return entry.first == block; });
    if (taken == blocks.rend()) continue;
    state_.tell_taken(BlockChange::kGiven, block, taken->second);
    state_.memory->free(block, taken->second);
    blocks.erase(std::next(taken).base());
    return;
  }
  assert(false && "no running op has this block");
}

void Allocation::free_blocks() {
  auto& blocks = state_.running.innermost().blocks;
  for (const auto& [block, nbytes] : blocks) {
    state_.tell_taken(BlockChange::kGiven, block, nbytes);
    state_.memory->free(block, nbytes);
  }
  blocks.clear();
}

void Allocation::refuse(Bytes nbytes) {
  Memory& memory = *state_.memory;
  memory.refused(nbytes);
  Bytes running = 0;
  for (const auto& [block, taken] : state_.running.innermost().blocks) running += memory.footprint(taken);
  throw OutOfMemory(nbytes, running, memory.used(), memory.budget());
}

BlockId Allocation::allocate_guided(Bytes nbytes) {
  Guide& guide = state_.guide;
  const bool known = guide.next(nbytes);
  // Mostly there is nothing to evict: to look at the clock would take longer.
  if (known && guide.victims().empty() && !guide.refuses()) {
    const BlockId block = state_.arena->allocate_at(guide.address(), nbytes);
    if (block != kNone) return block;
    guide.departs(Departure::kAddress);
    stop_following();
    return kNone;
  }
  const Stopwatch stopwatch(state_.statistics.searching);
  if (known) {
    for (const auto& [tag, victim] : guide.victims()) {
      // Evicting one can free another for good.
      if (!state_.records.storage(victim).has_bytes() || state_.root_tag(victim) != tag) continue;
      if (!state_.candidates.contains(victim)) {
        guide.departs(Departure::kVictim);
        break;
      }
      lifetimes_.evict(victim);
    }
    if (guide.active() && guide.refuses()) refuse(nbytes);
    if (guide.active()) {
      const BlockId block = state_.arena->allocate_at(guide.address(), nbytes);
      if (block != kNone) return block;
      guide.departs(Departure::kAddress);
    }
  }
  stop_following();
  return kNone;
}

void Allocation::stop_following() {
  state_.guide.end();
  if (state_.deallocation == state_.settings.deallocation) return;
  state_.deallocation = state_.settings.deallocation;
  if (state_.deallocation == Deallocation::kEager) lifetimes_.evict_released();
}

BlockId Allocation::allocate_raw(Bytes nbytes) {
  place_long_lived();
  for (;;) {
    try {
      const BlockId block = allocate(nbytes);
      make_raw(block);
      return block;
    } catch (const OutOfMemory& error) {
      if (!free_up(error.at_once)) throw;
    }
  }
}

void Allocation::free_raw(BlockId block, Bytes nbytes) {
  state_.tell_taken(BlockChange::kGiven, block, nbytes);
  state_.memory->free(block, nbytes);
}

// Cheap bytes gather at the low end, expensive ones at the high end. Cheap is what costs less per byte than
// the (geometric, byte-weighted) mean of what was placed so far: costs are measured, so no list of op names
// is needed.
void Allocation::place(Nanoseconds cost, Bytes nbytes) {
  End& end = state_.running.innermost().end;
  end = End::kLow;
  // A guide has addresses of its own.
  if (!state_.settings.partition || nbytes <= 0 || state_.guide.active()) return;
  const double weight = static_cast<double>(nbytes);
  const double log_density = std::log2((static_cast<double>(cost) + 1.0) / weight);
  log_density_sum_ += weight * log_density;
  density_weight_ += weight;
  if (log_density > log_density_sum_ / density_weight_ - 1.0) end = End::kHigh;
}

// Does what the policy says for a request that no free block serves. The op that asks is running: its inputs
// are locked and stay where they are.
void Allocation::evict_for(Bytes nbytes) {
  Statistics& statistics = state_.statistics;
  const Memory& memory = *state_.memory;
  const Stopwatch stopwatch(statistics.searching);
  if (lifetimes_.drop_due_back(DueBack::kSurely)) return;
  ++statistics.num_searches;
  statistics.unusable_bytes += static_cast<double>(memory.budget() - memory.used());
  choice_.clear();
  state_.policy->choose(nbytes, state_.clock, choice_);
  if (!choice_.found) {
    if (lifetimes_.drop_due_back(DueBack::kPerhaps)) return;
    if (state_.tier != nullptr && state_.tier->let_pinned_leave()) return;
    refuse(nbytes);
  }
  for (std::size_t i = 0; i < choice_.victims.size(); ++i) {
    const StorageId victim = choice_.victims[i];
    // Evicting one can free another for good.
    if (state_.records.storage(victim).has_bytes()) lifetimes_.evict(victim);
  }
  if (state_.settings.moving && state_.arena->largest_free() < memory.footprint(nbytes)) {
    if (choice_.from < choice_.to) {
      // It, too, may have been freed for good.
      const BlockId first =
          choice_.first_moved == kNone ? kNone : state_.records.storage(choice_.first_moved).block;
      move_together(choice_.from, choice_.to, Movable::kUnlocked, first);
    } else {
      move_if_cheap(nbytes);
    }
  }
}

// For policies that do not look at addresses: they would evict until a block that is large enough is free by
// chance. Moves free bytes together if that moves no more than twice the bytes of the request: the op that
// asks will spend more time than that on them.
void Allocation::move_if_cheap(Bytes nbytes) {
  const Bytes need = state_.memory->footprint(nbytes);
  if (state_.memory->budget() - state_.memory->used() < need) return;
  const Arena& arena = *state_.arena;
  cells_.clear();
  for (BlockId id = arena.first(); id != kNone; id = arena.block(id).next) {
    const Arena::Block& block = arena.block(id);
    CompactionCell cell;
    cell.nbytes = block.nbytes;
    cell.free = block.free();
    cell.evictable = false;
    if (block.has_record() && state_.records.storage(block.owner).movable()) {
      cell.move_cost = static_cast<double>(block.nbytes);
    }
    cells_.push_back(cell);
  }
  const std::optional<CompactionWindow> found = compaction_.cheapest(cells_, need);
  if (!found || found->window.cost > static_cast<double>(2 * need)) return;
  move_together(found->from, found->to, Movable::kUnlocked);
}

// Moves blocks between two addresses towards the lower one.
void Allocation::move_together(Bytes from, Bytes to, Movable which, BlockId first) {
  state_.statistics.moved_bytes += state_.arena->compact(
      from, to,
      [&](StorageId id) {
        const Storage& s = state_.records.storage(id);
        if (which == Movable::kUnlocked) return s.movable();
        return !s.fixed && s.read_locks == 0 && !used_by_kernel(id);
      },
      [&](StorageId id, Bytes before, Bytes after) {
        state_.tell_block(BlockChange::kMoved, id);
        state_.device.moved(id, before, after);
      },
      first);
}

// Whether a kernel that runs outside of the innermost op reads or writes the storage.
bool Allocation::used_by_kernel(StorageId id) {
  if (!state_.running.in_kernel() || state_.records.storage(id).locks == 0) return false;
  auto on_it = [&](ValueId value) { return state_.records.value(value).storage == id; };
  for (std::size_t i = 0; i < state_.running.size(); ++i) {
    const RunningOp& op = state_.running[i];
    if (!op.in_kernel) continue;
    if (std::any_of(op.acquired.begin(), op.acquired.end(), on_it)) return true;
    if (op.replayed == kNone) continue;
    for (const Op::Input& input : state_.records.op(op.replayed).inputs) {
      if (on_it(input.value)) return true;
    }
  }
  return false;
}

// Free bytes may be enough, or could be, but lie apart, with locked blocks in between, or with blocks of the
// op itself. So evict until `nbytes` are free wherever they are, and move the rest together. If that changes
// nothing, the op splits the free bytes itself: free as much again.
bool Allocation::free_up(Bytes nbytes) {
  if (!state_.settings.moving) return false;
  const Bytes need = state_.memory->footprint(nbytes);
  const Bytes budget = state_.memory->budget();
  const bool changed = evict_until_free(need);
  const Bytes moved_before = state_.statistics.moved_bytes;
  move_together(0, budget, Movable::kOutsideKernels);
  if (changed || state_.statistics.moved_bytes > moved_before) return true;
  if (!evict_until_free(budget - state_.memory->used() + need)) return false;
  move_together(0, budget, Movable::kOutsideKernels);
  return true;
}

// False if that changed nothing.
bool Allocation::evict_until_free(Bytes nbytes) {
  bool changed = false;
  while (state_.memory->budget() - state_.memory->used() < nbytes) {
    choice_.clear();
    state_.policy->choose_anywhere(state_.clock, choice_);
    if (!choice_.found) {
      if (state_.tier == nullptr || !state_.tier->let_pinned_leave()) break;
      continue;
    }
    lifetimes_.evict(choice_.victims[0]);
    changed = true;
  }
  return changed;
}

}  // namespace remint
