// What autograd is doing in this thread.
#pragma once

namespace remint {

// Whether autograd is about to make the result of this op the gradient of a leaf.
bool is_accumulating_gradient();
// Whether this op is part of a backward pass.
bool is_in_backward();
// Whether an op that went through autograd is running: its kernel, or Python code that the kernel called.
bool is_below_autograd();

}  // namespace remint
