#include "engine/options.h"

#include "policies/policy_table.h"

namespace remint {

EngineSettings settings_for(const EngineOptions& options, bool arena) {
  constexpr std::uint32_t kMaxDepth = 10000;
  EngineSettings settings;
  settings.reference = !arena;
  settings.deallocation = options.deallocation;
  settings.max_rematerialized = options.max_rematerialized.value_or(settings.max_rematerialized);
  if (!arena) return settings;
  settings.partition = options.partition.value_or(policy_row(options.policy).partition);
  settings.moving = options.moving.value_or(true);
  settings.max_depth = options.max_depth.value_or(kMaxDepth);
  return settings;
}

}  // namespace remint
