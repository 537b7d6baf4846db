// What PyTorch asks of a device: streams, events, generators, pinned memory.
#pragma once

namespace remint::testing {

// Makes the test devices known to PyTorch, once.
void register_device();
// Gives every operator that has a CPU kernel one for the test devices, once.
void register_kernels();

}  // namespace remint::testing
