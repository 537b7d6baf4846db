#pragma once

#include <memory>

#include "policies/policy.h"

namespace remint {

std::unique_ptr<Policy> make_coop_policy(Records& records, Pool& pool, Arena* arena, bool moving);

}  // namespace remint
