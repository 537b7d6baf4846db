// Who wants to know what a session does, beside what the engine tells its own observers. By default nobody
// does.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "torch/dispatch/operators.h"

namespace remint {

// An op that ran. Tensors have the numbers that the session gives them, in the order in which they are made.
struct ObservedOp {
  struct Argument {
    std::uint64_t number;
    std::uint8_t effect;  // see simulator/trace_columns.h
  };
  struct Result {
    Bytes nbytes;
    std::int32_t alias;  // an argument, or what kind of memory it is: see simulator/trace_columns.h
    Bytes offset;        // in the arena, if the kernel asked for it; -1 otherwise
  };
  const Operator* op = nullptr;
  Nanoseconds cost = 0;
  std::uint64_t signature = 0;
  std::uint32_t source = kNone;
  std::vector<Argument> arguments;
  std::vector<Result> results;

  void clear() {
    arguments.clear();
    results.clear();
  }
};

class SessionObserver {
 public:
  virtual ~SessionObserver() = default;
  // Whether `ran` is worth preparing for.
  virtual bool wants_ops() const { return false; }
  // Memory that no op made got a number.
  virtual void constant(Bytes /*nbytes*/, std::int32_t /*where*/) {}
  // Memory outside of the arena got a number. If an op read it before, it had another one then.
  virtual void outside(Bytes /*nbytes*/, std::uint64_t /*first_number*/) {}
  virtual void released(std::uint64_t /*number*/) {}
  // The program passes a point with a name.
  virtual void mark(const char* /*name*/) {}
  // What the kernel that is running asks for and gives back, by offset in the arena.
  virtual void kernel_starts() {}
  virtual void requested(Bytes /*offset*/, Bytes /*nbytes*/) {}
  virtual void gave_back(Bytes /*offset*/) {}
  virtual void ran(const ObservedOp&) {}
};

}  // namespace remint
