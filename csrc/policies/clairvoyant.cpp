// What is never used again goes first. Of the rest, the one goes whose return costs least per byte and per
// time that the bytes are free:
//
//   cost to rematerialize, with its evicted ancestors / (size * time until it is needed ^
//   EngineOptions::time_exponent)
//
// An evicted value that is used later needs its ancestors then. So a value is needed when it is used, or when
// one of its evicted descendants is.
//
// Evicted ancestors that are needed for something else as well are made again anyway. Where the states of a
// loop are all computed from one large tensor, counting it in full for each of them evicts anything else
// first; counting it for none of them evicts what cannot be made again in the space that is left. Which is
// better differs from step to step: see SharedAncestors.
//
// As time passes scores only rise, because what is needed comes closer. So an index keeps the score that each
// candidate had when it was last looked at, or when something happened to it: no score is lower than that,
// and only the lowest of them are computed again.
#include "policies/clairvoyant.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

namespace remint {
namespace {

class Clairvoyant final : public Policy {
 public:
  explicit Clairvoyant(const PolicyContext& context)
      : Policy(context, NeighbourhoodKind::kNear),
        time_exponent_(context.options.time_exponent),
        shared_(context.options.shared_ancestors),
        all_(context.options.windows == WindowLooks::kAll) {}

  void foresee(const Foresight* foresight) override {
    foresight_ = foresight;
    indexed_ = false;
  }

  void touched(StorageId id) override {
    if (indexed_) changes_.add(id);
  }

  bool is_useless(StorageId id) override { return foresight_ != nullptr && !is_needed(id); }

  void choose(Bytes, Nanoseconds now, Choice& choice) override {
    if (foresight_ == nullptr || all_) {
      choice.take(lowest_of_all(now));
      return;
    }
    update(now);
    while (!entries_.empty()) {
      const StorageId id = entries_.begin()->id;
      if (!can_leave(id)) {
        // The tier has no room for it now; it is looked at again the next time.
        erase(id);
        changes_.add(id);
        continue;
      }
      // It is the lowest if it still is with its score of now.
      insert(id, score(id, now));
      if (entries_.begin()->id != id) continue;
      choice.take(id);
      if (shared_ != SharedAncestors::kNone) note_shared(id);
      return;
    }
  }

 private:
  struct Entry {
    double score;
    std::uint64_t order;  // where scores are equal, the oldest candidate goes
    StorageId id;
    bool operator<(const Entry& other) const {
      return std::tie(score, order, id) < std::tie(other.score, other.order, other.id);
    }
  };

  // Without foresight the past stands for the future: scores fall as time passes.
  StorageId lowest_of_all(Nanoseconds now) {
    Entry lowest{0.0, 0, kNone};
    for (StorageId id : candidates_.ids()) {
      if (!can_leave(id)) continue;
      const Entry entry{score(id, now), records_.storage(id).order, id};
      if (lowest.id == kNone || entry < lowest) lowest = entry;
    }
    return lowest.id;
  }

  void update(Nanoseconds now) {
    if (!indexed_) {
      entries_.clear();
      listed_.clear();
      for (StorageId id : candidates_.ids()) changes_.add(id);
      neighbourhood_->note_changes_in(&changes_);
      indexed_ = true;
    }
    listed_.resize(records_.num_storage_slots(), entries_.end());
    for (StorageId id : changes_.ids()) {
      if (records_.storage(id).in_use() && candidates_.contains(id)) {
        insert(id, score(id, now));
      } else {
        erase(id);
      }
    }
    changes_.clear();
  }

  void insert(StorageId id, double score) {
    erase(id);
    listed_[id] = entries_.insert({score, records_.storage(id).order, id}).first;
  }
  void erase(StorageId id) {
    if (listed_[id] == entries_.end()) return;
    entries_.erase(listed_[id]);
    listed_[id] = entries_.end();
  }

  double score(StorageId id, Nanoseconds now) {
    ++num_scores_;
    const Storage& s = records_.storage(id);
    const double nbytes = static_cast<double>(std::max<Bytes>(s.nbytes, 1));
    Nanoseconds wait = now - s.last;
    if (foresight_ != nullptr) {
      const Foresight::Position needed = next_need(id);
      // Of what is never needed, the largest goes first.
      if (needed == Foresight::kNever) return -nbytes;
      wait = foresight_->until(needed);
    }
    const double time = std::pow(static_cast<double>(std::max<Nanoseconds>(wait, 1)), time_exponent_);
    return static_cast<double>(std::max(cost(id), took_to_return(id))) / (nbytes * time);
  }

  Nanoseconds took_to_return(StorageId id) const {
    if (foresight_ == nullptr || tier_ != nullptr) return 0;
    return foresight_->took_to_return(records_.value(records_.storage(id).values[0]).tag);
  }

