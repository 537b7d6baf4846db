// One op of the program, as the op driver sees it. The simulator and the torch runtime each have one.
//
// The driver calls, in this order:
//   describe, until making the inputs resident no longer changes which written values are pinned
//   ready
//   run, and for every try that ran out of memory: undo, then run again
//   describe_result, or failed if `run` threw
// On ideal memory, which follows DTR's reference, it calls `describe` only, which then describes the op
// whole.
#pragma once

#include <vector>

#include "engine/op_description.h"

namespace remint {

class ProgramOp {
 public:
  virtual ~ProgramOp() = default;
  // Says what the op touches: description.acquired, written, writes, expected_cost, expected_bytes. Called
  // before the inputs are made resident, and again whenever that changed which of the written inputs are
  // pinned (so it must be repeatable). The description is clear.
  virtual void describe(OpDescription& description) = 0;
  // All of `acquired` are resident and locked now.
  virtual void ready(OpDescription&) {}
  // Runs the kernel, which asks Engine::allocate for memory. May throw OutOfMemory, unless `last_try`, when
  // there is nothing left to free up and the op may raise an error of its own or find memory elsewhere.
  virtual void run(bool last_try) = 0;
  // Undoes what a run that ran out of memory left behind, before it is tried again. False: it cannot be
  // undone, the error goes on.
  virtual bool undo() { return true; }
  // The kernel ran: completes description (inputs, outputs, cost, tag) and gives the block of each output
  // (kNone: it takes over bytes or replaces a value). `blocks` is empty.
  virtual void describe_result(OpDescription& description, std::vector<BlockId>& blocks) = 0;
  // The kernel threw. True: it may have written some of its arguments: description and blocks say which
  // values they have now (outputs with `once`), which the driver commits before the error goes on. False: it
  // wrote nothing, the driver abandons the op.
  virtual bool failed(OpDescription&, std::vector<BlockId>&) { return false; }
};

}  // namespace remint
