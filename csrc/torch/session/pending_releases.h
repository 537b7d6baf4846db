// Releases that other threads made and the session has not applied yet.
//
// A deleter never waits for the session's lock, since it may hold the GIL that the owner of the lock waits
// for. What it cannot do at once it leaves here, until the next op or until memory runs out.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "torch/session/owned_storage.h"

namespace remint {

class PendingReleases {
 public:
  struct Taken {
    std::vector<OwnedStorage*> deaths;  // the last tensor on these storages is gone
    std::vector<void*> frees;           // raw memory
  };

  void add_death(OwnedStorage* owned);
  void add_free(void* address);
  bool any() const { return any_; }
  Taken take();

  // Around a fork: no thread is in the middle of `add`.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  std::atomic<bool> any_{false};
  Taken pending_;
};

}  // namespace remint
