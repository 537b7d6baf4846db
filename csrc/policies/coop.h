// Coop: see coop.cpp.
#pragma once

#include <memory>

#include "policies/policy.h"

namespace remint {

std::unique_ptr<Policy> make_coop_policy(const PolicyContext& context);

}  // namespace remint
