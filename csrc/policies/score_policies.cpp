#include "policies/score_policies.h"

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "base/ratio.h"

namespace remint {
namespace {

// The lowest key is evicted. Among equals it is the newest candidate, but among zeros the oldest one, because
// DTR's reference scans in order, takes the last minimum, and stops at the first zero.
struct Key {
  double score = std::numeric_limits<double>::infinity();
  std::int64_t tie = std::numeric_limits<std::int64_t>::max();

  Key() = default;
  Key(double score, std::uint64_t order)
      : score(score),
        tie(score == 0 ? static_cast<std::int64_t>(order) : -static_cast<std::int64_t>(order)) {}
  bool operator<(const Key& other) const {
    return score != other.score ? score < other.score : tie < other.tie;
  }
};

class ScorePolicy : public Policy {
 public:
  ScorePolicy(const ScoreFormula& formula, NeighbourhoodKind kind, const PolicyContext& context)
      : Policy(context, kind),
        formula_(formula),
        ignore_small_(context.options.ignore_small),
        sample_(context.options.sample) {}

 protected:
  struct Fraction {
    std::int64_t numerator = 1;
    std::uint64_t size = 1;
    std::uint64_t staleness = 1;
    double rounded() const { return exact_ratio(numerator, Wide{size} * staleness); }
    // Within a few units in the last place of `rounded`, and much quicker.
    double rough() const {
      const double denominator = static_cast<double>(size) * static_cast<double>(staleness);
      return denominator == 0 ? std::numeric_limits<double>::infinity()
                              : static_cast<double>(numerator) / denominator;
    }
    bool zero() const { return numerator == 0 && size != 0 && staleness != 0; }
  };

  Fraction score(StorageId id, Nanoseconds now) {
    ++num_scores_;
    const Storage& s = records_.storage(id);
    Fraction fraction;
    if (formula_.numerator == Numerator::kCost) fraction.numerator = cost_of_return(id);
    if (formula_.numerator == Numerator::kLast) fraction.numerator = s.last;
    if (formula_.by_size) {
      fraction.size = static_cast<std::uint64_t>(s.nbytes);
      if (formula_.count_adjacent_free) {
        fraction.size += static_cast<std::uint64_t>(arena_->adjacent_free(s.block));
      }
    }
    if (formula_.by_staleness) fraction.staleness = static_cast<std::uint64_t>(now - s.last);
    return fraction;
  }

  double smallest_considered() const { return ignore_small_ * candidates_.mean_bytes(); }

  const ScoreFormula formula_;
  const double ignore_small_;
  const bool sample_;
};

// Scores depend on the time: every choice looks at every candidate (or a sample of them).
class Scan final : public ScorePolicy {
 public:
  Scan(const ScoreFormula& formula, NeighbourhoodKind kind, const PolicyContext& context)
      : ScorePolicy(formula, kind, context), random_(context.options.seed) {}

  void choose(Bytes, Nanoseconds now, Choice& choice) override {
    StorageId victim = sample_ ? scan(draw(), now) : scan(candidates_.ids(), now);
    if (victim == kNone && !candidates_.empty()) victim = scan(candidates_.ids(), now);
    choice.take(victim);
  }

 private:
  StorageId scan(const std::vector<StorageId>& ids, Nanoseconds now) {
    const double smallest = smallest_considered();
    StorageId victim = scan(ids, now, smallest, std::numeric_limits<std::uint64_t>::max());
    if (victim == kNone && smallest > 0) {
      victim = scan(ids, now, 0.0, std::numeric_limits<std::uint64_t>::max());
    }
    return victim;
  }

