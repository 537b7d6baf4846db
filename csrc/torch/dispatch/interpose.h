// Takes over the device's memory and operator calls.
#pragma once

#include "torch/backends/backend.h"

namespace remint {

// Once per process; after that it only looks for operators that were registered since. Soft: the device's own
// allocator stays in its place.
void install(Backend& backend, bool soft);

}  // namespace remint
