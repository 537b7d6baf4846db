// Waiting for inputs and running ops again, without recursion: a chain of any depth takes heap, not stack.
//
// A frame is an op that waits. It locks the inputs that are there, then has the missing ones made one by one,
// each by a frame of its own on top. On the arena, when the op on top runs out of memory, the waiting frames
// give up their locks: what they hold can then be evicted, and they look for their inputs again when it is
// their turn. Two inputs of which each needs the other's bytes to be made could go on like that for ever, so
// there is a limit to what is run again for one op of the program.
#include <stdexcept>

#include "engine/engine.h"

namespace remint {

void Engine::drive() {
  const std::uint64_t limit = statistics_.num_rematerializations + 1024 + 64 * records_.num_storages();
  try {
    while (!frames_.empty()) {
      Frame& frame = frames_.back();
      if (!frame.entered) {
        if (frame.relaxed) held_.resize(frame.first_held);
        enter(frame);
      }
      if (wait_for_input(frame)) continue;
      if (frame.op == kNone) {
        // The locks stay until commit or abandon.
        held_.resize(frame.first_held);
        frames_.pop_back();
        continue;
      }
      execute(frame);
      const Frame done = frames_.back();
      release_locks(done);
      held_.resize(done.first_held);
      frames_.pop_back();
      if (statistics_.rematerialized > options_.max_rematerialized) throw Thrash();
      if (!options_.reference && statistics_.num_rematerializations > limit) {
        throw OutOfMemory(last_refused_, 0, memory_->used(), memory_->budget());
      }
    }
  } catch (...) {
    unwind();
    throw;
  }
}

// Locks the inputs that are defined. They are all accessed now, before anything is made for them.
void Engine::enter(Frame& frame) {
  frame.entered = true;
  frame.first_held = held_.size();
  frame.cursor = 0;
  const std::size_t count = num_inputs(frame);
  held_.resize(held_.size() + count, 0);
  for (std::size_t i = 0; i < count; ++i) access(records_.value(input(frame, i)).storage);
  for (std::size_t i = 0; i < count; ++i) {
    if (!defined(input(frame, i))) continue;
    lock(records_.value(input(frame, i)).storage);
    held_[frame.first_held + i] = 1;
  }
}

// Pushes a frame for the next input that is missing; false if there is none left.
bool Engine::wait_for_input(Frame& frame) {
  const std::size_t count = num_inputs(frame);
  for (; frame.cursor < count; ++frame.cursor) {
    if (held_[frame.first_held + frame.cursor] != 0) continue;
    const ValueId missing = input(frame, frame.cursor);
    if (defined(missing)) {
      lock(records_.value(missing).storage);
      held_[frame.first_held + frame.cursor] = 1;
      continue;
    }
    Frame maker;
    maker.op = records_.value(missing).op;
    maker.target = missing;
    if (maker.op == kNone) throw std::logic_error("engine: a value has neither bytes nor a recipe");
    frames_.push_back(maker);
    return true;
  }
  return false;
}

void Engine::execute(const Frame& frame) {
  if (options_.reference) {
    execute_once(frame);
  } else {
    run_with_room([&] { execute_once(frame); });
  }
}

void Engine::execute_once(const Frame& frame) {
  const Op& op = records_.op(frame.op);
  std::vector<BlockId>& blocks = blocks_;
  blocks.assign(op.outputs.size(), kNone);
  Bytes nbytes = 0;
  for (ValueId output : op.outputs) {
    if (output == kNone) continue;
    const Storage& s = storage_of(output);
    if (s.values[0] == output) nbytes += s.nbytes;
  }
  if (options_.reference) {
    allocate(nbytes);
    running_.clear();
  } else {
    place(op.cost, nbytes);
    // An in-place op needs a copy of what it writes if others wait for that, or if what it makes is not
    // wanted.
    for (std::size_t k = 0; k < op.takes_over.size(); ++k) {
      if (op.takes_over[k] == kNone) continue;
      const Storage& written = storage_of(op.inputs[op.takes_over[k]].value);
      const bool wanted = op.outputs[k] != kNone && !defined(op.outputs[k]);
      if (!wanted || written.locks > 1 || written.pinned) blocks[k] = allocate(written.nbytes);
    }
    device_.run(*this, op, blocks);
  }
  clock_ += op.cost;
  if (frame.program) {
    statistics_.computed += op.cost;
    ++statistics_.num_ops;
  } else {
    statistics_.rematerialized += op.cost;
    ++statistics_.num_rematerializations;
  }
  note(frame.program ? 'C' : 'R', records_.value(frame.target).tag);
  define_outputs(frame.op, frame.target, blocks);
  free_running_blocks();
  sample();
}

// The op ran again: what was missing is there, what was there already is not kept twice. Siblings come first,
// then the one that was asked for.
void Engine::define_outputs(OpId id, ValueId target, const std::vector<BlockId>& blocks) {
  const Op& op = records_.op(id);
  auto define = [&](std::size_t k) {
    const ValueId output = op.outputs[k];
    if (output == kNone) return;
    Value& value = records_.value(output);
    Storage& s = records_.storage(value.storage);
    const bool root = s.values[0] == output;
    if (value.defined) {
      if (options_.reference && root) memory_->free(kNone, s.nbytes);
      return;
    }
    value.defined = true;
    if (s.resident) return;
    const std::uint32_t source = k < op.takes_over.size() ? op.takes_over[k] : kNone;
    if (source != kNone && blocks[k] == kNone) {
      take_over(op.inputs[source].value, output, true);
    } else {
      make_resident(value.storage, options_.reference ? kNone : blocks[k]);
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

// Every waiting frame gives up its locks; false if none had any to give.
bool Engine::relax_waiting_frames() {
  bool any = false;
  for (std::size_t f = 0; f + 1 < frames_.size(); ++f) {
    Frame& frame = frames_[f];
    if (!frame.entered) continue;
    frame.relaxed = true;
    frame.entered = false;
    for (std::size_t i = 0; i < num_inputs(frame); ++i) {
      if (held_[frame.first_held + i] == 0) continue;
      held_[frame.first_held + i] = 0;
      unlock(records_.value(input(frame, i)).storage);
      any = true;
    }
  }
  return any;
}

// Unlocking can banish an input, and take it off the op's list: the list is read before.
void Engine::release_locks(const Frame& frame) {
  unlocking_.clear();
  for (std::size_t i = 0; i < num_inputs(frame); ++i) {
    if (held_[frame.first_held + i] != 0) unlocking_.push_back(records_.value(input(frame, i)).storage);
  }
  for (std::size_t i = 0; i < unlocking_.size(); ++i) unlock(unlocking_[i]);
}

void Engine::unwind() {
  free_running_blocks();
  while (!frames_.empty()) {
    const Frame frame = frames_.back();
    if (frame.entered) release_locks(frame);
    frames_.pop_back();
  }
  held_.clear();
  acquired_.clear();
}

}  // namespace remint
