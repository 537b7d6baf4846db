// Allocation: memory for ops and raw blocks. Where no free block fits, it evicts and moves.
#pragma once

#include <vector>

#include "engine/lifetimes.h"
#include "memory/compaction.h"

namespace remint {

class Allocation {
 public:
  Allocation(EngineState& state, Lifetimes& lifetimes) : state_(state), lifetimes_(lifetimes) {}

  // Memory for the innermost op. Throws OutOfMemory.
  BlockId allocate(Bytes nbytes) {
    RunningOp& op = state_.running.innermost();
    BlockId block = state_.guide.active() ? allocate_guided(nbytes) : kNone;
    if (block == kNone) block = state_.memory->allocate(nbytes, op.end);
    while (block == kNone) {
      evict_for(nbytes);
      block = state_.memory->allocate(nbytes, op.end);
    }
    op.blocks.emplace_back(block, nbytes);
    if (op.replayed == kNone && !op.fetches) state_.note_need();
    state_.tell_taken(BlockChange::kTaken, block, nbytes);
    return block;
  }
  // Gives a block of a running op back.
  void free(BlockId block);
  // Gives all that the innermost op still has back.
  void free_blocks();

  BlockId allocate_raw(Bytes nbytes);
  void make_raw(BlockId block) { state_.running.innermost().forget(block); }
  void free_raw(BlockId block, Bytes nbytes);

  // For an op that ran out of memory and can be tried again: evicts and moves until `nbytes` should fit. The
  // kernel of the innermost op does not run now, so its inputs can be moved as well. False if there is
  // nothing left to do; since nothing is made in between, trying again ends.
  bool free_up(Bytes nbytes);
  // Evicts at least `nbytes`, wherever they are. False if there is nothing to evict.
  bool evict_bytes(Bytes nbytes) {
    return evict_until_free(state_.memory->budget() - state_.memory->used() + nbytes);
  }

  // What follows is up to the policy again. Values that the program released are evicted.
  void stop_following();
  // Moves blocks together at the low end.
  void compact() { move_together(0, state_.memory->budget(), Movable::kOutsideKernels); }

  // Decides where the innermost op's bytes are placed, by what it costs and makes.
  void place(Nanoseconds cost, Bytes nbytes);
  // Constants live long: they stand with what is expensive.
  void place_long_lived() {
    state_.running.innermost().end = state_.settings.partition ? End::kHigh : End::kLow;
  }

 private:
  // As the guide says; kNone, and the guide has ended, if that cannot be done.
  BlockId allocate_guided(Bytes nbytes);
  void evict_for(Bytes nbytes);
  [[noreturn]] void refuse(Bytes nbytes);
  bool evict_until_free(Bytes nbytes);
  void move_if_cheap(Bytes nbytes);
  enum class Movable { kUnlocked, kOutsideKernels };
  void move_together(Bytes from, Bytes to, Movable which, BlockId first = kNone);
  bool used_by_kernel(StorageId id);

  EngineState& state_;
  Lifetimes& lifetimes_;
  Choice choice_;
  CompactionSearch compaction_;
  std::vector<CompactionCell> cells_;
  double log_density_sum_ = 0.0;  // of what was placed, weighted by bytes
  double density_weight_ = 0.0;
};

}  // namespace remint