  Nanoseconds cost(StorageId id) {
    if (shared_ == SharedAncestors::kNone || foresight_ == nullptr || tier_ != nullptr)
      return cost_of_return(id);
    const Foresight::Position needed = next_need(id);
    Nanoseconds sum = records_.storage(id).cost;
    for_evicted_ancestors(id, [&](StorageId ancestor) {
      const Foresight::Position otherwise = next_need(ancestor);
      if (otherwise != Foresight::kNever && (shared_ == SharedAncestors::kAll || otherwise >= needed))
        return false;
      sum += records_.storage(ancestor).cost;
      return true;
    });
    return sum;
  }

  // `id` is about to be evicted. So its evicted ancestors are needed, and what else is computed from them
  // costs less.
  void note_shared(StorageId id) {
    for_evicted_ancestors(id, [&](StorageId ancestor) {
      for_evicted_descendants(ancestor, kMostVisited, [&](StorageId at) {
        records_.for_children(at, [&](StorageId child) {
          if (candidates_.contains(child)) changes_.add(child);
        });
        return true;
      });
      return true;
    });
  }

  // Visits the evicted ancestors, the nearest first; `visit` says whether to go on from there.
  template <typename Visit>
  void for_evicted_ancestors(StorageId id, Visit&& visit) {
    above_seen_.resize(std::max(above_seen_.size(), records_.num_storage_slots()), 0);
    ++above_mark_;
    above_seen_[id] = above_mark_;
    above_.assign(1, id);
    for (std::size_t i = 0; i < above_.size() && i < kMostAncestors; ++i) {
      if (i > 0 && !visit(above_[i])) continue;
      records_.for_parents(above_[i], [&](StorageId parent) {
        if (above_seen_[parent] == above_mark_ || records_.storage(parent).is_kept()) return;
        above_seen_[parent] = above_mark_;
        above_.push_back(parent);
      });
    }
  }

  Foresight::Position next_use(StorageId id) const {
    Foresight::Position next = Foresight::kNever;
    for (ValueId value : records_.storage(id).values) {
      next = std::min(next, foresight_->next_use(records_.value(value).tag));
    }
    return next;
  }

  // When the storage, or an evicted one that is made from it, is used.
  Foresight::Position next_need(StorageId id) {
    Foresight::Position next = Foresight::kNever;
    const bool complete = for_evicted_descendants(id, kMostVisited, [&](StorageId at) {
      next = std::min(next, next_use(at));
      return true;
    });
    // Those that were not looked at may be used at any time.
    return complete || next != Foresight::kNever ? next : foresight_->now();
  }

  bool is_needed(StorageId id) {
    return !for_evicted_descendants(id, kMostChecked,
                                    [&](StorageId at) { return next_use(at) == Foresight::kNever; });
  }

  // Visits the storage, and the evicted ones that are made from it. False if not all were visited: `visit`
  // said so, or they are too many.
  template <typename Visit>
  bool for_evicted_descendants(StorageId id, std::size_t most, Visit&& visit) {
    seen_.resize(std::max(seen_.size(), records_.num_storage_slots()), 0);
    ++mark_;
    seen_[id] = mark_;
    stack_.assign(1, id);
    for (std::size_t visited = 0; !stack_.empty(); ++visited) {
      const StorageId at = stack_.back();
      stack_.pop_back();
      if (visited == most || !visit(at)) return false;
      records_.for_children(at, [&](StorageId child) {
        if (seen_[child] == mark_ || records_.storage(child).is_kept()) return;
        seen_[child] = mark_;
        stack_.push_back(child);
      });
    }
    return true;
  }

  // Evicted storages that are looked at: more would not change much, and take long in long chains.
  static constexpr std::size_t kMostVisited = 200;
  // A gradient that passed through a loop has the whole loop above it. To count a part of that is to evict
  // it.
  static constexpr std::size_t kMostAncestors = 2000;
  // To evict what is needed after all is worse.
  static constexpr std::size_t kMostChecked = 4096;

  const double time_exponent_;
  const SharedAncestors shared_;
  const bool all_;
  const Foresight* foresight_ = nullptr;
  std::vector<std::uint64_t> seen_;
  std::uint64_t mark_ = 0;
  std::vector<StorageId> stack_;
  std::vector<std::uint64_t> above_seen_;
  std::uint64_t above_mark_ = 0;
  std::vector<StorageId> above_;
  bool indexed_ = false;
  ChangeList changes_;
  std::set<Entry> entries_;
  std::vector<std::set<Entry>::iterator> listed_;  // by storage
};

}  // namespace

std::unique_ptr<Policy> make_clairvoyant_policy(const PolicyContext& context) {
  return std::make_unique<Clairvoyant>(context);
}

}  // namespace remint
