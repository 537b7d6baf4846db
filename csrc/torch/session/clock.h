// Real time.
#pragma once

#include <chrono>

#include "base/types.h"

namespace remint {

using Clock = std::chrono::steady_clock;

inline Nanoseconds since(Clock::time_point started) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - started).count();
}

}  // namespace remint
