// overflow="spill": what does not fit is taken from ordinary memory.
#pragma once

#include <c10/core/Allocator.h>

#include "torch/session/state.h"

namespace remint {

// Ordinary memory for a request that does not fit. Warns once per session.
c10::DataPtr spill(SessionState& state, std::size_t nbytes);
// Moves resident storages to ordinary memory, pinned ones first, until `nbytes` are free. No kernel is
// running, and nothing may point to an OwnedStorage but to `kept`, which stays. False if there is nothing
// left to move.
bool spill_resident(SessionState& state, Bytes nbytes, const OwnedStorage* kept = nullptr);
// Moves one, which is resident or offloaded, to ordinary memory. False if that cannot be done.
bool move_out(SessionState& state, OwnedStorage* owned);

}  // namespace remint
