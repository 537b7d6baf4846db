// What ops are thought to cost: one estimate per signature (operator, sizes and types of its tensors),
// because a single measurement can be an outlier (page faults, lazy initialisation, another process).
#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/types.h"

namespace remint {

class CostEstimates {
 public:
  struct Estimate {
    Nanoseconds cost = 0;
    Bytes nbytes = 0;  // what it makes
    std::uint32_t count = 0;
  };

  // It stays where it is.
  Estimate& of(std::uint64_t signature) {
    std::unique_ptr<Estimate>& estimate = estimates_[signature];
    if (estimate == nullptr) estimate = std::make_unique<Estimate>();
    return *estimate;
  }

  // The first measurement of an op is its worst, mostly; later ones move the estimate a little, and down
  // faster than up, since nothing makes a kernel run faster than it can.
  static Nanoseconds update(Estimate& estimate, Nanoseconds measured) {
    if (estimate.count++ == 0) {
      estimate.cost = measured;
    } else if (measured < estimate.cost) {
      estimate.cost = (estimate.cost + measured) / 2;
    } else {
      const Nanoseconds more = measured - estimate.cost;
      estimate.cost += (more < estimate.cost ? more : estimate.cost) / 16;
    }
    return estimate.cost;
  }

 private:
  ska::flat_hash_map<std::uint64_t, std::unique_ptr<Estimate>> estimates_;
};

// Costs that the caller gives instead of the clock: for each op of the program in order, its cost and the
// bytes it makes.
class GivenCosts {
 public:
  struct Given {
    Nanoseconds cost;
    Bytes nbytes;  // -1: not known
  };
  void set(std::vector<Given> costs) {
    costs_ = std::move(costs);
    next_ = 0;
  }
  // That of the next op; null when there are no more.
  const Given* next() const { return next_ < costs_.size() ? &costs_[next_] : nullptr; }
  void advance() {
    if (next_ < costs_.size()) ++next_;
  }

 private:
  std::vector<Given> costs_;
  std::size_t next_ = 0;
};

inline std::uint64_t combine(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdULL;
}

}  // namespace remint
