// What happens to a session's tensors when its budget ends: they stay, resident and ordinary.
#pragma once

#include "torch/session/state.h"

namespace remint {

// Makes everything that the program has resident. Throws OutOfMemory if that does not fit.
void materialize_all(SessionState& state);
// Gives the program's tensors ordinary DataPtrs, on memory that survives the session.
void end_ownership(SessionState& state);

}  // namespace remint
