// What autograd is doing in this thread.
#pragma once

namespace remint {

// Whether autograd is about to make the result of this op the gradient of a leaf.
bool is_accumulating_gradient();
// Whether this op is part of a backward pass.
bool is_in_backward();

}  // namespace remint
