// The recorder: the op stream of a session as the columns of a trace (see remint.trace.Trace). It observes
// the session and the engine, and only takes notes.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/types.h"
#include "engine/observer.h"
#include "simulator/trace_columns.h"
#include "torch/observe/session_observer.h"

namespace remint {

class Recorder final : public SessionObserver, public Observer {
 public:
  // SessionObserver.
  bool wants_ops() const override { return true; }
  void constant(Bytes nbytes, std::int32_t where) override;
  void outside(Bytes nbytes, std::uint64_t first_number) override;
  using Observer::released;
  void released(std::uint64_t number) override { about(EventKind::kRelease, number); }
  void mark(const char* name) override;
  void kernel_starts() override { requests_.clear(); }
  void requested(Bytes offset, Bytes nbytes) override { requests_.push_back({offset, nbytes, -1}); }
  void gave_back(Bytes offset) override;
  void ran(const ObservedOp& op) override;

  // Observer. What the session releases is told by the session, which knows more about it.
  unsigned interests() const override { return kRequests; }
  void pinned(ValueId, std::uint64_t number) override { about(EventKind::kPin, number); }
  void fixed(ValueId, std::uint64_t number) override { about(EventKind::kFix, number); }
  void materialized(ValueId, std::uint64_t number) override { about(EventKind::kMaterialize, number); }

  const RecordedColumns& columns() const { return columns_; }
  // Of the constants outside of the arena, in their order: the first number that each of them ever had.
  const std::vector<std::uint64_t>& outside() const { return outside_; }
  const std::vector<std::string>& names() const { return names_; }
  // Forgets the events so far, but not the names.
  void clear() {
    columns_ = RecordedColumns();
    outside_.clear();
  }

 private:
  struct Request {
    Bytes offset;
    Bytes nbytes;  // -(k + 1): gives the k-th back
    std::int32_t output;
  };

  // A release, a pin and the like.
  void about(EventKind kind, std::uint64_t tensor);
  void end_event(EventKind kind);
  void note_op(Nanoseconds cost, std::uint64_t signature, std::int32_t name, std::int32_t source);

  RecordedColumns columns_;
  std::vector<std::uint64_t> outside_;
  std::vector<std::string> names_;
  std::unordered_map<const Operator*, std::int32_t> name_of_;
  std::vector<Request> requests_;
};

}  // namespace remint
