// Replay: makes values resident by running the ops that made them again, without recursion, so that a chain
// of any depth takes heap and not stack.
//
// A frame is an op that waits for its inputs. It locks those that are there, then has the missing ones made
// one by one, each by a frame of its own on top. On the arena, when the op on top runs out of memory, the
// waiting frames give up their locks: their inputs can then be evicted, and they look for them again when it
// is their turn. Two inputs of which each needs the other's bytes could go on like that for ever, so there is
// a limit to the replays for one request.
#pragma once

#include <vector>

#include "engine/allocation.h"

namespace remint {

class Replay {
 public:
  Replay(EngineState& state, Transitions& transitions, Lifetimes& lifetimes, Allocation& allocation)
      : state_(state), transitions_(transitions), lifetimes_(lifetimes), allocation_(allocation) {}

  // Makes the values that the innermost op acquires resident and locks them. After an error it holds none of
  // them.
  void acquire();

  // DTR's reference: runs an op of the program, or a recorded one again, to make `target`.
  void make(OpId op, ValueId target, bool program);

 private:
  // An op that waits for its inputs, `acquire` (no op), or bytes that come back from the tier (no op, and no
  // inputs).
  struct Frame {
    OpId op = kNone;
    ValueId target = kNone;                          // the output that was asked for
    const std::vector<ValueId>* acquired = nullptr;  // the inputs, if it is no op
    std::size_t first_lock = 0;                      // its part of locked_
    std::uint32_t cursor = 0;
    bool program = false;  // the op runs for the first time
    bool entered = false;
    bool relaxed = false;  // its locks were given up before
  };

  ValueId input(const Frame& frame, std::size_t i) const {
    return frame.op == kNone ? (*frame.acquired)[i] : state_.records.op(frame.op).inputs[i].value;
  }
  std::size_t num_inputs(const Frame& frame) const {
    return frame.op == kNone ? frame.acquired->size() : state_.records.op(frame.op).inputs.size();
  }

  Bytes unpinned_inputs(const Frame& frame) const;
  // How often bytes came back so far.
  std::uint64_t num_returns() const {
    return state_.statistics.num_rematerializations + state_.statistics.num_fetches;
  }
  void drive(const Frame& first);
  void enter(Frame& frame);
  bool wait_for_input(Frame& frame);
  ValueId instead_of_away(ValueId value);
  void execute(const Frame& frame, std::size_t base);
  void execute_once(const Frame& frame);
  void fetch(ValueId value);
  void define_outputs(OpId op, ValueId target, const std::vector<BlockId>& blocks);
  bool relax_waiting_frames(std::size_t base);
  void release_locks(const Frame& frame);
  void unwind(std::size_t base);

  EngineState& state_;
  Transitions& transitions_;
  Lifetimes& lifetimes_;
  Allocation& allocation_;
  // Frames of all requests, one after the other: a kernel can make a request of its own.
  std::vector<Frame> frames_;
  std::vector<char> locked_;  // per input of every frame: locked by it
  std::vector<StorageId> unlocking_;
  const std::vector<ValueId> no_inputs_;
  Bytes last_refused_ = 0;
};

}  // namespace remint
