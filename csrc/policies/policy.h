// A policy decides who is evicted next. It is a neighbourhood and a score; policy_table.h has the list of all
// of them.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/candidates.h"
#include "engine/options.h"
#include "memory/arena.h"
#include "policies/foresight.h"
#include "policies/neighbourhood.h"

namespace remint {

// What a policy is made from.
struct PolicyContext {
  const EngineOptions& options;
  const EngineSettings& settings;
  Records& records;
  Candidates& candidates;
  Arena* arena;  // null: ideal memory
};

// What a policy wants done to free up space.
struct Choice {
  bool found = false;  // false: there is nothing to be done
  std::vector<StorageId> victims;
  // Blocks that stay between these addresses are moved together, if evicting alone is not enough. None (from
  // == to) of a policy that does not look at addresses.
  Bytes from = 0;
  Bytes to = 0;
  StorageId first_moved = kNone;  // the lowest of them

  void clear() {
    victims.clear();
    found = false;
    from = to = 0;
    first_moved = kNone;
  }
  void take(StorageId victim) {
    found = victim != kNone;
    if (found) victims.push_back(victim);
  }
};

// How windows that were found without a look at all blocks compare with the cheapest ones.
struct WindowComparison {
  std::uint64_t num_windows = 0;
  std::uint64_t num_cheapest = 0;
  double ratios = 0.0;  // of the costs, summed up
  double worst = 1.0;

  void add(double found, double cheapest) {
    const double ratio = found <= cheapest ? 1.0 : found / cheapest;
    ++num_windows;
    if (found <= cheapest) ++num_cheapest;
    ratios += ratio;
    worst = std::max(worst, ratio);
  }
};

class Policy {
 public:
  Policy(const PolicyContext& context, NeighbourhoodKind kind)
      : records_(context.records),
        candidates_(context.candidates),
        arena_(context.arena),
        neighbourhood_(make_neighbourhood(kind, context.records)) {}
  virtual ~Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  // Says in `choice`, which is clear, what to do next for a request of `nbytes`. A policy that looks at
  // addresses frees up as much as the request needs, any other evicts one storage at a time.
  virtual void choose(Bytes nbytes, Nanoseconds now, Choice& choice) = 0;

  // Like `choose`, for one storage, when it does not matter where it stands.
  virtual void choose_anywhere(Nanoseconds now, Choice& choice) { choose(0, now, choice); }

  // When values are used again; null: nobody knows. Not owned.
  virtual void foresee(const Foresight*) {}
  // Whether it is known that neither the storage nor anything that is made from it is needed again.
  virtual bool is_useless(StorageId) { return false; }

  // The storage joined or left the candidates, was accessed, or changed its cost.
  virtual void touched(StorageId) {}

  Neighbourhood& neighbourhood() { return *neighbourhood_; }
  std::uint64_t num_scores() const { return num_scores_; }
  const WindowComparison& comparison() const { return comparison_; }

 protected:
  Records& records_;
  Candidates& candidates_;
  Arena* arena_;
  std::unique_ptr<Neighbourhood> neighbourhood_;
  std::uint64_t num_scores_ = 0;
  WindowComparison comparison_;
};

}  // namespace remint
