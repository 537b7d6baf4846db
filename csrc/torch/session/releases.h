// What comes back to a session while it may be busy: memory that the program or another thread gave up, and
// collectives that ended. It is applied at once, or when the session comes to it.
#pragma once

#include <vector>

#include "torch/dispatch/works.h"
#include "torch/session/owned_storages.h"
#include "torch/session/pending_releases.h"
#include "torch/session/state.h"

namespace remint {

// A collective, and the locks that it has until it ends.
struct CollectiveInFlight {
  Works works;
  std::vector<ValueId> locks;
};

// Only `pending` may be used without the session's lock.
class Releases {
 public:
  explicit Releases(SessionState& state) : state_(state) {}

  PendingReleases& pending() { return pending_; }

  // Frees what `Session::allocate` gave and nobody adopted.
  void free(void* address);
  // The last tensor on a storage is gone. Not while the session is busy.
  void died(OwnedStorage* owned);
  // Its locks go when it has ended.
  void add(CollectiveInFlight collective) { in_flight_.push_back(std::move(collective)); }

  // Applies what other threads released. Not while the session is busy.
  void apply();
  // Memory ran out: applies what other threads released, or are just about to. True: it is worth another try.
  bool apply_late();
  // The session closes, and all its storages have ended.
  void end();

 private:
  void end_collectives();

  SessionState& state_;
  PendingReleases pending_;
  std::vector<CollectiveInFlight> in_flight_;  // collectives that had not ended when we looked last
};

}  // namespace remint
