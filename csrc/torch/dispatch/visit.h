// Operator calls on tensors of a budget by a thread that is not in that budget.
//
// What such a thread reads is resident and locked until the call ends. What it writes is pinned, and whatever
// was computed from it before is kept.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <memory>

#include "base/types.h"
#include "torch/dispatch/operators.h"

namespace remint {

class Session;

class Visit {
 public:
  Visit() = default;
  ~Visit();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  // For a thread in no budget: the tensors among the arguments can be used until the visit ends.
  void use(const Operator& op, const torch::jit::Stack& stack);
  // For a thread in the budget of `own`: recipes may read tensors of other budgets from now on, so those are
  // pinned. Those of other devices of the same budget are in no recipe: they can be used until the visit
  // ends.
  void keep(const Operator& op, const torch::jit::Stack& stack, const Session* own);
  // For composite ops that use memory by address: what they read is locked, what they keep or write is
  // pinned.
  void use_by_address(const Operator& op, const torch::jit::Stack& stack);
  // One tensor.
  void read(const at::Tensor& tensor);

 private:
  bool read_in(const std::shared_ptr<Session>& session, c10::StorageImpl* storage);
  void write(c10::StorageImpl* storage, const Session* except);

  struct Locked {
    std::shared_ptr<Session> session;
    c10::intrusive_ptr<c10::StorageImpl> storage;  // keeps it alive until it is unlocked
    ValueId value;
  };
  c10::SmallVector<Locked, 2> locked_;
};

}  // namespace remint
