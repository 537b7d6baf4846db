// Policies that give every candidate a score and evict the one with the lowest.
#pragma once

#include <cstdint>
#include <memory>

#include "policies/policy.h"

namespace remint {

// score = numerator / (size^by_size * staleness^by_staleness). A denominator of 0 scores +inf.
enum class Numerator : std::uint8_t {
  kCost,  // of recomputing it, with its neighbourhood
  kOne,
  kLast,  // when it was last accessed
};

struct ScoreFormula {
  Numerator numerator;
  bool by_size;
  bool by_staleness;
  bool count_adjacent_free = false;  // free bytes beside it count as its size
};

std::unique_ptr<Policy> make_score_policy(const ScoreFormula& formula, NeighbourhoodKind kind,
                                          const PolicyContext& context);
std::unique_ptr<Policy> make_random_policy(const PolicyContext& context);

}  // namespace remint
