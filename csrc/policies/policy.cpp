#include "policies/policy.h"

namespace remint {

// Values that are evicted next to each other share what it takes to bring them back: half of what is around
// this one counts. Of the parts from none to all that were tried on the networks of remint.generators, a half
// had the least time, and cost least where recomputing alone would have been quicker.
bool Policy::offloads(StorageId id) {
  const Storage& s = records_.storage(id);
  if (tier_ == nullptr || !tier_->takes(s)) return false;
  if (s.pinned) return true;
  if (s.references == 0 || s.nbytes == 0 || tier_->use() == TierUse::kRecompute) return false;
  if (tier_->use() == TierUse::kOffload) return true;
  return tier_->cost(s) < s.cost + (neighbourhood_->cost(id) - s.cost) / 2;
}

}  // namespace remint
