#include "torch/dispatch/autograd.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace remint {

bool is_accumulating_gradient() {
  const auto node = torch::autograd::get_current_node();
  return dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get()) != nullptr;
}

bool is_in_backward() {
  return torch::autograd::get_current_node() != nullptr;
}

bool is_below_autograd() {
  // In inference mode, everything is.
  if (c10::InferenceMode::is_enabled()) return false;
  return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradCPU);
}

}  // namespace remint
