// What a user is told when something does not fit, or hardly does.
#pragma once

#include <string>

#include "base/errors.h"

namespace remint {

struct SessionState;

// Raises remint.BudgetError: what did not fit, what is in the way, and which budget would do. Notes the need
// in `state`.
[[noreturn]] void raise_shortage(SessionState& state, const OutOfMemory& error);

enum class Rounding { kNearest, kUp };

// In the unit that reads best. Rounded up, the text is a budget that holds `nbytes`.
std::string format_bytes(Bytes nbytes, Rounding rounding = Rounding::kNearest);

// Raises remint.BudgetError with this text. `min_budget`: no smaller budget can do; `known_budget`: this one
// does. 0 if that is not known. `op`: what ran when something did not fit; empty if that is not known.
[[noreturn]] void raise_budget_error(const std::string& message, Bytes min_budget, Bytes known_budget = 0,
                                     const std::string& op = "");

// A Python warning without the line of C++ that it came from, which says nothing to a user.
void warn_user(const std::string& message);

}  // namespace remint
