// What the op driver is told about one op of the program.
#pragma once

#include <vector>

#include "base/types.h"

namespace remint {

struct Output {
  Bytes nbytes = 0;
  std::uint64_t tag = 0;
  std::uint32_t alias = kNone;       // the input whose storage it is a view of
  std::uint32_t takes_over = kNone;  // the input whose bytes it takes over: an in-place op
  ValueId replaces = kNone;          // the value it overwrites whole, without reading it
  bool once = false;                 // it cannot be recomputed, whatever made it
};

struct OpDescription {
  // Before the op runs: set by ProgramOp::describe.
  std::vector<ValueId> acquired;  // must be resident while it runs: its inputs, and what it only writes
  std::vector<ValueId> written;   // those of them that it writes
  bool writes = false;  // it writes anything at all, known to the engine or not: it is not tried again
  Nanoseconds expected_cost =
      0;  // what it is thought to cost, and to make: they decide where its bytes are placed
  Bytes expected_bytes = 0;
  // After it ran: set by ProgramOp::describe_result (on ideal memory by `describe`).
  std::vector<ValueId> inputs;  // what its recipe reads
  std::vector<Output> outputs;  // empty: it is not recorded
  Nanoseconds cost = 0;
  std::uint64_t tag = 0;  // the caller's id of the recipe: Op::tag

  void clear() {
    acquired.clear();
    written.clear();
    writes = false;
    expected_cost = 0;
    expected_bytes = 0;
    inputs.clear();
    outputs.clear();
    cost = 0;
    tag = 0;
  }
};

}  // namespace remint
