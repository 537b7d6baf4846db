#include "torch/session/pending_releases.h"

#include <utility>

namespace remint {

void PendingReleases::add_death(OwnedStorage* owned) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_.deaths.push_back(owned);
  any_ = true;
}

void PendingReleases::add_free(void* address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_.frees.push_back(address);
  any_ = true;
}

PendingReleases::Taken PendingReleases::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  any_ = false;
  return std::exchange(pending_, {});
}

}  // namespace remint
