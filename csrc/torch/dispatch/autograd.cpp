#include "torch/dispatch/autograd.h"

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

}  // namespace remint