  // The best candidate of at least `smallest` bytes among those that joined no later than `latest`.
  StorageId scan(const std::vector<StorageId>& ids, Nanoseconds now, double smallest, std::uint64_t latest) {
    StorageId best = kNone;
    Key best_key;
    double limit = std::numeric_limits<double>::infinity();
    std::uint64_t first_zero = std::numeric_limits<std::uint64_t>::max();
    for (StorageId id : ids) {
      const Storage& s = records_.storage(id);
      if (static_cast<double>(s.nbytes) < smallest || s.order > latest || !may_choose(id)) continue;
      const Fraction fraction = score(id, now);
      if (fraction.zero()) first_zero = std::min(first_zero, s.order);
      // Only what may be the lowest is rounded exactly.
      if (fraction.rough() > limit) continue;
      const Key key(fraction.rounded(), s.order);
      if (best != kNone && !(key < best_key)) continue;
      best = id;
      best_key = key;
      limit = key.score + std::abs(key.score) * 1e-14;
    }
    // Sums of classes can fall below zero. A scan in order would have stopped at the first zero, before a
    // negative score.
    if (best != kNone && best_key.score < 0 && records_.storage(best).order > first_zero) {
      return scan(ids, now, smallest, first_zero);
    }
    return best;
  }

  const std::vector<StorageId>& draw() {
    const std::vector<StorageId>& ids = candidates_.ids();
    drawn_.resize(static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(ids.size())))));
    for (StorageId& id : drawn_) id = ids[random_() % ids.size()];
    return drawn_;
  }

  std::mt19937_64 random_;
  std::vector<StorageId> drawn_;
};

// Scores do not depend on the time: candidates stay in an index, and only those that changed are scored
// again.
class Index final : public ScorePolicy {
 public:
  using ScorePolicy::ScorePolicy;

  void touched(StorageId id) override {
    if (built_) changes_.add(id);
  }

  void choose(Bytes, Nanoseconds now, Choice& choice) override {
    if (!built_) {
      // Nothing is kept up to date before the first time there is pressure.
      for (StorageId id : candidates_.ids()) changes_.add(id);
      neighbourhood_->note_changes_in(&changes_);
      built_ = true;
    }
    update(now);
    const double smallest = smallest_considered();
    StorageId lowest = kNone;
    for (const auto& [key, id] : entries_) {
      if (!may_choose(id)) continue;
      if (lowest == kNone) lowest = id;
      if (static_cast<double>(records_.storage(id).nbytes) < smallest) continue;
      choice.take(id);
      return;
    }
    choice.take(lowest);
  }

 private:
  void update(Nanoseconds now) {
    keys_.resize(records_.num_storage_slots());
    for (StorageId id : changes_.ids()) {
      if (keys_[id].listed) entries_.erase({keys_[id].key, id});
      keys_[id].listed = records_.storage(id).in_use() && candidates_.contains(id);
      if (!keys_[id].listed) continue;
      keys_[id].key = Key(score(id, now).rounded(), records_.storage(id).order);
      entries_.insert({keys_[id].key, id});
    }
    changes_.clear();
  }

  struct Entry {
    Key key;
    bool listed = false;
  };
  bool built_ = false;
  ChangeList changes_;
  std::vector<Entry> keys_;
  std::set<std::pair<Key, StorageId>> entries_;
};

class Random final : public Policy {
 public:
  explicit Random(const PolicyContext& context)
      : Policy(context, NeighbourhoodKind::kLocal), random_(context.options.seed) {}

  void choose(Bytes, Nanoseconds, Choice& choice) override {
    if (candidates_.empty()) return;
    ++num_scores_;
    const std::vector<StorageId>& ids = candidates_.ids();
    const std::size_t drawn = random_() % ids.size();
    for (std::size_t i = 0; i < ids.size() && !choice.found; ++i) {
      const StorageId id = ids[(drawn + i) % ids.size()];
      if (may_choose(id)) choice.take(id);
    }
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace

std::unique_ptr<Policy> make_score_policy(const ScoreFormula& formula, NeighbourhoodKind kind,
                                          const PolicyContext& context) {
  // Free bytes beside a block change without notice, so such scores are never kept; nor are those of a
  // sample.
  if (formula.by_staleness || formula.count_adjacent_free || context.options.sample) {
    return std::make_unique<Scan>(formula, kind, context);
  }
  return std::make_unique<Index>(formula, kind, context);
}

std::unique_ptr<Policy> make_random_policy(const PolicyContext& context) {
  return std::make_unique<Random>(context);
}

}  // namespace remint
