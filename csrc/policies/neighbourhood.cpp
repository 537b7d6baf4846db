#include "policies/neighbourhood.h"

#include <algorithm>
#include <array>
#include <limits>

namespace remint {
namespace {

// Closures, walked once and cached until something in them changes.
//
// Outputs of an op that still waits for its inputs are pending: not resident, though they were never evicted.
// DTR's reference counts them as descendants of a storage only once it has walked that storage's closure
// anew, which it does when something in it is materialized, not when something in it is evicted. We keep that
// apart (`sees_pending`). So do we with an evicted storage that costs more since a view of it was asked for:
// the closures it is in already count the old cost until they are walked anew (`outdated_`).
//
// Walks can be limited to the nearest storages. The gradients of a long chain are one closure, which every op
// changes: to walk all of it each time takes longer than the ops. So a change is not carried far: it is small
// beside what the closures there cost already.
class Closures final : public Neighbourhood {
 public:
  // How many storages a walk passes through.
  struct Limits {
    std::size_t sum;          // to add up a closure
    std::size_t change;       // to find the closures that a change is part of, at least:
    Nanoseconds per_storage;  // one more for so much time that the changed storage takes to make
  };
  static constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  static constexpr Limits kNoLimits = {kMost, kMost, 0};
  // The more an op takes, the more time there is to look at what it changes: less than a hundredth.
  static constexpr Limits kNear = {4096, 128, 2500};

  Closures(const Records& records, const Tier* tier, bool descendants, const Limits& limits)
      : Neighbourhood(records, tier), descendants_(descendants), limits_(limits) {}

  void added(StorageId id) override {
    if (paused_) return;
    reserve(id);
    cache_[id] = Cached{};
    cache_[id].pending = true;
    if (pending_.empty()) ++generation_;
    pending_.push_back(id);
    pending_cost_ += records_.storage(id).cost;
  }

  void costs_more(StorageId id, Nanoseconds more) override {
    if (paused_) return;
    reserve(id);
    Outdated outdated{id, more, {}, {}};
    reach<kDown>(id, [&](StorageId next, bool resident) {
      if (!resident) return true;
      cache_[next].up = false;
      outdated.above_of.push_back(next);
      return false;
    });
    if (descendants_) {
      reach<kUp>(id, [&](StorageId next, bool resident) {
        if (!resident) return true;
        cache_[next].down = false;
        outdated.below_of.push_back(next);
        return false;
      });
    }
    outdated_.push_back(std::move(outdated));
  }

  void evicted(StorageId id) override {
    if (paused_) return;
    reserve(id);
    const bool sees_pending = this->sees_pending(id);
    invalidate_around(id, [&](Cached& above) {
      if (sees_pending) above.sees_pending = generation_;
    });
  }

  void materialized(StorageId id) override {
    if (paused_) return;
    reserve(id);
    if (cache_[id].pending) {
      cache_[id].pending = false;
      pending_.erase(std::find(pending_.begin(), pending_.end(), id));
      pending_cost_ -= records_.storage(id).cost;
    }
    if (descendants_) {
      look_for_pending(id);
    } else {
      invalidate_around(id, [](Cached&) {});
    }
    if (!outdated_.empty()) bring_up_to_date(id);
  }

  void offloaded(StorageId id) override { dropping(id); }
  void fetched(StorageId id) override { dropping(id); }

  void dropping(StorageId id) override {
    if (paused_) return;
    reserve(id);
    invalidate_around(id, [](Cached&) {});
  }

  // DTR's reference is followed to the letter, and an index has to hear of every change.
  void pause() override { paused_ = paused_ || (!descendants_ && !notes_changes()); }

  Nanoseconds cost(StorageId id) override {
    if (paused_) start_anew();
    reserve(id);
    Cached& cached = cache_[id];
    if (!cached.up) cached.ancestors = walk<kUp>(id);
    cached.up = true;
    if (!descendants_) return records_.storage(id).cost + cached.ancestors - not_yet_counted(id);
    if (!cached.down) cached.descendants = walk<kDown>(id);
    cached.down = true;
    return records_.storage(id).cost + cached.ancestors + cached.descendants - not_yet_counted(id) +
           (sees_pending(id) ? pending_cost_ : 0);
  }

