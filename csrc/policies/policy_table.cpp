#include "policies/policy_table.h"

#include <stdexcept>

#include "policies/clairvoyant.h"
#include "policies/coop.h"
#include "policies/score_policies.h"

namespace remint {
namespace {

using Made = std::unique_ptr<Policy>;
using Context = const PolicyContext&;
using Kind = NeighbourhoodKind;

// DTR's policies (2021, section 4 and appendix D); `coop` (2023), and `dte`, the arena's variant of `dtr-eq`
// from Coop's comparison; `clairvoyant`, which knows the rest of the step. A score's formula is: numerator,
// by size, by staleness, adjacent free bytes.
constexpr PolicyRow kTable[] = {
    // name, needs an arena, partition
    {"dtr", false, false,
     [](Context c) -> Made { return make_score_policy({Numerator::kCost, true, true}, Kind::kClosures, c); }},
    {"dtr-eq", false, false,
     [](Context c) -> Made { return make_score_policy({Numerator::kCost, true, true}, Kind::kClasses, c); }},
    {"dtr-local", false, false,
     [](Context c) -> Made { return make_score_policy({Numerator::kCost, true, true}, Kind::kLocal, c); }},
    {"lru", false, false,
     [](Context c) -> Made { return make_score_policy({Numerator::kLast, false, false}, Kind::kLocal, c); }},
    {"size", false, false,
     [](Context c) -> Made { return make_score_policy({Numerator::kOne, true, false}, Kind::kLocal, c); }},
    {"msps", false, false,
     [](Context c) -> Made {
       return make_score_policy({Numerator::kCost, true, false}, Kind::kAncestors, c);
     }},
    {"e-star", false, false,
     [](Context c) -> Made {
       return make_score_policy({Numerator::kCost, true, false}, Kind::kClosures, c);
     }},
    {"random", false, false, [](Context c) -> Made { return make_random_policy(c); }},
    {"clairvoyant", false, false, [](Context c) -> Made { return make_clairvoyant_policy(c); }},
    {"coop", true, true, [](Context c) -> Made { return make_coop_policy(c); }},
    {"dte", true, false,
     [](Context c) -> Made {
       return make_score_policy({Numerator::kCost, true, true, true}, Kind::kClasses, c);
     }},
};

}  // namespace

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const PolicyRow& row : kTable) names.push_back(row.name);
  return names;
}

const PolicyRow& policy_row(const std::string& name) {
  std::string known;
  for (const PolicyRow& row : kTable) {
    if (name == row.name) return row;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  throw std::invalid_argument("there is no policy '" + name + "'; the policies are " + known);
}

bool policy_needs_arena(const std::string& name) {
  return policy_row(name).needs_arena;
}

std::unique_ptr<Policy> make_policy(const PolicyContext& context) {
  const PolicyRow& row = policy_row(context.options.policy);
  if (row.needs_arena && context.arena == nullptr) {
    throw std::invalid_argument(
        "policy '" + context.options.policy +
        "' chooses by address and needs memory='arena'; memory='ideal' has no addresses");
  }
  return row.make(context);
}

}  // namespace remint
