#include "engine/replay.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_set>

#include "base/errors.h"

namespace remint {

void Replay::acquire() {
  const std::vector<ValueId>& acquired = state_.running.innermost().acquired;
  // Mostly nothing is missing.
  if (std::all_of(acquired.begin(), acquired.end(), [&](ValueId value) { return state_.defined(value); })) {
    for (ValueId value : acquired) transitions_.access(state_.records.value(value).storage);
    for (ValueId value : acquired) transitions_.lock(state_.records.value(value).storage);
    return;
  }
  Frame frame;
  frame.acquired = &acquired;
  drive(frame);
}

void Replay::make(OpId op, ValueId target, bool program) {
  Frame frame;
  frame.op = op;
  frame.target = target;
  frame.program = program;
  drive(frame);
}

void Replay::drive(const Frame& first) {
  const std::uint64_t limit = num_returns() + 1024 + 64 * state_.records.num_storages();
  const std::size_t base = frames_.size();
  frames_.push_back(first);
  try {
    while (frames_.size() > base) {
      Frame& frame = frames_.back();
      if (!frame.entered) {
        if (frame.relaxed) locked_.resize(frame.first_lock);
        enter(frame);
      }
      if (wait_for_input(frame)) continue;
      if (frame.op == kNone && frame.target == kNone) {
        // The locks stay until the op that acquires ends.
        locked_.resize(frame.first_lock);
        frames_.pop_back();
        continue;
      }
      // A request inside of a kernel can have made it in the meantime.
      if (frame.program || !state_.defined(frame.target)) execute(Frame(frame), base);
      const Frame done = frames_.back();
      release_locks(done);
      locked_.resize(done.first_lock);
      frames_.pop_back();
      if (state_.statistics.bringing_back() > state_.max_rematerialized) throw Thrash();
      if (!state_.settings.reference && num_returns() > limit) {
        throw ReplayInCircles(last_refused_, unpinned_inputs(first));
      }
    }
  } catch (...) {
    unwind(base);
    throw;
  }
}

// Bytes that must be resident at once for the frame, pinned ones apart.
Bytes Replay::unpinned_inputs(const Frame& frame) const {
  std::unordered_set<StorageId> seen;
  Bytes nbytes = 0;
  for (std::size_t i = 0; i < num_inputs(frame); ++i) {
    const StorageId id = state_.records.value(input(frame, i)).storage;
    const Storage& s = state_.records.storage(id);
    if (!state_.is_immovable(s) && seen.insert(id).second) nbytes += state_.memory->footprint(s.nbytes);
  }
  return nbytes;
}

// Locks the inputs that are defined. They are all accessed now, before anything is made for them.
void Replay::enter(Frame& frame) {
  frame.entered = true;
  frame.first_lock = locked_.size();
  frame.cursor = 0;
  const std::size_t count = num_inputs(frame);
  locked_.resize(locked_.size() + count, 0);
  for (std::size_t i = 0; i < count; ++i) {
    transitions_.access(state_.records.value(input(frame, i)).storage);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (!state_.defined(input(frame, i))) continue;
    transitions_.lock(state_.records.value(input(frame, i)).storage);
    locked_[frame.first_lock + i] = 1;
  }
}

// Pushes a frame for the next input that is missing; false if there is none left.
bool Replay::wait_for_input(Frame& frame) {
  const std::size_t count = num_inputs(frame);
  for (; frame.cursor < count; ++frame.cursor) {
    if (locked_[frame.first_lock + frame.cursor] != 0) continue;
    ValueId missing = input(frame, frame.cursor);
    if (state_.storage_of(missing).due_back != DueBack::kNo && !state_.records.value(missing).is_kept()) {
      missing = instead_of_away(missing);
    }
    if (state_.defined(missing)) {
      transitions_.lock(state_.records.value(missing).storage);
      locked_[frame.first_lock + frame.cursor] = 1;
      continue;
    }
    Frame maker;
    maker.target = missing;
    if (state_.records.value(missing).offloaded) {
      maker.acquired = &no_inputs_;
    } else {
      maker.op = state_.records.value(missing).op;
    }
    if (maker.op == kNone && maker.acquired == nullptr)
      throw std::logic_error("engine: a value has neither bytes nor a recipe");
    frames_.push_back(maker);
    return true;
  }
  return false;
}

// Bytes that the program freed: returns the value in which it has them again. Once that is resident, all
// recipes read it instead.
ValueId Replay::instead_of_away(ValueId value) {
  const StorageId away = state_.records.value(value).storage;
  const ValueId back = state_.device.came_back(away);
  if (back == kNone) throw SourceAway(state_.records.storage(away).nbytes);
  if (!state_.defined(back)) return back;
  if (!state_.device.has_bytes_of(back, away)) throw SourceAway(state_.records.storage(away).nbytes);
  state_.policy->neighbourhood().dropping(away);
  state_.records.read_instead(value, back);
  state_.policy->neighbourhood().dropping(state_.records.value(back).storage);
  state_.policy->touched(state_.records.value(back).storage);
  lifetimes_.collect(away);
  return back;
}

// Runs the op of the frame on top.
void Replay::execute(const Frame& frame, std::size_t base) {
  const RunningOps::Scope scope(state_.running);
  state_.running.innermost().replayed = frame.op;
  for (;;) {
    try {
      frame.op == kNone ? fetch(frame.target) : execute_once(frame);
      return;
    } catch (const OutOfMemory& error) {
      last_refused_ = error.requested;
      allocation_.free_blocks();
      if (state_.settings.reference) throw;
      if (state_.guide.active()) {
        // The simulation that the guide comes from moved nothing.
        if (relax_waiting_frames(base)) continue;
        allocation_.stop_following();
      }
      if (!allocation_.free_up(error.at_once) && !relax_waiting_frames(base)) throw;
    } catch (...) {
      allocation_.free_blocks();
      throw;
    }
  }
}

// The bytes of an offloaded value come back.
void Replay::fetch(ValueId value) {
  const StorageId id = state_.records.value(value).storage;
  const Storage& s = state_.records.storage(id);
  // What memory ran out for may have dropped it: whoever waits looks again.
  if (!state_.records.value(value).offloaded) return;
  state_.running.innermost().fetches = true;
  allocation_.place(s.cost, s.nbytes);
  if (s.pinned) allocation_.place_long_lived();
  const BlockId block = allocation_.allocate(s.nbytes);
  state_.device.fetch(id, block);
  transitions_.fetched(id, block);
  state_.tell_used();
}

void Replay::execute_once(const Frame& frame) {
  const Op& op = state_.records.op(frame.op);
  RunningOp& running = state_.running.innermost();
  std::vector<BlockId>& blocks = running.outputs;
  blocks.assign(op.outputs.size(), kNone);
  Bytes nbytes = 0;
  for (ValueId output : op.outputs) {
    if (output == kNone) continue;
    const Storage& s = state_.storage_of(output);
    if (s.values[0] == output) nbytes += s.nbytes;
  }
  if (state_.settings.reference) {
    allocation_.allocate(nbytes);
    running.blocks.clear();
  } else {
    allocation_.place(op.cost, nbytes);
    // An in-place op works on a copy if others wait for or read its input, or if its output is not wanted.
    for (std::size_t k = 0; k < op.takes_over.size(); ++k) {
      if (op.takes_over[k] == kNone) continue;
      const Storage& written = state_.storage_of(op.inputs[op.takes_over[k]].value);
      const bool wanted = op.outputs[k] != kNone && !state_.records.value(op.outputs[k]).is_kept();
      if (!wanted || written.locks > 1 || written.read_locks > 0 || written.pinned) {
        blocks[k] = allocation_.allocate(written.nbytes);
      }
    }
    const RunningOps::Kernel kernel(state_.running);
    state_.device.run(op, blocks);
  }
  state_.clock += op.cost;
  const std::uint64_t tag = state_.records.value(frame.target).tag;
  if (frame.program) {
    state_.statistics.computed += op.cost;
    ++state_.statistics.num_ops;
    state_.tell_computed(tag);
  } else {
    state_.statistics.rematerialized += op.cost;
    ++state_.statistics.num_rematerializations;
    state_.observers.tell(Observer::kDecisions, [&](Observer& observer) { observer.rematerialized(tag); });
  }
  define_outputs(frame.op, frame.target, blocks);
  allocation_.free_blocks();
  state_.tell_used();
}

// The op ran again: outputs that were missing are there now; copies of the others are freed. Siblings come
// first, then the one that was asked for.
void Replay::define_outputs(OpId id, ValueId target, const std::vector<BlockId>& blocks) {
  const Op& op = state_.records.op(id);
  auto define = [&](std::size_t k) {
    const ValueId output = op.outputs[k];
    if (output == kNone) return;
    Value& value = state_.records.value(output);
    const Storage& s = state_.records.storage(value.storage);
    const bool root = s.values[0] == output;
    if (value.defined) {
      if (state_.settings.reference && root) state_.memory->free(kNone, s.nbytes);
      return;
    }
    // The tier has it.
    if (s.residency == Residency::kOffloaded) return;
    value.defined = true;
    if (s.has_bytes()) return;
    const std::uint32_t source = k < op.takes_over.size() ? op.takes_over[k] : kNone;
    if (source != kNone && blocks[k] == kNone) {
      lifetimes_.take_over(op.inputs[source].value, output, true);
    } else {
      transitions_.make_resident(value.storage, state_.settings.reference ? kNone : blocks[k]);
    }
  };
  std::size_t wanted = 0;
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    if (op.outputs[k] == target) {
      wanted = k;
    } else {
      define(k);
    }
  }
  define(wanted);
}