 private:
  enum Direction { kUp, kDown };
  struct Cached {
    Nanoseconds ancestors = 0;
    Nanoseconds descendants = 0;  // without those that are pending
    bool up = false;
    bool down = false;
    bool pending = false;
    // Of an evicted storage: a change was carried on from it, and nothing was added up through it since. So
    // there is no need to carry another one.
    bool carried = false;
    std::uint64_t sees_pending = 0;   // the generation of pending storages that it sees
    std::uint64_t above_pending = 0;  // the last time it was found to be above one
  };
  // An evicted storage that costs more than the closures of these resident storages count.
  struct Outdated {
    StorageId id;
    Nanoseconds more;
    std::vector<StorageId> above_of;  // in whose closure of ancestors it is
    std::vector<StorageId> below_of;
  };

  void start_anew() {
    paused_ = false;
    std::fill(cache_.begin(), cache_.end(), Cached{});
    outdated_.clear();
    pending_.clear();
    pending_cost_ = 0;
  }

  void reserve(StorageId id) {
    if (id >= cache_.size()) {
      cache_.resize(records_.num_storage_slots());
      visited_.resize(records_.num_storage_slots(), 0);
    }
  }

  std::size_t most_to_change(StorageId id) const {
    if (limits_.change == kMost) return kMost;
    return limits_.change + static_cast<std::size_t>(records_.storage(id).cost / limits_.per_storage);
  }

  // `id` was materialized: it, and what is above it, sees what is pending now.
  void look_for_pending(StorageId id) {
    ++generation_above_;
    for (StorageId pending : pending_) {
      reach<kUp>(pending, [&](StorageId next, bool resident) {
        if (resident) cache_[next].above_pending = generation_above_;
        return !resident;
      });
    }
    auto look_again = [&](Cached& cached) {
      cached.sees_pending = cached.above_pending == generation_above_ ? generation_ : 0;
    };
    look_again(cache_[id]);
    invalidate_around(id, look_again);
  }

  Nanoseconds not_yet_counted(StorageId id) const {
    Nanoseconds sum = 0;
    for (const Outdated& outdated : outdated_) {
      for (const std::vector<StorageId>* of : {&outdated.above_of, &outdated.below_of}) {
        if (std::find(of->begin(), of->end(), id) != of->end()) sum += outdated.more;
      }
    }
    return sum;
  }

  // `id` was materialized: its closures, and those it was in, are walked anew.
  void bring_up_to_date(StorageId id) {
    auto forget = [](std::vector<StorageId>& ids, StorageId gone) {
      ids.erase(std::remove(ids.begin(), ids.end(), gone), ids.end());
    };
    outdated_.erase(std::remove_if(outdated_.begin(), outdated_.end(),
                                   [&](const Outdated& outdated) { return outdated.id == id; }),
                    outdated_.end());
    for (Outdated& outdated : outdated_) {
      forget(outdated.above_of, id);
      forget(outdated.below_of, id);
      reach<kDown>(id, [&](StorageId next, bool) {
        forget(outdated.above_of, next);
        return true;
      });
      reach<kUp>(id, [&](StorageId next, bool) {
        forget(outdated.below_of, next);
        return true;
      });
    }
  }

  bool sees_pending(StorageId id) const {
    return !pending_.empty() && cache_[id].sees_pending == generation_;
  }

  template <Direction direction, typename Visit>
  void for_next(StorageId id, Visit&& visit) const {
    if constexpr (direction == kUp) {
      records_.for_parents(id, visit);
    } else {
      records_.for_children(id, visit);
    }
  }

  // Visits every storage that is reached from `id` through non-resident ones, the nearest first, up to the
  // limit: visit(storage, resident) says whether to go on from there.
  template <Direction direction, typename Visit>
  void reach(StorageId id, Visit&& visit) {
    reach<direction>(id, most_to_change(id), visit);
  }
  template <Direction direction, typename Visit>
  void reach(StorageId id, std::size_t most, Visit&& visit) {
    const std::uint64_t mark = ++marks_;
    visited_[id] = mark;
    queue_.assign(1, id);
    for (std::size_t i = 0; i < queue_.size() && i < most; ++i) {
      for_next<direction>(queue_[i], [&](StorageId next) {
        reserve(next);
        if (visited_[next] == mark) return;
        visited_[next] = mark;
        const bool resident = records_.storage(next).is_kept();
        if (visit(next, resident) && !resident) queue_.push_back(next);
      });
    }
  }

