// Policies: who goes next. A policy is a neighbourhood and a score; `make_policy` has the table of all of
// them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/candidates.h"
#include "memory/arena.h"
#include "policies/neighbourhood.h"

namespace remint {

struct PolicyOptions {
  double ignore_small = 0.0;  // candidates smaller than this fraction of the mean size are passed over
  bool sample = false;        // score sqrt(n) candidates drawn at random instead of all n
  std::uint64_t seed = 0;
};

// What a policy wants done to make room.
struct Choice {
  bool found = false;  // false: there is nothing to be done
  std::vector<StorageId> victims;
  // What stays between these addresses is moved together, if there is too little room without. None (from ==
  // to) of a policy that does not look for a place.
  Bytes from = 0;
  Bytes to = 0;

  void clear() {
    victims.clear();
    found = false;
    from = to = 0;
  }
  void take(StorageId victim) {
    found = victim != kNone;
    if (found) victims.push_back(victim);
  }
};

class Policy {
 public:
  Policy(Records& records, Pool& pool, Arena* arena, NeighbourhoodKind kind)
      : records_(records), pool_(pool), arena_(arena), neighbourhood_(make_neighbourhood(kind, records)) {}
  virtual ~Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  // Says in `choice`, which is clear, what to do next for a request of `nbytes`. A policy of the arena makes
  // as much room as the request needs, any other evicts one storage at a time.
  virtual void choose(Bytes nbytes, Nanoseconds now, Choice& choice) = 0;

  // Like `choose`, for one storage, when it does not matter where it stands.
  virtual void choose_anywhere(Nanoseconds now, Choice& choice) { choose(0, now, choice); }

  // The storage joined or left the pool, was accessed, or changed its cost.
  virtual void touched(StorageId) {}

  Neighbourhood& neighbourhood() { return *neighbourhood_; }
  std::uint64_t num_scores() const { return num_scores_; }

 protected:
  Records& records_;
  Pool& pool_;
  Arena* arena_;
  std::unique_ptr<Neighbourhood> neighbourhood_;
  std::uint64_t num_scores_ = 0;
};

// Names of the policies, those that need an arena last.
std::vector<std::string> policy_names();
bool policy_needs_arena(const std::string& name);

// `moving`: blocks of the arena may be moved to make room. Throws std::invalid_argument for an unknown name,
// or a policy of the arena without one.
std::unique_ptr<Policy> make_policy(const std::string& name, const PolicyOptions& options, Records& records,
                                    Pool& pool, Arena* arena, bool moving);

}  // namespace remint
