// Which session of a budget of several devices an operator call belongs to: that of the device where its
// results are. Tensors of the others are read and written there as by a thread outside: see visit.h.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <memory>

#include "torch/dispatch/operators.h"

namespace remint {

class Session;

Session& session_of_call(c10::ArrayRef<std::shared_ptr<Session>> sessions, const Operator& op,
                         const torch::jit::Stack& stack);

}  // namespace remint
