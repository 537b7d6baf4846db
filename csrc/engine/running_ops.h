// The state of the ops that are running, innermost last.
//
// Mostly there is one. There are more where an op has to wait for rematerializations, and where a kernel asks
// for something: a custom op calls .numpy() on a tensor, which is rematerialized while the custom op runs.
// Each has its own blocks and locks, so that what happens inside of a kernel touches nothing of the op
// outside.
#pragma once

#include <cassert>
#include <memory>
#include <utility>
#include <vector>

#include "memory/memory.h"

namespace remint {

// A pin that was asked for while a kernel ran. The value is locked until the op ends.
struct LatePin {
  ValueId value;
  bool forget_recipe;  // of a view, which has a recipe of its own
  bool by_request;     // observers are told
};

struct RunningOp {
  std::vector<ValueId> acquired;                  // locked until it ends
  std::vector<std::pair<BlockId, Bytes>> blocks;  // that it asked for and nothing owns yet
  std::vector<BlockId> outputs;                   // the block of each output
  std::vector<LatePin> late_pins;                 // only of the outermost op
  OpId replayed = kNone;                          // the op that is run again; kNone: an op of the program
  End end = End::kLow;                            // where its bytes are placed
  bool in_kernel = false;
  bool fetches = false;  // no op: bytes come back from the tier

  // `block` belongs to somebody else now.
  void forget(BlockId block) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].first != block) continue;
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
  }
};

class RunningOps {
 public:
  // The bottom is no op: it has what is asked for between ops.
  RunningOps() { ops_.push_back(std::make_unique<RunningOp>()); }

  RunningOp& innermost() { return *ops_[depth_]; }
  const RunningOp& innermost() const { return *ops_[depth_]; }
  RunningOp& outermost() { return *ops_[1]; }
  bool in_kernel() const { return num_kernels_ > 0; }
  // Innermost first, the bottom included.
  std::size_t size() const { return depth_ + 1; }
  RunningOp& operator[](std::size_t i) { return *ops_[depth_ - i]; }

  // An op from here to the end of the scope. By then its values are unlocked and its blocks are freed.
  class Scope {
   public:
    explicit Scope(RunningOps& ops) : ops_(ops) {
      if (++ops.depth_ == ops.ops_.size()) ops.ops_.push_back(std::make_unique<RunningOp>());
      RunningOp& op = ops.innermost();
      assert(op.acquired.empty() && op.blocks.empty() && op.late_pins.empty());
      op.replayed = kNone;
      op.fetches = false;
      op.end = End::kLow;
    }
    ~Scope() { --ops_.depth_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    RunningOps& ops_;
  };

  // The kernel of the innermost op runs from here to the end of the scope.
  class Kernel {
   public:
    explicit Kernel(RunningOps& ops) : ops_(ops), op_(ops.innermost()) {
      op_.in_kernel = true;
      ++ops.num_kernels_;
    }
    ~Kernel() {
      op_.in_kernel = false;
      --ops_.num_kernels_;
    }
    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;

   private:
    RunningOps& ops_;
    RunningOp& op_;
  };

 private:
  std::vector<std::unique_ptr<RunningOp>> ops_;  // kept for the next time
  std::size_t depth_ = 0;
  std::size_t num_kernels_ = 0;
};

}  // namespace remint
