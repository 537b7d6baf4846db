// The Works that collectives return: they say when other ranks are done with the tensors of this one.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace remint {

struct Works {
  // Not owned: a Work keeps its tensors, which must go when the program and the process group drop them.
  std::vector<c10::weak_intrusive_ptr<c10d::Work>> started;
  bool unknown = false;  // a collective came without a Work, so nothing says when it ends

  bool ended() const {
    for (const auto& weak : started) {
      const c10::intrusive_ptr<c10d::Work> work = weak.lock();
      if (work && !work->isCompleted()) return false;
    }
    return true;
  }
};

// Gathers the Works of the collectives that this thread starts meanwhile, also inside of other ops.
class GatherWorks {
 public:
  explicit GatherWorks(Works& works);
  ~GatherWorks();
  GatherWorks(const GatherWorks&) = delete;
  GatherWorks& operator=(const GatherWorks&) = delete;

 private:
  Works* const before_;
};

// A collective returned these results.
void note_works(const torch::jit::Stack& results, std::size_t first);

}  // namespace remint
