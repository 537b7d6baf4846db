// What the CPU time of a step goes into, and what that says about the next one.
//
// Kernels have estimates of their own. What comes beside them is the program's own code, which takes what it
// took last time, and bookkeeping, which takes so much per op.
#pragma once

#include <time.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "torch/session/state.h"

namespace remint {

class StepTimes {
 public:
  // A step ends, and another one begins.
  void step_ended(const SessionState& state) {
    const Statistics& statistics = state.engine->statistics();
    const Parts now{thread_cpu_time(), state.in_kernels + state.replayed, statistics.searching,
                    state.bookkeeping.total(), statistics.num_ops + statistics.num_rematerializations};
    const std::thread::id thread = std::this_thread::get_id();
    last_.reset();
    // Kernels of other devices run beside the thread.
    if (std::exchange(thread_, thread) == thread && state.timer == nullptr) {
      last_ = Parts{now.all - begin_.all, now.kernels - begin_.kernels, now.searching - begin_.searching,
                    now.bookkeeping - begin_.bookkeeping, now.num_runs - begin_.num_runs};
    }
    begin_ = now;
  }
  // CPU time of the step that ended last; 0 if it is not known.
  Nanoseconds last() const { return last_ ? last_->all : 0; }
  // The same of a step that spends `kernels` in `num_runs` ops, also in those that run again.
  Nanoseconds predict(Nanoseconds kernels, std::uint64_t num_runs) const {
    if (!last_ || last_->num_runs == 0) return 0;
    const Nanoseconds own = last_->all - last_->kernels - last_->searching - last_->bookkeeping;
    const double bookkeeping = static_cast<double>(last_->bookkeeping) /
                               static_cast<double>(last_->num_runs) * static_cast<double>(num_runs);
    return kernels + std::max<Nanoseconds>(own, 0) + static_cast<Nanoseconds>(bookkeeping);
  }

 private:
  struct Parts {
    Nanoseconds all = 0;
    Nanoseconds kernels = 0;
    Nanoseconds searching = 0;
    Nanoseconds bookkeeping = 0;
    std::uint64_t num_runs = 0;
  };
  static Nanoseconds thread_cpu_time() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * Nanoseconds{1'000'000'000} + now.tv_nsec;
  }

  std::thread::id thread_;
  Parts begin_;
  std::optional<Parts> last_;
};

}  // namespace remint
