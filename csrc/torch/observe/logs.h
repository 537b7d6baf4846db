// What a session writes down if its options ask for it.
#pragma once

#include <memory>
#include <vector>

#include "engine/observer.h"
#include "torch/observe/block_makers.h"
#include "torch/observe/recorder.h"
#include "torch/observe/source_lines.h"

namespace remint {

struct SessionState;

class Logs {
 public:
  // What became of every block, and who made the tensors that its tags are the numbers of. The tag of a mark
  // is its place in `kMarks`.
  struct Blocks {
    std::vector<BlockEvent> events;
    std::vector<BlockMakers::Maker> makers;
  };
  static constexpr const char* kMarks[] = {"backward", "end of backward"};

  void open(SessionState& state);
  // What is pinned from here on is no decision of the program's.
  void end_recording(SessionState& state);
  // Notes where a backward pass begins and ends.
  void note_pass(SessionState& state);
  // The line of the program that calls, if lines are noted. Needs the GIL.
  std::uint32_t current_line() const { return source_lines_ != nullptr ? source_lines_->current() : kNone; }

  std::vector<Timeline::Sample> timeline() const;
  std::vector<DecisionLog::Event> events() const;
  Blocks blocks(const SessionState& state) const;
  // Null if nothing was to be recorded, or noted.
  const Recorder* recorder() const { return recorder_.get(); }
  const SourceLines* source_lines() const { return source_lines_.get(); }

 private:
  std::unique_ptr<DecisionLog> events_;
  std::unique_ptr<Timeline> timeline_;
  std::unique_ptr<BlockLog> blocks_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<SourceLines> source_lines_;
  bool backward_ = false;  // the last op was part of a backward pass; only known where it is noted
};

}  // namespace remint
