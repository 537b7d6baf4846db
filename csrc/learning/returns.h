// What it takes to have evicted values back, noted in a simulation: the op that makes a value, and all that
// runs again for it.
//
// A policy that evicts one value after the other guesses that. It evicts what is cheap to make from its
// inputs, then the inputs, and so on, until the values together cost a large part of the step. The next
// simulation of the step knows what came of it.
//
// What runs again on the way may be needed by the program as well. Then it can be counted there and only
// there, as SharedAncestors::kAll counts it.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/observer.h"
#include "simulator/trace_columns.h"

namespace remint {

class Returns final : public Observer {
 public:
  // `took` has the largest that was noted for each tensor of the trace; both outlive this.
  Returns(const TraceColumns& trace, std::vector<Nanoseconds>& took, SharedAncestors shared)
      : trace_(trace),
        took_(took),
        counts_shared_(shared != SharedAncestors::kAll),
        makers_(trace.num_tensors),
        last_uses_(trace.num_tensors, 0),
        again_(trace.num_events, 0) {
    for (std::size_t event = 0; event < trace.num_events; ++event) {
      for (std::int64_t a = trace.arg_offsets[event]; a < trace.arg_offsets[event + 1]; ++a)
        last_uses_[trace.args[a]] = event;
      for (std::int64_t t = trace.out_offsets[event]; t < trace.out_offsets[event + 1]; ++t)
        makers_[t] = event;
    }
  }
  unsigned interests() const override { return kDecisions; }
  // What ran again until now was for this op.
  void computed(std::uint64_t tag) override {
    last_computed_ = makers_[tag];
    for (std::size_t event : ran_) again_[event] = 0;
    ran_.clear();
  }
  void rematerialized(std::uint64_t tag) override {
    const std::size_t event = makers_[tag];
    Nanoseconds sum = trace_.nanoseconds[event];
    for (std::int64_t a = trace_.arg_offsets[event]; a < trace_.arg_offsets[event + 1]; ++a)
      sum += std::exchange(again_[makers_[trace_.args[a]]], 0);
    // The op that comes next is the one that waits.
    const bool needed_later = last_uses_[tag] > last_computed_ + 1;
    again_[event] = counts_shared_ || !needed_later ? sum : 0;
    ran_.push_back(event);
    took_[tag] = std::max(took_[tag], sum);
  }

 private:
  const TraceColumns& trace_;
  std::vector<Nanoseconds>& took_;
  const bool counts_shared_;
  std::size_t last_computed_ = 0;       // the event
  std::vector<std::size_t> makers_;     // by tensor: the event
  std::vector<std::size_t> last_uses_;  // by tensor: the event
  std::vector<Nanoseconds> again_;  // by event: what ran again for it, and is not yet counted for another one
  std::vector<std::size_t> ran_;    // events of which that is not 0
};

}  // namespace remint
