// What is never used again goes first. Of the rest, the one goes whose return costs least per byte and per
// time that the bytes are free:
//
//   cost to rematerialize, with its evicted ancestors / (size * time until it is needed ^
//   EngineOptions::time_exponent)
//
// An evicted value that is used later needs its ancestors then. So a value is needed when it is used, or when
// one of its evicted descendants is.
#include "policies/clairvoyant.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace remint {
namespace {

class Clairvoyant final : public Policy {
 public:
  explicit Clairvoyant(const PolicyContext& context)
      : Policy(context, NeighbourhoodKind::kAncestors), time_exponent_(context.options.time_exponent) {}

  void foresee(const Foresight* foresight) override { foresight_ = foresight; }

  bool is_useless(StorageId id) override {
    return foresight_ != nullptr && next_need(id) == Foresight::kNever;
  }

  void choose(Bytes, Nanoseconds now, Choice& choice) override {
    StorageId best = kNone;
    double lowest = std::numeric_limits<double>::infinity();
    for (StorageId id : candidates_.ids()) {
      const double found = score(id, now);
      if (best != kNone && !(found < lowest)) continue;
      best = id;
      lowest = found;
    }
    choice.take(best);
  }

 private:
  double score(StorageId id, Nanoseconds now) {
    ++num_scores_;
    const Storage& s = records_.storage(id);
    const double nbytes = static_cast<double>(std::max<Bytes>(s.nbytes, 1));
    Nanoseconds wait = now - s.last;  // without foresight: the past stands for the future
    if (foresight_ != nullptr) {
      const Foresight::Position needed = next_need(id);
      // Of what is never needed, the largest goes first.
      if (needed == Foresight::kNever) return -nbytes;
      wait = foresight_->until(needed);
    }
    const double time = std::pow(static_cast<double>(std::max<Nanoseconds>(wait, 1)), time_exponent_);
    return static_cast<double>(neighbourhood_->cost(id)) / (nbytes * time);
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
    Foresight::Position next = next_use(id);
    seen_.resize(std::max(seen_.size(), records_.num_storage_slots()), 0);
    ++mark_;
    seen_[id] = mark_;
    stack_.assign(1, id);
    for (std::size_t visited = 0; !stack_.empty() && visited < kMostVisited; ++visited) {
      const StorageId at = stack_.back();
      stack_.pop_back();
      records_.for_children(at, [&](StorageId child) {
        if (seen_[child] == mark_ || records_.storage(child).has_bytes()) return;
        seen_[child] = mark_;
        next = std::min(next, next_use(child));
        stack_.push_back(child);
      });
    }
    return next;
  }

  // Evicted descendants that are looked at: more would not change much, and take long in long chains.
  static constexpr std::size_t kMostVisited = 200;

  const double time_exponent_;
  const Foresight* foresight_ = nullptr;
  std::vector<std::uint64_t> seen_;
  std::uint64_t mark_ = 0;
  std::vector<StorageId> stack_;
};

}  // namespace

std::unique_ptr<Policy> make_clairvoyant_policy(const PolicyContext& context) {
  return std::make_unique<Clairvoyant>(context);
}

}  // namespace remint
