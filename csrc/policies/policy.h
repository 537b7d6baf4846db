// A policy decides who is evicted next. It is a neighbourhood and a score; policy_table.h has the list of all
// of them.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/candidates.h"
#include "engine/options.h"
#include "engine/tier.h"
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
  Arena* arena;      // null: ideal memory
  const Tier* tier;  // null: there is none
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
        tier_(context.tier),
        local_(kind == NeighbourhoodKind::kLocal),
        neighbourhood_(make_neighbourhood(kind_for_ways(kind, context), context.records, context.tier)) {}
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

  // Whether the bytes of a candidate can leave now: what no recipe makes needs room in the tier.
  bool can_leave(StorageId id) const {
    if (tier_ == nullptr) return true;
    const Storage& s = records_.storage(id);
    return !s.pinned || tier_->takes(s);
  }
  // Whether a policy may choose a candidate to make room.
  bool may_choose(StorageId id) const {
    return can_leave(id) && (tier_ == nullptr || tier_->pinned_leave() || !records_.storage(id).pinned);
  }
  // Whether the bytes of a candidate that leaves are back sooner from the tier than from its recipe.
  bool offloads(StorageId id);

  Neighbourhood& neighbourhood() { return *neighbourhood_; }
  std::uint64_t num_scores() const { return num_scores_; }
  const WindowComparison& comparison() const { return comparison_; }

 protected:
  // What it takes to have the bytes back once they left, in the cheaper way.
  Nanoseconds cost_of_return(StorageId id) {
    if (tier_ == nullptr) return neighbourhood_->cost(id);
    const Storage& s = records_.storage(id);
    if (offloads(id)) return tier_->cost(s);
    return local_ ? s.cost : neighbourhood_->cost(id);
  }

  Records& records_;
  Candidates& candidates_;
  Arena* arena_;
  const Tier* tier_;
  const bool local_;  // its scores count no neighbours
  std::unique_ptr<Neighbourhood> neighbourhood_;
  std::uint64_t num_scores_ = 0;
  WindowComparison comparison_;

 private:
  // Which way a value leaves depends on what is evicted around it, whatever the score counts.
  static NeighbourhoodKind kind_for_ways(NeighbourhoodKind kind, const PolicyContext& context) {
    const bool local = kind == NeighbourhoodKind::kLocal;
    return local && context.tier != nullptr ? NeighbourhoodKind::kNear : kind;
  }
};

}  // namespace remint
