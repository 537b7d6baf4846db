// What a session notes of an op, for its recorder and its log of blocks; the rest is noted where it happens.
#include <torch/csrc/autograd/function.h>

#include "torch/session/session.h"

namespace remint {

// Which arguments the op had, and what it wrote of them.
void Session::record_arguments(bool recorded) {
  recording_op_ = true;
  std::int32_t place = 0;
  for (Touched& touched : touched_) {
    if (touched.value == kNone) continue;
    touched.number = number_of(touched.value);
    const bool overwritten = recorded && touched.output != kNone && touched.input == kNone;
    const bool in_place = recorded && touched.output != kNone && touched.input != kNone;
    const bool written = touched.write != Operator::Write::kNo;
    recorder_->argument(touched.number, overwritten            ? kOverwrites
                                        : written && !in_place ? kSideEffect
                                                               : kReads);
    if (overwritten || in_place) {
      const StorageId id = engine_->records().value(touched.value).storage;
      recorder_->output(engine_->records().storage(id).nbytes, place);
    }
    ++place;
  }
}

// Where a backward pass begins and ends.
void Session::note_pass() {
  const bool backward = torch::autograd::get_current_node() != nullptr;
  if (backward == backward_) return;
  backward_ = backward;
  const std::uint64_t mark = backward ? 0 : 1;
  engine_->mark(mark);
  if (recorder_ != nullptr) recorder_->mark(kMarks[mark]);
}

// Tensors that get their number from here on are of this op.
void Session::note_maker(const Operator* op) {
  if (!options_.blocks) return;
  std::vector<Maker>& makers = makers_;
  if (!makers.empty() && makers.back().first_number == next_number_) makers.pop_back();
  makers.push_back({next_number_, op, op == nullptr ? kNone : source_});
}

Session::Blocks Session::block_log() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return {block_log_.events(), makers_};
}

}  // namespace remint
