#include "policies/policy.h"

#include <stdexcept>

#include "policies/coop.h"
#include "policies/score_policies.h"

namespace remint {
namespace {

struct ScoreRow {
  const char* name;
  NeighbourhoodKind neighbourhood;
  ScoreFormula formula;  // numerator, by size, by staleness, adjacent free bytes
};

// DTR's policies (2021, section 4 and appendix D), and `dte`, the arena's variant of `dtr-eq` from Coop's
// comparison.
constexpr ScoreRow kScoreTable[] = {
    {"dtr", NeighbourhoodKind::kClosures, {Numerator::kCost, true, true}},
    {"dtr-eq", NeighbourhoodKind::kClasses, {Numerator::kCost, true, true}},
    {"dtr-local", NeighbourhoodKind::kLocal, {Numerator::kCost, true, true}},
    {"lru", NeighbourhoodKind::kLocal, {Numerator::kLast, false, false}},
    {"size", NeighbourhoodKind::kLocal, {Numerator::kOne, true, false}},
    {"msps", NeighbourhoodKind::kAncestors, {Numerator::kCost, true, false}},
    {"e-star", NeighbourhoodKind::kClosures, {Numerator::kCost, true, false}},
    {"dte", NeighbourhoodKind::kClasses, {Numerator::kCost, true, true, true}},
};

}  // namespace

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const ScoreRow& row : kScoreTable) {
    if (!row.formula.count_adjacent_free) names.push_back(row.name);
  }
  names.insert(names.end(), {"random", "coop", "dte"});
  return names;
}

bool policy_needs_arena(const std::string& name) {
  return name == "coop" || name == "dte";
}

std::unique_ptr<Policy> make_policy(const std::string& name, const PolicyOptions& options, Records& records,
                                    Pool& pool, Arena* arena, bool moving) {
  if (policy_needs_arena(name) && arena == nullptr) {
    throw std::invalid_argument(
        "policy '" + name + "' chooses by address and needs memory='arena'; memory='ideal' has no addresses");
  }
  if (name == "coop") return make_coop_policy(records, pool, arena, moving);
  if (name == "random") return make_random_policy(options, records, pool);
  for (const ScoreRow& row : kScoreTable) {
    if (name == row.name) {
      return make_score_policy(row.formula, row.neighbourhood, options, records, pool, arena);
    }
  }
  std::string known;
  for (const std::string& policy : policy_names()) known += (known.empty() ? "" : ", ") + policy;
  throw std::invalid_argument("there is no policy '" + name + "'; the policies are " + known);
}

}  // namespace remint
