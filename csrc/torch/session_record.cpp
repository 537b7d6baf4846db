// What a session tells its recorder of an op; the rest is noted where it happens.
#include "session.h"

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

}  // namespace remint
