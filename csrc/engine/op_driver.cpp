#include "engine/op_driver.h"

#include <algorithm>

#include "base/errors.h"

namespace remint {

void OpDriver::run(ProgramOp& op, OpDescription& description, std::vector<ValueId>& outputs) {
  outputs.clear();
  if (state_.settings.reference) {
    description.clear();
    op.describe(description);
    run_reference(description, outputs);
    return;
  }
  const RunningOps::Scope scope(state_.running);
  std::vector<BlockId>& blocks = state_.running.innermost().outputs;
  blocks.clear();
  acquire(op, description);
  const bool writes = description.writes;
  bool in_kernel = false;
  try {
    op.ready(description);
    in_kernel = true;
    run_kernel(op, writes);
    in_kernel = false;
    op.describe_result(description, blocks);
  } catch (...) {
    blocks.clear();
    bool wrote = false;
    try {
      wrote = in_kernel && op.failed(description, blocks);
    } catch (...) {
      pinning_.release_acquired();
      throw;
    }
    if (wrote) {
      commit(description, outputs);
    } else {
      pinning_.release_acquired();
    }
    throw;
  }
  commit(description, outputs);
}

// Makes the op's inputs resident and locks them. Pinning what was made from one written input can pin
// another, and so can making the inputs resident (banishing pins). Once no more are pinned, no recipe sees
// what the op writes.
void OpDriver::acquire(ProgramOp& op, OpDescription& description) {
  RunningOp& running = state_.running.innermost();
  auto num_pinned = [&] {
    return std::count_if(description.written.begin(), description.written.end(),
                         [&](ValueId value) { return state_.storage_of(value).pinned; });
  };
  for (;;) {
    description.clear();
    op.describe(description);
    const auto pinned = num_pinned();
    for (ValueId value : description.written) pinning_.before_write(value, false);
    if (num_pinned() != pinned) continue;
    running.acquired = description.acquired;
    pinning_.acquire();
    allocation_.place(description.expected_cost, description.expected_bytes);
    if (num_pinned() == pinned) {
      // From here on they are resident, and locked.
      for (ValueId value : description.written) {
        transitions_.make_stale(state_.records.value(value).storage);
      }
      return;
    }
    pinning_.release_acquired();
  }
}

// An op that writes cannot be tried again, and preparing to try again takes time: it is not done without
// pressure.
void OpDriver::run_kernel(ProgramOp& op, bool writes) {
  bool last_try = writes || !state_.settings.moving || state_.memory->used() <= state_.memory->budget() / 4;
  for (;;) {
    try {
      const RunningOps::Kernel kernel(state_.running);
      op.run(last_try);
      return;
    } catch (const OutOfMemory& error) {
      if (last_try || !op.undo()) throw;
      allocation_.free_blocks();
      last_try = !allocation_.free_up(error.at_once) && !pinning_.give_up_sources();
    }
  }
}

// The op ran: records it, gives its outputs their bytes, and unlocks its inputs.
void OpDriver::commit(const OpDescription& description, std::vector<ValueId>& outputs) {
  count_op(description.cost);
  // An op that only reads is never needed again.
  if (description.outputs.empty()) {
    state_.tell_used();
    pinning_.release_acquired();
    return;
  }
  const OpId op = state_.records.add_op(description.cost, description.tag, description.inputs);
  add_outputs(op, description, outputs);
  const std::uint32_t depth = state_.records.op(op).depth;
  state_.tell_computed(state_.records.value(outputs[0]).tag);
  write_outputs(description, outputs);
  allocation_.free_blocks();
  state_.tell_used();
  pinning_.release_acquired();
  for (ValueId output : outputs) transitions_.access(state_.records.value(output).storage);
  if (depth > state_.settings.max_depth) {
    for (ValueId output : outputs) lifetimes_.pin_storage(state_.records.value(output).storage);
  }
  // The bytes of one output can have gone on to another one at once.
  for (ValueId output : outputs) {
    if (state_.storage_of(output).references == 0) lifetimes_.collect(state_.records.value(output).storage);
  }
}

void OpDriver::write_outputs(const OpDescription& description, const std::vector<ValueId>& outputs) {
  const std::vector<BlockId>& blocks = state_.running.innermost().outputs;
  bool once = false;  // the op wrote over bytes that cannot be recomputed: it can never run again
  for (const Output& output : description.outputs) {
    once = once ||
           (output.takes_over != kNone && state_.storage_of(description.inputs[output.takes_over]).pinned);
  }
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const Output& output = description.outputs[k];
    Value& value = state_.records.value(outputs[k]);
    value.defined = true;
    if (output.takes_over != kNone || output.replaces != kNone) {
      ValueId from = output.replaces != kNone ? output.replaces : description.inputs[output.takes_over];
      // An op that writes the same bytes through two inputs has two outputs for them: the last one gets them.
      const StorageId written = state_.records.value(from).storage;
      for (std::size_t j = 0; j < k; ++j) {
        const std::uint32_t other = description.outputs[j].takes_over;
        if (other != kNone && state_.records.value(description.inputs[other]).storage == written) {
          from = outputs[j];
        }
      }
      // The program's tensors move along: they all see what was written.
      const StorageId ghost = state_.records.value(from).storage;
      state_.records.storage(value.storage).references += state_.records.storage(ghost).references;
      state_.records.storage(ghost).references = 0;
      lifetimes_.take_over(from, outputs[k], output.replaces == kNone);
      pinning_.follow_late_pins(ghost, outputs[k]);
    } else if (output.alias == kNone) {
      transitions_.make_resident(value.storage, blocks[k]);
    } else {
      state_.policy->touched(value.storage);
    }
  }
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const StorageId id = state_.records.value(outputs[k]).storage;
    if ((once || description.outputs[k].once) && state_.records.storage(id).has_bytes()) {
      lifetimes_.pin_storage(id);
    }
  }
}

void OpDriver::add_outputs(OpId op, const OpDescription& description, std::vector<ValueId>& outputs) {
  Records& records = state_.records;
  Neighbourhood& neighbourhood = state_.policy->neighbourhood();
  for (const Output& output : description.outputs) {
    const StorageId id = output.alias == kNone ? records.add_storage(output.nbytes)
                                               : records.value(description.inputs[output.alias]).storage;
    Storage& s = records.storage(id);
    const Nanoseconds cost = s.cost;
    outputs.push_back(records.add_value(id, output.tag));
    ++s.references;
    records.add_output(op, outputs.back(), output.takes_over);
    state_.guide.note_made(output.tag, id);
    if (output.alias != kNone && !s.has_bytes() && s.cost > cost) neighbourhood.costs_more(id, s.cost - cost);
  }
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (description.outputs[k].alias == kNone) neighbourhood.added(records.value(outputs[k]).storage);
  }
}

// DTR's simulator: the op is a frame of the replay like any other.
void OpDriver::run_reference(const OpDescription& description, std::vector<ValueId>& outputs) {
  if (description.outputs.empty()) {
    // Nothing waits for such an op, and it has nothing to rematerialize.
    const RunningOps::Scope scope(state_.running);
    state_.running.innermost().acquired = description.inputs;
    pinning_.acquire();
    count_op(description.cost);
    state_.tell_used();
    pinning_.release_acquired();
    return;
  }
  const OpId op = state_.records.add_op(description.cost, description.tag, description.inputs);
  add_outputs(op, description, outputs);
  replay_.make(op, outputs[0], true);
  for (ValueId output : outputs) transitions_.access(state_.records.value(output).storage);
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (description.outputs[k].once) lifetimes_.pin_storage(state_.records.value(outputs[k]).storage);
  }
}

}  // namespace remint
