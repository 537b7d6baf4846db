// The recorder: the op stream of a session as the columns of a trace (see remint.trace.Trace). It only takes
// notes; tensors have the numbers that the session gives them, in the order in which they are made.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/types.h"
#include "simulator/trace_columns.h"
#include "torch/dispatch/operators.h"

namespace remint {

class Recorder {
 public:
  struct Columns {
    std::vector<std::uint8_t> kinds;
    std::vector<std::int64_t> nanoseconds;
    std::vector<std::uint64_t> signatures;  // ops of one kind: operator, sizes and types
    std::vector<std::int32_t> names;
    std::vector<std::int32_t> sources;
    std::vector<std::int64_t> arg_offsets{0};
    std::vector<std::int32_t> args;
    std::vector<std::uint8_t> effects;
    std::vector<std::int64_t> out_offsets{0};
    std::vector<std::int64_t> nbytes;
    std::vector<std::int32_t> aliases;
    std::vector<std::int64_t> request_offsets{0};
    std::vector<std::int64_t> request_bytes;
    std::vector<std::int32_t> request_outputs;
  };

  void constant(Bytes nbytes, std::int32_t where);
  // A release, a pin and the like.
  void about(EventKind kind, std::uint64_t tensor);

  // The program passes a point with a name.
  void mark(const std::string& name);

  // What the kernel that is running asks for and gives back, by offset in the arena.
  void begin_requests();
  void request(Bytes offset, Bytes nbytes);
  void gave_back(Bytes offset);

  // An op that ran: its arguments, its outputs, and the end.
  void argument(std::uint64_t tensor, std::uint8_t effect);
  void output(Bytes nbytes, std::int32_t alias);
  // An output that the kernel asked for, at this offset.
  void fresh_output(Bytes nbytes, std::int32_t alias, Bytes offset);
  void op(const Operator& op, Nanoseconds cost, std::uint64_t signature, std::uint32_t source);

  const Columns& columns() const { return columns_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  struct Request {
    Bytes offset;
    Bytes nbytes;  // -(k + 1): gives the k-th back
    std::int32_t output;
  };

  void end_event(EventKind kind);
  void note_op(Nanoseconds cost, std::uint64_t signature, std::int32_t name, std::int32_t source);

  Columns columns_;
  // Of the op at hand: other events can come between its parts.
  std::vector<std::pair<std::int32_t, std::uint8_t>> arguments_;
  std::vector<std::pair<Bytes, std::int32_t>> outputs_;
  std::vector<std::string> names_;
  std::unordered_map<const Operator*, std::int32_t> name_of_;
  std::vector<Request> requests_;
};

}  // namespace remint
