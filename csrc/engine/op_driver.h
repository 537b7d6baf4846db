// The op driver: the steps around an op of the program, for the simulator and for the torch runtime.
//
//   describe ─▶ before_write, to its fixpoint ─▶ acquire ─▶ run, with retries ─▶ commit ─▶ release
#pragma once

#include <vector>

#include "engine/pinning.h"
#include "engine/program_op.h"

namespace remint {

class OpDriver {
 public:
  OpDriver(EngineState& state, Transitions& transitions, Lifetimes& lifetimes, Allocation& allocation,
           Replay& replay, Pinning& pinning)
      : state_(state),
        transitions_(transitions),
        lifetimes_(lifetimes),
        allocation_(allocation),
        replay_(replay),
        pinning_(pinning) {}

  void run(ProgramOp& op, OpDescription& description, std::vector<ValueId>& outputs);

 private:
  void acquire(ProgramOp& op, OpDescription& description);
  void run_kernel(ProgramOp& op, bool writes);
  void commit(const OpDescription& description, std::vector<ValueId>& outputs);
  void write_outputs(const OpDescription& description, const std::vector<ValueId>& outputs);
  void add_outputs(OpId op, const OpDescription& description, std::vector<ValueId>& outputs);
  void count_op(Nanoseconds cost) {
    state_.clock += cost;
    state_.statistics.computed += cost;
    ++state_.statistics.num_ops;
  }
  void run_reference(const OpDescription& description, std::vector<ValueId>& outputs);

  EngineState& state_;
  Transitions& transitions_;
  Lifetimes& lifetimes_;
  Allocation& allocation_;
  Replay& replay_;
  Pinning& pinning_;
};

}  // namespace remint
