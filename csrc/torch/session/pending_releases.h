// Releases that other threads made and the session has not applied yet.
//
// A deleter never waits for the session's lock, since it may hold the GIL that the owner of the lock waits
// for. What it cannot do at once it leaves here, until the next op or until memory runs out.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <cstddef>
#include <functional>
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

  // A collective was given this storage. The threads of a process group drop their references a moment after
  // the collective is complete, which can be later than the program drops its own.
  void note_collective(c10::StorageImpl* storage);
  // Whether there is something to apply, or ended() is true. If a storage of a collective is still alive,
  // waits up to a second for that. Call these two under the session's lock.
  bool wait(const std::function<bool()>& ended);

  // Around a fork: no thread is in the middle of `add`.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  // Forgets storages that are gone.
  void sweep();

  std::mutex mutex_;
  std::atomic<bool> any_{false};
  Taken pending_;
  // Only storages that are alive, and that nobody waited for in vain: the program itself has those.
  ska::flat_hash_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> in_collectives_;
  std::size_t next_sweep_ = 64;
};

}  // namespace remint
