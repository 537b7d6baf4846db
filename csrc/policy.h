// Policies: who goes next. A policy is a neighbourhood and a score; `make_policy` has the table of all of
// them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "arena.h"
#include "neighbourhood.h"
#include "pool.h"

namespace remint {

struct PolicyOptions {
  double ignore_small = 0.0;  // candidates smaller than this fraction of the mean size are passed over
  bool sample = false;        // score sqrt(n) candidates drawn at random instead of all n
  std::uint64_t seed = 0;
};

class Policy {
 public:
  Policy(Records& records, Pool& pool, Arena* arena, NeighbourhoodKind kind)
      : records_(records), pool_(pool), arena_(arena), neighbourhood_(make_neighbourhood(kind, records)) {}
  virtual ~Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  // Appends to `victims`, which is empty, what to evict next for a request of `nbytes`; nothing if there is
  // no candidate. A policy of the arena evicts as much as the request needs, any other one storage at a time.
  virtual void choose(Bytes nbytes, Nanoseconds now, std::vector<StorageId>& victims) = 0;

  // Like `choose`, for one storage, when it does not matter where it stands.
  virtual void choose_anywhere(Nanoseconds now, std::vector<StorageId>& victims) { choose(0, now, victims); }

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

// Throws std::invalid_argument for an unknown name, or a policy of the arena without one.
std::unique_ptr<Policy> make_policy(const std::string& name, const PolicyOptions& options, Records& records,
                                    Pool& pool, Arena* arena);

}  // namespace remint
