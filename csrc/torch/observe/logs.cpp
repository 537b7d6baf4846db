#include "torch/observe/logs.h"

#include "torch/dispatch/autograd.h"
#include "torch/session/state.h"

namespace remint {

void Logs::open(SessionState& state) {
  const SessionOptions& options = state.options;
  Engine& engine = *state.engine;
  if (options.events) engine.add_observer((events_ = std::make_unique<DecisionLog>()).get());
  if (options.timeline) engine.add_observer((timeline_ = std::make_unique<Timeline>()).get());
  if (options.blocks) {
    engine.add_observer((blocks_ = std::make_unique<BlockLog>()).get());
    state.block_makers.enable();
  }
  if (options.record) {
    recorder_ = std::make_unique<Recorder>();
    engine.add_observer(recorder_.get());
    state.observer = recorder_.get();
  }
  if (options.source_lines) source_lines_ = std::make_unique<SourceLines>();
}

void Logs::end_recording(SessionState& state) {
  if (recorder_ != nullptr) state.engine->remove_observer(recorder_.get());
  state.observer = &state.no_observer;
}

void Logs::note_pass(SessionState& state) {
  if (blocks_ == nullptr && recorder_ == nullptr) return;
  const bool backward = is_in_backward();
  if (backward == backward_) return;
  backward_ = backward;
  const std::uint64_t mark = backward ? 0 : 1;
  state.engine->mark(mark);
  state.observer->mark(kMarks[mark]);
}

std::vector<Timeline::Sample> Logs::timeline() const {
  return timeline_ == nullptr ? std::vector<Timeline::Sample>() : timeline_->samples();
}

std::vector<DecisionLog::Event> Logs::events() const {
  return events_ == nullptr ? std::vector<DecisionLog::Event>() : events_->events();
}

Logs::Blocks Logs::blocks(const SessionState& state) const {
  if (blocks_ == nullptr) return {};
  return {blocks_->events(), state.block_makers.makers()};
}

}  // namespace remint
