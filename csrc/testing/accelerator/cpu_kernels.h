// Runs operators on a stream, by their CPU kernels.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace remint::testing {

// The kernel of all operators that have none of their own for the test devices.
void run_cpu_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

}  // namespace remint::testing
