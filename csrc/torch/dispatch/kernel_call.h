// How an operator call goes on: to the kernels below the interposed key, or to a kernel whose place remint
// took.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace remint {

struct KernelCall {
  const c10::OperatorHandle& op;
  c10::DispatchKeySet keys;
  const c10::SafeKernelFunction* kernel = nullptr;
  void operator()(torch::jit::Stack* stack) const {
    if (kernel == nullptr) {
      op.redispatchBoxed(keys, stack);
    } else {
      kernel->callBoxed(op, keys, stack);
    }
  }
};

}  // namespace remint