  template <Direction direction>
  Nanoseconds walk(StorageId id) {
    Nanoseconds sum = 0;
    reach<direction>(id, limits_.sum, [&](StorageId next, bool resident) {
      const Storage& s = records_.storage(next);
      if (!resident && !cache_[next].pending) sum += s.cost;
      // A closure ends at what the tier has; to fetch that takes time, too.
      if (direction == kUp && s.residency == Residency::kOffloaded) sum += tier_->transfer_time(s.nbytes);
      cache_[next].carried = false;
      return !resident;
    });
    return sum;
  }

  // `id` enters or leaves the closures of the resident storages around it; `above` is called for those above
  // it.
  template <typename Above>
  void invalidate_around(StorageId id, Above&& above) {
    cache_[id].up = cache_[id].down = false;
    changed(id);
    // Nobody reads what an op has just made, so there is nothing to walk.
    if (!descendants_ && records_.storage(id).readers == 0) {
      cache_[id].carried = true;
      return;
    }
    reach<kDown>(id, [&](StorageId next, bool resident) {
      if (!resident) return descendants_ || !cache_[next].carried;
      cache_[next].up = false;
      changed(next);
      return false;
    });
    if (!descendants_) {
      const std::size_t passed = std::min(queue_.size(), most_to_change(id));
      for (std::size_t i = 0; i < passed; ++i) cache_[queue_[i]].carried = true;
      return;
    }
    reach<kUp>(id, [&](StorageId next, bool resident) {
      if (!resident) return true;
      cache_[next].down = false;
      above(cache_[next]);
      changed(next);
      return false;
    });
  }

  const bool descendants_;
  const Limits limits_;
  bool paused_ = false;
  std::vector<Cached> cache_;
  std::vector<std::uint64_t> visited_;
  std::uint64_t marks_ = 0;
  std::vector<StorageId> queue_;
  std::vector<Outdated> outdated_;
  std::vector<StorageId> pending_;
  Nanoseconds pending_cost_ = 0;
  std::uint64_t generation_ = 0;
  std::uint64_t generation_above_ = 0;
};

// Equivalence classes of non-resident storages. Classes never split: a storage that is made again takes its
// cost out of the class but leaves the others together, as in DTR's union-find. Members are relabelled on
// union, the smaller class into the larger, so finding a class is one look-up and nothing outlives its
// members.
class Classes final : public Neighbourhood {
 public:
  using Neighbourhood::Neighbourhood;

  // A storage that was never evicted is a class of its own with sum 0 until its first bytes arrive.
  void added(StorageId id) override { join_new_class(id, 0); }

  void evicted(StorageId id) override {
    join_new_class(id, records_.storage(id).cost);
    for_neighbours(id, [&](StorageId next) {
      state_[next].known = false;
      if (!records_.storage(next).is_kept() && next != id) unite(state_[id].in, state_[next].in);
    });
  }

  void materialized(StorageId id) override {
    reserve(id);
    leave_class(id);
    for_neighbours(id, [&](StorageId next) { state_[next].known = false; });
  }

  void dropping(StorageId id) override {
    reserve(id);
    if (state_[id].in != kNone) leave_class(id);
    state_[id] = State{};
    for_neighbours(id, [&](StorageId next) { state_[next].known = false; });
  }

  Nanoseconds cost(StorageId id) override {
    reserve(id);
    State& state = state_[id];
    if (state.known && current(state)) return records_.storage(id).cost + state.sum;
    return records_.storage(id).cost + look_up(id);
  }

 private:
  static constexpr std::size_t kMany = 4;
  struct State {
    std::uint32_t in = kNone;  // the class of a non-resident storage
    std::uint32_t place = 0;   // among the members of that class
    // Of a resident storage: the sum of the distinct classes around it, valid while none of them changed.
    bool known = false;
    std::uint8_t count = 0;
    Nanoseconds sum = 0;
    std::array<std::uint32_t, kMany> around{};
    std::array<std::uint32_t, kMany> versions{};
  };
  struct Class {
    Nanoseconds sum = 0;
    std::uint32_t version = 0;  // changes with the sum
    std::vector<StorageId> members;
  };

