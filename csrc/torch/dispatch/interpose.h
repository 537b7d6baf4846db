// Takes over the device's memory and operator calls.
#pragma once

#include "torch/backends/backend.h"

namespace remint {

// Once per process; after that it only looks for operators that were registered since.
void install(Backend& backend);

}  // namespace remint
