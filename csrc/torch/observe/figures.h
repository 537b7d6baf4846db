// The figures of a session: what `run` shows while a budget is open, and after it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/statistics.h"

namespace remint {

struct SessionState;

struct Figures {
  Statistics statistics;
  std::uint64_t num_scores = 0;
  std::uint64_t num_storages = 0;
  Bytes budget = 0;
  Bytes peak = 0;
  Bytes used = 0;
  Bytes pinned = 0;
  Bytes needed = 0;
  Bytes spilled = 0;
  Bytes outside = 0;
  Bytes tier_used = 0;
  Bytes tier_peak = 0;
  double tier_bandwidth = 0.0;
  Nanoseconds transferred = 0;  // by the clock
  Nanoseconds bookkeeping = 0;
  Nanoseconds collectives = 0;
};

// The session must be open.
Figures figures_of(const SessionState& state);

// Why bytes are pinned now, and how many, the most first.
std::vector<std::pair<std::string, Bytes>> pinned_by(const SessionState& state);

}  // namespace remint