  void reserve(StorageId id) {
    if (id >= state_.size()) state_.resize(records_.num_storage_slots());
  }

  template <typename Visit>
  void for_neighbours(StorageId id, Visit&& visit) {
    auto checked = [&](StorageId next) {
      reserve(next);
      visit(next);
    };
    records_.for_parents(id, checked);
    records_.for_children(id, checked);
  }

  bool current(const State& state) const {
    for (std::size_t i = 0; i < state.count; ++i) {
      if (classes_[state.around[i]].version != state.versions[i]) return false;
    }
    return true;
  }

  Nanoseconds look_up(StorageId id) {
    distinct_.clear();
    for_neighbours(id, [&](StorageId next) {
      if (records_.storage(next).is_kept() || next == id) return;
      const std::uint32_t in = state_[next].in;
      if (std::find(distinct_.begin(), distinct_.end(), in) == distinct_.end()) distinct_.push_back(in);
    });
    State& state = state_[id];
    state.sum = 0;
    for (std::uint32_t in : distinct_) state.sum += classes_[in].sum;
    state.known = distinct_.size() <= kMany;
    if (state.known) {
      state.count = static_cast<std::uint8_t>(distinct_.size());
      for (std::size_t i = 0; i < distinct_.size(); ++i) {
        state.around[i] = distinct_[i];
        state.versions[i] = classes_[distinct_[i]].version;
      }
    }
    return state.sum;
  }

  void join_new_class(StorageId id, Nanoseconds sum) {
    reserve(id);
    std::uint32_t in;
    if (free_classes_.empty()) {
      in = static_cast<std::uint32_t>(classes_.size());
      classes_.emplace_back();
    } else {
      in = free_classes_.back();
      free_classes_.pop_back();
    }
    classes_[in].sum = sum;
    classes_[in].members.assign(1, id);
    ++classes_[in].version;
    state_[id] = State{};
    state_[id].in = in;
  }

  void leave_class(StorageId id) {
    State& state = state_[id];
    Class& from = classes_[state.in];
    from.sum -= records_.storage(id).cost;
    ++from.version;
    from.members[state.place] = from.members.back();
    state_[from.members[state.place]].place = state.place;
    from.members.pop_back();
    if (from.members.empty()) free_classes_.push_back(state.in);
    state.in = kNone;
  }

  void unite(std::uint32_t a, std::uint32_t b) {
    if (a == b) return;
    if (classes_[a].members.size() < classes_[b].members.size()) std::swap(a, b);
    for (StorageId id : classes_[b].members) {
      state_[id].in = a;
      state_[id].place = static_cast<std::uint32_t>(classes_[a].members.size());
      classes_[a].members.push_back(id);
    }
    classes_[a].sum += classes_[b].sum;
    ++classes_[a].version;
    classes_[b].members.clear();
    ++classes_[b].version;
    free_classes_.push_back(b);
  }

  std::vector<State> state_;
  std::vector<Class> classes_;
  std::vector<std::uint32_t> free_classes_;
  std::vector<std::uint32_t> distinct_;
};

}  // namespace

std::unique_ptr<Neighbourhood> make_neighbourhood(NeighbourhoodKind kind, const Records& records,
                                                  const Tier* tier) {
  switch (kind) {
    case NeighbourhoodKind::kAncestors:
      return std::make_unique<Closures>(records, tier, false, Closures::kNoLimits);
    case NeighbourhoodKind::kNear:
      return std::make_unique<Closures>(records, tier, false, Closures::kNear);
    case NeighbourhoodKind::kClosures:
      return std::make_unique<Closures>(records, tier, true, Closures::kNoLimits);
    case NeighbourhoodKind::kClasses:
      return std::make_unique<Classes>(records, tier);
    case NeighbourhoodKind::kLocal:
      break;
  }
  return std::make_unique<Neighbourhood>(records, tier);
}

}  // namespace remint
