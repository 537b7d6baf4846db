// What a user is told when something does not fit.
#pragma once

#include <string>

#include "base/errors.h"

namespace remint {

struct SessionState;

// Raises remint.BudgetError: what did not fit, what is in the way, and which budget would do. Notes the need
// in `state`.
[[noreturn]] void raise_shortage(SessionState& state, const OutOfMemory& error);

// In MiB.
std::string format_bytes(Bytes nbytes);

// Raises remint.BudgetError with this text. `min_budget`: no smaller budget can do; 0 if that is not known.
[[noreturn]] void raise_budget_error(const std::string& message, Bytes min_budget);

}  // namespace remint
