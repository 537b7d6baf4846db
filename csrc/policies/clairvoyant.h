// The policy `clairvoyant`: it knows when each value is used again.
#pragma once

#include <memory>

#include "policies/policy.h"

namespace remint {

std::unique_ptr<Policy> make_clairvoyant_policy(const PolicyContext& context);

}  // namespace remint
