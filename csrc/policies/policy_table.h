// The one table of policies: everything that knows a policy by its name reads it. A new policy is a new row.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "policies/policy.h"

namespace remint {

struct PolicyRow {
  const char* name;
  bool needs_arena;  // it chooses by address
  bool partition;    // the default of EngineOptions::partition on the arena
  std::unique_ptr<Policy> (*make)(const PolicyContext& context);
};

// The row of a policy. Throws std::invalid_argument, with the names that exist, if there is none.
const PolicyRow& policy_row(const std::string& name);

// Names of the policies, those that need an arena last.
std::vector<std::string> policy_names();
bool policy_needs_arena(const std::string& name);

// Throws std::invalid_argument for an unknown name, or a policy that needs an arena without one.
std::unique_ptr<Policy> make_policy(const PolicyContext& context);

}  // namespace remint