// Every waiting frame of this request gives up its locks; false if none had any to give.
bool Replay::relax_waiting_frames(std::size_t base) {
  bool any = false;
  for (std::size_t f = base; f + 1 < frames_.size(); ++f) {
    Frame& frame = frames_[f];
    if (!frame.entered) continue;
    // Without its locks a frame whose inputs never fit at once would have them made again and again.
    const Bytes inputs = unpinned_inputs(frame);
    if (inputs > state_.memory->budget() - state_.immovable_bytes())
      throw ReplayInCircles(last_refused_, inputs);
    frame.relaxed = true;
    frame.entered = false;
    for (std::size_t i = 0; i < num_inputs(frame); ++i) {
      if (locked_[frame.first_lock + i] == 0) continue;
      locked_[frame.first_lock + i] = 0;
      lifetimes_.unlock(state_.records.value(input(frame, i)).storage);
      any = true;
    }
  }
  return any;
}

// Unlocking can banish an input, and take it off the op's list: the list is read before.
void Replay::release_locks(const Frame& frame) {
  std::vector<StorageId>& unlocking = unlocking_;
  unlocking.clear();
  for (std::size_t i = 0; i < num_inputs(frame); ++i) {
    if (locked_[frame.first_lock + i] != 0) {
      unlocking.push_back(state_.records.value(input(frame, i)).storage);
    }
  }
  for (StorageId id : unlocking) lifetimes_.unlock(id);
}

void Replay::unwind(std::size_t base) {
  while (frames_.size() > base) {
    const Frame frame = frames_.back();
    if (frame.entered) release_locks(frame);
    if (frame.entered || frame.relaxed) locked_.resize(frame.first_lock);
    frames_.pop_back();
  }
}

}  // namespace remint
